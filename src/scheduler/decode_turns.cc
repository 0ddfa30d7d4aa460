#include "scheduler/decode_turns.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace flashlane::scheduler {

std::vector<size_t> choose_decode_turns(std::span<const DecodeTurn> turns, int row_limit) {
  CHECK(!turns.empty());
  std::vector<size_t> order(turns.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return turns[a].served < turns[b].served; });
  size_t chosen = 1;
  int rows = turns[order.front()].fixed_rows;
  while (chosen < order.size() && rows + turns[order[chosen]].fixed_rows <= row_limit) {
    rows += turns[order[chosen++]].fixed_rows;
  }
  order.resize(chosen);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace flashlane::scheduler
