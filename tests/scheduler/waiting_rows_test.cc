// How many of a sequence's rows the MTP head has not taken in, as the scheduler counts them for the
// runner: rows wait while nothing is drafted from them, up to a backlog.
#include <gtest/gtest.h>

#include "scheduler/sequence.h"

namespace flashlane::scheduler {
namespace {

class WaitingRows : public ::testing::Test {
 protected:
  // The next rows of the prompt.
  int prompt(int rows, int depth = 0) {
    const Segment segment = sequence_.prefill_segment(rows, depth);
    const int taken_in = sequence_.rows_taken_in(segment);
    sequence_.commit_prompt(segment);
    if (sequence_.prompt_left() == 0) sequence_.commit_first({.tokens = {7}});
    return taken_in;
  }
  // A step of the reply with `drafts` drafts, of which `stood` stand.
  int reply(int drafts, int stood, int depth = 0) {
    Sequence::Window window{.source = DraftSource::kHead};
    window.tokens.assign(static_cast<size_t>(drafts), 9);
    const Segment segment = sequence_.verify_segment(window, drafts, depth);
    const int taken_in = sequence_.rows_taken_in(segment);
    SegmentResult result;
    result.tokens.assign(static_cast<size_t>(stood), 9);
    result.tokens.push_back(8);
    sequence_.commit_window(segment, result);
    return taken_in;
  }

  static SequenceSpec spec(bool drafts) {
    return {.prompt = std::vector<int32_t>(400, 1), .max_tokens = 1000, .drafts = drafts};
  }
  Sequence sequence_ = Sequence({1}, spec(true), {.context = 4096, .max_draft = 3});
};

TEST_F(WaitingRows, AreThoseKeptSinceTheLastDraft) {
  EXPECT_EQ(prompt(200), 0);
  EXPECT_EQ(sequence_.waiting_rows, 200);
  EXPECT_EQ(prompt(200, 2), 200) << "drafts are asked for";
  EXPECT_EQ(sequence_.waiting_rows, 0);
  EXPECT_EQ(reply(0, 0), 0);
  EXPECT_EQ(reply(3, 1), 0);
  EXPECT_EQ(sequence_.waiting_rows, 1 + 2);
  EXPECT_EQ(reply(0, 0, 1), 3);
  EXPECT_EQ(sequence_.waiting_rows, 0);
}

TEST_F(WaitingRows, AFullBacklogGoesIn) {
  EXPECT_EQ(prompt(250), 0);
  EXPECT_EQ(prompt(150), 250);
  EXPECT_EQ(sequence_.waiting_rows, 150);
  for (int row = 151; row <= kMostWaitingRows; ++row) ASSERT_EQ(reply(0, 0), 0) << row;
  EXPECT_EQ(reply(0, 0), kMostWaitingRows);
  EXPECT_EQ(sequence_.waiting_rows, 1);
}

TEST_F(WaitingRows, AChunkLongerThanABacklogDoesNotWait) {
  EXPECT_EQ(prompt(100), 0);
  EXPECT_EQ(prompt(300), 100);
  EXPECT_EQ(sequence_.waiting_rows, 0);
}

TEST_F(WaitingRows, NoneOfASequenceThatNeverDrafts) {
  sequence_ = Sequence({1}, spec(false), {.context = 4096, .max_draft = 3});
  EXPECT_EQ(prompt(400), 0);
  EXPECT_EQ(reply(0, 0), 0);
  EXPECT_EQ(sequence_.waiting_rows, 0);
}

}  // namespace
}  // namespace flashlane::scheduler
