// The lone driver with results written by hand: what is planned ahead, when nothing is, and what
// becomes of a step that was begun ahead (L1, L2, L4).
#include "scheduler/lone_driver.h"

#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/support/cheap_rows.h"

namespace flashlane::scheduler {
namespace {

using flashlane::testing::cheap_rows;
using Tokens = std::vector<int32_t>;

SchedulerOptions lone_options(int steps_in_flight = 2) {
  return {.context = 100,
          .slots = 2,
          .prefill_chunk = 8,
          .max_draft = 3,
          .costs = cheap_rows(),
          .lone = true,
          .steps_in_flight = steps_in_flight,
          .vocabulary = 1000};
}

StepResult result(Tokens tokens, Tokens drafts = {}, int rows = 0) {
  return {.segments = {{.tokens = std::move(tokens), .drafts = std::move(drafts), .rows = rows}}};
}

// A reply (prompt 10 11, pending 50, three drafts behind it) that decodes alone.
struct Alone {
  explicit Alone(const SchedulerOptions& options = lone_options(), int max_tokens = 40)
      : scheduler(options) {
    id = scheduler.submit({.prompt = {10, 11}, .max_tokens = max_tokens}).value();
    const StepPlan prompt = scheduler.plan();
    EXPECT_TRUE(scheduler.plan().empty()) << "nothing follows a prompt by itself";
    scheduler.commit(prompt, result({50}, {51, 52, 53}));
  }
  Tokens committed() {
    Tokens tokens;
    for (const Event& event : scheduler.collect()) {
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    }
    return tokens;
  }
  Scheduler scheduler;
  SequenceId id;
};

void expect_by_verdict(const StepPlan& plan, int rows) {
  ASSERT_EQ(plan.segments.size(), 1U);
  const Segment& segment = plan.segments.front();
  EXPECT_EQ(segment.kind, SegmentKind::kVerify);
  EXPECT_EQ(segment.verdict_rows, rows);
  EXPECT_TRUE(segment.tokens.empty());
  EXPECT_EQ(segment.start_position, -1);
  EXPECT_EQ(segment.draft_depth, 3);
}

TEST(LoneDriver, OneStepFollowsAnotherThatIsUnderWay) {
  Alone alone;
  const StepPlan first = alone.scheduler.plan();
  expect_by_verdict(first, 4);
  const StepPlan second = alone.scheduler.plan();
  expect_by_verdict(second, 4);
  EXPECT_TRUE(alone.scheduler.plan().empty()) << "two are under way";
  alone.scheduler.commit(first, result({51, 52, 99}, {61, 62, 63}, 4));
  EXPECT_EQ(alone.committed(), (Tokens{50, 51, 52, 99}));
  const StepPlan third = alone.scheduler.plan();
  expect_by_verdict(third, 4);
  // Its window was 99 and the drafts behind it.
  alone.scheduler.commit(second, result({61, 62, 63, 64}, {}, 4));
  EXPECT_EQ(alone.committed(), (Tokens{61, 62, 63, 64}));
  alone.scheduler.commit(third, result({65}, {}, 1));
  EXPECT_EQ(alone.committed(), (Tokens{65}));
  const LoneUsage usage = alone.scheduler.lone();
  EXPECT_EQ(usage.runs, 1);
  EXPECT_EQ(usage.steps, 3);
  EXPECT_EQ(usage.ahead, 2);
  EXPECT_TRUE(usage.active);
}

TEST(LoneDriverDeathTest, AVerdictOfOtherRowsIsABug) {
  Alone alone;
  const StepPlan plan = alone.scheduler.plan();
  EXPECT_DEATH(alone.scheduler.commit(plan, result({51, 52, 99}, {}, 3)), "3 against 4");
}

// Whatever the windows bring, no step begins that could go beyond the length.
TEST(LoneDriver, NothingIsBegunBehindWhatMayBeTheEnd) {
  Alone alone(lone_options(3), 9);
  const StepPlan first = alone.scheduler.plan();
  expect_by_verdict(first, 4);
  const StepPlan second = alone.scheduler.plan();
  ASSERT_EQ(second.segments.size(), 1U);
  EXPECT_EQ(second.segments.front().verdict_rows, 4);
  // Eight tokens are left: those two may bring them all.
  EXPECT_TRUE(alone.scheduler.plan().empty());
  alone.scheduler.commit(first, result({99}, {61, 62, 63}, 4));
  const StepPlan third = alone.scheduler.plan();
  ASSERT_EQ(third.segments.size(), 1U);
  EXPECT_EQ(third.segments.front().verdict_rows, 3);  // one of eight is in, four may come
  alone.scheduler.commit(second, result({61, 62, 63, 64}, {65}, 4));
  alone.scheduler.commit(third, result({65, 66}, {}, 2));
  EXPECT_EQ(alone.committed(), (Tokens{50, 99, 61, 62, 63, 64, 65, 66}));
}

TEST(LoneDriver, AStepBehindTheEndIsOfNoAccount) {
  SchedulerOptions options = lone_options();
  Alone alone(options);
  const StepPlan first = alone.scheduler.plan();
  const StepPlan second = alone.scheduler.plan();
  ASSERT_FALSE(second.empty());
  alone.scheduler.cancel(alone.id);
  EXPECT_EQ(alone.scheduler.running(), 0);
  EXPECT_LT(alone.scheduler.pages().free, alone.scheduler.pages().pages);
  alone.committed();
  alone.scheduler.commit(first, result({51, 52, 99}, {61}, 4));
  EXPECT_LT(alone.scheduler.pages().free, alone.scheduler.pages().pages) << "one is under way yet";
  alone.scheduler.fail(second, error(ErrorCode::kInternal, "behind the end"));
  EXPECT_EQ(alone.scheduler.pages().free, alone.scheduler.pages().pages);
  EXPECT_TRUE(alone.scheduler.collect().empty());
}

TEST(LoneDriver, AFailureEndsTheReplyAndWhatFollowedIt) {
  Alone alone;
  const StepPlan first = alone.scheduler.plan();
  const StepPlan second = alone.scheduler.plan();
  alone.committed();
  alone.scheduler.fail(first, error(ErrorCode::kInternal, "broke"));
  const auto events = alone.scheduler.collect();
  ASSERT_EQ(events.size(), 1U);
  EXPECT_EQ(events.front().error.message, "broke");
  EXPECT_TRUE(alone.scheduler.plan().empty());
  alone.scheduler.fail(second, error(ErrorCode::kInternal, "the step before it failed"));
  EXPECT_TRUE(alone.scheduler.collect().empty());
  EXPECT_EQ(alone.scheduler.pages().free, alone.scheduler.pages().pages);
}

// Whoever came is admitted when what is under way has landed; then the windows come from here, and
// the state needs nothing but its position.
TEST(LoneDriver, YieldsToAnArrival) {
  Alone alone;
  const StepPlan first = alone.scheduler.plan();
  const SequenceId other = alone.scheduler.submit({.prompt = {7, 8, 9}, .max_tokens = 3}).value();
  EXPECT_TRUE(alone.scheduler.plan().empty());
  alone.scheduler.commit(first, result({51, 52, 99}, {61, 62, 63}, 4));
  const StepPlan prompt = alone.scheduler.plan();
  ASSERT_EQ(prompt.segments.size(), 1U);
  EXPECT_EQ(prompt.segments.front().sequence, other);
  EXPECT_EQ(alone.scheduler.lone().handoffs, 1);
  EXPECT_FALSE(alone.scheduler.lone().active);
  alone.scheduler.commit(prompt, result({70}));
  const StepPlan shared = alone.scheduler.plan();
  ASSERT_EQ(shared.segments.size(), 2U);
  EXPECT_EQ(shared.segments.front().start_position, 5);
  EXPECT_EQ(shared.segments.front().tokens.front(), 99);
  EXPECT_TRUE(alone.scheduler.plan().empty());
  StepResult both = result({98}, {});
  both.segments.push_back({.tokens = {71}});
  alone.scheduler.commit(shared, both);
  alone.scheduler.cancel(other);
  EXPECT_EQ(alone.scheduler.plan().segments.front().verdict_rows, 1) << "alone again";
  EXPECT_EQ(alone.scheduler.lone().runs, 2);
}

// A copy of the context comes from here, and nothing is begun behind it or in its place.
TEST(LoneDriver, LeavesCopiesToTheHost) {
  Scheduler scheduler(lone_options());
  const Tokens line = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
  Tokens prompt = line;
  prompt.insert(prompt.end(), line.begin(), line.begin() + 9);
  (void)scheduler.submit({.prompt = prompt, .max_tokens = 40}).value();
  for (int chunk = 0; chunk < 3; ++chunk) {
    const StepPlan plan = scheduler.plan();
    scheduler.commit(plan, plan.segments.front().next_token < 0 ? result({10}) : result({}));
  }
  const StepPlan copied = scheduler.plan();
  ASSERT_EQ(copied.segments.size(), 1U);
  EXPECT_EQ(copied.segments.front().verdict_rows, 0);
  EXPECT_EQ(copied.segments.front().tokens, (Tokens{10, 11, 12, 13}));
  EXPECT_TRUE(scheduler.plan().empty());
  scheduler.commit(copied, result({11, 12, 13, 99}));
  const StepPlan own = scheduler.plan();
  EXPECT_EQ(own.segments.front().verdict_rows, 1);
  EXPECT_FALSE(scheduler.plan().empty());
}

}  // namespace
}  // namespace flashlane::scheduler
