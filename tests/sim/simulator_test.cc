// The simulator's tests: many worlds, the same world twice, and worlds that are broken on purpose
// (requirement C4).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/sim/run_options.h"
#include "tests/sim/world.h"
#include "tests/support/fake_runner.h"

namespace flashlane::sim {
namespace {

struct Sum {
  std::mutex mutex = {};
  Tally tally = {};
  std::vector<std::string> problems = {};
};

constexpr size_t kMostProblems = 5;  // told; the run ends there

void work(std::atomic<uint64_t>& next, uint64_t end, Sum& sum) {
  Tally tally;
  for (uint64_t seed = next++; seed < end; seed = next++) {
    seed_at_work = seed;
    const Outcome outcome = run_world(seed);
    tally.add(outcome.tally);
    if (outcome.problem.empty()) continue;
    const std::lock_guard lock(sum.mutex);
    sum.problems.push_back(
        fmt::format("seed {}: {}\nreplay: {}{}", seed, outcome.problem, kReplay, seed));
    if (sum.problems.size() == kMostProblems) next = end;
  }
  const std::lock_guard lock(sum.mutex);
  sum.tally.add(tally);
}

// As many as the flags say; two thousand without any.
TEST(Simulator, TwoThousandSeeds) {
  const RunOptions& options = run_options();
  std::atomic<uint64_t> next = options.first_seed;
  Sum sum;
  std::vector<std::thread> threads;
  for (int job = 0; job < options.jobs; ++job) {
    threads.emplace_back([&] { work(next, options.first_seed + options.seeds, sum); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& problem : sum.problems) ADD_FAILURE() << problem;
  for (size_t i = 0; i < kSeenNames.size(); ++i) {
    fmt::print("{:>12}  {}\n", sum.tally.counts[i], kSeenNames[i]);
    // A case that no world reaches any more is a hole in the simulator.
    if (options.seeds >= 2000 && sum.problems.empty()) {
      EXPECT_GE(sum.tally.counts[i], static_cast<int64_t>(options.seeds / 100)) << kSeenNames[i];
    }
  }
}

TEST(Simulator, TheSameSeedIsTheSameWorld) {
  uint64_t other = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Outcome first = run_world(seed);
    EXPECT_EQ(first.trace, run_world(seed).trace) << seed;
    EXPECT_NE(first.trace, other) << seed;
    other = first.trace;
  }
}

// A simulator that can't fail proves nothing: each break is found, and by the check that is for it.
TEST(Simulator, EveryCanaryIsCaught) {
  struct Case {
    Canary canary;
    const char* words;
  };
  for (const Case& wanted :
       {Case{Canary::kWrongToken, "solo run"}, Case{Canary::kSwappedSlots, "the runner: "},
        Case{Canary::kLostEnd, "running and"}, Case{Canary::kSecondEnd, "has ended"},
        Case{Canary::kLostTokens, "a window "},
        Case{Canary::kLostCancel, "though it was cancelled"},
        Case{Canary::kUnservedReply, "was passed over"},
        Case{Canary::kUnservedPrompt, "was passed over"}, Case{Canary::kDroppedRest, "a client: "},
        Case{Canary::kSlowRunsOn, "runs on"}}) {
    int caught = 0;
    int as_wanted = 0;
    for (uint64_t seed = 0; seed < 200; ++seed) {
      const std::string problem = run_world(seed, wanted.canary).problem;
      caught += problem.empty() ? 0 : 1;
      as_wanted += problem.find(wanted.words) != std::string::npos ? 1 : 0;
    }
    EXPECT_GE(caught, 5) << wanted.words << ", as wanted " << as_wanted;
    EXPECT_GE(as_wanted, 5) << wanted.words << ", caught " << caught;
  }
}

TEST(Simulator, RightDraftsShortenTheRun) {
  const scheduler::SequenceSpec spec{.prompt = {1, 2, 3}, .max_tokens = 41};
  for (const testing::Drafting drafting : {testing::Drafting::kRight, testing::Drafting::kWrong}) {
    testing::FakeRunner runner{.drafting = drafting};
    scheduler::Scheduler scheduler({.context = 100, .max_draft = 3});
    ASSERT_TRUE(scheduler.submit(spec).ok());
    for (auto plan = scheduler.plan(); !plan.empty(); plan = scheduler.plan()) {
      scheduler.commit(plan, runner.run(plan).value());
    }
    EXPECT_EQ(runner.steps, drafting == testing::Drafting::kRight ? 1 + 11 : 1 + 40);
  }
}

}  // namespace
}  // namespace flashlane::sim
