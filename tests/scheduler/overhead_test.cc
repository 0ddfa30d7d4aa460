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

}  // namespace
}  // namespace flashlane::scheduler
