// Where a prompt's chunks end, and what becomes of a copy whose sequence leaves.
#include "scheduler/prompt_states.h"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace flashlane::scheduler {
namespace {

TEST(PromptStates, AChunkEndsAtTheNextMark) {
  PromptStatesOfOne own;
  own.marks = {100, 300};
  EXPECT_EQ(PromptStates::most_rows(own, 0, 512), 100);
  EXPECT_EQ(PromptStates::most_rows(own, 50, 20), 20);
  EXPECT_EQ(PromptStates::most_rows(own, 100, 412), 200);
  EXPECT_EQ(PromptStates::most_rows(own, 300, 212), 212);
}

// Else a backend that takes in more rows at once would be cut to what others keep.
TEST(PromptStates, MarksAreNoNearerThanChunksAreLong) {
  std::vector<int32_t> prompt(9000);
  std::iota(prompt.begin(), prompt.end(), 1);
  const auto marks_of = [&](int prefill_chunk) {
    PromptStates states(
        {.pages = 2000, .page_rows = 16, .state_pages = 1, .grid = 1, .least_gap = 1},
        prefill_chunk);
    PromptStatesOfOne own;
    states.admit(prompt, {}, own);
    return own.marks;
  };
  EXPECT_EQ(marks_of(512), (std::vector<int>{2048, 4096, 6144, 8192, 8999}));
  EXPECT_EQ(marks_of(4096), (std::vector<int>{4096, 8192, 8999}));
}

TEST(PromptStates, ACopyOfWhoLeavesIsDropped) {
  PromptStates states({.pages = 4, .page_rows = 16, .state_pages = 1, .grid = 1, .least_gap = 1},
                      512);
  std::vector<int32_t> prompt(32);
  std::iota(prompt.begin(), prompt.end(), 1);
  const std::vector<int> wanted = {16};
  PromptStatesOfOne own;
  states.admit(prompt, wanted, own);
  Segment segment;
  segment.tokens.assign(prompt.begin(), prompt.begin() + 16);
  states.keep(prompt, own, segment);
  ASSERT_TRUE(own.copying.has_value());
  EXPECT_EQ(states.usage().entries, 1);
  EXPECT_EQ(states.usage().used_pages, 2);
  states.let_go(own);
  EXPECT_FALSE(own.copying.has_value());
  EXPECT_EQ(states.usage().entries, 0);
  EXPECT_EQ(states.usage().used_pages, 0);
  states.check();
}

}  // namespace
}  // namespace flashlane::scheduler
