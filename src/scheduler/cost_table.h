// CostTable: milliseconds by number of rows, from a few measured pairs. Every row count from 1 to
// the table's limit has a positive, finite cost, or the table is empty and nothing is known; what
// was measured badly (no rows, no time, not a number) never gets in. Costs decide how much is
// drafted, so they change how long a reply takes and never what it says.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/step_result.h"

namespace flashlane::scheduler {

// Calibration takes times on a machine that other work disturbs: there more rows never cost less,
// so a dip is noise and is lifted to the dearest of the narrower measurements.
enum class CostShape : uint8_t { kAsMeasured, kNonDecreasing };

class CostTable {
 public:
  CostTable() = default;  // empty
  // Measured row counts keep their time; fewer than the smallest cost as much as it; between two
  // the line holds; past the widest the time grows with the rows. The pairs come in any order; of
  // several for one row count the least counts (best of runs: a disturbance only adds time); pairs
  // with rows < 1 or a time that is not positive and finite are left out.
  // One pair {1, step} makes the table rows * step: the price of work that is not shared at all.
  CostTable(std::span<const MeasuredCost> measured, int limit,
            CostShape shape = CostShape::kAsMeasured);

  bool empty() const { return ms_.empty(); }
  int limit() const { return static_cast<int>(ms_.size()); }
  bool covers(int rows) const { return rows >= 1 && rows <= limit(); }
  double ms(int rows) const;  // covers(rows)

 private:
  std::vector<double> ms_;  // of rows 1, 2, …
};

// What is measured at load (S5).
struct StepCosts {
  CostTable forward = {};    // one shared forward, by its rows
  CostTable head_step = {};  // one chained step of the MTP head, by the sequences in it
};

}  // namespace flashlane::scheduler
