// Verdicts: what the last step of each slot said about its sequence's next one, the token that it
// drew last and the drafts behind it. It fills the segments of a lone reply, which may be planned
// before anybody has looked at it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "runner/plan_check.h"
#include "scheduler/step_plan.h"
#include "scheduler/step_result.h"

namespace flashlane::runner {

class Verdicts {
 public:
  // Nothing is allocated after this.
  Verdicts(int slots, int max_draft) : verdicts_(static_cast<size_t>(slots)) {
    for (Verdict& verdict : verdicts_) verdict.drafts.reserve(static_cast<size_t>(max_draft));
  }

  // Of a step that was run. A slot that drew nothing in it has none.
  void note(const scheduler::StepPlan& plan, const scheduler::StepResult& result,
            std::span<const SlotProgress> slots);
  // The plan's only segment as the verdict fills it; refuses one that has no verdict.
  Status fill(scheduler::StepPlan& plan, std::span<const SlotProgress> slots) const;

 private:
  struct Verdict {
    int position = -1;  // of `last_drawn`, the slot's length; -1: there is none
    int32_t last_drawn = -1;
    std::vector<int32_t> drafts = {};
  };
  std::vector<Verdict> verdicts_;  // by slot
};

}  // namespace flashlane::runner
