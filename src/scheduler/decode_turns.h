// Which sequences decode in a step and how many draft rows each gets. Least recently served first,
// as far as the rows go, and nobody is skipped, so nobody starves; what rows are left go to drafts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace flashlane::scheduler {

struct DecodeTurn {
  uint64_t served = 0;  // number of the last decode step that included it
  int drafts = 0;       // drafts that could be verified
};

struct DecodeShare {
  size_t index = 0;    // of the turn
  int draft_rows = 0;  // of its drafts, from the first on
};

// Turns stand in order of admission, and so do the shares. Each share has one row and its drafts';
// all together at most `row_limit`.
std::vector<DecodeShare> share_decode_rows(std::span<const DecodeTurn> turns, int row_limit);

}  // namespace flashlane::scheduler
