// Several sequences in one step: who shares it, what a failure or a cancel costs the others, and
// that slots come back.
#include <gtest/gtest.h>

#include <map>

#include "scheduler/scheduler.h"
#include "tests/support/fake_runner.h"

namespace flashlane::scheduler {
namespace {

using flashlane::testing::Drafting;
using flashlane::testing::FakeRunner;
using flashlane::testing::solo_reply;
using Tokens = std::vector<int32_t>;

SequenceSpec request(int32_t first, int prompt, int max_tokens) {
  SequenceSpec spec{.prompt = {}, .max_tokens = max_tokens};
  for (int i = 0; i < prompt; ++i) spec.prompt.push_back((first + i) % 16);
  return spec;
}

// A scheduler over the fake runner, and what it sent to whom.
struct World {
  explicit World(const SchedulerOptions& options) : scheduler(options) {
    runner.slots = options.slots;
  }

  SequenceId submit(const SequenceSpec& spec) {
    const SequenceId id = scheduler.submit(spec).value();
    specs[id.value] = spec;
    return id;
  }
  StepPlan plan() {
    StepPlan next = scheduler.plan();
    collect();
    return next;
  }
  void land(const StepPlan& plan) {
    scheduler.commit(plan, runner.run(plan).value());
    collect();
  }
  void fail(const StepPlan& plan, ErrorCode code = ErrorCode::kInternal) {
    scheduler.fail(plan, error(code, "it broke"));
    collect();
  }
  void run_out() {
    for (StepPlan next = plan(); !next.empty(); next = plan()) land(next);
  }
  void collect() {
    for (const Event& event : scheduler.collect()) {
      EXPECT_EQ(ended.count(event.sequence.value), 0U) << "an event after the last";
      Tokens& reply = tokens[event.sequence.value];
      reply.insert(reply.end(), event.tokens.begin(), event.tokens.end());
      if (event.kind == Event::Kind::kFinished) ended[event.sequence.value] = event;
    }
  }
  void expect_whole(SequenceId id) {
    ASSERT_EQ(ended.count(id.value), 1U) << id.value;
    EXPECT_EQ(tokens[id.value], solo_reply(specs[id.value], runner.vocabulary).tokens) << id.value;
  }
  FinishReason reason(SequenceId id) { return ended.at(id.value).reason; }

