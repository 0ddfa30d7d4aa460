// One run length per period; the token a full period of 8 back is read before its place is reused.
#include "scheduler/repetition_guard.h"

#include <algorithm>

namespace flashlane::scheduler {

int RepetitionGuard::push(int32_t token) {
  int fired = 0;
  for (int period = 1; period <= kLongestPeriod && period <= pushed_; ++period) {
    int& run = runs_[static_cast<size_t>(period - 1)];
    const bool repeats = recent_[static_cast<size_t>((pushed_ - period) % kLongestPeriod)] == token;
    // A longer run says nothing more.
    run = repeats ? std::min(run + 1, kRun) : 0;
    if (fired == 0 && run == kRun && pushed_ + 1 - kRun - period >= kWarmIn) fired = period;
  }
  recent_[static_cast<size_t>(pushed_ % kLongestPeriod)] = token;
  ++pushed_;
  return fired;
}

}  // namespace flashlane::scheduler
