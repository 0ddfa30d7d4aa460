// Numbers are printed by simdjson, so that they read back to the bit; the depth of what is printed
// is bounded by the parser that made it.
#include "format/json_writer.h"

#include <fmt/format.h>

#include <iterator>

namespace flashlane::format {

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20) {
      fmt::format_to(std::back_inserter(out), "\\u{:04x}", byte);
    } else {
      if (c == '"' || c == '\\') out += '\\';
      out += c;
    }
  }
  return out + "\"";
}

void append_line(int depth, std::string& out) {
  out += '\n';
  out.append(static_cast<size_t>(depth) * 2, ' ');
}

void append_json(simdjson::dom::element value, int depth, std::string& out) {
  using simdjson::dom::element_type;
  const element_type type = value.type();
  const bool is_object = type == element_type::OBJECT;
  if (!is_object && type != element_type::ARRAY) {
    out += simdjson::minify(value);
    return;
  }
  out += is_object ? '{' : '[';
  bool any = false;
  const auto begin_entry = [&] {
    if (any) out += ',';
    any = true;
    append_line(depth + 1, out);
  };
  if (is_object) {
    for (const auto& [key, entry] : simdjson::dom::object(value)) {
      begin_entry();
      out += json_quoted(key) + ": ";
      append_json(entry, depth + 1, out);
    }
  } else {
    for (const auto entry : simdjson::dom::array(value)) {
      begin_entry();
      append_json(entry, depth + 1, out);
    }
  }
  if (any) append_line(depth, out);
  out += is_object ? '}' : ']';
}

}  // namespace flashlane::format
