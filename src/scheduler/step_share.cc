// Credit is time: a decode step earns prompts their part of it, a prompt step spends what it took.
#include "scheduler/step_share.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

// A running reply's gap stays within this, or a few of its own steps, whichever is longer.
constexpr double kGapMs = 50;
constexpr double kGapSteps = 4;
// Aimed below the limit, because a step's time is an estimate.
constexpr double kAim = 0.7;
constexpr int kFirstRows = 16;  // before any prompt step was timed
constexpr double kRate = 0.3;

void move_towards(double& value, double seen) {
  value = value == 0 ? seen : value + kRate * (seen - value);
}

}  // namespace

bool StepShare::prompt_is_due() const {
  if (decode_share_ == 0) return true;
  return !decode_due_ && credit_ms_ >= 0;
}

int StepShare::prompt_rows(bool replies_run, int most) const {
  if (!replies_run || decode_share_ == 0) return most;
  if (row_ms_ == 0) return std::min(kFirstRows, most);
  const double gap_ms = std::max(kGapMs, kGapSteps * decode_step_ms_);
  const double rows = std::floor((kAim * gap_ms - decode_step_ms_) / row_ms_);
  return std::clamp(static_cast<int>(std::min<double>(rows, most)), 1, most);
}

void StepShare::observe_prompt(int rows, double elapsed_ms, bool replies_wait) {
  CHECK_GE(rows, 1);
  if (elapsed_ms > 0) move_towards(row_ms_, elapsed_ms / rows);
  decode_due_ = true;
  credit_ms_ = replies_wait ? credit_ms_ - elapsed_ms : 0;
}

void StepShare::observe_decode(double elapsed_ms, bool prompts_wait) {
  if (elapsed_ms > 0) move_towards(decode_step_ms_, elapsed_ms);
  decode_due_ = false;
  if (!prompts_wait || decode_share_ == 0) {
    credit_ms_ = 0;
    return;
  }
  credit_ms_ = std::min(0.0, credit_ms_ + elapsed_ms * (1 - decode_share_) / decode_share_);
}

}  // namespace flashlane::scheduler
