// Filters on single values; those on lists are in template_list_filters.cc.
#include "text/template_filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "text/template_operators.h"
#include "text/template_print.h"
#include "text/template_strings.h"
#include "text/utf8.h"

namespace flashlane::text {
namespace {

Result<Text> printed(const Value& value, Budget& budget) {
  ASSIGN_OR_RETURN(Text text, print(value, Budget::kMaxTextBytes));
  if (!value.is_text()) RETURN_IF_ERROR(budget.spend_bytes(text.size()));
  return text;
}

Result<Value> tojson(std::string_view name, const Value& value, const Arguments& arguments,
                     Budget& budget) {
  ASSIGN_OR_RETURN(
      const auto slots,
      bind_arguments(name, arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  JsonStyle style;
  // In the bare form tojson(4) the number is the indent, as in Jinja's own filter.
  const bool first_is_indent = slots[0] && slots[0]->is_integer();
  if (slots[0] && !first_is_indent && is_true(*slots[0])) {
    return error(ErrorCode::kUnsupported, "tojson: ensure_ascii is not supported");
  }
  const auto& indent = first_is_indent ? slots[0] : slots[1];
  if (indent && !indent->is_none()) {
    ASSIGN_OR_RETURN(const int64_t width, integer_or(name, "indent", indent, 0));
    if (width < 0 || width > 16) return invalid("tojson: indent {} is not within 0 to 16", width);
    style.indent = static_cast<int>(width);
    style.item_separator = ",";
  }
  if (slots[2] && !slots[2]->is_none()) {
    if (!slots[2]->is_list() || slots[2]->as_list().items.size() != 2 ||
        !slots[2]->as_list().items[0].is_text() || !slots[2]->as_list().items[1].is_text()) {
      return invalid("tojson: separators must be two texts");
    }
    style.item_separator = slots[2]->as_list().items[0].view();
    style.key_separator = slots[2]->as_list().items[1].view();
  }
  style.sort_keys = true_or(slots[3], false);
  ASSIGN_OR_RETURN(Text text, print_json(value, style, Budget::kMaxTextBytes));
  RETURN_IF_ERROR(budget.spend_bytes(text.size()));
  return Value::text(std::move(text));
}

Result<Value> trim(std::string_view name, const Value& value, const Arguments& arguments,
                   Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"chars"}));
  ASSIGN_OR_RETURN(const Text text, printed(value, budget));
  if (!slots[0] || slots[0]->is_none()) return Value::text(strip(text, nullptr, Side::kBoth));
  ASSIGN_OR_RETURN(const Text characters, text_or(name, "chars", slots[0], ""));
  const std::string_view view = characters.view();
  return Value::text(strip(text, &view, Side::kBoth));
}

template <Case kind>
Result<Value> case_filter(std::string_view name, const Value& value, const Arguments& arguments,
                          Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  ASSIGN_OR_RETURN(const Text text, printed(value, budget));
  ASSIGN_OR_RETURN(Text changed, change_case(text, kind, budget));
  return Value::text(std::move(changed));
}

Result<Value> string_filter(std::string_view name, const Value& value, const Arguments& arguments,
                            Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  ASSIGN_OR_RETURN(Text text, printed(value, budget));
  return Value::text(std::move(text));
}

Result<Value> safe(std::string_view name, const Value& value, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  return value;
}

Result<Value> replace_filter(std::string_view name, const Value& value, const Arguments& arguments,
                             Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"old", "new", "count"}));
  ASSIGN_OR_RETURN(const Value old_part, required(name, "old", slots[0]));
  ASSIGN_OR_RETURN(const Value new_part, required(name, "new", slots[1]));
  ASSIGN_OR_RETURN(const int64_t limit, integer_or(name, "count", slots[2], -1));
  ASSIGN_OR_RETURN(const Text text, printed(value, budget));
  ASSIGN_OR_RETURN(const Text old_text, printed(old_part, budget));
  ASSIGN_OR_RETURN(const Text new_text, printed(new_part, budget));
  ASSIGN_OR_RETURN(Text out, replace(text, old_text.view(), new_text, limit, budget));
  return Value::text(std::move(out));
}

Result<Value> default_filter(std::string_view name, const Value& value, const Arguments& arguments,
                             Budget&) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"default_value", "boolean"}));
  const bool replace_it = value.is_undefined() || (true_or(slots[1], false) && !is_true(value));
  return replace_it ? slots[0].value_or(Value::text(Text())) : value;
}

Result<Value> length_filter(std::string_view name, const Value& value, const Arguments& arguments,
                            Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  ASSIGN_OR_RETURN(const size_t length, length_of(value, budget));
  return Value::integer(static_cast<Integer>(length));
}

