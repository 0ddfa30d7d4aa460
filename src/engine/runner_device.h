// The runner as a device: it computes on the engine's thread.
#pragma once

#include <memory>
#include <utility>

#include "engine/step_device.h"
#include "runner/runner.h"

namespace flashlane::engine {

class RunnerDevice final : public CallingDevice {
 public:
  explicit RunnerDevice(std::unique_ptr<runner::Runner> runner)
      : CallingDevice(
            [own = runner.get()](const scheduler::StepPlan& plan) { return own->run(plan); }),
        runner_(std::move(runner)) {}

  void read_kept(std::span<const memory::PageId> pages, int index, int rows,
                 std::span<std::byte> out) override {
    runner_->kept_arena().read(pages, index, rows, out);
  }
  void write_kept(memory::PageId page, std::span<const std::byte> in) override {
    runner_->kept_arena().write(page, in);
  }

 private:
  std::unique_ptr<runner::Runner> runner_;
};

}  // namespace flashlane::engine
