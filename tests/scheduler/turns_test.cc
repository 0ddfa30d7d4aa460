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

TEST(DecodeTurns, EverySequenceHasARowAndFirstDraftsGoBeforeDeeperOnes) {
  const auto shares = share_decode_rows(
      std::vector<DecodeTurn>{{.drafts = 3}, {.drafts = 0}, {.drafts = 8}, {.drafts = 1}}, 11);
  ASSERT_EQ(shares.size(), 4U);
  EXPECT_EQ(shares[0].draft_rows, 3);
  EXPECT_EQ(shares[1].draft_rows, 0);
  EXPECT_EQ(shares[2].draft_rows, 3);
  EXPECT_EQ(shares[3].draft_rows, 1);
}

// More sequences than rows: over many steps all are served, none waits longer than it must, and the
// shares stand in order of admission.
TEST(DecodeTurns, NobodyStarvesWithMoreSequencesThanRows) {
  std::mt19937_64 random(7);
  for (int count = 1; count <= 40; ++count) {
    std::vector<DecodeTurn> turns(static_cast<size_t>(count));
    const int longest_wait = (count + 15) / 16;
    for (uint64_t step = 1; step <= 60; ++step) {
      for (DecodeTurn& turn : turns) turn.drafts = static_cast<int>(random() % 9);
      size_t before = 0;
      int rows = 0;
      bool first = true;
      for (const DecodeShare& share : share_decode_rows(turns, 16)) {
        EXPECT_TRUE(first || share.index > before);
        first = false;
        before = share.index;
        EXPECT_LE(share.draft_rows, turns[share.index].drafts);
        rows += 1 + share.draft_rows;
        turns[share.index].served = step;
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
        share.observe_decode(4, true);
        decode_ms += 4;
      }
    }
    // A decode step may be longer than what the prompts' credit lacks.
    EXPECT_GE(decode_ms / (decode_ms + prompt_ms), decode_share);
    EXPECT_LT(decode_ms / (decode_ms + prompt_ms), decode_share + 0.07);
  }
}

TEST(StepShare, APromptStepStaysWithinTheGapOfARunningReply) {
  StepShare share(0.5);
  EXPECT_EQ(share.prompt_rows(false, 512), 512) << "nobody waits";
  EXPECT_EQ(share.prompt_rows(true, 512), 16) << "no time is known yet";
  share.observe_prompt(16, 16, true);
  share.observe_decode(5, true);
  EXPECT_EQ(share.prompt_rows(true, 512), 30) << "0.7 * 50 ms - 5 ms at 1 ms a row";
  share.observe_decode(105, true);
  EXPECT_EQ(share.prompt_rows(true, 512), 63) << "0.7 * 4 * 35 ms - 35 ms";
  share.observe_decode(1e6, true);
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
  share.observe_decode(0, true);
  EXPECT_TRUE(share.prompt_is_due());
}

TEST(StepShare, DebtEndsWithThePromptsAndZeroShareLetsThemGoFirst) {
  StepShare share(0.5);
  share.observe_prompt(100, 1000, true);
  share.observe_decode(1, true);
  EXPECT_FALSE(share.prompt_is_due());
  share.observe_decode(1, false);
  EXPECT_TRUE(share.prompt_is_due());
  StepShare first(0);
  first.observe_prompt(100, 1000, true);
  EXPECT_TRUE(first.prompt_is_due());
  EXPECT_EQ(first.prompt_rows(true, 512), 512);
}

}  // namespace
}  // namespace flashlane::scheduler
