// SequencePages: which pages of the runner's pool are whose, in one of two ways. From the pool, a
// sequence is promised all that it may ever need when it is admitted, so that nothing it does later
// can fail for want of pages (P2); it takes them as its rows come, and everything goes back at once
// when it leaves. With sized sessions the pages are dealt out at load, to sessions of fixed
// capacities; a sequence has one session at a time, and moves to a larger one when it outgrows it
// (Z2, Z3).
#pragma once

#include <optional>
#include <vector>

#include "memory/page_pool.h"
#include "memory/pool_layout.h"
#include "memory/session_table.h"
#include "scheduler/step_plan.h"

namespace flashlane::scheduler {

// Of one sequence.
struct PageHold {
  memory::LeaseId lease = {};
  int mapped = 0;                   // pages of its table that the runner has been told of
  memory::SessionId session = {};   // with sized sessions
  memory::SessionId moves_to = {};  // taken, and the move has not come back
};

struct SessionUsage {
  int sessions = 0;
  int free = 0;
  friend bool operator==(const SessionUsage&, const SessionUsage&) = default;
};

class SequencePages {
 public:
  // `sessions`: capacities in rows, or none. `grow`: reply tokens that a session must hold when a
  // sequence begins in it.
  SequencePages(memory::PoolLayout layout, int pages, int sequences,
                const std::vector<int>& sessions, int grow);

  // False where the sequence doesn't fit now; it must fit when nobody else is there.
  [[nodiscard]] bool admit(int prompt, int max_tokens, PageHold& hold);
  // Adds what the segment's rows up to `end`, and the drafts chained behind them, need and the
  // sequence has not got yet; all of it with its first rows, also when it starts again.
  void map(PageHold& hold, int end, Segment& segment);
  // The same for the rows of a restore.
  void map(PageHold& hold, Restore& restore);
  void release(PageHold& hold) noexcept;

  // The next four with sized sessions. Whether the sequence, at `position`, has room for another
  // step: `rows` may be written in it, and `end` is as far as it may ever come, the window's rows
  // beyond its last token left out.
  memory::Room room(const PageHold& hold, int position, int rows, int end) const;
  int capacity(memory::SessionId session) const { return table_->capacity(session); }
  // Takes a larger session, whose pages the move gets; there is a free one.
  void begin_move(PageHold& hold, int end, Move& move);
  // Gives up the session that is no longer needed: the old one, or where the move did not work the
  // new one.
  void end_move(PageHold& hold, bool worked) noexcept;

  memory::PoolUsage usage() const { return pool_.usage(); }
  SessionUsage sessions() const;
  void check() const;

 private:
  std::vector<memory::PageId> open(PageHold& hold);
  std::vector<memory::PageId> extend(PageHold& hold, int rows);
  [[nodiscard]] bool take_state(memory::LeaseId lease);

  memory::PoolLayout layout_;
  memory::PagePool pool_;
  int grow_;
  std::optional<memory::SessionTable> table_ = {};
  std::vector<memory::LeaseId> session_pages_ = {};  // by session
};

}  // namespace flashlane::scheduler
