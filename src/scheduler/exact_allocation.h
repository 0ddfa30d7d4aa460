// The exact search behind DraftAllocator: the drafts per claim with the most expected tokens per
// millisecond among all that fit the row limit, with no assumption on the shape of either cost
// table. Microseconds: what is searched are sets of depths, at most 684 of them.
#pragma once

#include <span>
#include <vector>

#include "scheduler/cost_table.h"
#include "scheduler/draft_allocation.h"

namespace flashlane::scheduler {

// The head steps of every set of depths from `first_depth` on (1 or 2), in the search's own order:
// for one set of costs, worked out once.
std::vector<double> depth_set_prices(const CostTable& head_step, int first_depth);

// `chain_ms` is from depth_set_prices. Of equal rates the one met first in a fixed order is taken.
std::vector<int> exact_allocation(std::span<const DraftClaim> claims, const CostTable& forward,
                                  std::span<const double> chain_ms, double overhead_ms, int limit);

}  // namespace flashlane::scheduler
