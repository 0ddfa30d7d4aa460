// The exact rule against every possibility on small cases with smooth and stepped tables, and what
// it may never fall below on large ones.
#include "scheduler/exact_allocation.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/allocation_cases.h"

namespace flashlane::scheduler {
namespace {

using flashlane::testing::allocate;
using flashlane::testing::best_by_trying;
using flashlane::testing::by_the_row;
using flashlane::testing::Case;
using flashlane::testing::Counts;
using flashlane::testing::expect_fits;
using flashlane::testing::flat;
using flashlane::testing::rate_of;

TEST(ExactAllocation, IsTheBestOfAllPossibilities) {
  int drafted = 0;
  int sunk = 0;
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    const Case test(seed, true);
    // With first drafts that come for nothing, and with a price on them as well.
    const int priced = 2 - static_cast<int>(seed % 2);
    const DraftAllocator allocator(
        {.costs = test.costs, .first_priced_depth = priced, .row_limit = test.row_limit});
    const Counts counts = allocator.allocate(test.claims, test.overhead_ms);
    expect_fits(test, counts);
    const double best =
        best_by_trying(test.claims, test.costs, test.overhead_ms, test.limit, priced);
    const double found = rate_of(test.claims, counts, test.costs, test.overhead_ms, priced);
    EXPECT_NEAR(found, best, best * 1e-12) << "seed " << seed;
    for (size_t i = 0; i < counts.size(); ++i) {
      drafted += counts[i] > 0 ? 1 : 0;
      sunk += counts[i] > 0 && test.claims[i].sunk ? 1 : 0;
    }
  }
  EXPECT_GT(drafted, 1000);  // the cases are no empty ones
  EXPECT_GT(sunk, 200);
}

// A toll is paid once, by those that draft at all; first drafts may be worth less than it and the
// chain more.
TEST(ExactAllocation, IsTheBestOfAllPossibilitiesWithTolls) {
  int drafted = 0;
  int kept_out = 0;
  for (uint32_t seed = 5000; seed < 5500; ++seed) {
    Case test(seed, true);
    const DraftAllocator allocator(
        {.costs = test.costs, .first_priced_depth = 1, .row_limit = test.row_limit});
    const Counts free = allocator.allocate(test.claims, test.overhead_ms);
    for (DraftClaim& claim : test.claims) {
      if (!claim.sunk) claim.toll = test.roll(0, 2) == 0 ? 0 : 1.2 * test.uniform();
    }
    const Counts counts = allocator.allocate(test.claims, test.overhead_ms);
    expect_fits(test, counts);
    const double best = best_by_trying(test.claims, test.costs, test.overhead_ms, test.limit, 1);
    const double found = rate_of(test.claims, counts, test.costs, test.overhead_ms, 1);
    EXPECT_NEAR(found, best, best * 1e-12) << "seed " << seed;
    for (size_t i = 0; i < counts.size(); ++i) {
      drafted += counts[i] > 0 && test.claims[i].toll > 0 ? 1 : 0;
      kept_out += counts[i] == 0 && free[i] > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(drafted, 100);
  EXPECT_GT(kept_out, 100);
}

TEST(ExactAllocation, StepCostsStandForForwardAndOverhead) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const Case test(seed, false);
    std::vector<MeasuredCost> steps;
    for (int rows = 1; rows <= 16; ++rows) {
      steps.push_back({rows, test.costs.forward.ms(rows) + test.overhead_ms});
    }
    const DraftAllocator allocator({.costs = test.costs, .row_limit = test.row_limit});
    EXPECT_EQ(allocator.allocate(test.claims, CostTable(steps, 16)),
              allocator.allocate(test.claims, test.overhead_ms))
        << seed;
  }
}

TEST(ExactAllocation, SharesAHeadStepBetweenSequences) {
  // A second draft of chance 0.37 pays for 2 ms next to 1.8 tokens in 10 ms, one of 0.35 does not.
  // Three sequences pay three times as much for a step, unless it is one step over all of them.
  const StepCosts batched = {.forward = flat(10), .head_step = flat(2)};
  const StepCosts serial = {.forward = flat(10), .head_step = by_the_row(2)};
  const std::vector<double> good = {0.8, 0.37};
  const std::vector<double> poor = {0.8, 0.35};
  for (const StepCosts& costs : {batched, serial}) {
    EXPECT_EQ(allocate(AllocationRule::kExact, costs, 0, {good}), (Counts{2}));
    EXPECT_EQ(allocate(AllocationRule::kExact, costs, 0, {poor}), (Counts{1}));
  }
  EXPECT_EQ(allocate(AllocationRule::kExact, batched, 0, {good, good, good}), (Counts{2, 2, 2}));
  EXPECT_EQ(allocate(AllocationRule::kExact, batched, 0, {poor, poor, poor}), (Counts{1, 1, 1}));
  EXPECT_EQ(allocate(AllocationRule::kExact, serial, 0, {good, good, good}), (Counts{1, 1, 1}));
}

TEST(ExactAllocation, GoesDeepInOneSequenceWhereABroadStepIsDear) {
  // The second sequence's third draft is the least likely of all five, yet the only one whose head
  // step runs over one sequence: 5.39 tokens in 10.2 ms against 5.45 in 15.
  const CostTable head_step(std::vector<MeasuredCost>{{1, 0.1}, {2, 5.0}}, 16);
  const StepCosts costs = {.forward = flat(10), .head_step = head_step};
  EXPECT_EQ(allocate(AllocationRule::kExact, costs, 0, {{0.9, 0.85}, {0.9, 0.8, 0.79}}, 6),
            (Counts{1, 3}));
}

TEST(ExactAllocation, IsNeverBelowAUniformDepthNorAWalkNorNoDrafts) {
  for (uint32_t seed = 0; seed < 600; ++seed) {
    const Case test(seed + 5000, false);
    const DraftAllocator exact({.costs = test.costs, .row_limit = test.row_limit});
    const Counts counts = exact.allocate(test.claims, test.overhead_ms);
    expect_fits(test, counts);
    const double rate = rate_of(test.claims, counts, test.costs, test.overhead_ms);
    const auto expect_not_below = [&](const Counts& other) {
      const double theirs = rate_of(test.claims, other, test.costs, test.overhead_ms);
      EXPECT_GE(rate, theirs * (1 - 1e-12)) << "seed " << seed + 5000;
    };
    int fixed = 0;
    for (const DraftClaim& claim : test.claims) fixed += claim.fixed_rows;
    for (int depth = 0; depth <= 15; ++depth) {
      Counts uniform;
      int drafts = 0;
      for (const DraftClaim& claim : test.claims) {
        uniform.push_back(std::min(depth, static_cast<int>(claim.chances.size())));
        drafts += uniform.back();
      }
      if (drafts > 0 && fixed + drafts > test.limit) break;
      expect_not_below(uniform);
    }
    for (const AllocationRule rule : {AllocationRule::kGreedy, AllocationRule::kPricedGreedy}) {
      const DraftAllocator walk({.rule = rule, .costs = test.costs, .row_limit = test.row_limit});
      expect_not_below(walk.allocate(test.claims, test.overhead_ms));
    }
  }
}

TEST(ExactAllocation, OfSunkDraftsTheWalkIsTheOptimum) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Case test(seed + 9000, true);
    for (DraftClaim& claim : test.claims) claim.sunk = true;
    const DraftAllocator exact({.costs = test.costs, .row_limit = test.row_limit});
    const DraftAllocator walk(
        {.rule = AllocationRule::kPricedGreedy, .costs = test.costs, .row_limit = test.row_limit});
    const Counts counts = exact.allocate(test.claims, test.overhead_ms);
    const double best = best_by_trying(test.claims, test.costs, test.overhead_ms, test.limit);
    for (const Counts& result : {counts, walk.allocate(test.claims, test.overhead_ms)}) {
      EXPECT_NEAR(rate_of(test.claims, result, test.costs, test.overhead_ms), best, best * 1e-12);
    }
  }
}

}  // namespace
}  // namespace flashlane::scheduler
