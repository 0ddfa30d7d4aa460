// The search over depths, and the bookkeeping of what to try again.
#include "scheduler/draft_depth.h"

#include <algorithm>
#include <cstddef>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

constexpr double kStepTimeLearningRate = 0.2;
constexpr int kProbeEvery = 8;
// Without costs, by the first draft's rate.
constexpr double kTwoDrafts = 0.8;
constexpr double kThreeDrafts = 0.9;

int heuristic_depth(double first_rate) {
  return first_rate < kTwoDrafts ? 1 : first_rate < kThreeDrafts ? 2 : 3;
}

// Time of a lone step with this many drafts.
std::optional<double> step_ms(int drafts, const StepCosts& costs, const StepTimes& times) {
  if (const std::optional<double> measured = times.ms(drafts)) return measured;
  if (!costs.forward.covers(drafts + 1)) return std::nullopt;
  const double head_step_ms = costs.head_step.covers(1) ? costs.head_step.ms(1) : 0;
  return costs.forward.ms(drafts + 1) + head_step_ms * drafts;
}

struct Candidate {
  int depth = 1;
  double rate = -1;  // expected tokens per ms; negative where no cost is known
};

Candidate best_drafted(std::span<const double> landing, const StepCosts& costs,
                       const StepTimes& times) {
  Candidate best;
  double expected = 1;
  int depth = 0;
  for (const double chance : landing) {
    ++depth;
    expected += chance;
    const std::optional<double> cost_ms = step_ms(depth, costs, times);
    if (!cost_ms) break;
    // Strictly: of depths as good as each other the shallowest stays.
    if (expected / *cost_ms > best.rate) best = {.depth = depth, .rate = expected / *cost_ms};
  }
  return best;
}

}  // namespace

void StepTimes::observe(int drafts, double wall_ms) {
  CHECK_GE(drafts, 0);
  if (!(wall_ms > 0)) return;  // a clock too coarse for the step says nothing
  if (ms_.size() <= static_cast<size_t>(drafts)) ms_.resize(static_cast<size_t>(drafts) + 1);
  std::optional<double>& entry = ms_[static_cast<size_t>(drafts)];
  entry = entry ? *entry + kStepTimeLearningRate * (wall_ms - *entry) : wall_ms;
}

std::optional<double> StepTimes::ms(int drafts) const {
  if (drafts < 0 || static_cast<size_t>(drafts) >= ms_.size()) return std::nullopt;
  return ms_[static_cast<size_t>(drafts)];
}

int LoneDepth::plain_decision() {
  drafted_run_ = 0;
  if (plain_run_ < plain_wait_) {
    ++plain_run_;
    return 0;
  }
  plain_run_ = 0;
  plain_wait_ = std::min(2 * plain_wait_, kLongestWait);
  return 1;
}

int LoneDepth::drafting_decision(int depth, int most) {
  plain_run_ = 0;
  plain_wait_ = kFirstPlainWait;
  if (plain_ == PlainSteps::kCompete && drafted_run_ == kLongestWait) {
    drafted_run_ = 0;
    return 0;
  }
  ++drafted_run_;
  ++decisions_;
  return decisions_ % kProbeEvery == 0 && depth < most ? depth + 1 : depth;
}

int LoneDepth::choose(std::span<const double> landing, const StepCosts& costs,
                      const StepTimes& times, int draft_room) {
  const bool may_be_plain = plain_ == PlainSteps::kCompete;
  const int most =
      std::min(static_cast<int>(landing.size()), std::max(may_be_plain ? 0 : 1, draft_room - 1));
  if (most == 0) return 0;
  if (costs.forward.empty()) return std::min(heuristic_depth(landing[0]), most);
  const Candidate drafted = best_drafted(landing.first(static_cast<size_t>(most)), costs, times);
  if (may_be_plain) {
    const std::optional<double> plain_ms = step_ms(0, costs, times);
    if (plain_ms && 1 / *plain_ms >= drafted.rate) return plain_decision();
  }
  return drafting_decision(drafted.depth, most);
}

int head_depth(int wanted, const NextSegment& next) {
  if (next.finished || next.forced_due) return 0;
  return next.copy_ahead ? std::min(1, wanted) : wanted;
}

}  // namespace flashlane::scheduler
