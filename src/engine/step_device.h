// StepDevice: whatever runs plans, in order. A device that computes by itself has several under way
// at once; one that computes on the caller's thread runs each as it starts.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <utility>

#include "base/check.h"
#include "base/result.h"
#include "memory/page_id.h"
#include "scheduler/step_plan.h"
#include "scheduler/step_result.h"

namespace flashlane::engine {

// Only the engine's thread calls it.
class StepDevice {
 public:
  virtual ~StepDevice() = default;
  StepDevice() = default;
  StepDevice(const StepDevice&) = delete;
  StepDevice& operator=(const StepDevice&) = delete;

  virtual void start(const scheduler::StepPlan& plan) = 0;
  // Waits for the oldest step that was started and has not been finished; there is one.
  virtual Result<scheduler::StepResult> finish() = 0;

  // Kept states, for those who carry them to another place and back. Steps may be under way; none
  // of them writes these pages. Page number `index` of one of so many rows, zero beside what
  // belongs to it, and back.
  virtual void read_kept(std::span<const memory::PageId> pages, int index, int rows,
                         std::span<std::byte> out);
  virtual void write_kept(memory::PageId page, std::span<const std::byte> in);
};

inline void StepDevice::read_kept(std::span<const memory::PageId> /*pages*/, int /*index*/,
                                  int /*rows*/, std::span<std::byte> /*out*/) {
  UNREACHABLE();
}

inline void StepDevice::write_kept(memory::PageId /*page*/, std::span<const std::byte> /*in*/) {
  UNREACHABLE();
}

// Runs a plan, on the caller's thread.
using StepFunction = std::function<Result<scheduler::StepResult>(const scheduler::StepPlan&)>;

class CallingDevice : public StepDevice {
 public:
  explicit CallingDevice(StepFunction run) : run_(std::move(run)) {}

  void start(const scheduler::StepPlan& plan) override { results_.push_back(run_(plan)); }
  Result<scheduler::StepResult> finish() override {
    CHECK(!results_.empty());
    auto result = std::move(results_.front());
    results_.pop_front();
    return result;
  }

 private:
  StepFunction run_;
  std::deque<Result<scheduler::StepResult>> results_;
};

}  // namespace flashlane::engine
