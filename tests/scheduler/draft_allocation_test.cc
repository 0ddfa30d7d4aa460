// The walks by chance: the reference's golden cases, where the exact rule agrees and where it does
// better; budgets; the price of head steps that is taken out of the overhead.
#include "scheduler/draft_allocation.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "scheduler/acceptance.h"
#include "tests/support/allocation_cases.h"

namespace flashlane::scheduler {
namespace {

using flashlane::testing::allocate;
using flashlane::testing::by_the_row;
using flashlane::testing::Case;
using flashlane::testing::Chances;
using flashlane::testing::claims_of;
using flashlane::testing::Counts;
using flashlane::testing::expect_fits;
using flashlane::testing::flat;
using flashlane::testing::golden_forward;
using flashlane::testing::rate_of;

TEST(GreedyAllocation, WithoutCostsTakesAllThatFit) {
  const Chances chances = {{0.9, 0.8}, {0.5, 0.1, 0.05}};
  for (const AllocationRule rule :
       {AllocationRule::kGreedy, AllocationRule::kPricedGreedy, AllocationRule::kExact}) {
    EXPECT_EQ(allocate(rule, {}, 8, chances), (Counts{2, 3}));
    EXPECT_EQ(allocate(rule, {}, 8, chances, 6), (Counts{2, 2}));
    EXPECT_EQ(allocate(rule, {.head_step = by_the_row(50)}, 8, chances), (Counts{2, 3}));
    EXPECT_EQ(allocate(rule, {}, 0, {}), Counts{});
  }
}

TEST(GreedyAllocation, WalksPastADipInTheTable) {
  // The second row costs as much as four: worth it only for those who see the third and fourth.
  const CostTable forward(std::vector<MeasuredCost>{{1, 10}, {2, 20}, {4, 20}, {5, 60}}, 16);
  for (const AllocationRule rule : {AllocationRule::kGreedy, AllocationRule::kExact}) {
    EXPECT_EQ(allocate(rule, {.forward = forward}, 0, {{0.9, 0.8, 0.7, 0.6}}), (Counts{3}));
    EXPECT_EQ(allocate(rule, {.forward = forward}, 0, {{0.5, 0.2, 0.1, 0.1}}), (Counts{0}));
  }
}

TEST(GreedyAllocation, OfEqualChancesTheFirstSequenceComesFirst) {
  for (const AllocationRule rule :
       {AllocationRule::kGreedy, AllocationRule::kPricedGreedy, AllocationRule::kExact}) {
    EXPECT_EQ(allocate(rule, {.forward = flat(10)}, 0, {{0.7}, {0.7}, {0.7}}, 4),
              (Counts{1, 0, 0}));
    EXPECT_EQ(allocate(rule, {.forward = flat(10)}, 0, {{0.6}, {0.7}, {0.7}}, 5),
              (Counts{0, 1, 1}));
  }
}

TEST(GreedyAllocation, ADraftThatGainsNothingIsNotTaken) {
  for (const AllocationRule rule :
       {AllocationRule::kGreedy, AllocationRule::kPricedGreedy, AllocationRule::kExact}) {
    EXPECT_EQ(allocate(rule, {.forward = flat(10)}, 0, {{0.5, 0.0}}), (Counts{1}));
    // Sure to land, but a row costs as much as a step: the rate stays the same.
    EXPECT_EQ(allocate(rule, {.forward = by_the_row(8)}, 0, {{1.0, 1.0}}), (Counts{0}));
  }
}

TEST(GreedyAllocation, KeepsToTheRowLimit) {
  const Chances chances(5, std::vector<double>(15, 0.99));
  for (const AllocationRule rule :
       {AllocationRule::kGreedy, AllocationRule::kPricedGreedy, AllocationRule::kExact}) {
    const Counts counts = allocate(rule, {.forward = flat(10)}, 0, chances);
    EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), 11);
    // More sequences than the limit: everyone keeps the pending token, no one drafts.
    EXPECT_EQ(allocate(rule, {.forward = flat(10)}, 0, chances, 2), Counts(5, 0));
    EXPECT_EQ(allocate(rule, {.forward = flat(10)}, 0, Chances(20, {0.9})), Counts(20, 0));
  }
}

