// Tests: `value is name(arguments)`.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/template_arguments.h"
#include "text/template_budget.h"

namespace flashlane::text {

bool is_test(std::string_view name);
// `name` must be a test.
Result<bool> apply_test(std::string_view name, const Value& value, const Arguments& arguments,
                        Budget& budget);

}  // namespace flashlane::text
