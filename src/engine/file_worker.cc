#include "engine/file_worker.h"

#include <exception>
#include <utility>

#include "base/check.h"

namespace flashlane::engine {

FileWorker::FileWorker(std::shared_ptr<runner::Snapshots> snapshots, std::shared_ptr<Bell> bell)
    : snapshots_(std::move(snapshots)), bell_(std::move(bell)), thread_([this] {
        try {
          loop();
        } catch (const std::exception& failure) {
          check_failed(__FILE__, __LINE__, "no exception leaves the loop", failure.what());
        }
      }) {}

FileWorker::~FileWorker() {
  give_up();
  {
    std::lock_guard lock(mutex_);
    leaving_ = true;
  }
  changed_.notify_all();
}

void FileWorker::start(Job job) {
  CHECK(!busy_);
  busy_ = true;
  {
    std::lock_guard lock(mutex_);
    giving_up_ = false;
    job_ = std::move(job);
  }
  changed_.notify_all();
}

// The worker waits meanwhile, so its pages need no lock.
void FileWorker::serve(const Copy& copy) {
  std::span<std::byte> pages;
  int first = 0;
  {
    std::lock_guard lock(mutex_);
    pages = asked_;
    first = first_;
  }
  if (pages.empty()) return;
  copy(first, pages);
  {
    std::lock_guard lock(mutex_);
    asked_ = {};
  }
  changed_.notify_all();
}

std::optional<Status> FileWorker::take_result() {
  std::lock_guard lock(mutex_);
  if (result_) busy_ = false;
  return std::exchange(result_, std::nullopt);
}

void FileWorker::give_up() {
  if (!busy_) return;
  std::unique_lock lock(mutex_);
  giving_up_ = true;
  changed_.notify_all();
  changed_.wait(lock, [&] { return result_.has_value(); });
}

void FileWorker::loop() {
  for (;;) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return job_ || leaving_; });
      if (!job_) return;
      job = *std::exchange(job_, std::nullopt);
    }
    Status result = work(job);
    {
      std::lock_guard lock(mutex_);
      result_ = std::move(result);
    }
    changed_.notify_all();
    bell_->ring();
  }
}

Status FileWorker::work(const Job& job) {
  const auto copy = [&](int first, std::span<std::byte> pages) { return ask(first, pages); };
  return job.load ? snapshots_->load(job.entry, copy)
                  : snapshots_->save(job.entry.tokens, job.entry.pages, copy);
}

bool FileWorker::ask(int first, std::span<std::byte> pages) {
  {
    std::lock_guard lock(mutex_);
    first_ = first;
    asked_ = pages;
  }
  bell_->ring();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return asked_.empty() || giving_up_; });
  const bool served = asked_.empty();
  asked_ = {};
  return served;
}

}  // namespace flashlane::engine
