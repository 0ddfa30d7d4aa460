#include "memory/session_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "memory/session_list.h"

namespace flashlane::memory {

SessionTable::SessionTable(std::vector<int> capacities)
    : capacities_(std::move(capacities)),
      free_(static_cast<int>(capacities_.size())),
      largest_(*std::max_element(capacities_.begin(), capacities_.end())) {
  for (const int rows : capacities_) CHECK_GE(rows, 1);
}

int SessionTable::capacity(SessionId session) const {
  CHECK(contains(session));
  return capacities_[static_cast<size_t>(session.value)];
}

bool SessionTable::is_free(SessionId session) const {
  CHECK(contains(session));
  return free_.contains(session.value);
}

std::optional<SessionId> SessionTable::smallest_free(int rows) const {
  std::optional<SessionId> best;
  for (int32_t value = 0; value < count(); ++value) {
    const SessionId session = {value};
    if (!is_free(session) || capacity(session) < rows) continue;
    if (!best || capacity(session) <= capacity(*best)) best = session;
  }
  return best;
}

std::optional<SessionId> SessionTable::first_free() const {
  if (free() == 0) return std::nullopt;
  return SessionId{free_.lowest()};
}

std::optional<SessionId> SessionTable::larger_free(int capacity, int rows) const {
  if (!larger_exists(capacity)) return std::nullopt;
  const int more = capacity + 1;
  const std::optional<SessionId> holds_end = smallest_free(std::max(more, rows));
  return holds_end ? holds_end : smallest_free(more);
}

void SessionTable::take(SessionId session) {
  CHECK(is_free(session));
  free_.remove(session.value);
}

void SessionTable::release(SessionId session) noexcept {
  CHECK(!is_free(session));
  free_.insert(session.value);
}

void SessionTable::check() const {
  free_.check();
  CHECK_EQ(static_cast<int>(capacities_.size()), count());
  CHECK_EQ(*std::max_element(capacities_.begin(), capacities_.end()), largest_);
  CHECK_GE(*std::min_element(capacities_.begin(), capacities_.end()), 1);
}

bool SessionTable::contains(SessionId session) const {
  return session.value >= 0 && session.value < count();
}

Room room_for(const RoomCase& room) {
  const int free = room.capacity - room.position;
  CHECK_GE(room.position, 0);
  CHECK_GE(free, 0);
  CHECK_GE(room.next_rows, 1);
  CHECK(room.larger_exists || !room.larger_is_free);
  if (room.capacity >= room.end) {
    CHECK_LE(room.next_rows, free);
    return Room::kEnough;
  }
  if (free - room.next_rows >= kSessionMargin) return Room::kEnough;
  if (room.larger_is_free) return Room::kMove;
  return room.larger_exists ? Room::kPause : Room::kFull;
}

}  // namespace flashlane::memory
