// The scheduler with results written by hand: what is planned, what is committed, where a reply is
// cut, and that every sequence ends exactly once.
#include "scheduler/scheduler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/support/cheap_rows.h"

namespace flashlane::scheduler {
namespace {

using flashlane::testing::cheap_rows;
using Tokens = std::vector<int32_t>;

SchedulerOptions options(int context = 64, int prefill_chunk = 4) {
  return {.context = context,
          .prefill_chunk = prefill_chunk,
          .max_draft = 3,
          .costs = cheap_rows(),
          .vocabulary = 1000};
}

SequenceSpec spec(Tokens prompt, int max_tokens) {
  return {.prompt = std::move(prompt), .max_tokens = max_tokens};
}

StepResult result(Tokens tokens, Tokens drafts = {}) {
  return {.segments = {{.tokens = std::move(tokens), .drafts = std::move(drafts)}}};
}

// Reply tokens and the last event of one sequence.
struct Outcome {
  Tokens tokens;
  int finished = 0;
  Event last;
};
Outcome outcome(const std::vector<Event>& events, SequenceId id) {
  Outcome out;
  for (const Event& event : events) {
    if (!(event.sequence == id)) continue;
    EXPECT_EQ(out.finished, 0) << "an event after the last";
    out.tokens.insert(out.tokens.end(), event.tokens.begin(), event.tokens.end());
    if (event.kind == Event::Kind::kFinished) {
      ++out.finished;
      out.last = event;
    }
  }
  return out;
}

// A scheduler whose only sequence (prompt 10 11, pending 50) decodes.
struct Decoding {
  explicit Decoding(SequenceSpec request, SchedulerOptions settings, Tokens drafts = {})
      : scheduler(std::move(settings)) {
    id = scheduler.submit(std::move(request)).value();
    const StepPlan plan = scheduler.plan();
    scheduler.commit(plan, result({50}, std::move(drafts)));
  }
  Scheduler scheduler;
  SequenceId id;
};

TEST(Scheduler, PrefillsInChunksThenDecodes) {
  Scheduler scheduler(options());
  const SequenceId id = scheduler.submit(spec({1, 2, 3, 4, 5, 6, 7, 8, 9}, 20)).value();
  StepPlan plan = scheduler.plan();
  ASSERT_EQ(plan.segments.size(), 1U);
  EXPECT_EQ(plan.segments[0].kind, SegmentKind::kPrefill);
  EXPECT_EQ(plan.segments[0].tokens, (Tokens{1, 2, 3, 4}));
  EXPECT_EQ(plan.segments[0].start_position, 0);
  EXPECT_EQ(plan.segments[0].next_token, 5);
  EXPECT_EQ(plan.segments[0].draft_depth, 0);
  EXPECT_TRUE(plan.segments[0].uses_mtp);
  scheduler.commit(plan, result({}));
  plan = scheduler.plan();
  EXPECT_EQ(plan.segments[0].tokens, (Tokens{5, 6, 7, 8}));
  EXPECT_EQ(plan.segments[0].start_position, 4);
  EXPECT_EQ(plan.segments[0].next_token, 9);
  scheduler.commit(plan, result({}));
  plan = scheduler.plan();
  EXPECT_EQ(plan.segments[0].tokens, (Tokens{9}));
  EXPECT_EQ(plan.segments[0].next_token, -1);
  EXPECT_EQ(plan.segments[0].draft_depth, 3);
  scheduler.commit(plan, result({100}, {101, 102}));
  plan = scheduler.plan();
  EXPECT_EQ(plan.segments[0].kind, SegmentKind::kVerify);
  EXPECT_EQ(plan.segments[0].tokens, (Tokens{100, 101, 102}));
  EXPECT_EQ(plan.segments[0].start_position, 9);
  EXPECT_EQ(plan.segments[0].draft_depth, 3);
  scheduler.commit(plan, result({101, 200}, {}));
  plan = scheduler.plan();
  EXPECT_EQ(plan.segments[0].tokens, (Tokens{200}));
  EXPECT_EQ(plan.segments[0].start_position, 11);
  scheduler.commit(plan, result({201}));

  Tokens prefilled;
  const std::vector<Event> events = scheduler.collect();
  ASSERT_FALSE(events.empty());
  EXPECT_EQ(events[0].kind, Event::Kind::kStarted);
  for (const Event& event : events) {
    if (event.kind == Event::Kind::kPrefilled) prefilled.push_back(event.prefilled);
  }
  EXPECT_EQ(prefilled, (Tokens{4, 8, 9}));
  EXPECT_EQ(outcome(events, id).tokens, (Tokens{100, 101, 200, 201}));
  EXPECT_TRUE(scheduler.collect().empty());
}

TEST(Scheduler, RunsOneAtATimeInOrder) {
  Scheduler scheduler(options());
  const SequenceId first = scheduler.submit(spec({1}, 1)).value();
  const SequenceId second = scheduler.submit(spec({2}, 1)).value();
  EXPECT_EQ(scheduler.waiting(), 2);
  EXPECT_EQ(scheduler.running(), 0);
  StepPlan plan = scheduler.plan();
  EXPECT_EQ(plan.segments[0].sequence, first);
  EXPECT_EQ(scheduler.waiting(), 1);
  EXPECT_EQ(scheduler.running(), 1);
  scheduler.commit(plan, result({7}));
  EXPECT_EQ(scheduler.running(), 0);
  plan = scheduler.plan();
  EXPECT_EQ(plan.segments[0].sequence, second);
  scheduler.commit(plan, result({8}));
  EXPECT_TRUE(scheduler.plan().empty());
  const std::vector<Event> events = scheduler.collect();
  EXPECT_EQ(outcome(events, first).last.reason, FinishReason::kLength);
  EXPECT_EQ(outcome(events, first).tokens, (Tokens{7}));
  EXPECT_EQ(outcome(events, second).tokens, (Tokens{8}));
}

TEST(Scheduler, DropsWhatFollowsAnEndTokenAndCountsTheDraftsThatStood) {
  SequenceSpec request = spec({10, 11}, 20);
  request.end_ids = {60, 61};
  Decoding decoding(request, options(), {51, 61, 52});
  const StepPlan plan = decoding.scheduler.plan();
  EXPECT_EQ(plan.segments[0].tokens, (Tokens{50, 51, 61, 52}));
  decoding.scheduler.commit(plan, result({51, 61, 52, 53}, {54}));
  const Outcome out = outcome(decoding.scheduler.collect(), decoding.id);
  EXPECT_EQ(out.tokens, (Tokens{50, 51, 61}));
  EXPECT_EQ(out.finished, 1);
  EXPECT_EQ(out.last.reason, FinishReason::kStop);
  EXPECT_EQ(out.last.drafts.rounds, 1);
  EXPECT_EQ(out.last.drafts.drafted, 3);
  EXPECT_EQ(out.last.drafts.accepted, 2);
  EXPECT_TRUE(decoding.scheduler.plan().empty());
}

TEST(Scheduler, AnEndTokenMayBeTheFirstToken) {
  Scheduler scheduler(options());
  SequenceSpec request = spec({1}, 9);
  request.end_ids = {50};
  const SequenceId id = scheduler.submit(request).value();
  const StepPlan plan = scheduler.plan();
  scheduler.commit(plan, result({50}, {51, 52}));
  const Outcome out = outcome(scheduler.collect(), id);
  EXPECT_EQ(out.tokens, (Tokens{50}));
  EXPECT_EQ(out.last.reason, FinishReason::kStop);
  EXPECT_EQ(out.last.drafts.rounds, 0);
}

TEST(Scheduler, NoEndIdsMeansNothingButTheLengthEnds) {
  Decoding decoding(spec({10, 11}, 3), options(), {60});
  const StepPlan plan = decoding.scheduler.plan();
  decoding.scheduler.commit(plan, result({60, 60}));
  const Outcome out = outcome(decoding.scheduler.collect(), decoding.id);
  EXPECT_EQ(out.tokens, (Tokens{50, 60, 60}));
  EXPECT_EQ(out.last.reason, FinishReason::kLength);
}

TEST(Scheduler, AStopStringEndsInsideAnAcceptedRun) {
  const std::vector<std::string> texts = {"x", "he", "ll", "o!", "zz"};
  SchedulerOptions settings = options();
  settings.token_bytes = std::make_shared<TokenBytes>(texts);
  SequenceSpec request = spec({10, 11}, 20);
  request.stop_strings = {"never", "ello"};
  Decoding decoding(request, settings, {1, 2, 3});
  const StepPlan plan = decoding.scheduler.plan();
  decoding.scheduler.commit(plan, result({1, 2, 3, 4}));
  const Outcome out = outcome(decoding.scheduler.collect(), decoding.id);
  EXPECT_EQ(out.tokens, (Tokens{50, 1, 2, 3}));
  EXPECT_EQ(out.last.reason, FinishReason::kStop);
  EXPECT_EQ(out.last.drafts.accepted, 3);
}

TEST(Scheduler, AStopOnTheLastAllowedTokenIsAStop) {
  SequenceSpec request = spec({10, 11}, 2);
  request.end_ids = {60};
  Decoding decoding(request, options());
  const StepPlan plan = decoding.scheduler.plan();
  decoding.scheduler.commit(plan, result({60}));
  EXPECT_EQ(outcome(decoding.scheduler.collect(), decoding.id).last.reason, FinishReason::kStop);
}

TEST(Scheduler, AWindowIsNeverWiderThanTheTokensLeft) {
  // max_tokens → drafts asked at the prompt's end, rows of the first window, drafts asked there.
  struct Case {
    int max_tokens, first_depth, rows, next_depth;
  };
  for (const Case& wanted : {Case{1, 0, 0, 0}, Case{2, 0, 1, 0}, Case{3, 1, 2, 0}, Case{4, 2, 3, 1},
                             Case{5, 3, 4, 2}, Case{9, 3, 4, 3}}) {
    SCOPED_TRACE(wanted.max_tokens);
    Scheduler scheduler(options());
    const SequenceId id = scheduler.submit(spec({10, 11}, wanted.max_tokens)).value();
    StepPlan plan = scheduler.plan();
    EXPECT_EQ(plan.segments[0].draft_depth, wanted.first_depth);
    Tokens drafts = {1, 2, 3};
    drafts.resize(static_cast<size_t>(wanted.first_depth));
    scheduler.commit(plan, result({50}, drafts));
    if (wanted.rows == 0) {
      EXPECT_EQ(outcome(scheduler.collect(), id).last.reason, FinishReason::kLength);
      EXPECT_TRUE(scheduler.plan().empty());
      continue;
    }
    plan = scheduler.plan();
    EXPECT_EQ(static_cast<int>(plan.segments[0].tokens.size()), wanted.rows);
    EXPECT_EQ(plan.segments[0].draft_depth, wanted.next_depth);
  }
}

TEST(Scheduler, HeldDraftsBeyondTheTokensLeftAreNotRun) {
  Decoding decoding(spec({10, 11}, 6), options(), {1, 2, 3});
  StepPlan plan = decoding.scheduler.plan();
  EXPECT_EQ(plan.segments[0].draft_depth, 3);
  decoding.scheduler.commit(plan, result({1, 2, 9}, {4, 5, 6}));
  plan = decoding.scheduler.plan();  // two tokens are left
  EXPECT_EQ(plan.segments[0].tokens, (Tokens{9, 4}));
  EXPECT_EQ(plan.segments[0].draft_depth, 0);
}

TEST(Scheduler, AFullContextIsUsedToTheLastPosition) {
  Scheduler scheduler(options(8, 512));
  EXPECT_FALSE(scheduler.submit(spec({1, 2, 3, 4, 5, 6, 7}, 2)).ok());
  const SequenceId id = scheduler.submit(spec({1, 2, 3, 4, 5, 6, 7}, 1)).value();
  const StepPlan plan = scheduler.plan();
  EXPECT_EQ(plan.segments[0].tokens.size(), 7U);
  EXPECT_EQ(plan.segments[0].draft_depth, 0);
  scheduler.commit(plan, result({50}));
  EXPECT_EQ(outcome(scheduler.collect(), id).tokens, (Tokens{50}));
}

TEST(Scheduler, WithoutDraftsTheHeadStaysOut) {
  SequenceSpec request = spec({10, 11}, 9);
  request.drafts = false;
  Decoding decoding(request, options());
  const StepPlan plan = decoding.scheduler.plan();
  EXPECT_FALSE(plan.segments[0].uses_mtp);
  EXPECT_EQ(plan.segments[0].draft_depth, 0);

  SchedulerOptions no_head = options();
  no_head.max_draft = 0;
  Decoding headless(spec({10, 11}, 9), no_head);
  EXPECT_FALSE(headless.scheduler.plan().segments[0].uses_mtp);
}

TEST(Scheduler, CancelsWhileWaiting) {
  Scheduler scheduler(options());
  const SequenceId first = scheduler.submit(spec({1}, 5)).value();
  const SequenceId second = scheduler.submit(spec({2}, 5)).value();
  const SequenceId third = scheduler.submit(spec({3}, 1)).value();
  scheduler.cancel(second);
  scheduler.cancel(second);
  scheduler.cancel(first);
  EXPECT_EQ(scheduler.waiting(), 1);
  const StepPlan plan = scheduler.plan();
  EXPECT_EQ(plan.segments[0].sequence, third);
  const std::vector<Event> events = scheduler.collect();
  EXPECT_EQ(outcome(events, first).last.reason, FinishReason::kCancelled);
  EXPECT_EQ(outcome(events, second).finished, 1);
  EXPECT_EQ(outcome(events, third).finished, 0);
}

TEST(Scheduler, CancelsBetweenStepsOfThePrompt) {
  Scheduler scheduler(options());
  const SequenceId id = scheduler.submit(spec({1, 2, 3, 4, 5, 6}, 5)).value();
  const StepPlan plan = scheduler.plan();
  scheduler.commit(plan, result({}));
  scheduler.cancel(id);
  EXPECT_EQ(scheduler.running(), 0);
  EXPECT_TRUE(scheduler.plan().empty());
  const Outcome out = outcome(scheduler.collect(), id);
  EXPECT_EQ(out.finished, 1);
  EXPECT_EQ(out.last.reason, FinishReason::kCancelled);
  EXPECT_EQ(out.last.prefilled, 4);
}

TEST(Scheduler, CancelInFlightDropsTheResultAndKeepsTheSlotUntilThen) {
  for (const bool failed : {false, true}) {
    Decoding decoding(spec({10, 11}, 20), options(), {51});
    Scheduler& scheduler = decoding.scheduler;
    const SequenceId next = scheduler.submit(spec({5}, 1)).value();
    const StepPlan plan = scheduler.plan();
    scheduler.collect();
    scheduler.cancel(decoding.id);
    scheduler.cancel(decoding.id);
    EXPECT_EQ(scheduler.running(), 0);
    Outcome out = outcome(scheduler.collect(), decoding.id);
    EXPECT_EQ(out.finished, 1);
    EXPECT_EQ(out.last.reason, FinishReason::kCancelled);
    EXPECT_EQ(out.last.drafts.drafted, 0);
    if (failed) {
      scheduler.fail(plan, {ErrorCode::kInternal, "late"});
    } else {
      scheduler.commit(plan, result({51, 52}));
    }
    EXPECT_TRUE(scheduler.collect().empty());
    EXPECT_EQ(scheduler.plan().segments[0].sequence, next);
  }
}

TEST(Scheduler, CancelOfUnknownAndFinishedIdsDoesNothing) {
  Scheduler scheduler(options());
  scheduler.cancel({77});
  const SequenceId id = scheduler.submit(spec({1}, 1)).value();
  const StepPlan plan = scheduler.plan();
  scheduler.commit(plan, result({50}));
  scheduler.collect();
  scheduler.cancel(id);
  EXPECT_TRUE(scheduler.collect().empty());
}

TEST(Scheduler, AFailureEndsThePlansSequencesAlone) {
  Decoding decoding(spec({10, 11}, 20), options());
  Scheduler& scheduler = decoding.scheduler;
  const SequenceId other = scheduler.submit(spec({5}, 1)).value();
  const StepPlan plan = scheduler.plan();
  scheduler.fail(plan, {ErrorCode::kInternal, "the step broke"});
  const std::vector<Event> events = scheduler.collect();
  const Outcome out = outcome(events, decoding.id);
  EXPECT_EQ(out.finished, 1);
  EXPECT_EQ(out.last.reason, FinishReason::kError);
  EXPECT_EQ(out.last.error.message, "the step broke");
  EXPECT_EQ(outcome(events, other).finished, 0);
  EXPECT_EQ(scheduler.plan().segments[0].sequence, other);
}

TEST(Scheduler, RefusesWhatCanNeverRunByField) {
  Scheduler scheduler(options());
  const auto refusal = [&](const SequenceSpec& request) {
    return scheduler.submit(request).error();
  };
  EXPECT_EQ(refusal(spec({}, 1)).field, "prompt");
  EXPECT_EQ(refusal(spec({1}, 0)).field, "max_tokens");
  EXPECT_EQ(refusal(spec({1}, -5)).field, "max_tokens");
  EXPECT_EQ(refusal(spec({1}, 64)).message, "prompt 1 + 64 new tokens exceeds the context of 64");
  EXPECT_EQ(refusal(spec({1}, std::numeric_limits<int>::max())).code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refusal(spec({1, -1}, 1)).field, "prompt");
  EXPECT_EQ(refusal(spec({1, 1000}, 1)).message,
            "prompt token 1 is 1000; the vocabulary has ids 0 to 999");
  SequenceSpec stops = spec({1}, 1);
  stops.stop_strings = {"x"};
  EXPECT_EQ(refusal(stops).field, "stop");
  SequenceSpec sampled = spec({1}, 1);
  sampled.sampling.temperature = std::nanf("");
  EXPECT_EQ(refusal(sampled).field, "temperature");
  sampled.sampling = {.top_k = -1};
  EXPECT_EQ(refusal(sampled).field, "top_k");
  sampled.sampling = {.top_p = 1.5F};
  EXPECT_EQ(refusal(sampled).field, "top_p");
  sampled.sampling = {.min_p = -0.1F};
  EXPECT_EQ(refusal(sampled).field, "min_p");
  EXPECT_EQ(scheduler.waiting(), 0);
  EXPECT_TRUE(scheduler.collect().empty());
}

TEST(SchedulerDeathTest, AnImpossibleResultIsABug) {
  Decoding decoding(spec({10, 11}, 20), options(), {51, 52});
  const StepPlan plan = decoding.scheduler.plan();
  EXPECT_DEATH(decoding.scheduler.commit(plan, result({})), "CHECK|empty");
  EXPECT_DEATH(decoding.scheduler.commit(plan, result({51, 99, 98})), "99 against 52");
  EXPECT_DEATH(decoding.scheduler.commit(plan, result({51}, {1, 2, 3, 4})), "4 against 3");
  EXPECT_TRUE(decoding.scheduler.plan().empty()) << "a step is under way";
}

}  // namespace
}  // namespace flashlane::scheduler
