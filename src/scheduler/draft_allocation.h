// Who gets the draft rows of a shared step: drafts per sequence such that expected tokens per
// millisecond are highest, under costs measured at load. By default the exact optimum with chained
// head steps priced as they run, all sequences that draft at a depth in one step; the reference's
// walks by chance, priced and unpriced, are kept for its own results. Fixed rows are never cut, a
// sequence's drafts are always a prefix of its chain, and the rows of a step never pass the limit.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "scheduler/cost_table.h"
#include "scheduler/step_plan.h"

namespace flashlane::scheduler {

// One sequence's claim on the rows of a step.
struct DraftClaim {
  int fixed_rows = 1;  // the pending token, and forced ones
  // Landing chances of its first, second, … draft, in [0, 1] and never rising. One row each.
  std::span<const double> chances = {};
  // What its drafts have to earn before they count, in tokens: the worth of the time that passes
  // before it can draft at all (kExact).
  double toll = 0;
  // True where the drafts cost no head step: they exist already (what is chosen is how many are
  // verified) or are copied from the context.
  bool sunk = false;
};

enum class AllocationRule : uint8_t {
  kExact,         // the highest rate there is
  kPricedGreedy,  // by chance; each draft past a sequence's first costs a head step of its own
  kGreedy,        // by chance; head steps are free
};

struct AllocationOptions {
  AllocationRule rule = AllocationRule::kExact;
  // No forward costs: every step is taken to cost the same and head steps nothing, so that all
  // drafts that may land are taken. A head step table covers 1..kMostDecodeRows sequences, or is
  // empty: chained steps then cost nothing.
  StepCosts costs = {};
  // The depth whose drafts cost a head step first. 2: a sequence's first draft comes with a pass
  // over its kept rows that is made anyway. 1: that pass is made only for those that draft
  // (kExact).
  int first_priced_depth = 2;
  int row_limit = kMostDecodeRows;  // from 1 to this; more sequences raise it to their number
};

class DraftAllocator {
 public:
  explicit DraftAllocator(AllocationOptions options);

  // Drafts per claim, in the claims' order.
  std::vector<int> allocate(std::span<const DraftClaim> claims, double overhead_ms) const;
  // The same where it is known what whole steps take by their rows, head steps apart.
  std::vector<int> allocate(std::span<const DraftClaim> claims, const CostTable& step) const;

 private:
  std::vector<int> allocate(std::span<const DraftClaim> claims, const CostTable& forward,
                            double overhead_ms) const;

  AllocationOptions options_;
  std::vector<double> chain_ms_;  // kExact: head steps of each set of depths, see the source
};

// What is asked of the head after an allocation gave a sequence `count` drafts: at least one, which
// the pass over the accepted rows yields without a chained step, and at most `most` (5.4 there).
int draft_budget(int count, int most);

// Price of the head step at one depth over so many sequences. The one of first drafts takes in the
// rows that were kept, about two for each sequence that drafts.
double head_step_ms(int depth, int sequences, const CostTable& head_step);

// Price of a step's head steps: at each depth from `first_depth` on, one step over all sequences
// that draft so deep. `depths` as they were asked of the head, copies left out.
double head_chain_ms(std::span<const int> depths, const CostTable& head_step, int first_depth = 2);

}  // namespace flashlane::scheduler
