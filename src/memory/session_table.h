// SessionTable: sessions of fixed capacities and who has which (Z2, Z3). Numbers only: which pages
// a session has is its owner's business. The invariant: each session is free or taken, by one
// sequence; sessions neither come nor go. A sequence that outgrows its session takes a larger one
// and then releases its own, so nothing here can fail for a sequence that stays where it is.
//
// Nobody waits for ever: one waits only for sessions larger than its own, and whoever has one of
// the largest holds its own end and never waits. So some sequence always goes on, provided that the
// owner admits only what the largest session holds to its end, and that what a release frees goes
// to those that wait before it goes to new ones.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "memory/id_set.h"

namespace flashlane::memory {

struct SessionId {
  int32_t value = -1;
  friend bool operator==(SessionId, SessionId) = default;
};

class SessionTable {
 public:
  // In rows, each ≥ 1, at least one of them. Session 0 is the one of the full context, which a
  // sequence that runs alone wants.
  explicit SessionTable(std::vector<int> capacities);

  int count() const { return free_.size(); }
  int free() const { return free_.count(); }
  int capacity(SessionId session) const;
  int largest() const { return largest_; }  // capacity, free or not
  bool is_free(SessionId session) const;

  // The free session of the least capacity that is ≥ rows; of equal ones that of the highest id, so
  // that session 0 stays free longest.
  std::optional<SessionId> smallest_free(int rows) const;
  // The free session of the lowest id, whatever it holds: the rule without a list (Z5).
  std::optional<SessionId> first_free() const;
  // Where a sequence in a session of `capacity` rows, which needs `rows` in the end, moves to: the
  // smallest free session that is larger and holds the end, else the smallest that is larger.
  std::optional<SessionId> larger_free(int capacity, int rows) const;
  // Free or not.
  bool larger_exists(int capacity) const { return largest_ > capacity; }

  void take(SessionId session);              // a free one
  void release(SessionId session) noexcept;  // a taken one; allocates nothing

  // Every invariant; for tests.
  void check() const;

 private:
  bool contains(SessionId session) const;

  std::vector<int> capacities_;
  IdSet free_;
  int largest_;
};

// What a sequence does before a round.
enum class Room : uint8_t {
  kEnough,  // runs it
  kMove,    // takes a larger session first, and then asks again
  kPause,   // waits where it is for a larger session
  kFull,    // fails; not after an admission that asked whether the largest session holds the end
};

struct RoomCase {
  int capacity = 0;   // rows of its session
  int position = 0;   // rows committed
  int end = 0;        // rows it may ever need: prompt, the most reply tokens, rows of a window
  int next_rows = 0;  // of the round, chained drafts included
  bool larger_is_free = false;
  bool larger_exists = false;
};

// From the reply's end, and not from what is free alone: a session that holds the end is enough
// however near the end is and however many drafts are rejected. Else it is enough while
//   capacity - position - next_rows >= kSessionMargin:
// two windows are left behind the round. So with rounds of at most kSessionMargin rows, a pause
// comes before one that still fits, and no round ever passes the session's end. 0 ≤ position ≤
// capacity, next_rows ≥ 1; with a session that holds the end, position + next_rows ≤ capacity.
Room room_for(const RoomCase& room);

}  // namespace flashlane::memory
