// Lone depth: the reference's golden depths, probing, what measured steps change, and when plain
// steps win and drafts are tried again.
#include "scheduler/draft_depth.h"

#include <gtest/gtest.h>

#include "scheduler/acceptance.h"

namespace flashlane::scheduler {
namespace {

constexpr int kWide = 1000;

StepCosts golden_costs() {
  return {
      .forward = CostTable(
          std::vector<MeasuredCost>{{1, 10.3}, {2, 12.1}, {4, 15.1}, {8, 21.0}, {16, 32.2}}, 16),
      .head_step = CostTable(std::vector<MeasuredCost>{{1, 0.43}}, 16)};
}

// Every row costs as much as the first: the only gain is in drafts that land more than half.
StepCosts costs_by_the_row() {
  return {.forward = CostTable(std::vector<MeasuredCost>{{1, 10.0}, {16, 160.0}}, 16)};
}

std::vector<double> prior() {
  return DraftAcceptance(8).landing(8);
}

std::vector<double> same_rate(double rate, int drafts = 8) {
  std::vector<double> landing;
  double chance = 1;
  for (int depth = 0; depth < drafts; ++depth) landing.push_back(chance *= rate);
  return landing;
}

// The first decision of a new sequence, before any step was measured.
int first(PlainSteps plain, const std::vector<double>& landing, const StepCosts& costs,
          int room = kWide) {
  return LoneDepth(plain).choose(landing, costs, StepTimes(), room);
}

TEST(LoneDepth, GivesTheGoldenDepths) {
  for (const PlainSteps plain : {PlainSteps::kNever, PlainSteps::kCompete}) {
    EXPECT_EQ(first(plain, prior(), golden_costs()), 3);
    EXPECT_EQ(first(plain, same_rate(0.95), golden_costs()), 8);
    EXPECT_EQ(first(plain, same_rate(0.7), golden_costs()), 3);
    EXPECT_EQ(first(plain, same_rate(0.5), golden_costs()), 2);
  }
}

TEST(LoneDepth, GoesByTheFirstRateWithoutCosts) {
  for (const PlainSteps plain : {PlainSteps::kNever, PlainSteps::kCompete}) {
    EXPECT_EQ(first(plain, same_rate(0.79), {}), 1);
    EXPECT_EQ(first(plain, same_rate(0.8), {}), 2);
    EXPECT_EQ(first(plain, same_rate(0.89), {}), 2);
    EXPECT_EQ(first(plain, same_rate(0.9), {}), 3);
    EXPECT_EQ(first(plain, same_rate(0.9, 2), {}), 2);
    EXPECT_EQ(first(plain, same_rate(0.9), {}, 3), 2);
  }
}

TEST(LoneDepth, StaysWithinTheRoom) {
  for (const StepCosts& costs : {golden_costs(), StepCosts()}) {
    EXPECT_EQ(first(PlainSteps::kNever, same_rate(0.95), costs, 2), 1);
    EXPECT_EQ(first(PlainSteps::kNever, same_rate(0.95), costs, 1), 1);
    EXPECT_EQ(first(PlainSteps::kCompete, same_rate(0.95), costs, 2), 1);
    // The last token needs no draft.
    EXPECT_EQ(first(PlainSteps::kCompete, same_rate(0.95), costs, 1), 0);
    EXPECT_EQ(first(PlainSteps::kNever, {}, costs), 0);
  }
  EXPECT_EQ(first(PlainSteps::kNever, same_rate(0.95), golden_costs(), 5), 4);
}

TEST(LoneDepth, ProbesOneDeeperEveryEighthTime) {
  LoneDepth depth(PlainSteps::kNever);
  for (int decision = 1; decision <= 400; ++decision) {
    EXPECT_EQ(depth.choose(prior(), golden_costs(), StepTimes(), kWide), decision % 8 == 0 ? 4 : 3)
        << decision;
  }
}

TEST(LoneDepth, DoesNotProbePastTheRoom) {
  LoneDepth depth(PlainSteps::kNever);
  for (int decision = 1; decision <= 16; ++decision) {
    EXPECT_EQ(depth.choose(prior(), golden_costs(), StepTimes(), 4), 3);
  }
}

TEST(LoneDepth, MeasuredStepsReplaceTheModel) {
  StepTimes times;
  times.observe(3, 40.0);
  LoneDepth depth(PlainSteps::kNever);
  EXPECT_EQ(depth.choose(prior(), golden_costs(), times, kWide), 4);  // the next best by the model
  times.observe(4, 60.0);
  times.observe(1, 8.0);
  EXPECT_EQ(depth.choose(prior(), golden_costs(), times, kWide), 1);
}

TEST(LoneDepth, OfEqualDepthsTheShallowerStays) {
  StepTimes times;
  times.observe(1, 16.0);
  times.observe(2, 24.0);
  times.observe(3, 32.0);
  const std::vector<double> sure = {1, 1, 1};  // two tokens in 16 ms, three in 24, four in 32
  EXPECT_EQ(LoneDepth(PlainSteps::kNever).choose(sure, golden_costs(), times, kWide), 1);
}

TEST(LoneDepth, StopsAtTheFirstDepthWithoutACost) {
  StepCosts costs = golden_costs();
  costs.forward = CostTable(std::vector<MeasuredCost>{{1, 10.0}, {4, 11.0}}, 4);
  EXPECT_EQ(first(PlainSteps::kNever, same_rate(0.95), costs), 3);
  StepTimes times;
  times.observe(5, 1.0);  // behind a depth that has no cost
  EXPECT_EQ(LoneDepth(PlainSteps::kNever).choose(same_rate(0.95), costs, times, kWide), 3);
}

TEST(LoneDepth, TheReferenceNeverGoesPlain) {
  LoneDepth depth(PlainSteps::kNever);
  for (int decision = 1; decision <= 32; ++decision) {
    EXPECT_EQ(depth.choose(same_rate(0.1), costs_by_the_row(), StepTimes(), kWide),
              decision % 8 == 0 ? 2 : 1);
  }
}

TEST(LoneDepth, PlainWinsWhereDraftsDoNotPay) {
  EXPECT_EQ(first(PlainSteps::kCompete, same_rate(0.6), costs_by_the_row()), 0);
  // As good as each other: plain is the shallower.
  EXPECT_EQ(first(PlainSteps::kCompete, {1.0}, costs_by_the_row()), 0);
  EXPECT_EQ(first(PlainSteps::kCompete, {0.2}, golden_costs()), 0);
  EXPECT_EQ(first(PlainSteps::kCompete, {0.25}, golden_costs()), 1);
}

TEST(LoneDepth, PlainAndDraftedAreHeldToMeasuredSteps) {
  StepTimes times;
  times.observe(0, 30.0);
  EXPECT_EQ(LoneDepth().choose({{0.2}}, golden_costs(), times, kWide), 1);
  times.observe(1, 40.0);
  EXPECT_EQ(LoneDepth().choose({{0.2}}, golden_costs(), times, kWide), 0);
}

// How many plain steps lie before each drafted one.
std::vector<int> waits(LoneDepth& depth, const std::vector<double>& landing, int drafted) {
  std::vector<int> result;
  int plain = 0;
  while (static_cast<int>(result.size()) < drafted) {
    const int chosen = depth.choose(landing, costs_by_the_row(), StepTimes(), kWide);
    if (chosen == 0) {
      ++plain;
      if (plain > 1000) break;
      continue;
    }
    EXPECT_EQ(chosen, 1);
    result.push_back(plain);
    plain = 0;
  }
  return result;
}

TEST(LoneDepth, TriesADraftAfterWaitsThatDouble) {
  LoneDepth depth;
  EXPECT_EQ(waits(depth, same_rate(0.5), 7), (std::vector<int>{8, 16, 32, 64, 128, 128, 128}));
}

TEST(LoneDepth, TheWaitIsShortAgainOnceDraftingWon) {
  LoneDepth depth;
  EXPECT_EQ(waits(depth, same_rate(0.5), 3), (std::vector<int>{8, 16, 32}));
  EXPECT_EQ(depth.choose(same_rate(0.95), golden_costs(), StepTimes(), kWide), 8);
  EXPECT_EQ(waits(depth, same_rate(0.5), 2), (std::vector<int>{8, 16}));
}

TEST(LoneDepth, OnlyPlainStepsInARowCountAsWaiting) {
  LoneDepth depth;
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(depth.choose(same_rate(0.5), costs_by_the_row(), StepTimes(), kWide), 0);
  }
  EXPECT_EQ(depth.choose(same_rate(0.95), golden_costs(), StepTimes(), kWide), 8);
  EXPECT_EQ(waits(depth, same_rate(0.5), 1), (std::vector<int>{8}));
}

TEST(LoneDepth, LooksAtPlainAgainAfterALongTimeOfDrafting) {
  LoneDepth depth;
  int plain = 0;
  for (int decision = 1; decision <= 3 * 129; ++decision) {
    const bool is_plain = depth.choose(prior(), golden_costs(), StepTimes(), kWide) == 0;
    EXPECT_EQ(is_plain, decision % 129 == 0) << decision;
    plain += is_plain ? 1 : 0;
  }
  EXPECT_EQ(plain, 3);
}

TEST(StepTimes, StoreTheFirstAndThenMove) {
  StepTimes times;
  EXPECT_FALSE(times.ms(0));
  times.observe(2, 10.0);
  EXPECT_DOUBLE_EQ(*times.ms(2), 10.0);
  times.observe(2, 20.0);
  EXPECT_DOUBLE_EQ(*times.ms(2), 12.0);
  EXPECT_FALSE(times.ms(1));
  EXPECT_FALSE(times.ms(3));
  times.observe(1, 0.0);
  EXPECT_FALSE(times.ms(1));
}

TEST(HeadDepth, IsCutToWhatCanBeUsed) {
  EXPECT_EQ(head_depth(5, {}), 5);
  EXPECT_EQ(head_depth(5, {.copy_ahead = true}), 1);
  EXPECT_EQ(head_depth(0, {.copy_ahead = true}), 0);
  EXPECT_EQ(head_depth(5, {.forced_due = true, .copy_ahead = true}), 0);
  EXPECT_EQ(head_depth(5, {.finished = true}), 0);
}

}  // namespace
}  // namespace flashlane::scheduler
