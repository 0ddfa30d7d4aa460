// Which sequences decode in a step: least recently served first, as far as their fixed rows go; the
// first that does not fit ends the choice, so nobody is skipped and nobody starves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace flashlane::scheduler {

struct DecodeTurn {
  uint64_t served = 0;  // number of the last decode step that included it
  int fixed_rows = 1;   // that can't be cut: the pending token, and forced ones
};

// Indices of the turns in the step; turns stand in order of admission, and so do the indices. At
// least one, and no more than `row_limit` rows unless the first alone has more.
std::vector<size_t> choose_decode_turns(std::span<const DecodeTurn> turns, int row_limit);

}  // namespace flashlane::scheduler
