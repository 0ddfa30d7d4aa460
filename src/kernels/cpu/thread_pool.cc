// Hand-off by one atomic word; see thread_pool.h. A worker spins for a short time after a job,
// since the next stage of a forward usually follows within microseconds, and then sleeps.
#include "kernels/cpu/thread_pool.h"

#include <chrono>

#include "base/check.h"

namespace flashlane::kernels::cpu {
namespace {

constexpr int kPatientSpins = 2000;
constexpr auto kSpin = std::chrono::microseconds(50);

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

ThreadPool::ThreadPool(int threads) {
  CHECK_GE(threads, 1);
  CHECK_LE(threads, 1024);
  workers_.reserve(static_cast<size_t>(threads - 1));
  for (int worker = 1; worker < threads; ++worker) {
    workers_.emplace_back([this, worker] { work(worker); });
  }
}

ThreadPool::~ThreadPool() {
  state_.fetch_or(kStop);
  {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::claim_tiles(int worker) {
  for (;;) {
    const int tile = next_tile_.fetch_add(1, std::memory_order_relaxed);
    if (tile >= tile_count_) return;
    call_(context_, tile, worker);
  }
}

void ThreadPool::run_shared(int tiles, Call call, const void* context) {
  const uint64_t before = state_.load(std::memory_order_relaxed);
  CHECK_EQ(before & (kOpen | kInsideMask), uint64_t{0});
  tile_count_ = tiles;
  call_ = call;
  context_ = context;
  next_tile_.store(0, std::memory_order_relaxed);
  // Sequentially consistent with the sleeper's own pair (count, then look again): either it sees
  // the job or we see the sleeper.
  state_.store(((job_of(before) + 1) << 32) | kOpen);
  if (sleepers_.load() != 0) {
    std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  claim_tiles(0);
  // All tiles are claimed: nobody else may enter, and whoever is inside finishes what it has.
  state_.fetch_and(~kOpen);
  for (int spins = 0; (state_.load(std::memory_order_acquire) & kInsideMask) != 0; ++spins) {
    // A worker that lost its core in mid-tile needs ours more than we do.
    if (spins < kPatientSpins) {
      pause();
    } else {
      std::this_thread::yield();
    }
  }
}

uint64_t ThreadPool::wait_for_job(uint64_t seen_job) {
  const auto fresh = [&](uint64_t state) {
    return (state & kStop) != 0 || ((state & kOpen) != 0 && job_of(state) != seen_job);
  };
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 64; ++i) {
      const uint64_t state = state_.load(std::memory_order_relaxed);
      if (fresh(state)) return state;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  std::unique_lock lock(mutex_);
  sleepers_.fetch_add(1);
  uint64_t state = state_.load();
  while (!fresh(state)) {
    wake_.wait(lock);
    state = state_.load();
  }
  sleepers_.fetch_sub(1);
  return state;
}

void ThreadPool::work(int worker) {
  uint64_t seen_job = 0;
  for (;;) {
    uint64_t state = wait_for_job(seen_job);
    if ((state & kStop) != 0) return;
    seen_job = job_of(state);
    // Enter, unless the job was closed (or another opened) meanwhile; then look again.
    if (!state_.compare_exchange_strong(state, state + 1, std::memory_order_acquire,
                                        std::memory_order_relaxed)) {
      seen_job = (state & kOpen) != 0 ? job_of(state) - 1 : job_of(state);
      continue;
    }
    claim_tiles(worker);
    state_.fetch_sub(1, std::memory_order_release);
  }
}

}  // namespace flashlane::kernels::cpu
