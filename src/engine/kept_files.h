// KeptFiles: the tier below the arena of kept states, a directory of files. Every state gets a file
// soon after it was kept, by a thread of its own that the engine hands pages between steps; so what
// the arena evicts later is not lost, and a prompt that begins like it has it read back before it
// is submitted. Reading goes before writing. At load the arena takes those that were used last, as
// far as it has room; at the end the rest get their files. Belongs to the engine's thread. Whatever
// fails is told and costs a state, never a reply.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "engine/file_worker.h"
#include "engine/step_device.h"
#include "runner/snapshots.h"
#include "scheduler/scheduler.h"

namespace flashlane::engine {

class KeptFiles {
 public:
  using Report = std::function<void(const std::string&)>;  // may be null

  // A state is read back where it is at least `least_gain` tokens longer than what is in memory.
  KeptFiles(std::shared_ptr<runner::Snapshots> snapshots, std::shared_ptr<Bell> bell,
            int least_gain, Report report);

  // Before the first step.
  void restore(scheduler::Scheduler& scheduler, StepDevice& device);

  // Between steps, each time round: copies pages that the thread waits for, and takes in what it
  // has done.
  void turn(scheduler::Scheduler& scheduler, StepDevice& device);
  // False while a state that this prompt may begin with is on its way; asks for it first.
  bool ready(scheduler::Scheduler& scheduler, std::span<const int32_t> prompt);
  // Has the state written that was not used for longest of those without a file, unless the thread
  // is at work.
  void save_next(scheduler::Scheduler& scheduler);

  // At the end: gives up what the thread is at; then writes all that are not there, in the order of
  // their use, which their files have then too. Not where the directory goes with the process, and
  // not with a device that is lost.
  void finish(scheduler::Scheduler& scheduler, StepDevice& device, bool save);

  int64_t restored() const { return restored_; }
  int64_t read_back() const { return read_back_; }
  int64_t saved() const { return saved_; }

 private:
  struct UnderWay {
    runner::Snapshots::Entry entry;
    memory::EntryId id;
    std::vector<memory::PageId> pages;
    bool load;
  };

  static UnderWay saving(const memory::PromptCache& cache, memory::EntryId id);
  void load_now(scheduler::Scheduler& scheduler, StepDevice& device,
                const runner::Snapshots::Entry& entry);
  void save_now(const memory::PromptCache& cache, memory::EntryId id, StepDevice& device);
  void copy(const UnderWay& job, StepDevice& device, int first, std::span<std::byte> pages) const;
  void loaded(scheduler::Scheduler& scheduler, const UnderWay& job, const Status& status);
  void take_in(scheduler::Scheduler& scheduler, const Status& done);
  void give_up(scheduler::Scheduler& scheduler);
  void count_saved(const Status& status);
  void tell(const std::string& line) const;

  std::shared_ptr<runner::Snapshots> snapshots_;  // null: off
  int least_gain_;
  Report report_;
  std::unique_ptr<FileWorker> worker_;
  std::optional<UnderWay> under_way_ = {};
  std::set<uint64_t> stored_ = {};  // kept entries with a file, or that can't have one
  int64_t looked_at_ = -1;          // states kept so far when all had files
  std::optional<ErrorCode> told_ = {};
  int64_t restored_ = 0;
  int64_t read_back_ = 0;
  int64_t saved_ = 0;
};

}  // namespace flashlane::engine
