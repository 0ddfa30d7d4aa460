// Unicode normal form C, in time linear in the text (runs of combining marks are sorted, not
// bubbled). Text that is certainly normal already, such as ASCII, is not copied.
#pragma once

#include <string>
#include <string_view>

namespace flashlane::text {

// True only if `text` (valid UTF-8) is surely in form C; false means "maybe not".
bool is_surely_nfc(std::string_view text);
// A character that form C keeps and that never joins the one before it.
bool is_nfc_inert(char32_t code_point);
// `text` must be valid UTF-8.
std::string to_nfc(std::string_view text);

}  // namespace flashlane::text
