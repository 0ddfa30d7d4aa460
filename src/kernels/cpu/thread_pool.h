// ThreadPool: a fixed set of threads that work through the numbered tiles of one job at a time. The
// caller is worker 0 and takes part; tiles are claimed from one counter, so any tile may run on any
// worker, once, and a result must not depend on which. A worker that comes late never delays the
// caller: run() waits only for tiles that were claimed. Only one thread may call run().
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace flashlane::kernels::cpu {

class ThreadPool {
 public:
  // threads ≥ 1, the caller included.
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls task(tile, worker) for every tile in [0, tiles), worker in [0, threads()), and returns
  // when all have ended. What tasks wrote is visible to the caller. Allocates nothing.
  template <typename Task>
  void run(int tiles, const Task& task) {
    if (tiles <= 1 || workers_.empty()) {
      for (int tile = 0; tile < tiles; ++tile) task(tile, 0);
      return;
    }
    run_shared(
        tiles,
        [](const void* context, int tile, int worker) {
          (*static_cast<const Task*>(context))(tile, worker);
        },
        &task);
  }

 private:
  using Call = void (*)(const void* context, int tile, int worker);

  void run_shared(int tiles, Call call, const void* context);
  void work(int worker);
  void claim_tiles(int worker);
  // The state with a job that this worker has not seen, or the stop bit.
  uint64_t wait_for_job(uint64_t seen_job);

  // One word says which job is open and how many workers are inside it, so that entering a job and
  // closing it can't cross: job number (upper 32 bits), kOpen, kStop, workers inside.
  static constexpr uint64_t kInsideMask = 0xffff;
  static constexpr uint64_t kOpen = 1ULL << 16;
  static constexpr uint64_t kStop = 1ULL << 17;
  static uint64_t job_of(uint64_t state) { return state >> 32; }

  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> next_tile_{0};
  // The open job: written while no worker is inside, read by workers that entered it.
  alignas(64) int tile_count_ = 0;
  Call call_ = nullptr;
  const void* context_ = nullptr;

  std::atomic<int> sleepers_{0};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

}  // namespace flashlane::kernels::cpu
