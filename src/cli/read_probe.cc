// The sum is written once over 64-byte vectors and compiled for three instruction levels; the
// processor picks one at run time.
#include "cli/read_probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/int_math.h"
#include "base/keyed_random.h"

namespace flashlane::cli {

namespace {

constexpr int kPasses = 9;
constexpr size_t kHugePage = size_t{2} << 20;

using Line = uint64_t __attribute__((vector_size(64)));
constexpr size_t kWords = sizeof(Line) / sizeof(uint64_t);
constexpr size_t kStride = 8;  // lines in flight, so that adding never waits for the sum before

[[gnu::always_inline]] inline uint64_t sum_lines(const Line* lines, size_t count) {
  Line sums[kStride] = {};
  for (size_t i = 0; i < count; i += kStride) {
    for (size_t k = 0; k < kStride; ++k) sums[k] += lines[i + k];
  }
  uint64_t total = 0;
  for (const Line& sum : sums) {
    for (size_t w = 0; w < kWords; ++w) total += sum[w];
  }
  return total;
}

[[gnu::target("avx512f"), gnu::noinline]] uint64_t sum_avx512(const Line* lines, size_t count) {
  return sum_lines(lines, count);
}
[[gnu::target("avx2"), gnu::noinline]] uint64_t sum_avx2(const Line* lines, size_t count) {
  return sum_lines(lines, count);
}
[[gnu::noinline]] uint64_t sum_plain(const Line* lines, size_t count) {
  return sum_lines(lines, count);
}

using Sum = uint64_t (*)(const Line* lines, size_t count);

Sum best_sum() {
  if (__builtin_cpu_supports("avx512f")) return sum_avx512;
  if (__builtin_cpu_supports("avx2")) return sum_avx2;
  return sum_plain;
}

struct Unmap {
  size_t bytes = 0;
  void operator()(Line* lines) const noexcept { munmap(lines, bytes); }
};

// One thread's part: its lines and what they must add up to.
struct Part {
  Line* lines = nullptr;
  size_t count = 0;
  uint64_t expected = 0;

  void fill(uint64_t seed) {
    uint64_t state = mix64(seed);
    for (size_t i = 0; i < count; ++i) {
      for (size_t w = 0; w < kWords; ++w) {
        state = state * 0x5851F42D4C957F2DULL + 0x14057B7EF767814FULL;
        lines[i][w] = state;
        expected += state;
      }
    }
  }
};

}  // namespace

size_t probe_bytes(size_t wanted, size_t free_bytes) {
  const size_t quarter = free_bytes / 4;
  return std::max(kHugePage, free_bytes == 0 ? wanted : std::min(wanted, quarter));
}

Result<ReadBandwidth> measure_read_bandwidth(size_t bytes, int threads) {
  CHECK(threads >= 1);
  const auto workers = static_cast<size_t>(threads);
  // Whole strides for every thread.
  const size_t lines_each = std::max<size_t>(1, bytes / sizeof(Line) / workers / kStride) * kStride;
  const size_t total_bytes = lines_each * workers * sizeof(Line);
  void* mapped =
      mmap(nullptr, total_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) {
    return error(ErrorCode::kNoCapacity, "can't map {} bytes for the bandwidth probe", total_bytes);
  }
  const std::unique_ptr<Line, Unmap> block(static_cast<Line*>(mapped), {total_bytes});
  madvise(mapped, total_bytes, MADV_HUGEPAGE);

  const Sum sum = best_sum();
  std::barrier line(static_cast<std::ptrdiff_t>(threads));
  std::vector<double> gbps;
  const auto work = [&](size_t worker) {
    Part part{block.get() + worker * lines_each, lines_each};
    part.fill(worker);
    for (int pass = 0; pass <= kPasses; ++pass) {
      line.arrive_and_wait();
      const auto begin = std::chrono::steady_clock::now();
      CHECK_EQ(sum(part.lines, part.count), part.expected);
      line.arrive_and_wait();
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      const bool warm_up = pass == 0;
      if (worker == 0 && !warm_up) {
        gbps.push_back(static_cast<double>(total_bytes) / seconds.count() / 1e9);
      }
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (size_t i = 1; i < workers; ++i) helpers.emplace_back(work, i);
    work(0);
  }
  std::sort(gbps.begin(), gbps.end());
  return ReadBandwidth{gbps[gbps.size() / 2], gbps.front(), gbps.back()};
}

}  // namespace flashlane::cli
