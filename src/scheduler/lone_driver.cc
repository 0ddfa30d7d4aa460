#include "scheduler/lone_driver.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/sequence.h"

namespace flashlane::scheduler {

LoneDriver::LoneDriver(bool on, int steps_in_flight, std::vector<int> handoffs)
    : usage_({.on = on, .steps_in_flight = steps_in_flight}), handoffs_(std::move(handoffs)) {
  CHECK_GE(steps_in_flight, 1);
  CHECK(std::is_sorted(handoffs_.begin(), handoffs_.end()));
}

bool LoneDriver::takes(const Sequence& sequence) const {
  return usage_.on && !sequence.rules.may_replace() &&
         !std::binary_search(handoffs_.begin(), handoffs_.end(), sequence.rules.emitted());
}

int LoneDriver::next_handoff(int emitted) const {
  const auto next = std::upper_bound(handoffs_.begin(), handoffs_.end(), emitted);
  return next == handoffs_.end() ? INT_MAX : *next;
}

bool LoneDriver::hands_over(SequenceId alone) {
  if (driven_ == SequenceId{} || driven_ == alone) return false;
  ended(driven_);
  ++usage_.handoffs;
  return true;
}

void LoneDriver::ended(SequenceId sequence) {
  if (driven_ != sequence) return;
  driven_ = {};
  usage_.active = false;
}

void LoneDriver::drove(SequenceId sequence, bool ahead) {
  if (driven_ != sequence) ++usage_.runs;
  driven_ = sequence;
  usage_.active = true;
  ++usage_.steps;
  usage_.ahead += ahead ? 1 : 0;
}

}  // namespace flashlane::scheduler
