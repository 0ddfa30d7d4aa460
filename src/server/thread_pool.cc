// Threads for handlers: grown on demand, joined at the end.
#include "server/thread_pool.h"

#include <system_error>
#include <utility>

#include "base/check.h"

namespace flashlane::server {

ThreadPool::ThreadPool(size_t max_threads) : max_threads_(max_threads) {
  CHECK_GE(max_threads, 1u);
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    closed_ = true;
  }
  ready_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(std::function<void()> job) {
  std::lock_guard lock(mutex_);
  jobs_.push_back(std::move(job));
  if (jobs_.size() > idle_ && threads_.size() < max_threads_) {
    try {
      threads_.emplace_back([this] { work(); });
    } catch (const std::system_error&) {
      // No more threads from the system: the job waits for one of those that run. Without any, it
      // could wait for ever.
      CHECK(!threads_.empty());
    }
  }
  ready_.notify_one();
}

void ThreadPool::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    ++idle_;
    ready_.wait(lock, [&] { return closed_ || !jobs_.empty(); });
    --idle_;
    if (jobs_.empty()) return;
    std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    job = nullptr;  // what it holds is freed without the lock
    lock.lock();
  }
}

}  // namespace flashlane::server
