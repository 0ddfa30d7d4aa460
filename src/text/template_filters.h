// Filters: `value | name(arguments)`.
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/template_arguments.h"
#include "text/template_budget.h"

namespace flashlane::text {

bool is_filter(std::string_view name);
// `name` must be a filter.
Result<Value> apply_filter(std::string_view name, const Value& value, const Arguments& arguments,
                           Budget& budget);

using Filter = Result<Value> (*)(std::string_view name, const Value& value,
                                 const Arguments& arguments, Budget& budget);
// The filters that walk lists, in template_list_filters.cc; null if there is none of that name.
Filter find_list_filter(std::string_view name);

}  // namespace flashlane::text
