// Credit is time: a decode step earns prompts their part of the replies' own time in it, a prompt
// step spends what it took.
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

// Of paces, which are compared: drafts make single steps long and short.
constexpr double kPaceRate = 0.1;

void move_towards(double& value, double seen, double rate = kRate) {
  value = value == 0 ? seen : value + rate * (seen - value);
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

// Steps beside prompts are slower, as a rule, by what the prompts' weights and rows push out of the
// caches. If a part r of a step's time t is the replies' own, it earns prompts r t (1 - s) / s less
// the (1 - r) t that they have taken already: what is left is this part of t (1 - s) / s.
double StepShare::counted_part(int replies) const {
  const Pace& pace = paces_[static_cast<size_t>(replies)];
  if (pace.undisturbed_ms == 0 || pace.beside_prompts_ms == 0) return 1;
  const double own = std::min(1.0, pace.undisturbed_ms / pace.beside_prompts_ms);
  const double counted = own - (1 - own) * decode_share_ / (1 - decode_share_);
  return std::max(counted, kLeastCounted);
}

void StepShare::observe_decode(double elapsed_ms, int replies, bool prompts_wait) {
  CHECK(replies >= 1 && replies <= kMostDecodeRows);
  if (elapsed_ms > 0) {
    Pace& pace = paces_[static_cast<size_t>(replies)];
    move_towards(decode_step_ms_, elapsed_ms);
    move_towards(prompts_wait ? pace.beside_prompts_ms : pace.undisturbed_ms, elapsed_ms,
                 kPaceRate);
  }
  decode_due_ = false;
  if (!prompts_wait || decode_share_ == 0) {
    credit_ms_ = 0;
    return;
  }
  const double counted_ms = elapsed_ms * counted_part(replies);
  credit_ms_ = std::min(0.0, credit_ms_ + counted_ms * (1 - decode_share_) / decode_share_);
}

}  // namespace flashlane::scheduler
