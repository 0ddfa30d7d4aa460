// Which seeds the simulator runs: set by the test's main from its flags, and by nothing else.
#pragma once

#include <atomic>
#include <cstdint>

namespace flashlane::sim {

struct RunOptions {
  uint64_t first_seed = 0;
  uint64_t seeds = 2000;
  int jobs = 1;
};
RunOptions& run_options();

// The command that runs one seed again.
inline constexpr const char* kReplay = "sim_test --gtest_filter=Simulator.TwoThousandSeeds --seed ";

// The seed that this thread is at, for a CHECK that ends the process.
extern thread_local volatile uint64_t seed_at_work;

}  // namespace flashlane::sim
