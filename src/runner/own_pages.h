// Pages for a sequence that no scheduler serves: a part of the pool that is its own.
#pragma once

#include <numeric>

#include "base/int_math.h"
#include "runner/plan_check.h"
#include "scheduler/step_plan.h"

namespace flashlane::runner {

inline int own_pages(const PlanLimits& limits, int rows) {
  return limits.state_pages + div_ceil(rows, limits.page_rows);
}

// With a sequence's first segment: all that it needs for `rows` positions, own_pages of them from
// `first_page` on.
inline void give_own_pages(scheduler::Segment& segment, const PlanLimits& limits, int first_page,
                           int rows) {
  segment.state_pages.resize(static_cast<size_t>(limits.state_pages));
  segment.new_pages.resize(static_cast<size_t>(div_ceil(rows, limits.page_rows)));
  std::iota(segment.state_pages.begin(), segment.state_pages.end(), first_page);
  std::iota(segment.new_pages.begin(), segment.new_pages.end(), first_page + limits.state_pages);
}

}  // namespace flashlane::runner
