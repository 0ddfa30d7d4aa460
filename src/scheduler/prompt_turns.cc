#include "scheduler/prompt_turns.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "base/check.h"

namespace flashlane::scheduler {

std::vector<PromptShare> share_prompt_rows(std::span<const PromptTurn> turns, int rows,
                                           int most_segments) {
  CHECK(!turns.empty());
  CHECK(rows >= 1 && most_segments >= 1);
  std::vector<size_t> order(turns.size());
  std::iota(order.begin(), order.end(), size_t{0});
  // Of several overdue prompts the one that waited longest comes first, not the shortest.
  const auto key = [&](size_t i) {
    const bool overdue = turns[i].passed_over >= kMostPassedOver;
    return std::tuple(!overdue, overdue ? -turns[i].passed_over : turns[i].left, i);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  std::vector<PromptShare> shares;
  for (const size_t i : order) {
    if (rows == 0 || shares.size() == static_cast<size_t>(most_segments)) break;
    if (turns[i].alone && !shares.empty()) continue;
    const int most = turns[i].most > 0 ? turns[i].most : turns[i].left;
    const int taken = std::min({turns[i].left, most, rows});
    shares.push_back({.index = i, .rows = taken});
    rows -= taken;
    if (turns[i].alone) break;
  }
  return shares;
}

}  // namespace flashlane::scheduler
