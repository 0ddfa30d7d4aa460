// Slot: what the runner keeps for one sequence. Where its state's pieces and its rows lie in the
// pool, the tokens of all rows, and how far it is. Going back costs nothing: the number of kept
// rows of the last window is all that changes, and the next forward reads it. Everything but tokens
// and page ids lies in the pool, and nothing is allocated after construction.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "memory/page_id.h"
#include "model/state.h"
#include "runner/head_backlog.h"
#include "runner/plan_check.h"
#include "runner/storage.h"

namespace flashlane::runner {

class Slot {
 public:
  // `pool`, which lies in `memory`, and the rest outlive the slot. The table names the null page
  // wherever it has none. `backlog_rows` wide rows may wait for the MTP head.
  Slot(const model::ModelShape& shape, const Storage& storage, std::byte* pool,
       memory::PageId null_page, int context, int backlog_rows, Memory& memory = host_memory());

  // Beside what lies in the pool.
  static size_t bytes(const Storage& storage, int context);
  // Pages that a table may name; chained drafts run ahead of the committed rows, hence the window
  // beyond the context.
  static int table_pages(const Storage& storage, int context);

  // The slot is a new sequence's, whose state lies in these pages, all zero.
  void open(std::span<const memory::PageId> state_pages, SlotProgress& progress);
  // The next pages of its rows.
  void map(std::span<const memory::PageId> pages, SlotProgress& progress);
  // Goes on in other pages, which hold what its own held: the state's, and as many as are mapped.
  void move_to(std::span<const memory::PageId> state_pages, std::span<const memory::PageId> pages,
               SlotProgress& progress);
  // After open and map: the slot goes on behind `tokens`, whose rows and states now lie in its
  // pages. The MTP head makes its last row again, since the token after it may be another one now.
  void resume(std::span<const int32_t> tokens, bool has_head, SlotProgress& progress);
  // Gets ready for rows at `start`, back to it if the slot is further on. The rows' tokens join the
  // history.
  void begin(int start, std::span<const int32_t> tokens, SlotProgress& progress);
  // After a forward: prompt rows are all kept; of a window, the first `kept`.
  void commit_prompt(SlotProgress& progress);
  void commit_window(int start, int kept, SlotProgress& progress);

  model::SequenceState& state() { return state_; }
  std::span<const int32_t> history() const { return history_; }
  HeadBacklog& backlog() { return backlog_; }
  std::span<const memory::PageId> page_table(const SlotProgress& progress) const {
    return std::span(page_table_).first(static_cast<size_t>(progress.mapped_pages));
  }
  std::span<const memory::PageId> state_pages() const { return state_pages_; }

 private:
  void point_at(std::span<const memory::PageId> state_pages);

  const model::ModelShape& shape_;
  const Storage& storage_;
  std::byte* pool_;
  Memory* memory_;
  memory::PageId null_page_;
  std::vector<std::byte*> pieces_;
  std::vector<memory::PageId> state_pages_;
  std::vector<memory::PageId> page_table_;
  std::vector<int32_t> history_;
  HeadBacklog backlog_;
  model::SequenceState state_;
};

}  // namespace flashlane::runner
