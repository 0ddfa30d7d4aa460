// The walks by chance, and what they share with the exact search (exact_allocation.cc).
#include "scheduler/draft_allocation.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "scheduler/exact_allocation.h"

namespace flashlane::scheduler {
namespace {

void check_claim(const DraftClaim& claim) {
  CHECK_GE(claim.fixed_rows, 1);
  CHECK(claim.toll == 0 || (claim.toll > 0 && !claim.sunk));
  double before = 1;
  for (const double chance : claim.chances) {
    CHECK_GE(chance, 0.0);
    CHECK_LE(chance, before);
    before = chance;
  }
}

// The claim whose next draft is likeliest to land, the first of equals; -1 when none is left.
int likeliest(std::span<const DraftClaim> claims, const std::vector<int>& counts) {
  int best = -1;
  double best_chance = -1;
  for (size_t i = 0; i < claims.size(); ++i) {
    const auto next = static_cast<size_t>(counts[i]);
    if (next >= claims[i].chances.size() || claims[i].chances[next] <= best_chance) continue;
    best = static_cast<int>(i);
    best_chance = claims[i].chances[next];
  }
  return best;
}

// Drafts in order of chance, as far as the limit allows; the prefix of that walk with the highest
// rate counts. It goes on past a prefix that is worse than the one before it, since a step in the
// cost table may pay off rows later.
std::vector<int> walk_by_chance(std::span<const DraftClaim> claims, const CostTable& forward,
                                double head_step_ms, double overhead_ms, int limit) {
  int rows = 0;
  for (const DraftClaim& claim : claims) rows += claim.fixed_rows;
  double expected = rows;
  int head_steps = 0;
  const auto rate = [&] {
    if (forward.empty()) return expected / (1 + overhead_ms);
    if (!forward.covers(rows)) return -1.0;
    return expected / (forward.ms(rows) + overhead_ms + head_step_ms * head_steps);
  };
  std::vector<int> counts(claims.size(), 0);
  std::vector<int> best = counts;
  double best_rate = rate();
  while (rows < limit) {
    const int chosen = likeliest(claims, counts);
    if (chosen < 0) break;
    const auto index = static_cast<size_t>(chosen);
    expected += claims[index].chances[static_cast<size_t>(counts[index])];
    ++rows;
    if (++counts[index] > 1 && !claims[index].sunk) ++head_steps;
    if (const double now = rate(); now > best_rate) {
      best_rate = now;
      best = counts;
    }
  }
  return best;
}

}  // namespace

DraftAllocator::DraftAllocator(AllocationOptions options) : options_(std::move(options)) {
  CHECK_GE(options_.row_limit, 1);
  CHECK_LE(options_.row_limit, kMostDecodeRows);
  CHECK(options_.first_priced_depth == 1 || options_.first_priced_depth == 2);
  // Without a price for rows there is nothing that a head step could be weighed against.
  if (options_.costs.forward.empty()) options_.costs.head_step = {};
  CHECK(options_.costs.head_step.empty() || options_.costs.head_step.covers(kMostDecodeRows));
  if (options_.rule == AllocationRule::kExact) {
    chain_ms_ = depth_set_prices(options_.costs.head_step, options_.first_priced_depth);
  }
}

std::vector<int> DraftAllocator::allocate(std::span<const DraftClaim> claims,
                                          double overhead_ms) const {
  return allocate(claims, options_.costs.forward, overhead_ms);
}

std::vector<int> DraftAllocator::allocate(std::span<const DraftClaim> claims,
                                          const CostTable& step) const {
  return allocate(claims, step, 0);
}

std::vector<int> DraftAllocator::allocate(std::span<const DraftClaim> claims,
                                          const CostTable& forward, double overhead_ms) const {
  CHECK_GE(overhead_ms, 0.0);
  for (const DraftClaim& claim : claims) check_claim(claim);
  const CostTable& head_step = options_.costs.head_step;
  const int limit = std::max(static_cast<int>(claims.size()), options_.row_limit);
  switch (options_.rule) {
    case AllocationRule::kExact:
      return exact_allocation(claims, forward, chain_ms_, overhead_ms, limit);
    case AllocationRule::kPricedGreedy: {
      const double head_step_ms = head_step.covers(1) ? head_step.ms(1) : 0;
      return walk_by_chance(claims, forward, head_step_ms, overhead_ms, limit);
    }
    case AllocationRule::kGreedy:
      return walk_by_chance(claims, forward, 0, overhead_ms, limit);
  }
  UNREACHABLE();
}

int draft_budget(int count, int most) {
  return std::min(most, std::max(1, count));
}

double head_step_ms(int depth, int sequences, const CostTable& head_step) {
  const int rows = depth == 1 ? std::min(2 * sequences, head_step.limit()) : sequences;
  return head_step.ms(rows);
}

double head_chain_ms(std::span<const int> depths, const CostTable& head_step, int first_depth) {
  if (head_step.empty()) return 0;
  double ms = 0;
  for (int depth = first_depth;; ++depth) {
    const auto drafting =
        std::count_if(depths.begin(), depths.end(), [&](int asked) { return asked >= depth; });
    if (drafting == 0) return ms;
    ms += head_step_ms(depth, static_cast<int>(drafting), head_step);
  }
}

}  // namespace flashlane::scheduler
