#include "scheduler/sequence_pages.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace flashlane::scheduler {

SequencePages::SequencePages(memory::PoolLayout layout, int pages, int sequences)
    : layout_(std::move(layout)), pool_(pages, sequences) {}

// State pages are taken here and now, before anything is asked of the runner: the form of one
// consecutive run may find none, though the pool has the pages.
bool SequencePages::admit(int rows, PageHold& hold) {
  CHECK_EQ(hold.lease.value, memory::LeaseId{}.value);
  const auto lease = pool_.promise(layout_.need(rows));
  if (!lease) return false;
  const int state_pages = layout_.state_pages();
  if (layout_.form() == memory::PoolLayout::StateForm::kPieces) {
    pool_.take_state(*lease, state_pages);
  } else if (state_pages > 0 && !pool_.claim_run(*lease, state_pages)) {
    pool_.finish(*lease);
    return false;
  }
  hold = {.lease = *lease};
  return true;
}

// The state's pages, for a slot that knows of none.
std::vector<memory::PageId> SequencePages::open(PageHold& hold) {
  const std::span<const memory::PageId> state = pool_.state_pages(hold.lease);
  hold.mapped = 0;
  return {state.begin(), state.end()};
}

// Of so many rows, the pages that the slot has not been told of.
std::vector<memory::PageId> SequencePages::extend(PageHold& hold, int rows) {
  const int held = static_cast<int>(pool_.table(hold.lease).size());
  const int wanted = layout_.pages_for(rows);
  if (wanted <= hold.mapped) return {};
  if (wanted > held) pool_.take(hold.lease, wanted - held);
  const std::span<const memory::PageId> table = pool_.table(hold.lease);
  const int told = std::exchange(hold.mapped, wanted);
  return {table.begin() + told, table.begin() + wanted};
}

void SequencePages::map(PageHold& hold, Segment& segment) {
  if (segment.start_position == 0) segment.state_pages = open(hold);
  segment.new_pages =
      extend(hold, segment.start_position + static_cast<int>(segment.tokens.size()) +
                       std::max(0, segment.draft_depth - 1));
}

void SequencePages::map(PageHold& hold, Restore& restore) {
  restore.state_pages = open(hold);
  restore.new_pages = extend(hold, static_cast<int>(restore.tokens.size()));
}

void SequencePages::release(PageHold& hold) noexcept {
  pool_.finish(hold.lease);
  hold = {};
}

}  // namespace flashlane::scheduler