TEST(GreedyAllocation, CountsFixedRows) {
  const std::vector<double> chain = {0.9, 0.8, 0.7};
  const std::vector<DraftClaim> claims = {{.fixed_rows = 4, .chances = {}}, {.chances = chain}};
  for (const AllocationRule rule :
       {AllocationRule::kGreedy, AllocationRule::kPricedGreedy, AllocationRule::kExact}) {
    const DraftAllocator allocator({.rule = rule, .costs = {.forward = flat(10)}, .row_limit = 7});
    EXPECT_EQ(allocator.allocate(claims, 0), (Counts{0, 2}));
  }
}

TEST(GreedyAllocation, ARowCountWithoutACostNeverWins) {
  const CostTable narrow(std::vector<MeasuredCost>{{1, 10}, {3, 10}}, 3);
  for (const AllocationRule rule : {AllocationRule::kGreedy, AllocationRule::kExact}) {
    EXPECT_EQ(allocate(rule, {.forward = narrow}, 0, {{0.9, 0.9, 0.9, 0.9}}), (Counts{2}));
  }
}

TEST(PricedGreedyAllocation, ChargesDraftsPastASequencesFirst) {
  const Chances chances = {{0.9, 0.85, 0.8}, {0.9, 0.2, 0.1}};
  const StepCosts costs = {.forward = flat(10), .head_step = by_the_row(1)};
  EXPECT_EQ(allocate(AllocationRule::kPricedGreedy, costs, 0, chances), (Counts{3, 1}));
  EXPECT_EQ(allocate(AllocationRule::kGreedy, costs, 0, chances), (Counts{3, 3}));
}

TEST(PricedGreedyAllocation, TheFirstDraftIsFree) {
  const StepCosts costs = {.forward = flat(10), .head_step = by_the_row(100)};
  for (const AllocationRule rule : {AllocationRule::kPricedGreedy, AllocationRule::kExact}) {
    EXPECT_EQ(allocate(rule, costs, 0, {{0.5}}), (Counts{1}));
    EXPECT_EQ(allocate(rule, costs, 0, {{0.5, 0.05}, {0.1}}), (Counts{1, 1}));
  }
}

TEST(PricedGreedyAllocation, SunkDraftsAreFree) {
  const std::vector<double> copied = {0.9, 0.8, 0.7};
  const std::vector<double> chained = {0.9, 0.6, 0.5};
  const StepCosts costs = {.forward = flat(10), .head_step = by_the_row(100)};
  for (const AllocationRule rule : {AllocationRule::kPricedGreedy, AllocationRule::kExact}) {
    const DraftAllocator allocator({.rule = rule, .costs = costs});
    const std::vector<DraftClaim> claims = {{.chances = copied, .sunk = true},
                                            {.chances = chained}};
    EXPECT_EQ(allocator.allocate(claims, 0), (Counts{3, 1}));
  }
}

TEST(PricedGreedyAllocation, MissesTheCheaperSplitThatTheExactRuleFinds) {
  const StepCosts costs = {.forward = flat(10), .head_step = by_the_row(1)};
  const Chances chances = {{0.9, 0.8}, {0.7}};
  EXPECT_EQ(allocate(AllocationRule::kPricedGreedy, costs, 0, chances, 4), (Counts{2, 0}));
  EXPECT_EQ(allocate(AllocationRule::kExact, costs, 0, chances, 4), (Counts{1, 1}));
  EXPECT_NEAR(rate_of(claims_of(chances), {2, 0}, costs, 0), 3.7 / 11, 1e-12);
  EXPECT_NEAR(rate_of(claims_of(chances), {1, 1}, costs, 0), 0.36, 1e-12);
}

