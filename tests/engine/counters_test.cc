// What the engine counts: each request once and as its client saw it end, every row and every
// millisecond of a step, nothing that ever falls, and a usage that returns to its value at load
// (H6).
#include "engine/counters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "tests/engine/bench.h"

namespace flashlane::engine {
namespace {

int64_t total(const TimeHistogram& times) {
  return std::accumulate(times.buckets.begin(), times.buckets.end(), int64_t{0});
}

// The bound of the only bucket in use.
double only_bound(const TimeHistogram& times) {
  EXPECT_EQ(total(times), 1);
  for (size_t i = 0; i < TimeHistogram::kBoundsSeconds.size(); ++i) {
    if (times.buckets[i] == 1) return TimeHistogram::kBoundsSeconds[i];
  }
  ADD_FAILURE() << "above the last bound, or empty";
  return 0;
}

int64_t finished(const EngineStatus& status, FinishReason reason) {
  return status.counters.finished[static_cast<size_t>(reason)];
}

// Everything that may only rise.
std::vector<double> rising(const EngineStatus& status) {
  const Counters& counters = status.counters;
  std::vector<double> all = {static_cast<double>(status.requests_total),
                             static_cast<double>(status.refused_total),
                             static_cast<double>(status.prompt_tokens_total),
                             static_cast<double>(status.reply_tokens_total),
                             static_cast<double>(status.drafts.rounds),
                             static_cast<double>(status.drafts.drafted - status.drafts.accepted),
                             static_cast<double>(status.drafts.accepted),
                             static_cast<double>(counters.failed_steps)};
  all.insert(all.end(), counters.finished.begin(), counters.finished.end());
  for (const StepCounts& steps : {counters.prompt_steps, counters.decode_steps}) {
    all.insert(all.end(),
               {static_cast<double>(steps.steps), static_cast<double>(steps.rows), steps.run_ms});
  }
  for (const TimeHistogram* times :
       {&counters.queue, &counters.first_token, &counters.per_reply_token, &counters.request}) {
    all.insert(all.end(), times->buckets.begin(), times->buckets.end());
    all.push_back(times->sum_s);
  }
  return all;
}

// Compares each snapshot with the one before.
class NeverFalls {
 public:
  void look(const EngineStatus& status) {
    std::vector<double> now = rising(status);
    for (size_t i = 0; i < before_.size(); ++i) {
      EXPECT_GE(now[i], before_[i]) << "counter " << i << " in snapshot " << looks_;
    }
    before_ = std::move(now);
    ++looks_;
  }
  int looks() const { return looks_; }

