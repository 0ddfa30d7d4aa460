// Short lists of moving averages: at most one entry per number of sequences and kind.
#include "scheduler/overhead.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

constexpr double kOverheadLearningRate = 0.2;
// A width that no step has any more moves towards those that steps have: one bad measurement, which
// keeps the allocation away from it, is forgotten after some hundred steps.
constexpr double kForgettingRate = 0.01;
// By this part of a step's time one step may be off what was expected of it; beyond that it was
// disturbed.
constexpr double kMostSurprise = 0.25;

// What the overhead at one width lets hope for at another.
double at_other_rows(double extra_ms, int rows, int other) {
  return other < rows ? extra_ms * other / rows : extra_ms;
}

}  // namespace

void OverheadEstimate::observe(const ObservedStep& step, const CostTable& forward) {
  CHECK_GE(step.sequences, 1);
  if (!forward.covers(step.rows)) return;
  const double forward_ms = forward.ms(step.rows);
  const double extra_ms = std::max(0.0, step.wall_ms - step.head_ms - forward_ms);
  std::vector<Entry>& entries = entries_[step.sampled ? 1 : 0];
  const auto known = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) {
    return entry.sequences == step.sequences;
  });
  if (known == entries.end()) {
    entries.emplace_back(step.sequences, extra_ms).observe_rows(step.rows, forward_ms, extra_ms);
    return;
  }
  known->ms += kOverheadLearningRate * (extra_ms - known->ms);
  known->observe_rows(step.rows, forward_ms, extra_ms);
}

void OverheadEstimate::Entry::observe_rows(int rows, double forward_ms, double extra_ms) {
  if (rows > kMostDecodeRows) return;
  const double expected_ms = at_rows(rows);
  const double most_ms = kMostSurprise * (forward_ms + expected_ms);
  extra_ms = std::clamp(extra_ms, expected_ms - most_ms, expected_ms + most_ms);
  for (int other = 1; other <= kMostDecodeRows; ++other) {
    double& other_ms = by_rows[static_cast<size_t>(other)];
    if (other_ms == kUnseen) continue;
    other_ms += kForgettingRate * (at_other_rows(extra_ms, rows, other) - other_ms);
  }
  // A width's first step, too, only moves what was expected of it.
  by_rows[static_cast<size_t>(rows)] =
      expected_ms + kOverheadLearningRate * (extra_ms - expected_ms);
}

double OverheadEstimate::Entry::at_rows(int rows) const {
  const auto seen = [&](int at) { return by_rows[static_cast<size_t>(at)] != kUnseen; };
  int below = rows;
  while (below > 0 && !seen(below)) --below;
  int above = rows;
  while (above <= kMostDecodeRows && !seen(above)) ++above;
  if (below == 0 && above > kMostDecodeRows) return ms;
  if (below == 0) return at_other_rows(by_rows[static_cast<size_t>(above)], above, rows);
  const double low_ms = by_rows[static_cast<size_t>(below)];
  if (below == rows || above > kMostDecodeRows) return low_ms;
  const double high_ms = by_rows[static_cast<size_t>(above)];
  return low_ms + (high_ms - low_ms) * (rows - below) / (above - below);
}

const OverheadEstimate::Entry* OverheadEstimate::nearest(int sequences, bool sampled) const {
  const Entry* nearest = nullptr;
  for (const Entry& entry : entries_[sampled ? 1 : 0]) {
    if (nearest == nullptr ||
        std::abs(entry.sequences - sequences) < std::abs(nearest->sequences - sequences)) {
      nearest = &entry;
    }
  }
  return nearest;
}

double OverheadEstimate::ms(int sequences, bool sampled) const {
  const Entry* entry = nearest(sequences, sampled);
  return entry == nullptr ? kOverheadGuessMs : entry->ms;
}

double OverheadEstimate::ms(int sequences, int rows, bool sampled) const {
  CHECK(rows >= 1 && rows <= kMostDecodeRows);
  const Entry* entry = nearest(sequences, sampled);
  return entry == nullptr ? kOverheadGuessMs : entry->at_rows(rows);
}

}  // namespace flashlane::scheduler
