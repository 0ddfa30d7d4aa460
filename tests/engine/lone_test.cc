// The lone driver on a device with latency: steps of a reply that runs alone are under way together
// and the reply is the same; whoever comes, leaves, stops or breaks in between is heard at once,
// and afterwards nothing is held (L1 to L4, H2, H3).
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <optional>
#include <set>
#include <thread>

#include "tests/engine/bench.h"
#include "tests/engine/late_device.h"

namespace flashlane::engine {
namespace {

using flashlane::testing::Drafting;
using flashlane::testing::solo_reply;

constexpr int kVocabulary = 16;

EngineOptions lone_options(int steps_in_flight) {
  EngineOptions lone = options();
  lone.scheduler.slots = 4;
  lone.scheduler.lone = true;
  lone.scheduler.steps_in_flight = steps_in_flight;
  return lone;
}

struct LoneBench {
  explicit LoneBench(int steps_in_flight) : LoneBench(lone_options(steps_in_flight)) {}
  explicit LoneBench(EngineOptions engine_options) {
    auto made = std::make_unique<LateDevice>(clock);
    device = made.get();
    device->runner.slots = engine_options.scheduler.slots;
    device->runner.drafting = Drafting::kRandom;
    device->at_start = [this](int step, const StepPlan& plan) {
      if (at_start) at_start(step, plan);
    };
    engine_options.clock = clock;
    engine = std::make_unique<Engine>(std::move(made), std::move(engine_options));
  }

