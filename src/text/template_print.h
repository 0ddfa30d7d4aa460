// Values as text: what {{ }} prints (Python's str and repr) and what the filter tojson prints. The
// origin of every byte is kept: marks around data count as data.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "text/template_value.h"

namespace flashlane::text {

struct JsonStyle {
  std::optional<int> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
  bool sort_keys = false;
};

// Longer than `limit` bytes is an error.
Result<Text> print(const Value& value, size_t limit);
Result<Text> print_json(const Value& value, const JsonStyle& style, size_t limit);
std::string print_integer(Integer value);
// Python's repr of a float: the shortest digits that give it back, always with a mark of a float.
std::string print_real(double value);

}  // namespace flashlane::text
