// Who is in a step, with how many rows: prompts, replies, and how the two share the time.
#include <gtest/gtest.h>

#include <random>

#include "scheduler/decode_turns.h"
#include "scheduler/prompt_turns.h"
#include "scheduler/step_share.h"

namespace flashlane::scheduler {
namespace {

std::vector<std::pair<size_t, int>> shares_of(const std::vector<PromptTurn>& turns, int rows,
                                              int most_segments = 16) {
  std::vector<std::pair<size_t, int>> shares;
  for (const PromptShare& share : share_prompt_rows(turns, rows, most_segments)) {
    shares.emplace_back(share.index, share.rows);
  }
  return shares;
}

using Shares = std::vector<std::pair<size_t, int>>;

TEST(PromptTurns, TheShortestGoesFirstAndOthersTakeWhatIsLeft) {
  const std::vector<PromptTurn> turns = {{.left = 900}, {.left = 40}, {.left = 100}, {.left = 40}};
  EXPECT_EQ(shares_of(turns, 512), (Shares{{1, 40}, {3, 40}, {2, 100}, {0, 332}}));
  EXPECT_EQ(shares_of(turns, 60), (Shares{{1, 40}, {3, 20}}));
  EXPECT_EQ(shares_of(turns, 512, 2), (Shares{{1, 40}, {3, 40}}));
}

TEST(PromptTurns, APromptThatWasPassedOverOftenGoesFirst) {
  const std::vector<PromptTurn> turns = {{.left = 900, .passed_over = kMostPassedOver},
                                         {.left = 40},
                                         {.left = 800, .passed_over = kMostPassedOver + 1}};
  EXPECT_EQ(shares_of(turns, 512), (Shares{{2, 512}}));
  const std::vector<PromptTurn> not_yet = {{.left = 900, .passed_over = kMostPassedOver - 1},
                                           {.left = 40}};
  EXPECT_EQ(shares_of(not_yet, 30), (Shares{{1, 30}}));
}

TEST(PromptTurns, APromptThatMustBeAloneSharesNoStep) {
  EXPECT_EQ(shares_of({{.left = 10, .alone = true}, {.left = 40}}, 512), (Shares{{0, 10}}));
  EXPECT_EQ(shares_of({{.left = 50, .alone = true}, {.left = 40}}, 512), (Shares{{1, 40}}));
}

TEST(DecodeTurns, TheFirstThatDoesNotFitEndsTheChoice) {
  using Chosen = std::vector<size_t>;
  const std::vector<DecodeTurn> turns = {{.served = 5, .fixed_rows = 4},
                                         {.served = 2, .fixed_rows = 1},
                                         {.served = 3, .fixed_rows = 4},
                                         {.served = 4, .fixed_rows = 1}};
  EXPECT_EQ(choose_decode_turns(turns, 16), (Chosen{0, 1, 2, 3}));
  EXPECT_EQ(choose_decode_turns(turns, 6), (Chosen{1, 2, 3}));
  EXPECT_EQ(choose_decode_turns(turns, 4), (Chosen{1})) << "none behind the one that does not fit";
  const std::vector<DecodeTurn> wide = {{.fixed_rows = 4}, {.fixed_rows = 1}};
  EXPECT_EQ(choose_decode_turns(wide, 2), (Chosen{0})) << "forced rows are never cut";
}

// More sequences than rows: over many steps all are served, none waits longer than it must.
TEST(DecodeTurns, NobodyStarvesWithMoreSequencesThanRows) {
  std::mt19937_64 random(7);
  for (int count = 1; count <= 40; ++count) {
    std::vector<DecodeTurn> turns(static_cast<size_t>(count));
    // At most 4 rows each, and what is left over may be 3.
    const int longest_wait = (4 * count + 12) / 13;
    for (uint64_t step = 1; step <= 60; ++step) {
      for (DecodeTurn& turn : turns) turn.fixed_rows = random() % 8 == 0 ? 4 : 1;
      int rows = 0;
      size_t next = 0;
      for (const size_t i : choose_decode_turns(turns, 16)) {
        EXPECT_GE(i, next) << "not in order of admission";
        next = i + 1;
        rows += turns[i].fixed_rows;
        turns[i].served = step;
      }
      EXPECT_LE(rows, 16);
      for (const DecodeTurn& turn : turns) {
        EXPECT_GT(turn.served + static_cast<uint64_t>(longest_wait), step) << count;
      }
    }
  }
}

TEST(StepShare, RepliesKeepTheirShareOfTheTime) {
  for (const double decode_share : {0.2, 0.5, 0.8}) {
    StepShare share(decode_share);
    double prompt_ms = 0;
    double decode_ms = 0;
    for (int step = 0; step < 4000; ++step) {
      if (share.prompt_is_due()) {
        const int rows = share.prompt_rows(true, 512);
        share.observe_prompt(rows, rows * 0.8, true);
        prompt_ms += rows * 0.8;
      } else {
        share.observe_decode(4, 1, true);
        decode_ms += 4;
      }
    }
    // A decode step may be longer than what the prompts' credit lacks.
    EXPECT_GE(decode_ms / (decode_ms + prompt_ms), decode_share);
    EXPECT_LT(decode_ms / (decode_ms + prompt_ms), decode_share + 0.07);
  }
}

// A reply that is slower beside prompts has to keep its share of the pace that it had alone.
TEST(StepShare, WhatPromptsCostTheRepliesIsThePromptsTime) {
  constexpr double kAloneMs = 2;
  struct Case {
    double decode_share, beside_ms;
  };
  for (const auto& [decode_share, beside_ms] : {Case{0.2, 2.5}, Case{0.5, 2.5}, Case{0.8, 2.1}}) {
    StepShare share(decode_share);
    for (int step = 0; step < 200; ++step) share.observe_decode(kAloneMs, 3, false);
    double total_ms = 0;
    int decode_steps = 0;
    for (int step = 0; step < 20'000; ++step) {
      if (share.prompt_is_due()) {
        const int rows = share.prompt_rows(true, 512);
        share.observe_prompt(rows, rows * 0.8, true);
        total_ms += rows * 0.8;
      } else {
        share.observe_decode(beside_ms, 3, true);
        total_ms += beside_ms;
        ++decode_steps;
      }
    }
    const double kept = decode_steps * kAloneMs / total_ms;
    EXPECT_GE(kept, decode_share - 0.002);
    EXPECT_LT(kept, decode_share + 0.05);
  }
}

TEST(StepShare, PacesOfOtherCountsAndWildOnesDoNotStarvePrompts) {
  StepShare share(0.5);
  for (int step = 0; step < 50; ++step) share.observe_decode(1, 2, false);
  share.observe_prompt(10, 100, true);
  const auto steps_until_due = [&](int replies) {
    int steps = 0;
    for (; !share.prompt_is_due(); ++steps) share.observe_decode(10, replies, true);
    return steps;
  };
  EXPECT_EQ(steps_until_due(3), 10) << "never seen without prompts: all of it counts";
  share.observe_prompt(10, 100, true);
  EXPECT_EQ(steps_until_due(2), 20) << "a tenth of the pace, but half counts";
}

TEST(StepShare, APromptStepStaysWithinTheGapOfARunningReply) {
  StepShare share(0.5);
  EXPECT_EQ(share.prompt_rows(false, 512), 512) << "nobody waits";
  EXPECT_EQ(share.prompt_rows(true, 512), 16) << "no time is known yet";
  share.observe_prompt(16, 16, true);
  share.observe_decode(5, 1, true);
  EXPECT_EQ(share.prompt_rows(true, 512), 30) << "0.7 * 50 ms - 5 ms at 1 ms a row";
  share.observe_decode(105, 1, true);
  EXPECT_EQ(share.prompt_rows(true, 512), 63) << "0.7 * 4 * 35 ms - 35 ms";
  share.observe_decode(1e6, 1, true);
  EXPECT_EQ(share.prompt_rows(true, 512), 512);
  StepShare slow(0.5);
  slow.observe_prompt(1, 1000, true);
  EXPECT_EQ(slow.prompt_rows(true, 512), 1) << "at least one row, or the prompt never ends";
}

TEST(StepShare, ADecodeStepComesBetweenPromptStepsThoughTheyTakeNoTime) {
  StepShare share(0.5);
  EXPECT_TRUE(share.prompt_is_due());
  share.observe_prompt(10, 0, true);
  EXPECT_FALSE(share.prompt_is_due());
  share.observe_decode(0, 1, true);
  EXPECT_TRUE(share.prompt_is_due());
}

TEST(StepShare, DebtEndsWithThePromptsAndZeroShareLetsThemGoFirst) {
  StepShare share(0.5);
  share.observe_prompt(100, 1000, true);
  share.observe_decode(1, 1, true);
  EXPECT_FALSE(share.prompt_is_due());
  share.observe_decode(1, 1, false);
  EXPECT_TRUE(share.prompt_is_due());
  StepShare first(0);
  first.observe_prompt(100, 1000, true);
  EXPECT_TRUE(first.prompt_is_due());
  EXPECT_EQ(first.prompt_rows(true, 512), 512);
}

}  // namespace
}  // namespace flashlane::scheduler
