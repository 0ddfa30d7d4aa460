#include "scheduler/sequence_pages.h"

#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"

namespace flashlane::scheduler {

SequencePages::SequencePages(memory::PoolLayout layout, int pages, int sequences,
                             const std::vector<int>& sessions, int grow)
    : layout_(std::move(layout)), pool_(pages, sequences), grow_(grow) {
  if (sessions.empty()) return;
  table_.emplace(sessions);
  for (const int capacity : sessions) {
    const auto lease = pool_.promise(layout_.session_pages(capacity));
    CHECK(lease.has_value());
    CHECK(take_state(*lease));  // no run is broken yet
    pool_.take(*lease, layout_.pages_for(capacity));
    session_pages_.push_back(*lease);
  }
}

bool SequencePages::take_state(memory::LeaseId lease) {
  const int pages = layout_.state_pages();
  if (pages == 0) return true;
  if (layout_.form() == memory::PoolLayout::StateForm::kRun) return pool_.claim_run(lease, pages);
  pool_.take_state(lease, pages);
  return true;
}

// State pages are taken here and now, before anything is asked of the runner: the form of one
// consecutive run may find none, though the pool has the pages.
bool SequencePages::admit(int prompt, int max_tokens, PageHold& hold) {
  CHECK_EQ(hold.lease.value, memory::LeaseId{}.value);
  if (table_) {
    const int rows = prompt + std::min(max_tokens, grow_) + layout_.window_rows();
    const auto session = table_->smallest_free(rows);
    if (!session) return false;
    table_->take(*session);
    hold = {.lease = session_pages_[static_cast<size_t>(session->value)], .session = *session};
    return true;
  }
  const auto lease = pool_.promise(layout_.need(prompt + max_tokens));
  if (!lease) return false;
  if (!take_state(*lease)) {
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
  CHECK(!table_ || wanted <= held);  // a session that is too small is left in time
  if (wanted > held) pool_.take(hold.lease, wanted - held);
  const std::span<const memory::PageId> table = pool_.table(hold.lease);
  const int told = std::exchange(hold.mapped, wanted);
  return {table.begin() + told, table.begin() + wanted};
}

void SequencePages::map(PageHold& hold, int end, Segment& segment) {
  if (segment.start_position == 0) segment.state_pages = open(hold);
  segment.new_pages = extend(hold, end + std::max(0, segment.draft_depth - 1));
}

void SequencePages::map(PageHold& hold, Restore& restore) {
  restore.state_pages = open(hold);
  restore.new_pages = extend(hold, static_cast<int>(restore.tokens.size()));
}

void SequencePages::release(PageHold& hold) noexcept {
  if (!table_) {
    pool_.finish(hold.lease);
  } else {
    if (hold.moves_to != memory::SessionId{}) table_->release(hold.moves_to);
    table_->release(hold.session);
  }
  hold = {};
}

memory::Room SequencePages::room(const PageHold& hold, int position, int rows, int end) const {
  const int capacity = table_->capacity(hold.session);
  const int last = end + layout_.window_rows();
  return memory::room_for({.capacity = capacity,
                           .position = position,
                           .end = last,
                           .next_rows = std::min(rows, last - position),
                           .larger_is_free = table_->larger_free(capacity, last).has_value(),
                           .larger_exists = table_->larger_exists(capacity)});
}

void SequencePages::begin_move(PageHold& hold, int end, Move& move) {
  const auto session =
      table_->larger_free(table_->capacity(hold.session), end + layout_.window_rows());
  CHECK(session.has_value());
  table_->take(*session);
  hold.moves_to = *session;
  const memory::LeaseId lease = session_pages_[static_cast<size_t>(session->value)];
  const std::span<const memory::PageId> state = pool_.state_pages(lease);
  const std::span<const memory::PageId> table = pool_.table(lease);
  move.state_pages.assign(state.begin(), state.end());
  move.pages.assign(table.begin(), table.begin() + hold.mapped);
}

void SequencePages::end_move(PageHold& hold, bool worked) noexcept {
  if (worked) {
    std::swap(hold.session, hold.moves_to);
    hold.lease = session_pages_[static_cast<size_t>(hold.session.value)];
  }
  table_->release(hold.moves_to);
  hold.moves_to = {};
}

SessionUsage SequencePages::sessions() const {
  return table_ ? SessionUsage{.sessions = table_->count(), .free = table_->free()}
                : SessionUsage{};
}

void SequencePages::check() const {
  pool_.check();
  if (table_) table_->check();
}

}  // namespace flashlane::scheduler
