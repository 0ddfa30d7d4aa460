// How prompts and replies share the steps while both have work (S10): which kind is next, and how
// many prompt rows a step may take, from the times that steps took. Replies keep their share of the
// pace that they have without prompts beside them: what prompts cost them by emptying the caches is
// the prompts' time. A prompt step never lasts much longer than a few of the replies' own, and
// there is a decode step between any two prompt steps. Times decide when rows run, never what they
// give.
#pragma once

#include <array>

#include "scheduler/step_plan.h"

namespace flashlane::scheduler {

class StepShare {
 public:
  // decode_share: 0 (prompts go first) to kMostShare.
  static constexpr double kMostShare = 0.95;
  // The least part of a decode step's time that earns prompts theirs.
  static constexpr double kLeastCounted = 0.5;
  explicit StepShare(double decode_share) : decode_share_(decode_share) {}

  // Whether the next step is a prompt step, when there are prompts and replies to go on with.
  bool prompt_is_due() const;
  // Rows that a prompt step may take beside replies; `most` when none runs.
  int prompt_rows(bool replies_run, int most) const;

  // Rows of a step that came back, how long it took, and whether the other kind had work too.
  void observe_prompt(int rows, double elapsed_ms, bool replies_wait);
  // `replies`: how many were in the step.
  void observe_decode(double elapsed_ms, int replies, bool prompts_wait);

 private:
  // Moving times of a decode step; 0 = not known.
  struct Pace {
    double undisturbed_ms = 0;
    double beside_prompts_ms = 0;
  };
  double counted_part(int replies) const;

  double decode_share_;
  double credit_ms_ = 0;                              // of prompt time, earned by decode steps
  bool decode_due_ = false;                           // the last step was a prompt step
  double row_ms_ = 0;                                 // of a prompt row, moving; 0 = not known
  double decode_step_ms_ = 0;                         // moving; 0 = not known
  std::array<Pace, kMostDecodeRows + 1> paces_ = {};  // by how many replies are in the step
};

}  // namespace flashlane::scheduler
