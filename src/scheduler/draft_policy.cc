// The thresholds, and the running share behind them: each tested draft moves it by a sixteenth.
#include "scheduler/draft_policy.h"

#include <algorithm>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

constexpr double kTwoDrafts = 0.8;
constexpr double kThreeDrafts = 0.9;
constexpr double kStep = 1.0 / 16;

}  // namespace

int DraftPolicy::depth(int room) const {
  const int wanted = acceptance_ < kTwoDrafts ? 1 : acceptance_ < kThreeDrafts ? 2 : 3;
  return std::max(0, std::min({wanted, max_draft_, room}));
}

void DraftPolicy::observe(int drafted, int accepted) {
  CHECK_GE(accepted, 0);
  CHECK_LE(accepted, drafted);
  for (int draft = 0; draft < accepted; ++draft) acceptance_ += (1 - acceptance_) * kStep;
  if (accepted < drafted) acceptance_ -= acceptance_ * kStep;
}

}  // namespace flashlane::scheduler
