// The pool runs every tile once, hands its results to the caller, and survives any rhythm of jobs.
#include "kernels/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

namespace flashlane::kernels::cpu {
namespace {

TEST(ThreadPool, RunsEveryTileOnce) {
  for (const int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (const int tiles : {0, 1, 2, 3, 7, 64, 1000}) {
      std::vector<int> seen(static_cast<size_t>(tiles), 0);
      pool.run(tiles, [&](int tile, int worker) {
        ASSERT_GE(worker, 0);
        ASSERT_LT(worker, threads);
        ++seen[static_cast<size_t>(tile)];
      });
      EXPECT_EQ(std::accumulate(seen.begin(), seen.end(), 0), tiles);
      for (const int count : seen) EXPECT_EQ(count, 1);
    }
  }
}

// Plain memory passes between jobs: under ThreadSanitizer this fails if the hand-off is not
// ordered.
TEST(ThreadPool, JobsSeeWhatEarlierJobsWrote) {
  ThreadPool pool(3);
  constexpr int kTiles = 17;
  std::vector<int64_t> values(kTiles, 1);
  std::vector<int64_t> next(kTiles);
  for (int job = 0; job < 5000; ++job) {
    pool.run(kTiles, [&](int tile, int) {
      const auto i = static_cast<size_t>(tile);
      next[i] = values[i] + values[(i + 1) % kTiles];
    });
    values.swap(next);
    for (int64_t& value : values) value %= 1000003;
  }
  std::vector<int64_t> expected(kTiles, 1);
  for (int job = 0; job < 5000; ++job) {
    for (size_t i = 0; i < kTiles; ++i) {
      next[i] = (expected[i] + expected[(i + 1) % kTiles]) % 1000003;
    }
    expected.swap(next);
  }
  EXPECT_EQ(values, expected);
}

TEST(ThreadPool, WakesWorkersThatWentToSleep) {
  ThreadPool pool(2);
  for (int round = 0; round < 20; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    // Tile 0 waits for tile 1, so a second worker has to come.
    std::atomic<bool> arrived{false};
    pool.run(2, [&](int tile, int) {
      if (tile == 1) arrived.store(true);
      while (tile == 0 && !arrived.load()) std::this_thread::yield();
    });
    EXPECT_TRUE(arrived.load());
  }
}

TEST(ThreadPool, EndsWhileWorkersSpinOrSleep) {
  for (int round = 0; round < 50; ++round) {
    ThreadPool pool(4);
    if (round % 2 == 0) pool.run(8, [](int, int) {});
    if (round % 5 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace
}  // namespace flashlane::kernels::cpu
