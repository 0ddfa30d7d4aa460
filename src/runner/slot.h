// Slot: what the runner keeps for one sequence. The state's pieces, the page table, the tokens of
// all rows, and how far it is. Going back costs nothing: the number of kept rows of the last window
// is all that changes, and the next forward reads it. Nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/state.h"
#include "runner/head_backlog.h"
#include "runner/plan_check.h"
#include "tensor/buffer.h"

namespace flashlane::runner {

class Slot {
 public:
  // Takes the pages first_page, first_page + 1, … of the pool. `backlog_rows` wide rows may wait
  // for the MTP head.
  Slot(const model::ModelShape& shape, const model::StateLayout& layout, int context,
       int first_page, int backlog_rows);

  static size_t bytes(const model::ModelShape& shape, const model::StateLayout& layout, int context,
                      int backlog_rows);
  static int pages(const model::StateLayout& layout, int context);

  // Gets ready for rows at `start`: afresh at 0, else back to it if the slot is further on. The
  // rows' tokens join the history.
  void open(int start, std::span<const int32_t> tokens, SlotProgress& progress);
  // After a forward: prompt rows are all kept; of a window, the first `kept`.
  void commit_prompt(SlotProgress& progress);
  void commit_window(int start, int kept, SlotProgress& progress);

  model::SequenceState& state() { return state_; }
  std::span<const int32_t> history() const { return history_; }
  HeadBacklog& backlog() { return backlog_; }

 private:
  Buffer pieces_;
  std::vector<int32_t> page_table_;
  std::vector<int32_t> history_;
  HeadBacklog backlog_;
  model::SequenceState state_;
};

}  // namespace flashlane::runner
