// Claims, costs and yardsticks for tests of the draft allocation: named tables, random cases, the
// rate of an allocation by its definition, and the best rate by trying all there are.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "scheduler/draft_allocation.h"

namespace flashlane::testing {

using scheduler::AllocationRule;
using scheduler::CostTable;
using scheduler::DraftAllocator;
using scheduler::DraftClaim;
using scheduler::MeasuredCost;
using scheduler::StepCosts;

using Counts = std::vector<int>;
using Chances = std::vector<std::vector<double>>;

inline CostTable flat(double ms) {
  return CostTable(std::vector<MeasuredCost>{{1, ms}, {16, ms}}, 16);
}

inline CostTable by_the_row(double ms) {
  return CostTable(std::vector<MeasuredCost>{{1, ms}}, 16);
}

inline CostTable golden_forward() {
  return CostTable(
      std::vector<MeasuredCost>{{1, 10.3}, {2, 12.1}, {4, 15.1}, {8, 21.0}, {16, 32.2}}, 16);
}

inline std::vector<DraftClaim> claims_of(const Chances& chances) {
  std::vector<DraftClaim> claims;
  for (const std::vector<double>& chain : chances) claims.push_back({.chances = chain});
  return claims;
}

inline Counts allocate(AllocationRule rule, const StepCosts& costs, double overhead_ms,
                       const Chances& chances, int row_limit = 16) {
  const DraftAllocator allocator({.rule = rule, .costs = costs, .row_limit = row_limit});
  return allocator.allocate(claims_of(chances), overhead_ms);
}

// Tokens per ms of an allocation, by the definition; head steps as they run: batched.
inline double rate_of(std::span<const DraftClaim> claims, const Counts& counts,
                      const StepCosts& costs, double overhead_ms, int first_priced_depth = 2) {
  double tokens = 0;
  int rows = 0;
  Counts chained;
  for (size_t i = 0; i < claims.size(); ++i) {
    rows += claims[i].fixed_rows + counts[i];
    tokens += claims[i].fixed_rows;
    for (int k = 0; k < counts[i]; ++k) tokens += claims[i].chances[static_cast<size_t>(k)];
    if (counts[i] > 0) tokens -= claims[i].toll;
    if (!claims[i].sunk) chained.push_back(counts[i]);
  }
  double ms = costs.forward.ms(rows) + overhead_ms;
  for (int depth = first_priced_depth; depth <= 16; ++depth) {
    const auto deep =
        std::count_if(chained.begin(), chained.end(), [&](int count) { return count >= depth; });
    if (deep == 0 || costs.head_step.empty()) continue;
    // First drafts come with a pass over about two kept rows of each.
    const int taken = static_cast<int>(depth == 1 ? std::min<std::ptrdiff_t>(2 * deep, 16) : deep);
    ms += costs.head_step.ms(taken);
  }
  return tokens / ms;
}

// The highest rate over all counts that fit.
inline double best_by_trying(std::span<const DraftClaim> claims, const StepCosts& costs,
                             double overhead_ms, int limit, int first_priced_depth = 2) {
  int room = limit;
  for (const DraftClaim& claim : claims) room -= claim.fixed_rows;
  Counts counts(claims.size(), 0);
  double best = rate_of(claims, counts, costs, overhead_ms, first_priced_depth);
  const std::function<void(size_t, int)> go = [&](size_t i, int left) {
    if (i == claims.size()) {
      best = std::max(best, rate_of(claims, counts, costs, overhead_ms, first_priced_depth));
      return;
    }
    const int most = std::min(left, static_cast<int>(claims[i].chances.size()));
    for (counts[i] = 0; counts[i] <= most; ++counts[i]) go(i + 1, left - counts[i]);
    counts[i] = 0;
  };
  go(0, room);
  return best;
}

// Random claims and costs; small enough for every possibility to be tried, or as large as it gets.
class Case {
 public:
  explicit Case(uint32_t seed, bool small) : random_(seed) {
    const int sequences = small ? roll(1, 4) : roll(1, 15);
    for (int i = 0; i < sequences; ++i) {
      std::vector<double>& chain = chances.emplace_back();
      double chance = 1;
      // Rates that repeat make ties; a rate per chain and a wobble make the common case.
      const double rate = roll(0, 4) == 0 ? 0.5 : 0.3 + 0.7 * uniform();
      for (int k = small ? roll(0, 6) : roll(0, 15); k > 0; --k) {
        chain.push_back(chance *= std::min(1.0, rate + (roll(0, 2) - 1) * 0.2 * uniform()));
      }
    }
    costs.forward = roll(0, 1) == 0 ? smooth() : stepped();
    const int kind = roll(0, 3);
    if (kind == 1) costs.head_step = by_the_row(2 * uniform());
    if (kind >= 2) costs.head_step = head_table();
    overhead_ms = roll(0, 2) == 0 ? 0 : 8 * uniform();
    row_limit = roll(0, 3) == 0 ? roll(1, 16) : 16;
    claims = claims_of(chances);
    for (DraftClaim& claim : claims) {
      if (roll(0, 4) == 0) claim.sunk = true;
      if (roll(0, 7) == 0) claim.fixed_rows = roll(1, 4);
    }
    limit = std::max(row_limit, sequences);
  }

  int roll(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  double uniform() { return std::uniform_real_distribution<double>(0, 1)(random_); }

  Chances chances = {};
  std::vector<DraftClaim> claims = {};
  StepCosts costs = {};
  double overhead_ms = 0;
  int row_limit = 16;
  int limit = 16;

 private:
  CostTable smooth() {
    const double base = 2 + 10 * uniform();
    const double slope = 2 * uniform();
    return CostTable(std::vector<MeasuredCost>{{1, base}, {16, base + 15 * slope}}, 64);
  }
  CostTable stepped() {
    std::vector<MeasuredCost> points;
    double ms = 2 + 10 * uniform();
    for (int rows = 1; rows <= 64; ++rows) {
      if (roll(0, 2) == 0) ms += 4 * uniform() - (roll(0, 4) == 0 ? 1 : 0);
      points.push_back({rows, std::max(0.5, ms)});
    }
    return CostTable(points, 64);
  }
  CostTable head_table() {
    std::vector<MeasuredCost> points;
    double ms = 2 * uniform();
    for (const int rows : {1, 2, 4, 8, 16}) points.push_back({rows, ms += 0.6 * uniform()});
    return CostTable(points, 16);
  }

  std::mt19937 random_;
};

inline void expect_fits(const Case& test, const Counts& counts) {
  ASSERT_EQ(counts.size(), test.claims.size());
  int fixed = 0;
  for (const DraftClaim& claim : test.claims) fixed += claim.fixed_rows;
  for (size_t i = 0; i < counts.size(); ++i) {
    EXPECT_GE(counts[i], 0);
    EXPECT_LE(counts[i], static_cast<int>(test.claims[i].chances.size()));
  }
  const int drafts = std::accumulate(counts.begin(), counts.end(), 0);
  EXPECT_TRUE(drafts == 0 || fixed + drafts <= test.limit);
}

}  // namespace flashlane::testing