 private:
  std::vector<double> before_;
  int looks_ = 0;
};

TEST(Counters, ATimeGoesIntoTheBucketWhoseBoundIsNotBelowIt) {
  TimeHistogram times;
  times.observe(0);
  times.observe(0.0005);
  times.observe(0.00051);
  times.observe(1000);
  times.observe(1000.5);
  EXPECT_EQ(times.buckets[0], 2);
  EXPECT_EQ(times.buckets[1], 1);
  EXPECT_EQ(times.buckets[TimeHistogram::kBoundsSeconds.size() - 1], 1);
  EXPECT_EQ(times.buckets.back(), 1);
  EXPECT_EQ(total(times), 5);
  EXPECT_DOUBLE_EQ(times.sum_s, 2000.50101);
  EXPECT_TRUE(
      std::is_sorted(TimeHistogram::kBoundsSeconds.begin(), TimeHistogram::kBoundsSeconds.end()));
}

TEST(Counters, StepsByKindWithRowsAndTime) {
  Bench bench;
  Request wanted = request({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 4);  // two chunks of at most 8
  wanted.drafts = false;
  Reply reply = bench.submit(wanted);
  collect(reply);
  const Counters plain = bench.engine.status().counters;
  EXPECT_EQ(plain.prompt_steps.steps, 2);
  EXPECT_EQ(plain.prompt_steps.rows, 10);
  EXPECT_EQ(plain.prompt_steps.run_ms, 20);
  EXPECT_EQ(plain.decode_steps.steps, 3);
  EXPECT_EQ(plain.decode_steps.rows, 3);
  EXPECT_EQ(plain.decode_steps.run_ms, 30);
  EXPECT_EQ(plain.failed_steps, 0);

  Reply drafted = bench.submit(request({1, 2, 3}, 40));
  const DraftStats drafts = collect(drafted).last.drafts;
  const Counters both = bench.engine.status().counters;
  EXPECT_GT(drafts.drafted, 0);
  EXPECT_EQ(both.decode_steps.rows - plain.decode_steps.rows, drafts.rounds + drafts.drafted);
  EXPECT_EQ(both.prompt_steps.rows + both.decode_steps.rows, bench.runner.rows);
  EXPECT_EQ(both.prompt_steps.steps + both.decode_steps.steps, bench.runner.steps);
}

TEST(Counters, StagesOfARequest) {
  Bench bench;
  bench.gate.close();
  Reply first = bench.submit(request({1}, 1));
  bench.gate.wait_for_arrival();
  Request wanted = request({1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, 3);
  wanted.drafts = false;
  Reply second = bench.submit(wanted);
  bench.clock->advance(milliseconds(500));
  bench.gate.open();
  const Timings one = collect(first).last.timings;
  const Timings two = collect(second).last.timings;
  const Counters after = bench.engine.status().counters;
  EXPECT_EQ(two.queue_ms, 510);
  EXPECT_DOUBLE_EQ(after.queue.sum_s, (one.queue_ms + two.queue_ms) / 1000);
  EXPECT_DOUBLE_EQ(after.first_token.sum_s, (one.first_token_ms + two.first_token_ms) / 1000);
  EXPECT_DOUBLE_EQ(after.request.sum_s,
                   (one.first_token_ms + two.first_token_ms + two.decode_ms) / 1000);
  // A reply of one token has no time between tokens.
  EXPECT_EQ(only_bound(after.per_reply_token), 0.01);
  EXPECT_DOUBLE_EQ(after.per_reply_token.sum_s, 0.01);
  for (const TimeHistogram* times : {&after.queue, &after.first_token, &after.request}) {
    EXPECT_EQ(total(*times), 2);
  }
}

TEST(Counters, RequestsByHowTheirClientsSawThemEnd) {
  EngineOptions small = options();
  small.events = 4;
  Bench bench(small);
  const Request wanted = request({1}, 3);
  Request stops = wanted;
  stops.end_ids = {flashlane::testing::solo_reply(wanted, 16).tokens.front()};
  const auto ended = [&](const Request& asked, FinishReason reason, int64_t count) {
    Reply reply = bench.submit(asked);
    EXPECT_EQ(collect(reply).last.reason, reason);
    EXPECT_EQ(finished(bench.engine.status(), reason), count);
  };
  ended(wanted, FinishReason::kLength, 1);
  ended(stops, FinishReason::kStop, 1);
  ended(wanted, FinishReason::kLength, 2);

  bench.gate.close();
  Reply running = bench.submit(request({1}, 3));
  bench.gate.wait_for_arrival();
  Reply waiting = bench.submit(request({2}, 3));
  waiting.cancel();
  bench.gate.open();
  EXPECT_EQ(collect(waiting).last.reason, FinishReason::kCancelled);
  EXPECT_EQ(finished(bench.engine.status(), FinishReason::kCancelled), 1);
  collect(running);
  bench.runner.fail_at_step = bench.runner.steps;
  ended(wanted, FinishReason::kError, 1);
  EXPECT_EQ(bench.engine.status().counters.failed_steps, 1);
  EXPECT_EQ(total(bench.engine.status().counters.request), 6);
}

// Its last token found no room: the client sees an error, though the scheduler saw the length.
TEST(Counters, ALostTokenIsCountedAsAnError) {
  EngineOptions small = options();
  small.events = 1;
  Bench bench(small);
  Reply slow = bench.submit(request({1}, 1));
  // One snapshot a look: between two, a request can go from waiting to being held.
  for (EngineStatus now = bench.engine.status(); now.usage.sequences + now.waiting > 0;
       now = bench.engine.status()) {
    std::this_thread::yield();
  }
  const EngineStatus status = bench.engine.status();
  EXPECT_EQ(finished(status, FinishReason::kError), 1);
  EXPECT_EQ(finished(status, FinishReason::kLength), 0);
  EXPECT_EQ(collect(slow).last.reason, FinishReason::kError);
}

TEST(Counters, RefusalsForWantOfRoom) {
  Bench bench;
  bench.gate.close();
  std::vector<Reply> replies;
  replies.push_back(bench.submit(request({1}, 2)));
  bench.gate.wait_for_arrival();
  for (int i = 0; i < 4; ++i) replies.push_back(bench.submit(request({2}, 2)));
  EXPECT_FALSE(bench.engine.submit(request({3}, 2)).ok());
  EXPECT_FALSE(bench.engine.submit(request({3}, 2)).ok());
  EXPECT_FALSE(bench.engine.submit(request({16}, 2)).ok());  // never possible, so no want of room
  bench.gate.open();
  for (Reply& reply : replies) collect(reply);
  EXPECT_EQ(bench.engine.status().refused_total, 2);
  EXPECT_EQ(bench.engine.status().requests_total, 5);
}

// A failed step that several prompts shared makes them start again. Their tokens are counted once,
// though their rows ran twice.
TEST(Counters, APromptThatStartsAgainIsOnePrompt) {
  EngineOptions sharing = options();
  sharing.scheduler.slots = 2;
  Bench bench(sharing);
  const Tokens long_prompt(60, 5);
  std::optional<Reply> late;
  NeverFalls snapshots;
  bench.before_step = [&](int step) {
    snapshots.look(bench.engine.status());
    if (step == 3) {
      EXPECT_EQ(bench.engine.status().prompt_tokens_total, 24);
      late = bench.submit(request({1, 2}, 1));
    }
  };
  bench.runner.fail_at_step = 4;  // both are in it
  Reply early = bench.submit(request(long_prompt, 1));
  EXPECT_EQ(collect(early).last.reason, FinishReason::kLength);
  EXPECT_EQ(collect(*late).last.reason, FinishReason::kLength);
  const EngineStatus status = bench.engine.status();
  EXPECT_EQ(status.counters.failed_steps, 1);
  EXPECT_EQ(status.prompt_tokens_total, 62);
  EXPECT_GE(status.counters.prompt_steps.rows, 62 + 24);
  EXPECT_GT(snapshots.looks(), 8);
}

TEST(Counters, UsageReturnsToItsValueAtLoad) {
  EngineOptions sharing = options();
  sharing.scheduler.slots = 3;
  sharing.inbox = 20;
  Bench bench(sharing);
  const int pages = scheduler::pool_pages(sharing.scheduler);
  const Usage idle = {
      .slots = 3, .slots_in_use = 0, .sequences = 0, .pool = {.pages = pages, .free = pages}};
  EXPECT_EQ(bench.engine.status().usage, idle);
  EXPECT_EQ(bench.engine.status().usage_at_load, idle);
  int most_used = 0;
  int most_held = 0;
  NeverFalls snapshots;
  bench.before_step = [&](int) {
    const EngineStatus status = bench.engine.status();
    EXPECT_EQ(status.usage_at_load, idle);
    EXPECT_EQ(status.usage.slots_in_use, status.running);
    most_used = std::max(most_used, status.usage.slots_in_use);
    most_held = std::max(most_held, status.usage.sequences);
    snapshots.look(status);
  };
  std::mt19937_64 random(7);
  for (int round = 0; round < 20; ++round) {
    bench.gate.close();
    std::vector<Reply> replies;
    for (int i = 0; i < 6; ++i) {
      replies.push_back(
          bench.submit(request({i, round % 16}, 1 + static_cast<int>(random() % 30))));
    }
    bench.gate.wait_for_arrival();
    bench.runner.fail_at_step = round % 3 == 0 ? bench.runner.steps + 5 : -1;
    bench.gate.open();
    for (Reply& reply : replies) {
      if (random() % 4 == 0) reply.cancel();
      collect(reply);
    }
    // Its last event seen, a request is out of the books.
    EXPECT_EQ(bench.engine.status().usage, idle) << round;
  }
  EXPECT_EQ(most_used, 3);
  EXPECT_EQ(most_held, 6);
  EXPECT_GT(snapshots.looks(), 100);
  const EngineStatus status = bench.engine.status();
  EXPECT_EQ(
      std::accumulate(status.counters.finished.begin(), status.counters.finished.end(), int64_t{0}),
      status.requests_total);
  EXPECT_EQ(total(status.counters.request), status.requests_total);
}

}  // namespace
}  // namespace flashlane::engine
