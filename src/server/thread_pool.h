// Threads for handlers that block: one is started when a job finds none idle, up to a fixed number,
// so that a health check is answered while every other handler waits for the engine. Jobs that come
// beyond the number wait in order; the destructor runs what is queued and joins.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace flashlane::server {

class ThreadPool {
 public:
  explicit ThreadPool(size_t max_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Jobs must not throw.
  void run(std::function<void()> job);

 private:
  void work();

  const size_t max_threads_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
  size_t idle_ = 0;
  bool closed_ = false;
};

}  // namespace flashlane::server