TEST(PricedGreedyAllocation, GivesTheReferencesExamples) {
  const StepCosts costs = {.forward = golden_forward(), .head_step = by_the_row(0.43)};
  const auto priced = [&](size_t sequences) {
    const Chances chances(sequences, DraftAcceptance(8).landing(8));
    return allocate(AllocationRule::kPricedGreedy, costs, 8, chances);
  };
  const auto unpriced = [&](size_t sequences) {
    const Chances chances(sequences, DraftAcceptance(8).landing(8));
    return allocate(AllocationRule::kGreedy, costs, 8, chances);
  };
  EXPECT_EQ(priced(1), (Counts{4}));
  EXPECT_EQ(priced(2), (Counts{3, 3}));
  EXPECT_EQ(unpriced(2), (Counts{4, 4}));
  EXPECT_EQ(priced(4), (Counts{2, 2, 2, 2}));
  EXPECT_EQ(unpriced(4), (Counts{3, 3, 3, 3}));
  EXPECT_EQ(priced(8), Counts(8, 1));
  EXPECT_EQ(priced(16), Counts(16, 0));
}

TEST(PricedGreedyAllocation, AStepThatCostsNothingChangesNothing) {
  for (uint32_t seed = 0; seed < 300; ++seed) {
    Case test(seed, false);
    test.costs.head_step = {};
    const DraftAllocator priced(
        {.rule = AllocationRule::kPricedGreedy, .costs = test.costs, .row_limit = test.row_limit});
    const DraftAllocator free(
        {.rule = AllocationRule::kGreedy, .costs = test.costs, .row_limit = test.row_limit});
    const Counts counts = priced.allocate(test.claims, test.overhead_ms);
    EXPECT_EQ(counts, free.allocate(test.claims, test.overhead_ms)) << seed;
    expect_fits(test, counts);
  }
}

TEST(PricedGreedyAllocation, StaysWithinThreePerCentOfTheOptimumItIsPricedFor) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> uniform(0.4, 0.98);
  const StepCosts costs = {.forward = golden_forward(), .head_step = by_the_row(0.43)};
  for (int round = 0; round < 500; ++round) {
    Chances chances;
    for (int i = 0; i < 2 + round % 7; ++i) {
      std::vector<double>& chain = chances.emplace_back();
      double chance = 1;
      for (int k = 0; k < 8; ++k) chain.push_back(chance *= uniform(random));
    }
    const std::vector<DraftClaim> claims = claims_of(chances);
    const double greedy =
        rate_of(claims, allocate(AllocationRule::kPricedGreedy, costs, 3, chances), costs, 3);
    const double exact =
        rate_of(claims, allocate(AllocationRule::kExact, costs, 3, chances), costs, 3);
    EXPECT_LE(greedy, exact * (1 + 1e-12));
    EXPECT_GE(greedy, exact * 0.97);
  }
}

// --- Budgets and the price that is taken out of the overhead.

TEST(DraftBudget, IsAtLeastOneAndAtMostWhatMayBeDrafted) {
  EXPECT_EQ(draft_budget(0, 8), 1);
  EXPECT_EQ(draft_budget(5, 8), 5);
  EXPECT_EQ(draft_budget(5, 3), 3);
  EXPECT_EQ(draft_budget(0, 0), 0);
}

TEST(HeadChain, CostsAStepPerDepthOverAllThatDraftSoDeep) {
  const CostTable head_step(std::vector<MeasuredCost>{{1, 1.0}, {2, 1.5}, {3, 1.75}}, 16);
  EXPECT_EQ(head_chain_ms(Counts{}, head_step), 0);
  EXPECT_EQ(head_chain_ms(Counts{1, 0, 1}, head_step), 0);
  EXPECT_EQ(head_chain_ms(Counts{2}, head_step), 1.0);
  EXPECT_EQ(head_chain_ms(Counts{2, 4, 1, 3}, head_step), 1.75 + 1.5 + 1.0);
  EXPECT_EQ(head_chain_ms(Counts{4, 4}, CostTable()), 0);
}

TEST(HeadChain, ByTheRowIsTheReferencesSerialPrice) {
  EXPECT_DOUBLE_EQ(head_chain_ms(Counts{3, 1, 0, 5}, by_the_row(0.43)), 0.43 * (2 + 4));
}

}  // namespace
}  // namespace flashlane::scheduler
