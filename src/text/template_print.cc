// One walk per notation; both stop at the limit before memory does.
#include "text/template_print.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace flashlane::text {
namespace {

constexpr int kMaxNesting = 200;

Status check_size(const TextBuilder& out, size_t limit) {
  if (out.size() <= limit) return {};
  return invalid("a printed value has more than {} bytes", limit);
}

void append_repr(const Text& text, TextBuilder& out) {
  const std::string_view view = text.view();
  const bool data = !text.data().empty();
  const bool double_quotes = view.find('\'') != view.npos && view.find('"') == view.npos;
  const char quote = double_quotes ? '"' : '\'';
  out.append({&quote, 1}, data);
  size_t plain = 0;
  for (size_t at = 0; at < view.size(); ++at) {
    const auto byte = static_cast<uint8_t>(view[at]);
    std::string escaped;
    if (byte == '\n')
      escaped = "\\n";
    else if (byte == '\r')
      escaped = "\\r";
    else if (byte == '\t')
      escaped = "\\t";
    else if (byte == '\\' || view[at] == quote)
      escaped = {'\\', view[at]};
    else if (byte < 0x20 || byte == 0x7F)
      escaped = fmt::format("\\x{:02x}", byte);
    else
      continue;
    out.append(text.slice(plain, at));
    out.append(escaped, data);
    plain = at + 1;
  }
  out.append(text.slice(plain, view.size()));
  out.append({&quote, 1}, data);
}

Status append_value(const Value& value, bool repr, int depth, size_t limit, TextBuilder& out) {
  if (depth > kMaxNesting) return invalid("a printed value nests too deeply");
  RETURN_IF_ERROR(check_size(out, limit));
  const bool data = value.from_data();
  if (value.is_undefined()) {
    if (repr) out.append("Undefined", false);
  } else if (value.is_none()) {
    out.append("None", data);
  } else if (value.is<bool>()) {
    out.append(value.get<bool>() ? "True" : "False", data);
  } else if (value.is_integer()) {
    out.append(print_integer(value.get<Integer>()), data);
  } else if (value.is<double>()) {
    out.append(print_real(value.get<double>()), data);
  } else if (value.is_text()) {
    if (repr)
      append_repr(value.as_text(), out);
    else
      out.append(value.as_text());
  } else if (value.is_list()) {
    const List& list = value.as_list();
    out.append(list.tuple ? "(" : "[", data);
    for (size_t i = 0; i < list.items.size(); ++i) {
      if (i > 0) out.append(", ", data);
      RETURN_IF_ERROR(append_value(list.items[i], true, depth + 1, limit, out));
    }
    if (list.tuple && list.items.size() == 1) out.append(",", data);
    out.append(list.tuple ? ")" : "]", data);
  } else if (value.is_dict()) {
    out.append("{", data);
    bool first = true;
    for (const auto& [key, item] : value.as_dict().entries()) {
      if (!first) out.append(", ", data);
      first = false;
      RETURN_IF_ERROR(append_value(key, true, depth + 1, limit, out));
      out.append(": ", data);
      RETURN_IF_ERROR(append_value(item, true, depth + 1, limit, out));
    }
    out.append("}", data);
  } else {
    return invalid("a value of type {} can't be printed", type_name(value));
  }
  return {};
}

void append_json_text(const Text& text, TextBuilder& out) {
  const std::string_view view = text.view();
  const bool data = !text.data().empty();
  out.append("\"", data);
  size_t plain = 0;
  for (size_t at = 0; at < view.size(); ++at) {
    const auto byte = static_cast<uint8_t>(view[at]);
    if (byte >= 0x20 && byte != '"' && byte != '\\') continue;
    std::string escaped;
    switch (byte) {
      case '"':
        escaped = "\\\"";
        break;
      case '\\':
        escaped = "\\\\";
        break;
      case '\n':
        escaped = "\\n";
        break;
      case '\r':
        escaped = "\\r";
        break;
      case '\t':
        escaped = "\\t";
        break;
      case '\b':
        escaped = "\\b";
        break;
      case '\f':
        escaped = "\\f";
        break;
      default:
        escaped = fmt::format("\\u{:04x}", byte);
    }
    out.append(text.slice(plain, at));
    out.append(escaped, data);
    plain = at + 1;
  }
  out.append(text.slice(plain, view.size()));
  out.append("\"", data);
}

class JsonPrinter {
 public:
  JsonPrinter(const JsonStyle& style, size_t limit) : style_(style), limit_(limit) {}

