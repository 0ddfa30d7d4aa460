// Calibration: what this machine takes for a decode step, measured at load before anything is
// served: one forward by its rows, and one step of the MTP head by the sequences in it (S5). The
// figures decide how much is drafted and never a token.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "runner/runner.h"
#include "scheduler/step_result.h"

namespace flashlane::runner {

// Positions of the last slot that it takes: a prompt, the rows kept of each timed forward, and the
// widest of them.
inline constexpr int kCalibrationRows = 209;

struct Calibration {
  std::vector<scheduler::MeasuredCost> forward = {};    // three of each width
  std::vector<scheduler::MeasuredCost> head_step = {};  // none without an MTP head
  std::string skipped = {};  // why nothing was measured; empty when it was
  double took_ms = 0;
};

// Three times for each width. A context or a pool that is too small is skipped with the reason, as
// is everything when a step fails, which is no reason not to serve. The slots must be free, and are
// so afterwards.
Calibration calibrate(Runner& runner, const Clock& clock);

}  // namespace flashlane::runner
