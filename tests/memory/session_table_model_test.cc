// The table against a model that is written as the rules are said, through random events; and many
// sequences that grow and wait in one table, which all end, whatever the sizes and the order. A
// seed gives the same events everywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <deque>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "memory/session_list.h"
#include "memory/session_table.h"
#include "tests/sim/dice.h"

namespace flashlane::memory {
namespace {

// A free session as (capacity, -id): in this order the first that fits is the one.
using Free = std::set<std::pair<int, int>>;

int first_from(const Free& free, int rows) {
  const auto found = free.lower_bound({rows, -1'000});
  return found == free.end() ? -1 : -found->second;
}

int value(std::optional<SessionId> session) {
  return session.value_or(SessionId{}).value;
}

std::vector<int> random_capacities(sim::Dice& dice) {
  const int largest = dice.roll(1, 400);
  std::vector<int> capacities = {largest};
  const int others = dice.once_in(5) ? 0 : dice.roll(1, dice.once_in(8) ? 140 : 15);
  const int sizes = dice.roll(1, 4);  // few, so that many are equal
  std::vector<int> choice;
  for (int i = 0; i < sizes; ++i) choice.push_back(dice.roll(1, largest));
  for (int i = 0; i < others; ++i) {
    capacities.push_back(dice.once_in(4) ? dice.roll(1, largest)
                                         : choice[static_cast<size_t>(dice.roll(0, sizes - 1))]);
  }
  return capacities;
}

struct EventCounts {
  int taken = 0;
  int released = 0;
  int moved = 0;
  int held_end = 0;   // moves to a session that holds the end
  int none_fits = 0;  // nothing free is large enough
  int all_taken = 0;
};

class TableWorld {
 public:
  TableWorld(uint64_t seed, EventCounts& counts)
      : counts_(counts), dice_(seed), capacities_(random_capacities(dice_)), table_(capacities_) {
    for (int i = 0; i < table_.count(); ++i) free_.insert({capacities_[i], -i});
  }

  void run(int events) {
    for (int event = 0; event < events && !::testing::Test::HasFailure(); ++event) {
      const int kind = dice_.roll(0, 9);
      if (taken_.empty() || kind < 5) {
        admit();
      } else if (kind < 7) {
        release(any_taken());
      } else {
        move(any_taken());
      }
      compare();
    }
    while (!taken_.empty()) release(*taken_.begin());
    compare();
    EXPECT_EQ(table_.free(), table_.count());
  }

 private:
  int any_taken() {
    return *std::next(taken_.begin(), dice_.roll(0, static_cast<int>(taken_.size()) - 1));
  }

  void take(int session) {
    table_.take(SessionId{session});
    free_.erase({capacities_[session], -session});
    taken_.insert(session);
  }

  void release(int session) {
    ++counts_.released;
    table_.release(SessionId{session});
    free_.insert({capacities_[session], -session});
    taken_.erase(session);
  }

  void admit() {
    const int rows = dice_.roll(1, capacities_[0] + 1);
    int session = first_from(free_, rows);
    EXPECT_EQ(value(table_.smallest_free(rows)), session) << rows;
    if (dice_.once_in(4)) {
      int lowest = -1;
      for (const auto& [capacity, id] : free_) {
        if (lowest < 0 || -id < lowest) lowest = -id;
      }
      session = lowest;
      EXPECT_EQ(value(table_.first_free()), session);
    }
    ++(session < 0 ? counts_.none_fits : counts_.taken);
    if (session >= 0) take(session);
  }

  void move(int from) {
    const int capacity = capacities_[from];
    const int rows = dice_.roll(1, capacities_[0] + 1);
    const bool exists = std::any_of(capacities_.begin(), capacities_.end(),
                                    [capacity](int other) { return other > capacity; });
    EXPECT_EQ(table_.larger_exists(capacity), exists);
    int to = rows > capacity ? first_from(free_, rows) : -1;
    counts_.held_end += to >= 0 ? 1 : 0;
    if (to < 0) to = first_from(free_, capacity + 1);
    EXPECT_EQ(value(table_.larger_free(capacity, rows)), to) << capacity << " to " << rows;
    if (to < 0) return;
    ++counts_.moved;
    take(to);
    release(from);
  }

  void compare() {
    table_.check();
    counts_.all_taken += free_.empty() ? 1 : 0;
    EXPECT_EQ(table_.free(), static_cast<int>(free_.size()));
    EXPECT_EQ(table_.largest(), *std::max_element(capacities_.begin(), capacities_.end()));
    for (int i = 0; i < table_.count(); ++i) {
      EXPECT_EQ(table_.is_free(SessionId{i}), !taken_.contains(i));
      EXPECT_EQ(table_.capacity(SessionId{i}), capacities_[i]);
    }
  }

  EventCounts& counts_;
  sim::Dice dice_;
  std::vector<int> capacities_;
  SessionTable table_;
  Free free_;
  std::set<int> taken_;
};

TEST(SessionTableModel, SaysTheSameAfterEachOfThirtyThousandEvents) {
  constexpr int kWorlds = 100;
  constexpr int kEvents = 300;
  EventCounts counts;
  for (int seed = 0; seed < kWorlds && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    TableWorld(static_cast<uint64_t>(seed), counts).run(kEvents);
  }
  for (const int count : {counts.taken, counts.released, counts.moved, counts.held_end,
                          counts.none_fits, counts.all_taken}) {
    EXPECT_GT(count, kWorlds * kEvents / 100);
  }
}

struct Grower {
  int prompt = 0;
  int most_tokens = 0;
  int stop = 0;  // tokens after which it ends by itself
  SessionId session = {};
  int position = 0;
  bool paused = false;
  int window = 0;  // rows that a round may write past the reply's last token
  int end() const { return prompt + most_tokens + window; }
  bool ended() const { return position >= prompt + stop; }
};

struct GrowthCounts {
  int rounds = 0;
  int moves = 0;
  int pauses = 0;
  int resumed = 0;
  int cancelled = 0;
  int waited = 0;  // for admission
  int most_paused = 0;
};

// Sequences of one table, as their owner runs them: admission by smallest fit for the prompt and
// the next `grow` tokens, the question before each round, waiting ones first when one is released.
class GrowthWorld {
 public:
  GrowthWorld(uint64_t seed, GrowthCounts& counts)
      : counts_(counts),
        dice_(seed),
        window_(dice_.once_in(3)   ? dice_.roll(1, 4)
                : dice_.once_in(2) ? 16
                                   : kSessionMargin),
        grow_(dice_.once_in(3) ? 0 : dice_.roll(1, 200)),
        acceptance_(dice_.roll(0, 2)),
        table_(sizes()) {
    const int sequences = dice_.roll(5, 40);
    for (int i = 0; i < sequences; ++i) queue_.push_back(random_sequence());
  }

  void run() {
    const int most_turns = turns_bound();
    int turns = 0;
    for (admit(); !live_.empty() || !queue_.empty(); ++turns) {
      ASSERT_LE(turns, most_turns) << "they go round in circles";
      ASSERT_FALSE(live_.empty()) << "an empty table admits any of them";
      const auto paused =
          std::count_if(live_.begin(), live_.end(), [](const Grower& one) { return one.paused; });
      counts_.most_paused = std::max(counts_.most_paused, static_cast<int>(paused));
      ASSERT_LT(static_cast<size_t>(paused), live_.size()) << "all wait for each other";
      turn();
      if (::testing::Test::HasFailure()) return;
    }
    EXPECT_EQ(table_.free(), table_.count());
  }

 private:
  std::vector<int> sizes() {
    const int largest = dice_.roll(150, 1'500);
    std::vector<int> capacities = {largest};
    for (int others = dice_.roll(0, 15); others > 0; --others) {
      capacities.push_back(std::min(largest, dice_.roll(1, largest) / 8 * 4 + kSessionMargin));
    }
    return capacities;
  }

  Grower random_sequence() {
    Grower one;
    one.window = window_;
    one.prompt = dice_.roll(1, table_.largest() / 3);
    const int most = table_.largest() - one.prompt - window_;
    // Many whose reply may fill the largest session to its last row.
    one.most_tokens = dice_.once_in(2) ? most : dice_.roll(1, most);
    one.stop = dice_.once_in(3) ? dice_.roll(1, one.most_tokens) : one.most_tokens;
    return one;
  }

  // A round gives each one that runs a token at least, and some sequence runs in each.
  int turns_bound() const {
    int tokens = 0;
    for (const Grower& one : queue_) tokens += one.stop;
    return tokens;
  }

  void admit() {
    for (size_t i = 0; i < queue_.size();) {
      Grower one = queue_[i];
      const int rows = one.prompt + std::min(one.most_tokens, grow_) + window_;
      const std::optional<SessionId> session = table_.smallest_free(rows);
      if (!session) {
        ++counts_.waited;
        ++i;
        continue;
      }
      table_.take(*session);
      one.session = *session;
      one.position = one.prompt;
      live_.push_back(one);
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void turn() {
    for (size_t i = 0; i < live_.size(); ++i) {
      if (!live_[i].paused) round(live_[i]);
      if (::testing::Test::HasFailure()) return;
    }
    for (size_t i = 0; i < live_.size();) {
      const bool cancelled = dice_.once_in(400);
      counts_.cancelled += cancelled ? 1 : 0;
      if (!cancelled && !live_[i].ended()) {
        ++i;
        continue;
      }
      table_.release(live_[i].session);
      live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(i));
      resume();
    }
    admit();
    table_.check();
  }

  void round(Grower& one) {
    const int rows = dice_.roll(1, std::min(window_, one.end() - one.position));
    Room room = ask(one, rows);
    for (int moves = 0; room == Room::kMove; room = ask(one, rows)) {
      ASSERT_LT(++moves, table_.count());
      ASSERT_TRUE(move(one));
    }
    const int capacity = table_.capacity(one.session);
    ASSERT_NE(room, Room::kFull);
    // Paused or not, the round would fit.
    ASSERT_LE(one.position + rows, capacity);
    if (room == Room::kPause) {
      ASSERT_LT(capacity, one.end());
      ASSERT_LT(capacity, table_.largest());
      one.paused = true;
      ++counts_.pauses;
      return;
    }
    ++counts_.rounds;
    const int kept = acceptance_ == 0 ? 1 : acceptance_ == 1 ? rows : dice_.roll(1, rows);
    one.position = std::min(one.position + kept, one.prompt + one.stop);
  }

  Room ask(const Grower& one, int rows) const {
    const int capacity = table_.capacity(one.session);
    return room_for({.capacity = capacity,
                     .position = one.position,
                     .end = one.end(),
                     .next_rows = rows,
                     .larger_is_free = table_.larger_free(capacity, one.end()).has_value(),
                     .larger_exists = table_.larger_exists(capacity)});
  }

  bool move(Grower& one) {
    const int capacity = table_.capacity(one.session);
    // One whose session holds its end stays where it is.
    EXPECT_LT(capacity, one.end());
    const std::optional<SessionId> target = table_.larger_free(capacity, one.end());
    if (!target) return false;
    EXPECT_GT(table_.capacity(*target), capacity);
    table_.take(*target);
    table_.release(one.session);
    one.session = *target;
    ++counts_.moves;
    return true;
  }

  // Until nobody who waits can move: what one leaves may do for one before it.
  void resume() {
    for (bool again = true; again;) {
      again = false;
      for (Grower& one : live_) {
        if (!one.paused || !move(one)) continue;
        one.paused = false;
        ++counts_.resumed;
        again = true;
      }
    }
    for (const Grower& one : live_) {
      if (!one.paused) continue;
      EXPECT_EQ(table_.larger_free(table_.capacity(one.session), one.end()), std::nullopt);
    }
  }

  GrowthCounts& counts_;
  sim::Dice dice_;
  int window_;
  int grow_;
  int acceptance_;  // 0: every draft is rejected, 1: every one lands, 2: by chance
  SessionTable table_;
  std::deque<Grower> queue_;
  std::vector<Grower> live_;
};

TEST(SessionGrowth, WhoeverWaitsIsServedAndAllEnd) {
  GrowthCounts counts;
  for (int seed = 0; seed < 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    GrowthWorld(static_cast<uint64_t>(seed), counts).run();
  }
  EXPECT_GT(counts.rounds, 100'000);
  EXPECT_GT(counts.moves, 1'000);
  EXPECT_GT(counts.pauses, 500);
  EXPECT_GT(counts.resumed, 400);
  EXPECT_GT(counts.cancelled, 200);
  EXPECT_GT(counts.waited, 1'000);
  EXPECT_GE(counts.most_paused, 4);
  if (HasFailure()) {
    ADD_FAILURE() << counts.rounds << " rounds, " << counts.moves << " moves, " << counts.pauses
                  << " pauses, " << counts.resumed << " resumed, " << counts.cancelled
                  << " cancelled, " << counts.waited << " waited, " << counts.most_paused
                  << " paused at once";
  }
}

}  // namespace
}  // namespace flashlane::memory
