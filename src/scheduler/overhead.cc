// Short lists of moving averages: at most one entry per number of sequences and kind.
#include "scheduler/overhead.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

constexpr double kOverheadLearningRate = 0.2;

}  // namespace

void OverheadEstimate::observe(const ObservedStep& step, const CostTable& forward) {
  CHECK_GE(step.sequences, 1);
  if (!forward.covers(step.rows)) return;
  const double extra_ms = std::max(0.0, step.wall_ms - step.head_ms - forward.ms(step.rows));
  std::vector<Entry>& entries = entries_[step.sampled ? 1 : 0];
  for (Entry& entry : entries) {
    if (entry.sequences != step.sequences) continue;
    entry.ms += kOverheadLearningRate * (extra_ms - entry.ms);
    return;
  }
  entries.push_back({.sequences = step.sequences, .ms = extra_ms});
}

double OverheadEstimate::ms(int sequences, bool sampled) const {
  const Entry* nearest = nullptr;
  for (const Entry& entry : entries_[sampled ? 1 : 0]) {
    if (nearest == nullptr ||
        std::abs(entry.sequences - sequences) < std::abs(nearest->sequences - sequences)) {
      nearest = &entry;
    }
  }
  return nearest == nullptr ? kOverheadGuessMs : nearest->ms;
}

}  // namespace flashlane::scheduler
