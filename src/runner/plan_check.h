// Whether a plan can be run on the slots as they are. Asked before anything is touched, so that a
// refused plan leaves no trace; what passes here never fails a CHECK further down.
#pragma once

#include <span>

#include "base/result.h"
#include "scheduler/step_plan.h"

namespace flashlane::runner {

struct PlanLimits {
  int slots = 0;
  int context = 0;
  int max_rows = 0;
  int max_draft = 0;  // 0 when the model has no MTP head
  int vocabulary = 0;
  int pages = 0;  // of the pool
  int page_rows = 0;
  int state_pages = 0;  // of a sequence
  int table_pages = 0;  // most of a sequence
};

// How far a slot is.
struct SlotProgress {
  int mapped_pages = 0;  // of its rows
  int length = 0;        // committed rows
  int mtp_length = 0;    // of them, rows the MTP head has taken in, or has waiting for it
  // First row of the decode window that ends at `length`: the state can go back to any row after
  // it. -1 after prompt rows, which can't be undone.
  int window_start = -1;
};

Status check_plan(const scheduler::StepPlan& plan, const PlanLimits& limits,
                  std::span<const SlotProgress> slots);

}  // namespace flashlane::runner
