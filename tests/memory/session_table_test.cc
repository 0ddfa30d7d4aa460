// Sessions one by one (Z2, Z3, Z5): which is chosen, by smallest fit and without a list; where one
// that outgrows its own goes; what a sequence does before a round, to the row; and two that outgrow
// theirs at once.
#include "memory/session_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "memory/session_list.h"

namespace flashlane::memory {
namespace {

SessionTable taken(std::vector<int> capacities, const std::vector<int>& sessions) {
  SessionTable table(std::move(capacities));
  for (const int session : sessions) table.take(SessionId{session});
  return table;
}

// -1 for none.
int value(std::optional<SessionId> session) {
  return session.value_or(SessionId{}).value;
}

TEST(SessionTable, StartsWithEverySessionFree) {
  const SessionTable table({1'000, 100, 200});
  EXPECT_EQ(table.count(), 3);
  EXPECT_EQ(table.free(), 3);
  EXPECT_EQ(table.largest(), 1'000);
  const int capacities[] = {1'000, 100, 200};
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(table.is_free(SessionId{i}));
    EXPECT_EQ(table.capacity(SessionId{i}), capacities[i]);
  }
  table.check();
}

TEST(SessionTable, WhatIsTakenComesBackAsItWas) {
  static_assert(noexcept(std::declval<SessionTable&>().release(SessionId{})));
  SessionTable table({1'000, 100});
  table.take(SessionId{1});
  EXPECT_FALSE(table.is_free(SessionId{1}));
  EXPECT_TRUE(table.is_free(SessionId{0}));
  EXPECT_EQ(table.free(), 1);
  EXPECT_EQ(table.capacity(SessionId{1}), 100);
  table.check();
  table.release(SessionId{1});
  EXPECT_TRUE(table.is_free(SessionId{1}));
  EXPECT_EQ(table.free(), 2);
  table.check();
}

TEST(SessionTable, TheSmallestThatHoldsTheRows) {
  const SessionTable table({1'000, 300, 100, 200});
  EXPECT_EQ(value(table.smallest_free(0)), 2);
  EXPECT_EQ(value(table.smallest_free(100)), 2);
  EXPECT_EQ(value(table.smallest_free(101)), 3);
  EXPECT_EQ(value(table.smallest_free(200)), 3);
  EXPECT_EQ(value(table.smallest_free(201)), 1);
  EXPECT_EQ(value(table.smallest_free(301)), 0);
  EXPECT_EQ(value(table.smallest_free(1'000)), 0);
  EXPECT_EQ(value(table.smallest_free(1'001)), -1);
}

TEST(SessionTable, ATakenSessionIsPassedOver) {
  SessionTable table = taken({1'000, 300, 100, 200}, {3});
  EXPECT_EQ(value(table.smallest_free(150)), 1);
  table.take(SessionId{1});
  EXPECT_EQ(value(table.smallest_free(150)), 0);
  table.take(SessionId{0});
  EXPECT_EQ(value(table.smallest_free(150)), -1);
  EXPECT_EQ(value(table.smallest_free(100)), 2);
}

TEST(SessionTable, OfEqualOnesTheHighestSoThatSessionZeroStaysFree) {
  SessionTable table({500, 500, 500});
  for (const int expected : {2, 1, 0, -1}) {
    EXPECT_EQ(value(table.smallest_free(500)), expected);
    EXPECT_EQ(value(table.larger_free(100, 400)), expected);
    if (expected >= 0) table.take(SessionId{expected});
  }
}

// Without a list the sessions are equal and the first free one is taken: the reference's rule.
TEST(SessionTable, TheFirstFreeOneIsTheLowestWhateverItHolds) {
  SessionTable table({1'000, 10, 300});
  for (const int expected : {0, 1, 2}) {
    EXPECT_EQ(value(table.first_free()), expected);
    table.take(SessionId{expected});
  }
  EXPECT_EQ(value(table.first_free()), -1);
  table.release(SessionId{2});
  EXPECT_EQ(value(table.first_free()), 2);
  table.release(SessionId{1});
  EXPECT_EQ(value(table.first_free()), 1);
}

TEST(SessionTable, FirstFreeAndSmallestFitDiffer) {
  const SessionTable equal({500, 500, 500});
  EXPECT_EQ(value(equal.first_free()), 0);
  EXPECT_EQ(value(equal.smallest_free(400)), 2);
  const SessionTable sized({1'000, 100, 300});
  EXPECT_EQ(value(sized.first_free()), 0);
  EXPECT_EQ(value(sized.smallest_free(100)), 1);
  // The first free one need not hold what is asked for; smallest fit never gives such a one.
  const SessionTable busy = taken({1'000, 100, 300}, {0});
  EXPECT_EQ(value(busy.first_free()), 1);
  EXPECT_EQ(value(busy.smallest_free(200)), 2);
}

TEST(SessionTable, AMoveGoesToTheSmallestThatHoldsTheEnd) {
  const std::vector<int> sizes = {1'000, 300, 100, 200, 400};
  const SessionTable table(sizes);
  EXPECT_EQ(value(table.larger_free(100, 150)), 3);
  EXPECT_EQ(value(table.larger_free(100, 200)), 3);
  EXPECT_EQ(value(table.larger_free(100, 201)), 1);
  EXPECT_EQ(value(table.larger_free(100, 350)), 4);
  EXPECT_EQ(value(table.larger_free(100, 1'000)), 0);
  // Without one, to the smallest that is larger.
  EXPECT_EQ(value(taken(sizes, {0}).larger_free(100, 900)), 3);
  EXPECT_EQ(value(taken(sizes, {0, 3}).larger_free(100, 900)), 1);
  EXPECT_EQ(value(taken(sizes, {0, 1, 3}).larger_free(200, 900)), 4);
  EXPECT_EQ(value(taken(sizes, {0, 1, 3, 4}).larger_free(100, 900)), -1);
}

TEST(SessionTable, AMoveNeverGoesToAnEqualOrSmallerOne) {
  const std::vector<int> sizes = {400, 300, 100, 300};
  EXPECT_EQ(value(taken(sizes, {0, 1}).larger_free(300, 400)), -1);
  EXPECT_EQ(value(taken(sizes, {0}).larger_free(300, 10)), -1);
  EXPECT_EQ(value(taken(sizes, {0}).larger_free(299, 10)), 3);
  EXPECT_EQ(value(SessionTable(sizes).larger_free(400, 500)), -1);
  EXPECT_EQ(value(SessionTable({2'147'483'647}).larger_free(2'147'483'647, 5)), -1);
}

TEST(SessionTable, ALargerOneExistsFreeOrNot) {
  const SessionTable table = taken({400, 300, 100}, {0, 1});
  EXPECT_TRUE(table.larger_exists(100));
  EXPECT_TRUE(table.larger_exists(399));
  EXPECT_FALSE(table.larger_exists(400));
  EXPECT_EQ(value(table.larger_free(100, 300)), -1);
}

TEST(SessionTableDeathTest, ATakenOneIsNotTakenAndAFreeOneNotReleased) {
  SessionTable table = taken({400, 300}, {1});
  EXPECT_DEATH(table.take(SessionId{1}), "is_free");
  EXPECT_DEATH(table.release(SessionId{0}), "is_free");
  EXPECT_DEATH(table.take(SessionId{2}), "contains");
  EXPECT_DEATH(table.release(SessionId{}), "contains");
  EXPECT_DEATH(static_cast<void>(table.capacity(SessionId{2})), "contains");
  EXPECT_DEATH(SessionTable({}), "0 against 1");
  EXPECT_DEATH(SessionTable({400, 0}), "0 against 1");
}

// A session of 4,128 rows with `free` of them left, for a reply that goes on beyond it.
RoomCase outgrowing(int free, int next_rows, bool is_free = true, bool exists = true) {
  return {.capacity = 4'128,
          .position = 4'128 - free,
          .end = 20'000,
          .next_rows = next_rows,
          .larger_is_free = is_free,
          .larger_exists = exists};
}

TEST(Room, TwoWindowsBehindTheNextRoundAreEnough) {
  for (const int next_rows : {1, 2, 5, 16, 17, 31, 32}) {
    const int least = next_rows + kSessionMargin;
    for (const bool exists : {false, true}) {
      EXPECT_EQ(room_for(outgrowing(least, next_rows, exists, exists)), Room::kEnough);
      EXPECT_EQ(room_for(outgrowing(4'128, next_rows, exists, exists)), Room::kEnough);
    }
    EXPECT_EQ(room_for(outgrowing(least - 1, next_rows, true, true)), Room::kMove);
    EXPECT_EQ(room_for(outgrowing(least - 1, next_rows, false, true)), Room::kPause);
    EXPECT_EQ(room_for(outgrowing(least - 1, next_rows, false, false)), Room::kFull);
    EXPECT_EQ(room_for(outgrowing(0, next_rows, true, true)), Room::kMove);
  }
}

TEST(Room, MovesComeWhereTheReferenceWasSeenToMove) {
  // 4,092 of 4,128 rows, 16,381 and 16,382 of 16,416, with windows of a few rows.
  EXPECT_EQ(room_for(outgrowing(36, 5)), Room::kMove);
  EXPECT_EQ(room_for(outgrowing(35, 4)), Room::kMove);
  EXPECT_EQ(room_for(outgrowing(34, 3)), Room::kMove);
  EXPECT_EQ(room_for(outgrowing(37, 5)), Room::kEnough);
}

TEST(Room, TheEndDecidesToTheRow) {
  RoomCase room = {.capacity = 1'000, .position = 990, .end = 1'000, .next_rows = 10};
  for (const bool exists : {false, true}) {
    for (const bool is_free : {false, exists}) {
      room.larger_exists = exists;
      room.larger_is_free = is_free;
      room.end = 1'000;
      EXPECT_EQ(room_for(room), Room::kEnough);
      room.end = 991;
      EXPECT_EQ(room_for(room), Room::kEnough);
      room.end = 1'001;
      const Room expected = is_free ? Room::kMove : exists ? Room::kPause : Room::kFull;
      EXPECT_EQ(room_for(room), expected);
    }
  }
}

// T9: each round takes back all of its drafts, so that the reply comes to its session's last row
// one token at a time.
TEST(Room, ASequenceWhoseSessionHoldsTheEndNeverMovesAndNeverPauses) {
  constexpr int kWindow = 16;
  int rounds = 0;
  for (const int reply : {1, 2, 15, 16, 17, 31, 32, 33, 48, 49, 500}) {
    for (const int prompt : {1, 40}) {
      const int end = prompt + reply + kWindow;
      for (const int spare : {0, 1, kWindow, kSessionMargin}) {
        for (int position = prompt; position < prompt + reply; ++position, ++rounds) {
          RoomCase room = {.capacity = end + spare,
                           .position = position,
                           .end = end,
                           .next_rows = kWindow,
                           .larger_is_free = true,
                           .larger_exists = true};
          ASSERT_EQ(room_for(room), Room::kEnough) << position << " of " << end;
          room.larger_is_free = false;
          ASSERT_EQ(room_for(room), Room::kEnough) << position << " of " << end;
          room.larger_exists = false;
          ASSERT_EQ(room_for(room), Room::kEnough) << position << " of " << end;
        }
      }
    }
  }
  EXPECT_EQ(rounds, 8 * (1 + 2 + 15 + 16 + 17 + 31 + 32 + 33 + 48 + 49 + 500));
}

// One row less than the end, and every draft rejected: it waits for a larger session, if there is
// one, while its next round still fits.
TEST(Room, APauseComesOnARoundThatStillFits) {
  for (int window = 1; window <= kSessionMargin; ++window) {
    const int end = 2'000;
    RoomCase room = {.capacity = end - 1, .position = 1'000, .end = end, .next_rows = window};
    room.larger_exists = true;
    while (room_for(room) == Room::kEnough) {
      ASSERT_LE(room.position + room.next_rows, room.capacity);
      ++room.position;
    }
    EXPECT_EQ(room_for(room), Room::kPause);
    EXPECT_EQ(room.position, room.capacity - kSessionMargin - window + 1);
    // Where the whole round before it landed, the largest one fits still.
    room.position += window - 1;
    EXPECT_EQ(room_for(room), Room::kPause);
    EXPECT_LE(room.position + kSessionMargin, room.capacity);
  }
}

// The table of the rules, line by line, for all small cases.
TEST(Room, IsTheTableForAllSmallCases) {
  int cases[4] = {0, 0, 0, 0};
  for (int capacity = 1; capacity <= 70; ++capacity) {
    for (int position = 0; position <= capacity; ++position) {
      for (int next_rows = 1; next_rows <= 20; ++next_rows) {
        for (const int end : {capacity - 1, capacity, capacity + 1}) {
          for (const int larger : {0, 1, 2}) {  // none, busy, free
            if (capacity >= end && position + next_rows > capacity) continue;
            Room expected = larger == 0 ? Room::kFull : larger == 1 ? Room::kPause : Room::kMove;
            if (position + next_rows + 2 * 16 <= capacity) expected = Room::kEnough;
            if (end <= capacity) expected = Room::kEnough;
            const Room room = room_for({.capacity = capacity,
                                        .position = position,
                                        .end = end,
                                        .next_rows = next_rows,
                                        .larger_is_free = larger == 2,
                                        .larger_exists = larger >= 1});
            ASSERT_EQ(room, expected) << position << " + " << next_rows << " of " << capacity;
            ++cases[static_cast<int>(room)];
          }
        }
      }
    }
  }
  for (const int count : cases) EXPECT_GT(count, 10'000);
}

TEST(RoomDeathTest, ImpossibleCasesAreBugs) {
  RoomCase room = {.capacity = 100, .position = 90, .end = 100, .next_rows = 11};
  EXPECT_DEATH(static_cast<void>(room_for(room)), "11 against 10");
  room = {.capacity = 100, .position = 101, .end = 200, .next_rows = 1};
  EXPECT_DEATH(static_cast<void>(room_for(room)), "-1 against 0");
  room = {.capacity = 100, .position = 10, .end = 200, .next_rows = 0};
  EXPECT_DEATH(static_cast<void>(room_for(room)), "0 against 1");
  room = {.capacity = 100, .position = -1, .end = 200, .next_rows = 1};
  EXPECT_DEATH(static_cast<void>(room_for(room)), "-1 against 0");
  room = {.capacity = 100, .position = 90, .end = 200, .next_rows = 1, .larger_is_free = true};
  EXPECT_DEATH(static_cast<void>(room_for(room)), "larger_exists");
}

// Two in small sessions outgrow them at once, and one larger session is free.
TEST(SessionTable, OfTwoThatOutgrowTheirsAtOnceOneMovesAndOneWaits) {
  SessionTable table({1'000, 100, 100});
  const SessionId first = {1};
  const SessionId second = {2};
  table.take(first);
  table.take(second);
  const auto asks = [&table](SessionId session) {
    const int capacity = table.capacity(session);
    return room_for({.capacity = capacity,
                     .position = capacity - 40,
                     .end = 900,
                     .next_rows = 16,
                     .larger_is_free = table.larger_free(capacity, 900).has_value(),
                     .larger_exists = table.larger_exists(capacity)});
  };
  EXPECT_EQ(asks(first), Room::kMove);
  EXPECT_EQ(asks(second), Room::kMove);
  const SessionId target = table.larger_free(100, 900).value_or(SessionId{});
  EXPECT_EQ(target.value, 0);
  table.take(target);
  table.release(first);
  // What the first left is no larger than what the second has.
  EXPECT_EQ(asks(second), Room::kPause);
  EXPECT_EQ(asks(target), Room::kEnough);
  table.release(target);
  EXPECT_EQ(asks(second), Room::kMove);
  table.check();
}

}  // namespace
}  // namespace flashlane::memory
