// An engine around a fake runner whose steps a test can hold, count and time: every step takes 10
// ms of a clock that moves only then.
#pragma once

#include <gtest/gtest.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "tests/support/fake_runner.h"

namespace flashlane::engine {

using flashlane::testing::FakeRunner;
using scheduler::StepPlan;
using scheduler::StepResult;
using Tokens = std::vector<int32_t>;
using std::chrono::milliseconds;

// Long enough that only a lost event can reach it.
inline constexpr milliseconds kPatience{20000};

inline EngineOptions options() {
  return {.scheduler = {.context = 400, .prefill_chunk = 8, .max_draft = 3, .vocabulary = 16},
          .inbox = 4,
          .events = 1000};
}

inline Request request(Tokens prompt, int max_tokens) {
  return {.prompt = std::move(prompt), .max_tokens = max_tokens};
}

// Holds the engine's thread at the door of a step, so that a test knows where it is.
class Gate {
 public:
  void close() { set(false); }
  void open() { set(true); }
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
    --arrived_;
  }
  void wait_for_arrival() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ > 0; });
  }

 private:
  void set(bool open) {
    std::lock_guard lock(mutex_);
    open_ = open;
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int arrived_ = 0;
};

struct Collected {
  Tokens tokens;
  Tokens prefilled;
  int finished = 0;
  ReplyEvent last;
};

// Reads to the last event; what comes after it, or never, is a failure.
inline Collected collect(Reply& reply) {
  Collected all;
  while (auto event = reply.next(kPatience)) {
    EXPECT_EQ(all.finished, 0) << "an event after the last";
    all.tokens.insert(all.tokens.end(), event->tokens.begin(), event->tokens.end());
    if (event->kind == ReplyEvent::Kind::kPrefill) all.prefilled.push_back(event->prefilled);
    if (event->kind == ReplyEvent::Kind::kFinished) {
      ++all.finished;
      all.last = std::move(*event);
    }
  }
  EXPECT_EQ(all.finished, 1);
  return all;
}

struct Bench {
  explicit Bench(const EngineOptions& engine_options = options())
      : engine([this](const StepPlan& plan) { return step(plan); }, timed(engine_options)) {
    runner.slots = scheduler::kMostSlots;
  }
  ~Bench() {
    gate.open();
    engine.stop();
  }

  Result<StepResult> step(const StepPlan& plan) {
    gate.pass();
    if (before_step) before_step(runner.steps);
    clock->advance(milliseconds(10));
    return runner.run(plan);
  }
  Reply submit(Request wanted) {
    auto reply = engine.submit(std::move(wanted));
    CHECK(reply.ok());
    return std::move(reply).value();
  }

  EngineOptions timed(EngineOptions engine_options) const {
    engine_options.clock = clock;
    return engine_options;
  }

  std::shared_ptr<ManualClock> clock = std::make_shared<ManualClock>();
  Gate gate;
  std::function<void(int step)> before_step;  // on the engine's thread
  FakeRunner runner;
  Engine engine;
};

}  // namespace flashlane::engine
