// PagePool: who holds which page of one pool (P1, P2). It hands out ids, not memory. A lease is
// promised all the pages that its sequence will ever need before it begins, by count; pages are
// then taken out of the promise, and finish gives back those taken and the rest of the promise
// alike. The invariant: each page is free, in one lease's table or in one lease's states, and there
// are always at least as many free pages as are promised and not yet taken. So only promise and
// claim_run can be refused, and what they refuse changes nothing.
//
// Pages are taken in a fixed order, so the same calls give the same pages: a table takes the lowest
// free ids; states, alone or in runs, the highest. Tables come and go in all lengths while states
// stay as long as their sequence; apart from each other, they leave what is free in one piece
// between them, and a run that was given back is the place of the next one.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory/id_set.h"
#include "memory/page_id.h"

namespace flashlane::memory {

struct LeaseId {
  int32_t value = -1;
  friend bool operator==(LeaseId, LeaseId) = default;
};

// free + table + state == pages.
struct PoolUsage {
  int pages = 0;
  int free = 0;
  int promised = 0;  // and not yet taken
  int table = 0;
  int state = 0;
  friend bool operator==(const PoolUsage&, const PoolUsage&) = default;
};

class PagePool {
 public:
  // Both ≥ 1. Allocates what any lease may ever need: two lists as long as the pool for each, whose
  // memory is first touched when pages are taken.
  PagePool(int pages, int most_leases);
  // A copy would lack what the lists have reserved.
  PagePool(const PagePool&) = delete;
  PagePool& operator=(const PagePool&) = delete;

  int pages() const { return free_.size(); }
  // One page beyond the pool, all zero, that stands wherever a table names no page; never handed
  // out.
  PageId null_page() const { return pages(); }
  // Free and promised to nobody.
  int available() const { return free_.count() - promised_; }
  bool can_ever(int count) const { return count <= pages(); }

  // Chooses no pages yet. Nothing: not so many are available now, or no lease is left. 1 ≤ count,
  // and can_ever(count). The lease is the lowest that is free.
  std::optional<LeaseId> promise(int count);
  // The lowest free ids, ascending, to the end of the table. This and the next two stay within the
  // promise; counts ≥ 0.
  void take(LeaseId lease, int count);
  // The highest free ids, descending, to the end of the states.
  void take_state(LeaseId lease, int count);
  // Consecutive ids, ascending, to the end of the states: of all such runs the highest. False where
  // there is none.
  [[nodiscard]] bool claim_run(LeaseId lease, int count);
  // Everything goes back, whatever was taken; the id may come again. Allocates nothing.
  void finish(LeaseId lease) noexcept;

  // Entry i of a table is the page of the sequence's rows from i · rows a page. The lists stay
  // where they are while pages are taken: a span holds until finish, for the pages that it was made
  // with.
  std::span<const PageId> table(LeaseId lease) const { return live(lease).table; }
  std::span<const PageId> state_pages(LeaseId lease) const { return live(lease).state; }
  int promised(LeaseId lease) const { return live(lease).promised; }  // in all
  int taken(LeaseId lease) const { return taken_of(live(lease)); }
  PoolUsage usage() const;
  // Every invariant, by looking at every page; for tests.
  void check() const;

 private:
  struct Lease {
    int promised = 0;
    std::vector<PageId> table;
    std::vector<PageId> state;
  };
  static int taken_of(const Lease& lease);
  const Lease& live(LeaseId id) const;
  // The lease, once it is known that it may take `count` more.
  Lease& spending(LeaseId id, int count);
  // A free page goes to the end of a list.
  void hand_out(PageId page, std::vector<PageId>& list, int& count);

  IdSet free_;
  IdSet free_leases_;
  std::vector<Lease> leases_;
  int promised_ = 0;  // of all leases, and not yet taken
  int table_ = 0;     // pages in tables
  int state_ = 0;     // pages of states
};

}  // namespace flashlane::memory
