// Functions that every template may call, apart from raise_exception and namespace.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/template_arguments.h"
#include "text/template_budget.h"

namespace flashlane::text {

bool is_function(std::string_view name);
Result<Value> make_range(const Arguments& arguments, Budget& budget);
Result<Value> make_dict(const Arguments& arguments, Budget& budget);
// The local date and time, by a format of the C library.
Result<Value> format_now(const Arguments& arguments);

}  // namespace flashlane::text
