// Overhead: what a step takes beyond the work that has a measured price, learned from whole steps
// as they ran. Per number of sequences, greedy and sampled steps apart (sampling adds work of its
// own; a step with any sampled sequence is a sampled one). Never negative. Work that has a price is
// taken out before anything is learned, else the allocation would count it twice (S7).
#pragma once

#include <array>
#include <vector>

#include "scheduler/cost_table.h"

namespace flashlane::scheduler {

inline constexpr double kOverheadGuessMs = 8.0;  // before anything was observed

struct ObservedStep {
  int sequences = 0;
  int rows = 0;  // of the forward, all sequences together
  bool sampled = false;
  double wall_ms = 0;
  double head_ms = 0;  // price of the chained head steps that the step ran (head_chain_ms)
};

class OverheadEstimate {
 public:
  // A step whose forward has no price teaches nothing.
  void observe(const ObservedStep& step, const CostTable& forward);
  // Of the nearest number of sequences that was observed; of two as near, the one observed first.
  double ms(int sequences, bool sampled) const;

 private:
  struct Entry {
    int sequences = 0;
    double ms = 0;
  };
  std::array<std::vector<Entry>, 2> entries_;  // greedy, sampled; in the order of first observation
};

}  // namespace flashlane::scheduler