  Status append(const Value& value, int depth, TextBuilder& out) {
    if (depth > kMaxNesting) return invalid("tojson: the value nests too deeply");
    RETURN_IF_ERROR(check_size(out, limit_));
    if (value.is_text()) {
      append_json_text(value.as_text(), out);
      return {};
    }
    if (value.is_list()) return append_list(value, depth, out);
    if (value.is_dict()) return append_dict(value, depth, out);
    ASSIGN_OR_RETURN(const std::string scalar, print_scalar(value));
    out.append(scalar, value.from_data());
    return {};
  }

 private:
  static Result<std::string> print_scalar(const Value& value) {
    if (value.is_none()) return std::string("null");
    if (value.is<bool>()) return std::string(value.get<bool>() ? "true" : "false");
    if (value.is_integer()) return print_integer(value.get<Integer>());
    if (!value.is<double>()) {
      return invalid("tojson: a value of type {} is not JSON", type_name(value));
    }
    const double real = value.get<double>();
    if (std::isnan(real)) return std::string("NaN");
    if (std::isinf(real)) return std::string(real < 0 ? "-Infinity" : "Infinity");
    return print_real(real);
  }

  void new_line(int depth, bool data, TextBuilder& out) const {
    if (!style_.indent) return;
    std::string line(static_cast<size_t>(depth * *style_.indent) + 1, ' ');
    line[0] = '\n';
    out.append(line, data);
  }

  Status append_list(const Value& value, int depth, TextBuilder& out) {
    const bool data = value.from_data();
    const auto& items = value.as_list().items;
    out.append("[", data);
    for (size_t i = 0; i < items.size(); ++i) {
      if (i > 0) out.append(style_.item_separator, data);
      new_line(depth + 1, data, out);
      RETURN_IF_ERROR(append(items[i], depth + 1, out));
    }
    if (!items.empty()) new_line(depth, data, out);
    out.append("]", data);
    return {};
  }

  Status append_dict(const Value& value, int depth, TextBuilder& out) {
    const bool data = value.from_data();
    std::vector<const std::pair<Value, Value>*> entries;
    for (const auto& entry : value.as_dict().entries()) entries.push_back(&entry);
    if (style_.sort_keys) {
      for (const auto* entry : entries) {
        if (!entry->first.is_text()) return invalid("tojson: sort_keys needs keys that are texts");
      }
      std::stable_sort(entries.begin(), entries.end(), [](const auto* a, const auto* b) {
        return a->first.view() < b->first.view();
      });
    }
    out.append("{", data);
    for (size_t i = 0; i < entries.size(); ++i) {
      if (i > 0) out.append(style_.item_separator, data);
      new_line(depth + 1, data, out);
      const Value& key = entries[i]->first;
      if (key.is_text()) {
        append_json_text(key.as_text(), out);
      } else {
        ASSIGN_OR_RETURN(const std::string scalar, print_scalar(key));
        out.append(fmt::format("\"{}\"", scalar), key.from_data());
      }
      out.append(style_.key_separator, data);
      RETURN_IF_ERROR(append(entries[i]->second, depth + 1, out));
    }
    if (!entries.empty()) new_line(depth, data, out);
    out.append("}", data);
    return {};
  }

  const JsonStyle& style_;
  size_t limit_;
};

}  // namespace

std::string print_integer(Integer value) {
  return fmt::format("{}", value);
}

std::string print_real(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";  // n: nan, inf
  return text;
}

Result<Text> print(const Value& value, size_t limit) {
  if (value.is_text()) return value.as_text();
  TextBuilder out;
  RETURN_IF_ERROR(append_value(value, false, 0, limit, out));
  RETURN_IF_ERROR(check_size(out, limit));
  return out.take();
}

Result<Text> print_json(const Value& value, const JsonStyle& style, size_t limit) {
  TextBuilder out;
  RETURN_IF_ERROR(JsonPrinter(style, limit).append(value, 0, out));
  RETURN_IF_ERROR(check_size(out, limit));
  return out.take();
}

}  // namespace flashlane::text
