// How requests end, and what the engine does then: one rule for the events of those that fail
// early, the same words for whatever failed, and rest when there is no work (traps T38, T40 and T41
// of the spec).
#include <gtest/gtest.h>

#include <ctime>
#include <thread>

#include "tests/engine/bench.h"

namespace flashlane::engine {
namespace {

constexpr int kPrompt = 20;  // three chunks of at most 8

Request long_request() {
  return request(Tokens(kPrompt, 3), 5);
}

// Reads to the last event and holds what comes to the rule: prompt events rise, tokens come only
// when the prompt is in, the last event says how far the prompt was, as its events did, and nothing
// follows.
ReplyEvent last_by_the_rule(Reply& reply, int prompt) {
  int prefilled = 0;
  while (auto event = reply.next(kPatience)) {
    switch (event->kind) {
      case ReplyEvent::Kind::kPrefill:
        EXPECT_GT(event->prefilled, prefilled);
        EXPECT_LE(event->prefilled, prompt);
        EXPECT_TRUE(event->tokens.empty());
        prefilled = event->prefilled;
        break;
      case ReplyEvent::Kind::kTokens:
        EXPECT_EQ(prefilled, prompt) << "tokens before the prompt is in";
        EXPECT_FALSE(event->tokens.empty());
        break;
      case ReplyEvent::Kind::kFinished:
        EXPECT_EQ(event->prefilled, prefilled);
        EXPECT_TRUE(event->tokens.empty());
        EXPECT_FALSE(reply.next(milliseconds(0)).has_value());
        return std::move(*event);
    }
  }
  ADD_FAILURE() << "no last event";
  return {};
}

void expect_end(Reply& reply, FinishReason reason, int prefilled) {
  const ReplyEvent last = last_by_the_rule(reply, kPrompt);
  EXPECT_EQ(last.reason, reason);
  EXPECT_EQ(last.prefilled, prefilled);
}

TEST(Endings, FollowOneRuleHoweverEarlyTheyCome) {
  {
    Bench bench;
    Reply whole = bench.submit(long_request());
    expect_end(whole, FinishReason::kLength, kPrompt);
  }
  // A failure in each chunk of the prompt, then in the first step of the reply.
  const int done_before[] = {0, 8, 16, kPrompt};
  for (int step = 0; step < 4; ++step) {
    SCOPED_TRACE(step);
    Bench bench;
    bench.runner.fail_at_step = step;
    Reply failing = bench.submit(long_request());
    expect_end(failing, FinishReason::kError, done_before[step]);
  }
  // One is cancelled while its first chunk runs, one while it waits, one by the engine's end.
  Bench bench;
  bench.gate.close();
  Reply running = bench.submit(long_request());
  bench.gate.wait_for_arrival();
  Reply waiting = bench.submit(long_request());
  running.cancel();
  waiting.cancel();
  bench.gate.open();
  expect_end(running, FinishReason::kCancelled, 8);
  expect_end(waiting, FinishReason::kCancelled, 0);
  bench.gate.close();
  Reply stopped = bench.submit(long_request());
  bench.gate.wait_for_arrival();
  std::thread stopper([&] { bench.engine.stop(); });
  const auto stopping = [&] {
    const auto refused = bench.engine.submit(request({1}, 1));
    return !refused.ok() && refused.error().message == "the engine is stopping";
  };
  while (!stopping()) std::this_thread::yield();
  bench.gate.open();
  stopper.join();
  expect_end(stopped, FinishReason::kCancelled, 8);
}

TEST(Endings, OfALostDeviceFollowTheRuleToo) {
  Bench bench;
  bench.runner.fail_at_step = 1;
  bench.runner.failure = {ErrorCode::kDeviceLost, "the device fell off the bus"};
  bench.gate.close();
  Reply running = bench.submit(long_request());
  bench.gate.wait_for_arrival();
  Reply waiting = bench.submit(long_request());
  bench.gate.open();
  expect_end(running, FinishReason::kError, 8);
  expect_end(waiting, FinishReason::kError, 0);
}

TEST(Endings, APromptAndAReplyFailInTheSameWords) {
  for (const ErrorCode code : {ErrorCode::kInternal, ErrorCode::kDeviceLost}) {
    for (const int step : {0, 1}) {  // the only step of the prompt; the first of the reply
      SCOPED_TRACE(step);
      Bench bench;
      bench.runner.fail_at_step = step;
      bench.runner.failure = {code, "the step needs 3 sheets and the tray has 2"};
      Reply reply = bench.submit(request({1}, 50));
      const Error told = collect(reply).last.error;
      EXPECT_EQ(told.code, bench.runner.failure.code);
      EXPECT_EQ(told.message, bench.runner.failure.message);
      EXPECT_EQ(told.field, bench.runner.failure.field);
    }
  }
}

// By the processor's time, which other work on the machine does not add to.
TEST(Endings, AnEngineWithoutWorkSleeps) {
  constexpr double kMostBusyS = 0.1;
  Bench bench;
  Reply first = bench.submit(request({1}, 3));
  collect(first);
  Reply dropped = bench.submit(request({2}, 300));
  dropped = Reply();
  const std::clock_t began = std::clock();
  double busy_s = 0;
  for (int look = 0; look < 60 && busy_s < kMostBusyS; ++look) {
    std::this_thread::sleep_for(milliseconds(5));
    busy_s = static_cast<double>(std::clock() - began) / CLOCKS_PER_SEC;
  }
  EXPECT_LT(busy_s, kMostBusyS);
  Reply second = bench.submit(request({1}, 3));
  EXPECT_EQ(collect(second).tokens.size(), 3U);
}

}  // namespace
}  // namespace flashlane::engine
