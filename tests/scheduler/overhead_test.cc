// Overhead: learned per number of sequences, greedy and sampled apart, priced work taken out.
#include "scheduler/overhead.h"

#include <gtest/gtest.h>

namespace flashlane::scheduler {
namespace {

const CostTable& forward() {
  static const CostTable table(std::vector<MeasuredCost>{{1, 10.0}, {16, 25.0}}, 16);
  return table;
}

// A step of `sequences`, one row each, that took `extra_ms` beyond its forward.
ObservedStep step(int sequences, double extra_ms, bool sampled = false) {
  return {.sequences = sequences,
          .rows = sequences,
          .sampled = sampled,
          .wall_ms = forward().ms(sequences) + extra_ms,
          .head_ms = 0};
}

TEST(Overhead, IsAGuessBeforeAnythingWasObserved) {
  const OverheadEstimate overhead;
  EXPECT_EQ(overhead.ms(1, false), 8.0);
  EXPECT_EQ(overhead.ms(16, true), 8.0);
}

TEST(Overhead, StoresTheFirstObservationAndThenMoves) {
  OverheadEstimate overhead;
  overhead.observe(step(4, 3.0), forward());
  EXPECT_DOUBLE_EQ(overhead.ms(4, false), 3.0);
  overhead.observe(step(4, 5.0), forward());
  EXPECT_DOUBLE_EQ(overhead.ms(4, false), 3.0 + 0.2 * 2.0);
}

TEST(Overhead, ReadsTheNearestCountAndOfTwoTheFirstObserved) {
  OverheadEstimate overhead;
  overhead.observe(step(8, 4.0), forward());
  overhead.observe(step(2, 1.0), forward());
  EXPECT_DOUBLE_EQ(overhead.ms(16, false), 4.0);
  EXPECT_DOUBLE_EQ(overhead.ms(3, false), 1.0);
  EXPECT_DOUBLE_EQ(overhead.ms(1, false), 1.0);
  EXPECT_DOUBLE_EQ(overhead.ms(5, false), 4.0);  // three away from both
  overhead.observe(step(5, 2.0), forward());
  EXPECT_DOUBLE_EQ(overhead.ms(5, false), 2.0);
}

TEST(Overhead, KeepsGreedyAndSampledApart) {
  OverheadEstimate overhead;
  overhead.observe(step(4, 3.0), forward());
  EXPECT_EQ(overhead.ms(4, true), 8.0);
  overhead.observe(step(4, 6.0, true), forward());
  EXPECT_DOUBLE_EQ(overhead.ms(4, true), 6.0);
  EXPECT_DOUBLE_EQ(overhead.ms(4, false), 3.0);
}

TEST(Overhead, TakesPricedHeadStepsOut) {
  for (const bool sampled : {false, true}) {
    OverheadEstimate overhead;
    ObservedStep observed = step(2, 3.0, sampled);
    observed.head_ms = 2.5;
    overhead.observe(observed, forward());
    EXPECT_DOUBLE_EQ(overhead.ms(2, sampled), 0.5);
  }
}

TEST(Overhead, PricesByTheRowsNotTheSequences) {
  OverheadEstimate overhead;
  overhead.observe({.sequences = 2, .rows = 16, .sampled = false, .wall_ms = 27.0, .head_ms = 0},
                   forward());
  EXPECT_DOUBLE_EQ(overhead.ms(2, false), 2.0);
}

TEST(Overhead, IsNeverNegative) {
  OverheadEstimate overhead;
  overhead.observe(step(1, -4.0), forward());
  EXPECT_EQ(overhead.ms(1, false), 0.0);
  overhead.observe(step(1, -4.0), forward());
  EXPECT_EQ(overhead.ms(1, false), 0.0);
  overhead.observe(step(1, 1.0), forward());
  EXPECT_DOUBLE_EQ(overhead.ms(1, false), 0.2);
}

TEST(Overhead, LearnsNothingFromAStepWithoutAPrice) {
  OverheadEstimate overhead;
  overhead.observe({.sequences = 2, .rows = 17, .sampled = false, .wall_ms = 90, .head_ms = 0},
                   forward());
  overhead.observe({.sequences = 2, .rows = 4, .sampled = false, .wall_ms = 90, .head_ms = 0},
                   CostTable());
  EXPECT_EQ(overhead.ms(2, false), 8.0);
}

// Two sequences, so many rows, so much beyond the forward.
ObservedStep wide_step(int rows, double extra_ms) {
  return {.sequences = 2, .rows = rows, .wall_ms = forward().ms(rows) + extra_ms};
}

TEST(OverheadByRows, IsAGuessBeforeAnythingWasObserved) {
  EXPECT_EQ(OverheadEstimate().ms(2, 7, false), 8.0);
}

TEST(OverheadByRows, WiderStepsAreHopedToHaveNoMoreAndNarrowerOnesLess) {
  OverheadEstimate overhead;
  overhead.observe(wide_step(8, 4.0), forward());
  EXPECT_DOUBLE_EQ(overhead.ms(2, 8, false), 4.0);
  EXPECT_DOUBLE_EQ(overhead.ms(2, 16, false), 4.0);
  EXPECT_DOUBLE_EQ(overhead.ms(2, 2, false), 1.0);
  EXPECT_DOUBLE_EQ(overhead.ms(5, 2, false), 1.0) << "of the nearest number of sequences";
}

TEST(OverheadByRows, BetweenTwoWidthsTheLineHolds) {
  OverheadEstimate overhead;
  overhead.observe(wide_step(2, 1.0), forward());
  for (int step = 0; step < 100; ++step) overhead.observe(wide_step(16, 8.0), forward());
  const double narrow_ms = overhead.ms(2, 2, false);
  const double wide_ms = overhead.ms(2, 16, false);
  EXPECT_GT(narrow_ms, 0.9);
  EXPECT_LT(narrow_ms, 1.1);
  EXPECT_NEAR(wide_ms, 8.0, 0.01);
  EXPECT_DOUBLE_EQ(overhead.ms(2, 9, false), (narrow_ms + wide_ms) / 2);
}

// One step that was disturbed moves a width by a twentieth of its time at most.
TEST(OverheadByRows, ADisturbedStepMovesItLittle) {
  OverheadEstimate overhead;
  overhead.observe(wide_step(2, 1.0), forward());
  overhead.observe(wide_step(2, 500.0), forward());
  EXPECT_DOUBLE_EQ(overhead.ms(2, 2, false), 1.0 + 0.2 * 0.25 * (forward().ms(2) + 1.0));
  overhead.observe(wide_step(16, 500.0), forward());
  EXPECT_LT(overhead.ms(2, 16, false), 1.1 * (forward().ms(16) + 1.6) - forward().ms(16));
}

// What keeps the allocation away from a width is forgotten while others run.
TEST(OverheadByRows, ForgetsWhatIsNotSeenAnyMore) {
  OverheadEstimate overhead;
  overhead.observe(wide_step(2, 1.0), forward());
  for (int step = 0; step < 50; ++step) overhead.observe(wide_step(16, 9.0), forward());
  EXPECT_GT(overhead.ms(2, 16, false), 8.9);
  for (int step = 0; step < 300; ++step) overhead.observe(wide_step(2, 1.0), forward());
  EXPECT_LT(overhead.ms(2, 16, false), 1.5);
  EXPECT_NEAR(overhead.ms(2, 2, false), 1.0, 1e-9);
}

}  // namespace
}  // namespace flashlane::scheduler