Result<Value> items_filter(std::string_view name, const Value& value, const Arguments& arguments,
                           Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  if (value.is_undefined()) return Value::list({});
  if (!value.is_dict()) return invalid("items needs a mapping, not {}", type_name(value));
  RETURN_IF_ERROR(budget.spend_items(value.as_dict().entries().size() * 3));
  std::vector<Value> items;
  for (const auto& [key, item] : value.as_dict().entries()) {
    items.push_back(Value::list({key, item}, true, value.from_data()));
  }
  return Value::list(std::move(items), false, value.from_data());
}

template <typename Number>
std::optional<Number> read_number(std::string_view text) {
  const size_t begin = skip_leading_space(text);
  text = text.substr(begin, std::max(begin, skip_trailing_space(text)) - begin);
  if (text.starts_with('+')) text.remove_prefix(1);
  Number number{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<Value> int_filter(std::string_view name, const Value& value, const Arguments& arguments,
                         Budget&) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"default", "base"}));
  if (slots[1]) return error(ErrorCode::kUnsupported, "int: base is not supported");
  const Value absent = slots[0].value_or(Value::integer(0));
  if (value.is_undefined()) return invalid("'{}' is undefined", value.get<Undefined>().name);
  if (value.is_whole()) return Value::integer(value.as_integer(), value.from_data());
  std::optional<double> real;
  if (value.is<double>()) real = value.get<double>();
  if (value.is_text()) {
    if (const auto whole = read_number<int64_t>(value.view())) {
      return Value::integer(*whole, !value.as_text().data().empty());
    }
    real = read_number<double>(value.view());
  }
  if (!real || !(std::fabs(*real) < 9e18)) return absent;
  return Value::integer(static_cast<int64_t>(*real), value.from_data());
}

Result<Value> float_filter(std::string_view name, const Value& value, const Arguments& arguments,
                           Budget&) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"default"}));
  if (value.is_undefined()) return invalid("'{}' is undefined", value.get<Undefined>().name);
  if (value.is_number()) return Value::real(value.as_real(), value.from_data());
  if (value.is_text()) {
    if (const auto real = read_number<double>(value.view())) return Value::real(*real);
  }
  return slots[0].value_or(Value::real(0));
}

Result<Value> abs_filter(std::string_view name, const Value& value, const Arguments& arguments,
                         Budget&) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  if (value.is<double>()) return Value::real(std::fabs(value.get<double>()), value.from_data());
  if (!value.is_whole()) return invalid("abs needs a number, not {}", type_name(value));
  return value.as_integer() < 0
             ? negate(value)
             : Result<Value>(Value::integer(value.as_integer(), value.from_data()));
}

Result<Value> indent_filter(std::string_view name, const Value& value, const Arguments& arguments,
                            Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"width", "first", "blank"}));
  std::string indent(4, ' ');
  if (slots[0] && slots[0]->is_text()) {
    indent = slots[0]->view();
  } else {
    ASSIGN_OR_RETURN(const int64_t width, integer_or(name, "width", slots[0], 4));
    if (width < 0 || width > 1000)
      return invalid("indent: width {} is not within 0 to 1000", width);
    indent.assign(static_cast<size_t>(width), ' ');
  }
  ASSIGN_OR_RETURN(const Text text, printed(value, budget));
  ASSIGN_OR_RETURN(const auto lines, split(text, "\n", -1, false, budget));
  TextBuilder out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.append("\n", false);
    const bool wanted =
        i == 0 ? true_or(slots[1], false) : true_or(slots[2], false) || !lines[i].as_text().empty();
    if (wanted) out.append(indent, false);
    out.append(lines[i].as_text());
    RETURN_IF_ERROR(budget.spend_bytes(lines[i].as_text().size() + indent.size() + 1));
    if (out.size() > Budget::kMaxTextBytes) return invalid("indent: the text becomes too long");
  }
  return Value::text(out.take());
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"tojson", tojson},
    {"trim", trim},
    {"upper", case_filter<Case::kUpper>},
    {"lower", case_filter<Case::kLower>},
    {"capitalize", case_filter<Case::kCapitalized>},
    {"title", case_filter<Case::kTitle>},
    {"string", string_filter},
    {"safe", safe},
    {"replace", replace_filter},
    {"default", default_filter},
    {"d", default_filter},
    {"length", length_filter},
    {"count", length_filter},
    {"items", items_filter},
    {"int", int_filter},
    {"float", float_filter},
    {"abs", abs_filter},
    {"indent", indent_filter},
};

Filter find_filter(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  return find_list_filter(name);
}

}  // namespace

bool is_filter(std::string_view name) {
  return find_filter(name) != nullptr;
}

Result<Value> apply_filter(std::string_view name, const Value& value, const Arguments& arguments,
                           Budget& budget) {
  const Filter filter = find_filter(name);
  CHECK(filter != nullptr);
  if (value.is_text()) RETURN_IF_ERROR(budget.spend_walk(value));
  RETURN_IF_ERROR(budget.spend_steps(1));
  return filter(name, value, arguments, budget);
}

}  // namespace flashlane::text
