// Python's string functions on texts, each keeping the origin of every byte. Methods and filters
// share them.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/template_budget.h"
#include "text/template_text.h"
#include "text/template_value.h"

namespace flashlane::text {

enum class Side { kBoth, kLeft, kRight };
enum class Case { kUpper, kLower, kCapitalized, kTitle };

// Without `characters`: white space; else any of these characters.
Text strip(const Text& text, const std::string_view* characters, Side side);
// Splits at `separator` (not empty), at most `limit` times if that is not negative.
Result<std::vector<Value>> split(const Text& text, std::string_view separator, int64_t limit,
                                 bool from_right, Budget& budget);
// Splits at runs of white space; none at the ends.
Result<std::vector<Value>> split_at_space(const Text& text, int64_t limit, Budget& budget);
Result<std::vector<Value>> split_lines(const Text& text, Budget& budget);
Result<Text> replace(const Text& text, std::string_view old_part, const Text& new_part,
                     int64_t limit, Budget& budget);
Result<Text> change_case(const Text& text, Case kind, Budget& budget);
// The printed values with `separator` between them.
Result<Text> join(const std::vector<Value>& items, const Text& separator, Budget& budget);

}  // namespace flashlane::text