  FakeRunner runner;
  Scheduler scheduler;
  std::map<uint64_t, SequenceSpec> specs;
  std::map<uint64_t, Tokens> tokens;
  std::map<uint64_t, Event> ended;
};

TEST(SharedSteps, SixteenRepliesShareOneForwardAndEachIsItsOwn) {
  World world({.context = 100, .slots = 16, .max_draft = 3, .vocabulary = 16});
  world.runner.drafting = Drafting::kRandom;
  std::vector<SequenceId> ids;
  ids.reserve(20);
  for (int i = 0; i < 20; ++i) ids.push_back(world.submit(request(i, 3 + i, 10 + i)));
  StepPlan plan = world.plan();
  EXPECT_EQ(plan.segments.size(), 16U) << "all prompts fit one step";
  EXPECT_EQ(world.scheduler.running(), 16);
  EXPECT_EQ(world.scheduler.waiting(), 4);
  world.land(plan);
  plan = world.plan();
  EXPECT_EQ(plan.segments.size(), 16U);
  for (const Segment& segment : plan.segments) {
    EXPECT_EQ(segment.kind, SegmentKind::kVerify);
    EXPECT_EQ(segment.tokens.size(), 1U) << "no row is left for drafts";
  }
  world.land(plan);
  world.run_out();
  for (const SequenceId id : ids) world.expect_whole(id);
}

TEST(SharedSteps, DraftRowsFillWhatTheOthersLeave) {
  World world({.context = 200, .slots = 4, .max_draft = 3, .vocabulary = 16});
  for (int i = 0; i < 4; ++i) world.submit(request(i, 4, 60));
  world.land(world.plan());
  const StepPlan plan = world.plan();
  size_t rows = 0;
  for (const Segment& segment : plan.segments) rows += segment.tokens.size();
  EXPECT_EQ(rows, 16U);
  world.land(plan);
  world.run_out();
  EXPECT_GT(world.runner.most_shared, 3U);
}

// Each wave of newcomers fills a decode step with forced rows and is gone after it; a reply that
// runs all the while has its turn between any two of them.
TEST(SharedSteps, NewcomersDoNotKeepAnOldReplyWaiting) {
  World world({.context = 200, .slots = 5, .max_draft = 3, .vocabulary = 16});
  const SequenceId old = world.submit(request(1, 4, 60));
  world.land(world.plan());
  int steps_over = 0;
  int full_steps = 0;
  for (int wave = 0; wave < 8; ++wave) {
    for (int i = 0; i < 4; ++i) {
      SequenceSpec newcomer = request(i, 2, 5);
      newcomer.thinking = {.budget = 1, .close_tokens = {1, 2, 3, 4, 5, 6}, .end_token = 6};
      world.submit(newcomer);
    }
    while (world.scheduler.running() > 1 || world.scheduler.waiting() > 0) {
      const StepPlan plan = world.plan();
      if (plan.segments.front().kind == SegmentKind::kVerify) {
        const bool has_old = plan.segments.front().sequence == old;
        steps_over = has_old ? 0 : steps_over + 1;
        full_steps += static_cast<int>(plan.segments.size()) < world.scheduler.running() ? 1 : 0;
        ASSERT_LE(steps_over, 1) << "wave " << wave;
      }
      world.land(plan);
    }
  }
  EXPECT_GE(full_steps, 8) << "nobody was left out: this world shows nothing";
  world.run_out();
  world.expect_whole(old);
}

// While a long prompt goes in, a reply has a step between any two of its chunks (S10, T37).
TEST(SharedSteps, ALongPromptDoesNotStallAReply) {
  World world({.context = 2000, .slots = 2, .vocabulary = 16});
  const SequenceId reply = world.submit(request(1, 4, 400));
  world.land(world.plan());
  const SequenceId late = world.submit(request(2, 600, 5));
  int in_a_row = 0;
  int chunks = 0;
  while (world.ended.count(late.value) == 0) {
    const StepPlan plan = world.plan();
    ASSERT_FALSE(plan.empty());
    if (plan.segments.front().kind == SegmentKind::kPrefill) {
      EXPECT_EQ(++in_a_row, 1);
      EXPECT_LE(plan.segments.front().tokens.size(), 16U);
      ++chunks;
    } else {
      in_a_row = 0;
    }
    world.land(plan);
  }
  EXPECT_GE(chunks, 600 / 16);
  EXPECT_GE(world.tokens[reply.value].size(), static_cast<size_t>(chunks));
  world.run_out();
  world.expect_whole(reply);
  world.expect_whole(late);
}

// Its states are unknown afterwards, so all that were in the step end; those that were not go on.
TEST(SharedSteps, AFailedDecodeStepEndsWhatWasInItAlone) {
  World world({.context = 100, .slots = 3, .vocabulary = 16});
  const SequenceId first = world.submit(request(1, 4, 30));
  const SequenceId second = world.submit(request(2, 4, 30));
  world.land(world.plan());
  const StepPlan plan = world.plan();
  ASSERT_EQ(plan.segments.size(), 2U);
  const SequenceId late = world.submit(request(3, 4, 30));
  world.fail(plan);
  EXPECT_EQ(world.reason(first), FinishReason::kError);
  EXPECT_EQ(world.reason(second), FinishReason::kError);
  EXPECT_EQ(world.ended.at(first.value).error.message, "it broke");
  world.run_out();
  world.expect_whole(late);
}

// H3: of several prompts in one step only the one that brings the failure ends by it.
TEST(SharedSteps, AFailedPromptStepCostsOnlyTheRequestThatBreaksIt) {
  World world({.context = 100, .slots = 3, .vocabulary = 16});
  const SequenceId first = world.submit(request(1, 4, 9));
  const SequenceId bad = world.submit(request(2, 5, 9));
  const SequenceId third = world.submit(request(3, 6, 9));
  const StepPlan shared = world.plan();
  ASSERT_EQ(shared.segments.size(), 3U);
  world.fail(shared);
  EXPECT_TRUE(world.ended.empty());
  for (StepPlan plan = world.plan(); !plan.empty(); plan = world.plan()) {
    const bool prompt = plan.segments.front().kind == SegmentKind::kPrefill;
    if (prompt) {
      EXPECT_EQ(plan.segments.size(), 1U);
      EXPECT_EQ(plan.segments.front().start_position, 0);
    }
    if (prompt && plan.segments.front().sequence == bad) {
      world.fail(plan);
    } else {
      world.land(plan);
    }
  }
  EXPECT_EQ(world.reason(bad), FinishReason::kError);
  world.expect_whole(first);
  world.expect_whole(third);
}

TEST(SharedSteps, ALostDeviceEndsSharedPromptsAtOnce) {
  World world({.context = 100, .slots = 2, .vocabulary = 16});
  const SequenceId first = world.submit(request(1, 4, 9));
  const SequenceId second = world.submit(request(2, 5, 9));
  world.fail(world.plan(), ErrorCode::kDeviceLost);
  EXPECT_EQ(world.reason(first), FinishReason::kError);
  EXPECT_EQ(world.reason(second), FinishReason::kError);
  EXPECT_TRUE(world.plan().empty());
}

// A slot stays taken while a step in flight may still write to it, and not a step longer.
TEST(SharedSteps, ACancelledSequenceKeepsItsSlotUntilItsStepIsBack) {
  World world({.context = 100, .slots = 2, .vocabulary = 16});
  const SequenceId first = world.submit(request(1, 4, 30));
  const SequenceId second = world.submit(request(2, 4, 30));
  const SequenceId waiting = world.submit(request(3, 4, 30));
  world.land(world.plan());
  const StepPlan plan = world.plan();
  world.scheduler.cancel(first);
  world.scheduler.cancel(first);
  world.collect();
  EXPECT_EQ(world.reason(first), FinishReason::kCancelled);
  EXPECT_EQ(world.scheduler.running(), 1);
  EXPECT_EQ(world.scheduler.waiting(), 1);
  world.land(plan);
  const StepPlan next = world.plan();
  ASSERT_EQ(next.segments.size(), 1U);
  EXPECT_EQ(next.segments.front().sequence, waiting);
  EXPECT_EQ(next.segments.front().slot, 0);
  world.land(next);
  world.run_out();
  world.expect_whole(second);
  world.expect_whole(waiting);
  EXPECT_EQ(world.scheduler.running() + world.scheduler.waiting(), 0);
}

// A prompt is cancelled while replies' step is in flight: nothing of it comes back.
TEST(SharedSteps, ACancelBesideTheStepInFlightLeavesTheOthersAlone) {
  World world({.context = 100, .slots = 2, .prefill_chunk = 4, .vocabulary = 16});
  const SequenceId reply = world.submit(request(1, 4, 30));
  world.land(world.plan());
  const SequenceId prompt = world.submit(request(2, 40, 30));
  const SequenceId waiting = world.submit(request(3, 4, 30));
  StepPlan plan = world.plan();
  while (plan.segments.front().kind == SegmentKind::kPrefill) {
    world.land(plan);
    plan = world.plan();
  }
  ASSERT_EQ(plan.segments.size(), 1U);
  world.scheduler.cancel(prompt);
  world.collect();
  EXPECT_EQ(world.reason(prompt), FinishReason::kCancelled);
  EXPECT_TRUE(world.tokens[prompt.value].empty());
  world.land(plan);
  world.run_out();
  world.expect_whole(reply);
  world.expect_whole(waiting);
}

}  // namespace
}  // namespace flashlane::scheduler
