// KeptFiles: carries kept states of prompts between the engine and a directory of snapshots. At
// load the arena takes those that were used last, as far as it has room; while nothing runs, states
// that have no file yet get one, one at a time; the rest get theirs at the end. Belongs to the
// engine's thread. Whatever fails is told and costs a state, never a reply.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "engine/step_device.h"
#include "runner/snapshots.h"
#include "scheduler/scheduler.h"

namespace flashlane::engine {

class KeptFiles {
 public:
  using Report = std::function<void(const std::string&)>;  // may be null

  KeptFiles(std::shared_ptr<const runner::Snapshots> snapshots, Report report);

  // Before the first step.
  void restore(scheduler::Scheduler& scheduler, StepDevice& device);
  // Between steps: writes the state that was used last of those without a file; false when there is
  // none.
  bool save_one(const scheduler::Scheduler& scheduler, StepDevice& device);
  // At the end: all of them, in the order of their use, which their files then have too.
  void save_all(const scheduler::Scheduler& scheduler, StepDevice& device);

  int64_t restored() const { return restored_; }
  int64_t saved() const { return saved_; }

 private:
  void load(scheduler::Scheduler& scheduler, StepDevice& device,
            const runner::Snapshots::Entry& entry);
  void save(const memory::PromptCache& cache, memory::EntryId id, StepDevice& device);
  void tell(const std::string& line) const;

  std::shared_ptr<const runner::Snapshots> snapshots_;  // null: off
  Report report_;
  std::set<uint64_t> stored_ = {};  // kept entries with a file, or that can't have one
  int64_t restored_ = 0;
  int64_t saved_ = 0;
};

}  // namespace flashlane::engine
