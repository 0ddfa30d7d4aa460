// Replies in sized sessions: who gets one that becomes free.
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/support/fake_runner.h"

namespace flashlane::scheduler {
namespace {

using flashlane::testing::FakeRunner;
using flashlane::testing::solo_reply;
using Kind = Event::Kind;

// Two sessions, and no drafts, so that each step of a reply brings one token.
struct TwoSessions {
  TwoSessions() { runner.slots = 2; }

  SequenceId submit(const SequenceSpec& spec) { return scheduler.submit(spec).value(); }
  void run(const StepPlan& plan) {
    scheduler.commit(plan, runner.run(plan).value());
    scheduler.check();
    const std::vector<Event> now = scheduler.collect();
    events.insert(events.end(), now.begin(), now.end());
  }
  // Where in `events` the first of this kind is; events.size() where there is none.
  size_t place(Kind kind, SequenceId id) const {
    const auto found = std::find_if(events.begin(), events.end(), [&](const Event& event) {
      return event.kind == kind && event.sequence == id;
    });
    return static_cast<size_t>(found - events.begin());
  }
  bool has(Kind kind, SequenceId id) const { return place(kind, id) < events.size(); }
  std::vector<int32_t> tokens_of(SequenceId id) const {
    std::vector<int32_t> tokens;
    for (const Event& event : events) {
      if (event.sequence != id) continue;
      tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    }
    return tokens;
  }

  Scheduler scheduler{{.context = 200,
                       .slots = 2,
                       .sessions = {200, 60},
                       .session_grow = 8,
                       .max_draft = 0,
                       .prompt_lookup = false,
                       .vocabulary = 16}};
  FakeRunner runner;
  std::vector<Event> events;
};

// Else replies that come fast enough could keep it waiting for ever: each would find the session
// free before it did, and leave it to the next.
TEST(Moves, WhoWaitsInTheMiddleHasWhatIsFreedBeforeANewOne) {
  TwoSessions two;
  const SequenceSpec long_reply{.prompt = {1, 2, 3, 4, 5}, .max_tokens = 90};
  const SequenceSpec short_reply{.prompt = {6, 7, 8}, .max_tokens = 4};
  const SequenceId outgrows = two.submit(long_reply);
  const SequenceId has_largest = two.submit(long_reply);
  for (int step = 0; step < 100 && !two.has(Kind::kPaused, outgrows); ++step) {
    two.run(two.scheduler.plan());
  }
  ASSERT_TRUE(two.has(Kind::kPaused, outgrows));
  const SequenceId fresh = two.submit(short_reply);
  two.scheduler.cancel(has_largest);

  const StepPlan plan = two.scheduler.plan();
  ASSERT_EQ(plan.moves.size(), 1U);
  EXPECT_EQ(plan.moves.front().sequence, outgrows);
  EXPECT_EQ(two.scheduler.sessions().free, 0) << "its own, until the move is back";
  two.run(plan);
  EXPECT_FALSE(two.has(Kind::kStarted, fresh));

  // The new one begins in the session that was left.
  for (StepPlan next = two.scheduler.plan(); !next.empty(); next = two.scheduler.plan()) {
    two.run(next);
  }
  EXPECT_LT(two.place(Kind::kMoved, outgrows), two.place(Kind::kStarted, fresh));
  EXPECT_EQ(two.tokens_of(outgrows), solo_reply(long_reply, 16).tokens);
  EXPECT_EQ(two.tokens_of(fresh), solo_reply(short_reply, 16).tokens);
  EXPECT_EQ(two.scheduler.sessions().free, 2);
}

}  // namespace
}  // namespace flashlane::scheduler
