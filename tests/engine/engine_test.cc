// The engine around a fake runner: order, cancels, limits, failures and shutdown at any time, and
// one last event for every request whatever happens (H1, H2, H3, H6).
#include "engine/engine.h"

#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <thread>

#include "tests/engine/bench.h"

namespace flashlane::engine {
namespace {

using flashlane::testing::solo_reply;

TEST(Engine, ARequestGivesWhatItGivesAlone) {
  Bench bench;
  const Request wanted = request({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 50);
  Reply reply = bench.submit(wanted);
  const Collected all = collect(reply);
  EXPECT_EQ(all.tokens, solo_reply(wanted, 16).tokens);
  EXPECT_EQ(all.prefilled, (Tokens{8, 10}));
  EXPECT_EQ(all.last.reason, FinishReason::kLength);
  EXPECT_GT(all.last.drafts.accepted, 0);
  EXPECT_FALSE(reply.next(milliseconds(0)).has_value());

  const EngineStatus status = bench.engine.status();
  EXPECT_EQ(status.running, 0);
  EXPECT_EQ(status.waiting, 0);
  EXPECT_EQ(status.requests_total, 1);
  EXPECT_EQ(status.prompt_tokens_total, 10);
  EXPECT_EQ(status.reply_tokens_total, 50);
  EXPECT_EQ(status.drafts.accepted, all.last.drafts.accepted);
  EXPECT_EQ(status.drafts.rounds, all.last.drafts.rounds);
}

TEST(Engine, TimesTheStagesOfARequest) {
  Bench bench;
  bench.gate.close();
  Reply first = bench.submit(request({1}, 1));
  bench.gate.wait_for_arrival();
  Request wanted = request({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 3);  // two chunks and two decode steps
  wanted.drafts = false;
  Reply second = bench.submit(wanted);
  bench.clock->advance(milliseconds(500));
  bench.gate.open();
  const Timings timings = collect(second).last.timings;
  EXPECT_EQ(timings.queue_ms, 510);
  EXPECT_EQ(timings.prefill_ms, 20);
  EXPECT_EQ(timings.first_token_ms, 530);
  EXPECT_EQ(timings.decode_ms, 20);
}

TEST(Engine, RefusesOnTheCallersThreadWhatCanNeverRun) {
  Bench bench;
  const auto refused = bench.engine.submit(request({1, 2}, 399));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().field, "max_tokens");
  EXPECT_EQ(bench.engine.submit(request({16}, 1)).error().field, "prompt");
  EXPECT_EQ(bench.engine.status().requests_total, 0);
}

TEST(Engine, AFullInboxIsNoCapacityUntilSomebodyLeaves) {
  Bench bench;
  bench.gate.close();
  std::vector<Reply> replies;
  replies.push_back(bench.submit(request({1}, 5)));
  bench.gate.wait_for_arrival();
  for (int i = 0; i < 4; ++i) replies.push_back(bench.submit(request({2}, 5)));
  EXPECT_EQ(bench.engine.status().running, 1);
  EXPECT_EQ(bench.engine.status().waiting, 4);
  const auto refused = bench.engine.submit(request({3}, 5));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoCapacity);
  EXPECT_EQ(refused.error().message, "4 requests are waiting; the limit is 4");
  bench.gate.open();
  for (Reply& reply : replies) EXPECT_EQ(collect(reply).tokens.size(), 5U);
  EXPECT_TRUE(bench.engine.submit(request({3}, 5)).ok());
}

TEST(Engine, CancelsWaitingAndRunningRequests) {
  Bench bench;
  bench.gate.close();
  Reply running = bench.submit(request({1}, 300));
  bench.gate.wait_for_arrival();
  Reply waiting = bench.submit(request({2}, 5));
  Reply last = bench.submit(request({3}, 5));
  waiting.cancel();
  waiting.cancel();
  running.cancel();
  bench.gate.open();
  const Collected cut = collect(running);
  EXPECT_EQ(cut.last.reason, FinishReason::kCancelled);
  // The step that was under way may bring its tokens; nothing runs after it.
  EXPECT_LE(cut.tokens.size(), 1U);
  const Collected never = collect(waiting);
  EXPECT_EQ(never.last.reason, FinishReason::kCancelled);
  EXPECT_TRUE(never.tokens.empty());
  EXPECT_EQ(collect(last).tokens.size(), 5U);
  last.cancel();
}

TEST(Engine, ADroppedReplyFreesItsPlace) {
  Bench bench;
  bench.gate.close();
  std::optional<Reply> dropped = bench.submit(request({1}, 300));
  bench.gate.wait_for_arrival();
  Reply next = bench.submit(request({2}, 5));
  dropped.reset();
  bench.gate.open();
  EXPECT_EQ(collect(next).tokens.size(), 5U);
  EXPECT_LT(bench.engine.status().reply_tokens_total, 20);
  Reply replaced = bench.submit(request({1}, 300));
  replaced = bench.submit(request({4}, 5));
  EXPECT_EQ(collect(replaced).tokens.size(), 5U);
}

TEST(Engine, ASlowClientEndsAloneWithAnError) {
  EngineOptions small = options();
  small.events = 3;
  Bench bench(small);
  Request wanted = request({1}, 100);
  wanted.drafts = false;
  Reply slow = bench.submit(wanted);
  Reply other = bench.submit(request({2}, 2));
  EXPECT_EQ(collect(other).tokens.size(), 2U);
  const Collected all = collect(slow);
  EXPECT_EQ(all.last.reason, FinishReason::kError);
  EXPECT_EQ(all.last.error.message, "the client is too slow: 3 events wait to be read");
  EXPECT_EQ(all.prefilled.size() + all.tokens.size(), 3U);
}

TEST(Engine, ALostTokenIsAnErrorEvenIfItWasTheLast) {
  EngineOptions small = options();
  small.events = 1;
  Bench bench(small);
  Reply slow = bench.submit(request({1}, 1));  // one prompt chunk and one token, in one step
  Reply other = bench.submit(request({2}, 2));
  // One snapshot a look: between two, a request can go from waiting to running.
  for (EngineStatus now = bench.engine.status(); now.running + now.waiting > 0;
       now = bench.engine.status()) {
    std::this_thread::yield();
  }
  const Collected all = collect(slow);
  EXPECT_EQ(all.last.reason, FinishReason::kError);
  EXPECT_TRUE(all.tokens.empty());
  collect(other);
}

// All of them at once: each reply is its own, and the steps are shared (E2).
TEST(Engine, RequestsShareStepsAndGetWhatTheyGetAlone) {
  EngineOptions sharing = options();
  sharing.scheduler.slots = 8;
  sharing.inbox = 20;
  Bench bench(sharing);
  bench.runner.drafting = flashlane::testing::Drafting::kRandom;
  bench.gate.close();
  std::vector<Request> wanted;
  std::vector<Reply> replies;
  for (int i = 0; i < 20; ++i) {
    wanted.push_back(request({i % 16, 3, 7}, 20 + i));
    if (i % 2 == 0) wanted.back().sampling = {.temperature = 1, .seed = static_cast<uint64_t>(i)};
    replies.push_back(bench.submit(wanted.back()));
  }
  bench.gate.wait_for_arrival();
  bench.gate.open();
  for (size_t i = 0; i < replies.size(); ++i) {
    EXPECT_EQ(collect(replies[i]).tokens, solo_reply(wanted[i], 16).tokens) << i;
  }
  EXPECT_EQ(bench.runner.most_shared, 8U);
}

TEST(Engine, AFailedStepEndsItsRequestAndTheNextOneRuns) {
  Bench bench;
  bench.runner.fail_at_step = 2;
  bench.gate.close();
  Reply failing = bench.submit(request({1}, 50));
  Reply next = bench.submit(request({2}, 5));
  bench.gate.open();
  const Collected all = collect(failing);
  EXPECT_EQ(all.last.reason, FinishReason::kError);
  EXPECT_EQ(all.last.error.message, "the fake failed");
  const Tokens solo = solo_reply(request({1}, 50), 16).tokens;
  EXPECT_TRUE(std::equal(all.tokens.begin(), all.tokens.end(), solo.begin()));
  EXPECT_EQ(collect(next).last.reason, FinishReason::kLength);
  EXPECT_FALSE(bench.engine.status().failed);
}

TEST(Engine, ALostDeviceEndsEverything) {
  Bench bench;
  bench.runner.fail_at_step = 1;
  bench.runner.failure = {ErrorCode::kDeviceLost, "the device fell off the bus"};
  bench.gate.close();
  Reply running = bench.submit(request({1}, 50));
  bench.gate.wait_for_arrival();
  Reply waiting = bench.submit(request({2}, 5));
  bench.gate.open();
  for (Reply* reply : {&running, &waiting}) {
    const Collected all = collect(*reply);
    EXPECT_EQ(all.last.reason, FinishReason::kError);
    EXPECT_EQ(all.last.error.code, ErrorCode::kDeviceLost);
    EXPECT_EQ(all.last.error.message, "the device fell off the bus");
  }
  EXPECT_TRUE(bench.engine.status().failed);
  EXPECT_EQ(bench.engine.status().running, 0);
  EXPECT_EQ(bench.engine.submit(request({1}, 1)).error().code, ErrorCode::kDeviceLost);
}

TEST(Engine, StopEndsAllRequestsAndIsIdempotent) {
  Bench bench;
  bench.gate.close();
  std::vector<Reply> replies;
  for (int i = 0; i < 4; ++i) replies.push_back(bench.submit(request({i}, 300)));
  bench.gate.wait_for_arrival();
  std::vector<std::thread> stoppers;
  for (int i = 0; i < 3; ++i) stoppers.emplace_back([&] { bench.engine.stop(); });
  const auto stopping = [&] {
    const auto refused = bench.engine.submit(request({1}, 1));
    return !refused.ok() && refused.error().message == "the engine is stopping";
  };
  while (!stopping()) std::this_thread::yield();
  bench.gate.open();
  for (std::thread& stopper : stoppers) stopper.join();
  bench.engine.stop();
  for (Reply& reply : replies) EXPECT_EQ(collect(reply).last.reason, FinishReason::kCancelled);
  EXPECT_TRUE(stopping());
  EXPECT_EQ(bench.engine.submit(request({1}, 1)).error().code, ErrorCode::kNoCapacity);
}

TEST(Engine, RepliesOutliveTheEngine) {
  std::optional<Reply> reply;
  {
    Bench bench;
    reply = bench.submit(request({1}, 300));
  }
  collect(*reply);
  reply->cancel();
  reply.reset();
  Reply empty;
  empty.cancel();
  EXPECT_FALSE(empty.next(milliseconds(0)).has_value());
}

// Clients that submit, read, cancel and drop as they like, while another thread looks at the status
// and a third may stop the engine: every reply that is read ends once, with the tokens of its own.
TEST(Engine, RacesEndEveryRequestOnce) {
  for (uint64_t seed = 0; seed < 12; ++seed) {
    EngineOptions racing = options();
    racing.inbox = 3 + seed % 3;
    racing.scheduler.slots = seed % 3 == 0 ? 1 : 4;
    racing.events = seed % 4 == 0 ? 6 : 1000;
    Bench bench(racing);
    bench.runner.drafting = static_cast<flashlane::testing::Drafting>(seed % 3);
    std::atomic<int> served = 0;
    std::atomic<bool> done = false;
    const auto client = [&](uint64_t number) {
      std::mt19937_64 random(seed * 100 + number);
      for (int i = 0; i < 40; ++i) {
        const Request wanted =
            request({static_cast<int32_t>(random() % 16), 3}, 1 + static_cast<int>(random() % 60));
        auto reply = bench.engine.submit(wanted);
        if (!reply.ok()) {
          EXPECT_EQ(reply.error().code, ErrorCode::kNoCapacity);
          std::this_thread::yield();
          continue;
        }
        Reply mine = std::move(reply).value();
        const uint64_t fate = random() % 4;
        if (fate == 0) mine.next(milliseconds(random() % 2));
        if (fate == 0) continue;  // dropped
        if (fate == 1) mine.cancel();
        const Collected all = collect(mine);
        const Tokens solo = solo_reply(wanted, 16).tokens;
        EXPECT_LE(all.tokens.size(), solo.size());
        EXPECT_TRUE(std::equal(all.tokens.begin(), all.tokens.end(), solo.begin()));
        if (all.last.reason == FinishReason::kLength) {
          EXPECT_EQ(all.tokens, solo);
        }
        ++served;
      }
    };
    std::vector<std::thread> threads;
    for (uint64_t number = 0; number < 4; ++number) threads.emplace_back(client, number);
    threads.emplace_back([&] {
      while (!done) {
        const EngineStatus status = bench.engine.status();
        EXPECT_GE(status.running, 0);
        EXPECT_LE(status.running, racing.scheduler.slots);
        EXPECT_LE(status.waiting, static_cast<int>(racing.inbox));
        std::this_thread::yield();
      }
    });
    if (seed % 2 == 1) {
      threads.emplace_back([&] {
        while (served < 20 && !done) std::this_thread::yield();
        bench.engine.stop();
      });
    }
    for (size_t i = 0; i < threads.size(); ++i) {
      if (i == 4) done = true;
      threads[i].join();
    }
    bench.engine.stop();
    const EngineStatus status = bench.engine.status();
    EXPECT_EQ(status.running + status.waiting, 0);
    EXPECT_GT(served, 0);
  }
}

}  // namespace
}  // namespace flashlane::engine
