// Arguments of a call, filter or test, and their binding to parameter names.
#pragma once

#include <initializer_list>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/template_value.h"

namespace flashlane::text {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string_view, Value>> named;
};

// One slot per name, in order; too many, unknown or doubled arguments are errors that name `what`.
Result<std::vector<std::optional<Value>>> bind_arguments(
    std::string_view what, const Arguments& arguments,
    std::initializer_list<std::string_view> names);

// Checked reads of a bound slot; an absent one (or none, where `absent` is given) is the default.
Result<Value> required(std::string_view what, std::string_view name,
                       const std::optional<Value>& slot);
Result<int64_t> integer_or(std::string_view what, std::string_view name,
                           const std::optional<Value>& slot, int64_t absent);
Result<Text> text_or(std::string_view what, std::string_view name, const std::optional<Value>& slot,
                     std::string_view absent);
bool true_or(const std::optional<Value>& slot, bool absent);

}  // namespace flashlane::text
