// Clock: where time comes from, so that whoever measures can be given a clock of its own.
// SteadyClock never goes back; ManualClock stands still until told otherwise and may be moved from
// any thread.
#pragma once

#include <atomic>
#include <chrono>

namespace flashlane {

class Clock {
 public:
  // Since some fixed moment; only differences mean something.
  using Time = std::chrono::nanoseconds;

  virtual ~Clock() = default;
  virtual Time now() const = 0;
};

class SteadyClock final : public Clock {
 public:
  Time now() const override { return std::chrono::steady_clock::now().time_since_epoch(); }
};

class ManualClock final : public Clock {
 public:
  Time now() const override { return Time(now_.load()); }
  void advance(Time step) { now_.fetch_add(step.count()); }

 private:
  std::atomic<Time::rep> now_{0};
};

inline double to_ms(Clock::Time time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace flashlane
