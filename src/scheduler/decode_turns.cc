#include "scheduler/decode_turns.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace flashlane::scheduler {

std::vector<DecodeShare> share_decode_rows(std::span<const DecodeTurn> turns, int row_limit) {
  CHECK_GE(row_limit, 1);
  std::vector<size_t> order(turns.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return turns[a].served < turns[b].served; });
  if (order.size() > static_cast<size_t>(row_limit)) order.resize(static_cast<size_t>(row_limit));
  std::sort(order.begin(), order.end());
  std::vector<DecodeShare> shares;
  shares.reserve(order.size());
  for (const size_t i : order) shares.push_back({.index = i});
  int left = row_limit - static_cast<int>(shares.size());
  // One draft each in turn: a first draft stands more often than a deeper one.
  for (bool given = true; given && left > 0;) {
    given = false;
    for (DecodeShare& share : shares) {
      if (left == 0 || share.draft_rows == turns[share.index].drafts) continue;
      ++share.draft_rows;
      --left;
      given = true;
    }
  }
  return shares;
}

}  // namespace flashlane::scheduler
