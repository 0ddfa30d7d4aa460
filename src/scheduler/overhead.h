// Overhead: what a step takes beyond the work that has a measured price, learned from whole steps
// as they ran. Per number of sequences, greedy and sampled steps apart (sampling adds work of its
// own; a step with any sampled sequence is a sampled one). Never negative. Work that has a price is
// taken out before anything is learned, else the allocation would count it twice (S7).
// The forward's price is measured on one chain of rows, and rows of real steps take more: states
// and pages of their own, records to replay. So the overhead is kept by the step's rows, too.
#pragma once

#include <array>
#include <vector>

#include "scheduler/cost_table.h"
#include "scheduler/step_plan.h"

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
  // The same for a step of so many rows: between widths that were seen the line holds; wider ones
  // have no more than the widest, narrower ones less by their rows. So a width that was never tried
  // looks cheap, and is tried.
  double ms(int sequences, int rows, bool sampled) const;

 private:
  static constexpr double kUnseen = -1;
  struct Entry {
    Entry(int of_sequences, double first_ms) : sequences(of_sequences), ms(first_ms) {
      by_rows.fill(kUnseen);
    }
    double at_rows(int rows) const;
    void observe_rows(int rows, double forward_ms, double extra_ms);

    int sequences;
    double ms;
    std::array<double, kMostDecodeRows + 1> by_rows;
  };
  const Entry* nearest(int sequences, bool sampled) const;

  std::array<std::vector<Entry>, 2> entries_;  // greedy, sampled; in the order of first observation
};

}  // namespace flashlane::scheduler
