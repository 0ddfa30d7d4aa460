// Costs at which rows are so cheap that three drafts pay from the first step on.
#pragma once

#include "scheduler/cost_table.h"
#include "scheduler/step_plan.h"

namespace flashlane::testing {

inline scheduler::StepCosts cheap_rows() {
  const scheduler::MeasuredCost forward[] = {{1, 10}, {16, 11}};
  const scheduler::MeasuredCost head[] = {{1, 0.1}};
  return {.forward = scheduler::CostTable(forward, scheduler::kMostDecodeRows),
          .head_step = scheduler::CostTable(head, scheduler::kMostDecodeRows)};
}

}  // namespace flashlane::testing
