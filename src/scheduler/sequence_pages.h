// SequencePages: which pages of the runner's pool are whose. A sequence is promised all that it may
// ever need when it is admitted, so that nothing it does later can fail for want of pages (P2); it
// takes them as its rows come, and everything goes back at once when it leaves.
#pragma once

#include "memory/page_pool.h"
#include "memory/pool_layout.h"
#include "scheduler/step_plan.h"

namespace flashlane::scheduler {

// Of one sequence.
struct PageHold {
  memory::LeaseId lease = {};
  int mapped = 0;  // pages of its table that the runner has been told of
};

class SequencePages {
 public:
  SequencePages(memory::PoolLayout layout, int pages, int sequences);

  // False where so many positions don't fit now; they must fit an empty pool.
  [[nodiscard]] bool admit(int rows, PageHold& hold);
  // Adds what the segment's rows, and the drafts chained behind them, need and the sequence has
  // not got yet; all of it with its first rows, also when it starts again.
  void map(PageHold& hold, Segment& segment);
  void release(PageHold& hold) noexcept;

  memory::PoolUsage usage() const { return pool_.usage(); }
  void check() const { pool_.check(); }

 private:
  memory::PoolLayout layout_;
  memory::PagePool pool_;
};

}  // namespace flashlane::scheduler
