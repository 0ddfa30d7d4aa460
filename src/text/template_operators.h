// Operators, attributes, items and slices on values, with Python's rules. Errors carry no line: the
// evaluator adds it.
#pragma once

#include <optional>
#include <string_view>

#include "base/result.h"
#include "text/template_budget.h"
#include "text/template_value.h"

namespace flashlane::text {

// + - * / // % **
Result<Value> arithmetic(std::string_view op, const Value& a, const Value& b, Budget& budget);
Result<Value> negate(const Value& value);
// == != < <= > >= in, not in
Result<bool> compare_with(std::string_view op, const Value& a, const Value& b, Budget& budget);

// object.name: a method or attribute first, then the key. object[key]: the key first.
Result<Value> attribute_of(const Value& object, std::string_view name);
Result<Value> item_of(const Value& object, const Value& key, Budget& budget);
// Absent bounds are values that are none.
Result<Value> slice_of(const Value& object, const Value& begin, const Value& end, const Value& step,
                       Budget& budget);
// What a for loop walks: items, keys of a dict, characters of a text; nothing for undefined.
Result<std::vector<Value>> items_of(const Value& value, Budget& budget);
Result<size_t> length_of(const Value& value, Budget& budget);
// The characters of a text, each with its origin.
Result<std::vector<Value>> characters_of(const Text& text, Budget& budget);

}  // namespace flashlane::text
