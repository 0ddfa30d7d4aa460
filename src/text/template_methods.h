// Methods of texts, dicts and loop: text.split(), dict.items() …
#pragma once

#include <string_view>

#include "base/result.h"
#include "text/template_arguments.h"
#include "text/template_budget.h"

namespace flashlane::text {

bool is_method(const Value& object, std::string_view name);
// `name` must be a method of the object, or "cycle" of a loop.
Value make_method(const Value& object, std::string_view name);
Result<Value> call_method(const Value& object, std::string_view name, const Arguments& arguments,
                          Budget& budget);

}  // namespace flashlane::text
