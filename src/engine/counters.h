// Counters: what the engine's thread has counted since it started, as plain data that is copied
// into each snapshot. Nothing in it ever falls, so a reader may take differences of any two.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace flashlane::engine {

// Times sorted into fixed buckets. One ladder serves all stages, from half a millisecond (a token
// on a fast device) to a quarter of an hour (a long queue), finest where tokens fall.
struct TimeHistogram {
  // Upper bounds, each one within its bucket; what is above the last has the bucket after it.
  static constexpr auto kBoundsSeconds = std::to_array<double>(
      {0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2,
       0.5,    1,     2,     5,     10,   20,    50,   100,  200,  500,   1000});

  std::array<int64_t, kBoundsSeconds.size() + 1> buckets = {};  // not cumulative
  double sum_s = 0;

  void observe(double time_s) {
    const auto bound = std::lower_bound(kBoundsSeconds.begin(), kBoundsSeconds.end(), time_s);
    ++buckets[static_cast<size_t>(bound - kBoundsSeconds.begin())];
    sum_s += time_s;
  }
};

// Steps of one kind that came back.
struct StepCounts {
  int64_t steps = 0;
  int64_t rows = 0;
  double run_ms = 0;
};

inline constexpr size_t kFinishReasons = static_cast<size_t>(scheduler::FinishReason::kError) + 1;

struct Counters {
  std::array<int64_t, kFinishReasons> finished = {};  // requests, by FinishReason
  StepCounts prompt_steps = {};
  StepCounts decode_steps = {};
  StepCounts restore_steps = {};
  int64_t failed_steps = 0;
  TimeHistogram queue = {};            // submitted → first prompt chunk
  TimeHistogram first_token = {};      // submitted → first token
  TimeHistogram per_reply_token = {};  // mean after the first, of replies with two or more
  TimeHistogram request = {};          // submitted → end, however it ended

  void count_finish(scheduler::FinishReason reason) {
    const auto at = static_cast<size_t>(reason);
    CHECK_LT(at, kFinishReasons);
    ++finished[at];
  }

  // All rows of a step are of one kind.
  void count_step(const scheduler::StepPlan& plan, const scheduler::StepResult& result) {
    CHECK(!plan.empty());
    if (!plan.moves.empty()) return;  // counted as moves
    const bool prompt =
        !plan.segments.empty() && plan.segments.front().kind == scheduler::SegmentKind::kPrefill;
    StepCounts& counts =
        !plan.restores.empty() ? restore_steps : (prompt ? prompt_steps : decode_steps);
    ++counts.steps;
    for (const scheduler::Restore& restore : plan.restores) {
      counts.rows += static_cast<int64_t>(restore.tokens.size());
    }
    for (size_t i = 0; i < plan.segments.size(); ++i) {
      const scheduler::Segment& segment = plan.segments[i];
      counts.rows += segment.verdict_rows > 0 ? result.segments[i].rows : segment.most_rows();
    }
    counts.run_ms += result.elapsed_ms;
  }
};

}  // namespace flashlane::engine
