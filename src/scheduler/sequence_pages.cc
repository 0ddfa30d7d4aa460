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

void SequencePages::map(PageHold& hold, Segment& segment) {
  if (segment.start_position == 0) {
    const std::span<const memory::PageId> state = pool_.state_pages(hold.lease);
    segment.state_pages.assign(state.begin(), state.end());
    hold.mapped = 0;
  }
  const int rows = segment.start_position + static_cast<int>(segment.tokens.size()) +
                   std::max(0, segment.draft_depth - 1);
  const int held = static_cast<int>(pool_.table(hold.lease).size());
  const int wanted = layout_.pages_for(rows);
  if (wanted > held) pool_.take(hold.lease, wanted - held);
  const std::span<const memory::PageId> table = pool_.table(hold.lease);
  if (wanted <= hold.mapped) return;
  segment.new_pages.assign(table.begin() + hold.mapped, table.begin() + wanted);
  hold.mapped = wanted;
}

void SequencePages::release(PageHold& hold) noexcept {
  pool_.finish(hold.lease);
  hold = {};
}

}  // namespace flashlane::scheduler
