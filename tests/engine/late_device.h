// A device that computes by itself, on a clock that only it moves: each step begins when it is
// started, or when the one before it is done, and takes `step_ms`; the host takes `host_ms` for
// each that it starts. What is drawn is the fake runner's.
#pragma once

#include <algorithm>
#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

#include "engine/engine.h"
#include "tests/support/fake_runner.h"

namespace flashlane::engine {

struct LateDevice : StepDevice {
  using milliseconds = std::chrono::milliseconds;

  explicit LateDevice(std::shared_ptr<ManualClock> manual) : clock(std::move(manual)) {}

  void start(const scheduler::StepPlan& plan) override {
    clock->advance(host);
    if (at_start) at_start(started, plan);
    ++started;
    auto result = runner.run(plan);
    const Clock::Time begins = std::max(clock->now(), done);
    done = begins + step;
    under_way.push_back({std::move(result), done});
    most_under_way = std::max(most_under_way, under_way.size());
  }

  Result<scheduler::StepResult> finish() override {
    CHECK(!under_way.empty());
    if (at_finish) at_finish(finished);
    ++finished;
    auto [result, ready] = std::move(under_way.front());
    under_way.pop_front();
    if (ready > clock->now()) clock->advance(ready - clock->now());
    return std::move(result);
  }

  std::shared_ptr<ManualClock> clock;
  milliseconds step{10};
  milliseconds host{3};
  testing::FakeRunner runner;
  // On the engine's thread, before a step is run; steps are numbered from 0.
  std::function<void(int, const scheduler::StepPlan&)> at_start;
  // The same, before a step's result is waited for.
  std::function<void(int)> at_finish;
  int started = 0;
  int finished = 0;
  size_t most_under_way = 0;

 private:
  struct UnderWay {
    Result<scheduler::StepResult> result;
    Clock::Time ready;
  };
  std::deque<UnderWay> under_way;
  Clock::Time done = {};
};

}  // namespace flashlane::engine