  Reply submit(const Request& wanted) const {
    auto reply = engine->submit(wanted);
    CHECK(reply.ok());
    return std::move(reply).value();
  }
  // A step behind a reply's end may come back a moment after its last event.
  void expect_at_rest() const {
    EngineStatus now = engine->status();
    for (int i = 0; i < 2000 && !(now.usage == now.usage_at_load); ++i) {
      std::this_thread::sleep_for(milliseconds(1));
      now = engine->status();
    }
    EXPECT_EQ(now.usage, now.usage_at_load);
    EXPECT_EQ(now.running + now.waiting, 0);
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  LateDevice* device = nullptr;
  std::function<void(int, const StepPlan&)> at_start;  // set before the first request
  std::unique_ptr<Engine> engine;
};

Request plain_request(int max_tokens) {
  Request wanted = request({3, 1, 4, 1, 5}, max_tokens);
  wanted.drafts = false;
  return wanted;
}

Tokens solo(const Request& wanted) {
  return solo_reply(wanted, kVocabulary).tokens;
}

TEST(LoneDriver, StepsUnderWayTogetherHideTheHostsTime) {
  for (const int steps : {1, 2, 3}) {
    LoneBench bench(steps);
    const Request wanted = plain_request(101);
    Reply reply = bench.submit(wanted);
    const Collected all = collect(reply);
    EXPECT_EQ(all.tokens, solo(wanted));
    EXPECT_EQ(bench.device->most_under_way, static_cast<size_t>(steps));
    EXPECT_EQ(bench.device->started, 101) << "steps beyond the length were begun";
    // A hundred steps after the first token, each the device's ten milliseconds; and the host's
    // three, unless it works ahead.
    EXPECT_NEAR(all.last.timings.decode_ms, steps == 1 ? 1300 : 1000, 13) << steps;
    const EngineStatus now = bench.engine->status();
    EXPECT_EQ(now.lone.runs, 1);
    EXPECT_EQ(now.lone.steps, 100);
    EXPECT_EQ(now.lone.ahead, steps == 1 ? 0 : 99);
    EXPECT_EQ(now.lone.handoffs, 0);
    EXPECT_EQ(now.counters.decode_steps.rows, 100);
    bench.expect_at_rest();
  }
}

TEST(LoneDriver, IsOffWhereItIsNotWanted) {
  EngineOptions off = lone_options(2);
  off.scheduler.lone = false;
  LoneBench bench(off);
  Reply reply = bench.submit(plain_request(20));
  collect(reply);
  EXPECT_EQ(bench.device->most_under_way, 1U);
  EXPECT_EQ(bench.engine->status().lone.steps, 0);
}

// Drafts, seeds, penalties and log probabilities go along, and what ends a reply ends it at the
// same token; what ran behind the end is of no account, also for the next one in the slot.
TEST(LoneDriver, DrivesWhateverAReplyAsksFor) {
  std::vector<Request> wanted(5, request({2, 7, 1}, 60));
  wanted[1].sampling = {.temperature = 1, .seed = 9};
  wanted[2].logprobs = 2;
  wanted[3].sampling = {.temperature = 1, .seed = 4, .presence_penalty = 1};
  wanted[4].end_ids = {solo(wanted[4])[30]};
  for (const int steps : {1, 2, 3}) {
    LoneBench bench(steps);
    for (const Request& one : wanted) {
      Reply reply = bench.submit(one);
      const Collected all = collect(reply);
      EXPECT_EQ(all.tokens, solo(one));
      EXPECT_GE(all.last.drafts.accepted, 1);
    }
    const EngineStatus now = bench.engine->status();
    EXPECT_EQ(now.lone.runs, 5) << steps;
    EXPECT_EQ(now.lone.ahead > 0, steps > 1);
    bench.expect_at_rest();
  }
}

// Two steps behind a reply's end are under way: what became of the first is in the status while the
// second, which may take long, is waited for. No event says so, since the reply has had its last.
TEST(LoneDriver, TellsWhatBecameOfAStepInVainBeforeTheNextOne) {
  Request wanted = plain_request(40);
  wanted.end_ids = {solo(wanted)[10]};
  const auto length = static_cast<int>(solo(wanted).size());  // its steps are 0 to length - 1
  for (const bool lost : {false, true}) {
    std::promise<EngineStatus> told;
    std::optional<Result<Reply>> next;
    LoneBench bench(3);
    if (lost) bench.device->runner.fail_at_step = length;
    bench.device->runner.failure = error(ErrorCode::kDeviceLost, "gone");
    bench.device->at_finish = [&](int step) {
      if (step != length + 1) return;
      if (lost) next = bench.engine->submit(wanted);
      told.set_value(bench.engine->status());
    };
    auto status = told.get_future();
    Reply reply = bench.submit(wanted);
    EXPECT_EQ(collect(reply).tokens, solo(wanted));
    ASSERT_EQ(status.wait_for(kPatience), std::future_status::ready);
    const EngineStatus now = status.get();
    EXPECT_EQ(now.running, 0);
    EXPECT_EQ(now.counters.decode_steps.steps, lost ? length - 1 : length);
    EXPECT_EQ(now.counters.failed_steps, lost ? 1 : 0);
    EXPECT_EQ(now.failed, lost);
    if (lost) {
      ASSERT_FALSE(next->ok()) << "taken in for a device that is gone";
      EXPECT_EQ(next->error().message, "the device was lost");
    }
    bench.engine->stop();
    bench.expect_at_rest();
  }
}

// A rule that may put another token in place of a drawn one keeps the driver out, until it can not
// any more.
TEST(LoneDriver, WaitsUntilNoRuleMayReplaceAToken) {
  Request thinking = request({5, 5, 2}, 40);
  thinking.thinking = {.budget = 10, .close_tokens = {1, 2, 3}, .end_token = 0};
  thinking.thinking.starts_open = true;
  LoneBench bench(2);
  int first_driven = -1;
  int tokens_then = 0;
  bench.at_start = [&](int step, const StepPlan& plan) {
    if (plan.segments.front().verdict_rows == 0 || first_driven >= 0) return;
    first_driven = step;
    tokens_then = static_cast<int>(bench.engine->status().reply_tokens_total);
  };
  Reply reply = bench.submit(thinking);
  EXPECT_EQ(collect(reply).tokens, solo(thinking));
  EXPECT_GT(first_driven, 0);
  EXPECT_GE(tokens_then, 10);
  EXPECT_GT(bench.engine->status().lone.ahead, 0);
}

// Whoever comes finds at most the steps that are under way before it; the reply goes on beside it,
// and is driven again when it is left alone.
TEST(LoneDriver, YieldsToWhoeverComesAndTakesTheReplyBack) {
  for (const int steps : {1, 2, 3}) {
    LoneBench bench(steps);
    const Request first = plain_request(120);
    const Request second = request({9, 9, 8}, 20);
    std::optional<Reply> other;
    int came_at = -1;
    int prompt_at = -1;
    bench.at_start = [&](int step, const StepPlan& plan) {
      if (step == 30) {
        other = bench.submit(second);
        came_at = step;
      }
      const bool prompt = plan.segments.front().kind == scheduler::SegmentKind::kPrefill;
      if (came_at >= 0 && prompt_at < 0 && prompt) prompt_at = step;
    };
    Reply reply = bench.submit(first);
    EXPECT_EQ(collect(reply).tokens, solo(first));
    EXPECT_EQ(collect(*other).tokens, solo(second));
    EXPECT_EQ(prompt_at, came_at + 1) << "steps were begun after somebody had come";
    const EngineStatus now = bench.engine->status();
    EXPECT_EQ(now.lone.handoffs, 1);
    EXPECT_EQ(now.lone.runs, 2);
    EXPECT_GT(now.lone.steps, 60);
    EXPECT_FALSE(now.lone.active);
    bench.expect_at_rest();
  }
}

// At each step of the reply: the client leaves, the step fails, the device is lost, the engine
// stops. One end each, nothing is held, and the next request gets what it gets alone.
enum class Happening : uint8_t { kCancel, kFailure, kLoss, kStop };

void happens_at(int at, int steps, Happening what) {
  LoneBench bench(steps);
  const Request wanted = request({6, 2, 6}, 40);
  std::optional<Reply> reply;
  std::atomic<bool> ready = false;
  std::jthread stopper;
  LateDevice& device = *bench.device;
  if (what == Happening::kFailure || what == Happening::kLoss) device.runner.fail_at_step = at;
  if (what == Happening::kLoss) device.runner.failure = error(ErrorCode::kDeviceLost, "gone");
  bench.at_start = [&](int step, const StepPlan&) {
    while (!ready) std::this_thread::yield();
    if (step != at) return;
    if (what == Happening::kCancel) reply->cancel();
    if (what != Happening::kStop) return;
    stopper = std::jthread([&] { bench.engine->stop(); });
    std::this_thread::sleep_for(milliseconds(2));  // so that it is asked to stop in this step
  };
  reply = bench.submit(wanted);
  ready = true;
  const Collected all = collect(*reply);
  const Tokens whole = solo(wanted);
  ASSERT_LE(all.tokens.size(), whole.size());
  EXPECT_TRUE(std::equal(all.tokens.begin(), all.tokens.end(), whole.begin()));
  const bool error_end = what == Happening::kFailure || what == Happening::kLoss;
  if (all.tokens.size() < whole.size()) {
    EXPECT_EQ(all.last.reason, error_end ? FinishReason::kError : FinishReason::kCancelled);
  } else {
    // A step in vain may fail as it likes, and whoever leaves or stops may be too late.
    EXPECT_EQ(all.last.reason, FinishReason::kLength);
  }
  if (what == Happening::kCancel || what == Happening::kFailure) {
    bench.at_start = {};
    device.runner.fail_at_step = -1;
    Reply next = bench.submit(wanted);
    EXPECT_EQ(collect(next).tokens, whole);
  }
  bench.engine->stop();
  bench.expect_at_rest();
}

TEST(LoneDriver, WhateverHappensAtAnyStepIsAnEndAndNothingIsHeld) {
  for (const int steps : {1, 2, 3}) {
    for (const Happening what :
         {Happening::kCancel, Happening::kFailure, Happening::kLoss, Happening::kStop}) {
      for (int at = 0; at < 22; ++at) {
        SCOPED_TRACE(fmt::format("{} under way, {} at step {}", steps, static_cast<int>(what), at));
        happens_at(at, steps, what);
      }
    }
  }
}

// Handed over at exactly the lengths that were asked for, whatever the windows, and back again.
TEST(LoneDriver, IsHandedOverAtExactlyTheseLengths) {
  for (const int steps : {1, 2, 3}) {
    EngineOptions lone = lone_options(steps);
    lone.scheduler.lone_handoffs = {1, 2, 17, 40};
    LoneBench bench(lone);
    std::set<int> shared_at;  // lengths of the reply where a window was not the driver's
    bench.at_start = [&](int, const StepPlan& plan) {
      const scheduler::Segment& segment = plan.segments.front();
      if (segment.kind == scheduler::SegmentKind::kVerify && segment.verdict_rows == 0) {
        shared_at.insert(segment.start_position + 1 - segment.reply_start);
      }
    };
    Request wanted = request({4, 4, 1}, 60);
    wanted.sampling = {.temperature = 1, .seed = 77};
    Reply reply = bench.submit(wanted);
    EXPECT_EQ(collect(reply).tokens, solo(wanted));
    EXPECT_EQ(shared_at, (std::set<int>{1, 2, 17, 40}));
    // At the first of them nothing was driven yet.
    EXPECT_EQ(bench.engine->status().lone.handoffs, 2);
  }
}

}  // namespace
}  // namespace flashlane::engine
