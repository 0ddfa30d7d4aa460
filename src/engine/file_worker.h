// FileWorker: a thread that reads or writes one kept state at a time. It touches nothing but the
// file: whenever it needs pages of the state, or has some, it rings the engine's bell and waits
// until the engine's thread has copied them, so that the steps and the arena stay that thread's.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>

#include "base/result.h"
#include "engine/bell.h"
#include "runner/snapshots.h"

namespace flashlane::engine {

// Only one thread calls it.
class FileWorker {
 public:
  // `snapshots` is this worker's while it is busy; looking for states apart.
  FileWorker(std::shared_ptr<runner::Snapshots> snapshots, std::shared_ptr<Bell> bell);
  ~FileWorker();  // gives up
  FileWorker(const FileWorker&) = delete;
  FileWorker& operator=(const FileWorker&) = delete;

  struct Job {
    bool load = false;  // else save
    runner::Snapshots::Entry entry;
  };
  // It must not be busy; it is until the result was taken.
  void start(Job job);
  bool busy() const { return busy_; }

  // Copies what the job waits for, from or to `pages`, which begin at number `first` of the state.
  using Copy = std::function<void(int first, std::span<std::byte> pages)>;
  void serve(const Copy& copy);
  std::optional<Status> take_result();
  // Ends the job, if there is one, before its next pages, and waits for that; kCancelled unless it
  // was done before.
  void give_up();

 private:
  void loop();
  Status work(const Job& job);
  bool ask(int first, std::span<std::byte> pages);

  std::shared_ptr<runner::Snapshots> snapshots_;
  std::shared_ptr<Bell> bell_;
  bool busy_ = false;  // the caller's own

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  std::optional<Job> job_ = {};
  std::optional<Status> result_ = {};
  int first_ = 0;
  std::span<std::byte> asked_ = {};  // empty: nothing is asked for
  bool giving_up_ = false;
  bool leaving_ = false;
  std::jthread thread_;
};

}  // namespace flashlane::engine
