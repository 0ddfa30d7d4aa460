// The list of sessions that an operator asks for beside the one of the full context (Z1): token
// counts between commas, each as often as its xN says, "65536,32768x3,16384x11". All of it is read
// and refused here, with checked arithmetic, before anything is made of it.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"

namespace flashlane::memory {

// Spare rows of a session: two rounds of sixteen.
inline constexpr int kSessionMargin = 32;

// Capacities in rows, in the order of the list: tokens + kSessionMargin each, at most `limit`.
// Refused: empty entries, anything but digits and one x, no tokens, no repeats, tokens that an int
// doesn't hold together with the margin, and more than `most` sessions; a repeat is compared with
// what is left of `most` before the list grows. An error names the entry, its text and the limit;
// whose list it is, the caller says. most ≥ 0, limit ≥ 1.
Result<std::vector<int>> parse_session_list(std::string_view text, int most, int limit);

}  // namespace flashlane::memory
