// The pool against a model of it that is written as the rules are said: a set of free ids, a
// promise and two lists a lease. Random events in pools of many sizes, refused ones included; after
// each, both say the same. A seed gives the same events everywhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "memory/page_pool.h"
#include "tests/sim/dice.h"

namespace flashlane::memory {
namespace {

struct ModelLease {
  int promised = 0;
  std::vector<PageId> table = {};
  std::vector<PageId> state = {};
  int taken() const { return static_cast<int>(table.size() + state.size()); }
  int left() const { return promised - taken(); }
};

class Model {
 public:
  Model(int pages, int most_leases) : pages_(pages), most_leases_(most_leases) {
    for (PageId page = 0; page < pages; ++page) free_.insert(page);
  }

  std::optional<LeaseId> promise(int count) {
    if (count > available() || no_lease_left()) return std::nullopt;
    int32_t id = 0;
    while (leases_.contains(id)) ++id;
    leases_[id] = {.promised = count};
    return LeaseId{id};
  }

  void take(LeaseId id, int count) {
    for (int i = 0; i < count; ++i) give(*free_.begin(), leases_.at(id.value).table);
  }

  void take_state(LeaseId id, int count) {
    for (int i = 0; i < count; ++i) give(*free_.rbegin(), leases_.at(id.value).state);
  }

  bool claim_run(LeaseId id, int count) {
    int length = 0;  // free pages in a row from `page` up
    PageId above = kNoPage;
    PageId first = count == 0 ? 0 : kNoPage;
    for (auto page = free_.rbegin(); page != free_.rend() && first == kNoPage; ++page) {
      length = *page + 1 == above ? length + 1 : 1;
      above = *page;
      if (length == count) first = *page;
    }
    if (first == kNoPage) return false;
    for (int i = 0; i < count; ++i) give(first + i, leases_.at(id.value).state);
    return true;
  }

  void finish(LeaseId id) {
    const ModelLease& lease = leases_.at(id.value);
    free_.insert(lease.table.begin(), lease.table.end());
    free_.insert(lease.state.begin(), lease.state.end());
    leases_.erase(id.value);
  }

  PoolUsage usage() const {
    PoolUsage usage = {.pages = pages_, .free = static_cast<int>(free_.size())};
    for (const auto& [id, lease] : leases_) {
      usage.promised += lease.left();
      usage.table += static_cast<int>(lease.table.size());
      usage.state += static_cast<int>(lease.state.size());
    }
    return usage;
  }

  int available() const { return usage().free - usage().promised; }
  bool no_lease_left() const { return static_cast<int>(leases_.size()) == most_leases_; }
  const std::map<int32_t, ModelLease>& leases() const { return leases_; }

 private:
  void give(PageId page, std::vector<PageId>& list) {
    free_.erase(page);
    list.push_back(page);
  }

  int pages_;
  int most_leases_;
  std::set<PageId> free_;
  std::map<int32_t, ModelLease> leases_;
};

struct EventCounts {
  int events = 0;
  int promised = 0;
  int no_room = 0;
  int no_lease = 0;
  int tables = 0;
  int states = 0;
  int runs = 0;
  int no_run = 0;
  int finished = 0;
  int full = 0;  // events after which no page was free
};

// One pool and its model, from its first event until all leases have ended.
class World {
 public:
  World(uint64_t seed, EventCounts& counts)
      : seed_(seed),
        counts_(counts),
        dice_(seed),
        pages_(kSizes[seed % std::size(kSizes)]),
        most_leases_(dice_.once_in(2) ? dice_.roll(1, 4) : dice_.roll(8, 24)),
        most_at_once_(dice_.once_in(2) ? 1 : 1 + pages_ / 12),
        pool_(pages_, most_leases_),
        model_(pages_, most_leases_) {}

  void run(int events, int compared_whole_every) {
    for (int event = 0; event < events; ++event) {
      const bool whole = event % compared_whole_every == 0;
      step();
      compare(whole);
      // Thousands of differences would say no more than the first.
      if (::testing::Test::HasFailure()) return;
    }
    while (!model_.leases().empty()) {
      finish(LeaseId{model_.leases().begin()->first});
      compare(true);
    }
    EXPECT_EQ(pool_.usage(), (PoolUsage{.pages = pages_, .free = pages_})) << "seed " << seed_;
    EXPECT_EQ(pool_.available(), pages_) << "seed " << seed_;
  }

 private:
  // Around the ends of words and levels of the set of free ids.
  static constexpr int kSizes[] = {1, 2, 17, 40, 63, 64, 65, 100, 130, 300, 700, 4100};

  void step() {
    ++counts_.events;
    const int kind = dice_.roll(0, 99);
    if (model_.leases().empty() || kind < 22) return promise();
    if (kind < 34) return finish(any_lease());
    if (kind < 44) return take_in_turns();
    const LeaseId id = any_lease();
    const int left = model_.leases().at(id.value).left();
    // All that is left in one step, now and then, and so every other run.
    const bool all = dice_.once_in(kind < 75 ? 12 : 2);
    const int count = all ? left : dice_.roll(0, std::min(left, most_at_once_));
    if (kind < 60) {
      counts_.tables += count;
      model_.take(id, count);
      pool_.take(id, count);
    } else if (kind < 75) {
      counts_.states += count;
      model_.take_state(id, count);
      pool_.take_state(id, count);
    } else {
      claim_run(id, count);
    }
  }

  // Rather one that may take something.
  LeaseId any_lease() {
    std::vector<int32_t> choice;
    for (const auto& [value, lease] : model_.leases()) {
      if (lease.left() > 0) choice.push_back(value);
    }
    if (choice.empty() || dice_.once_in(3)) {
      for (const auto& [value, lease] : model_.leases()) choice.push_back(value);
    }
    return {choice[static_cast<size_t>(dice_.roll(0, static_cast<int>(choice.size()) - 1))]};
  }

  void promise() {
    const int available = model_.available();
    int count = dice_.roll(1, std::max(1, 2 * pages_ / most_leases_));
    if (dice_.once_in(6)) count = available;
    if (dice_.once_in(6)) count = available + 1;
    if (dice_.once_in(6)) count = dice_.roll(1, pages_);
    count = std::clamp(count, 1, pages_);
    const bool no_lease = model_.no_lease_left();
    const std::optional<LeaseId> expected = model_.promise(count);
    ++(expected ? counts_.promised : no_lease ? counts_.no_lease : counts_.no_room);
    EXPECT_EQ(pool_.promise(count), expected) << "seed " << seed_;
    // A sequence that keeps its states in a run claims it at once, wherever room has come about.
    if (expected && dice_.once_in(2)) claim_run(*expected, dice_.roll(1, count));
  }

  void claim_run(LeaseId id, int count) {
    const bool found = model_.claim_run(id, count);
    if (count > 0) ++(found ? counts_.runs : counts_.no_run);
    EXPECT_EQ(pool_.claim_run(id, count), found) << "seed " << seed_;
  }

  // As replies grow side by side; when some of them end, their pages are holes between the others'.
  void take_in_turns() {
    for (int rounds = dice_.roll(1, 1 + pages_ / 8); rounds > 0; --rounds) {
      for (const auto& [value, lease] : model_.leases()) {
        if (lease.left() == 0) continue;
        ++counts_.tables;
        model_.take(LeaseId{value}, 1);
        pool_.take(LeaseId{value}, 1);
      }
    }
  }

  void finish(LeaseId id) {
    ++counts_.finished;
    model_.finish(id);
    pool_.finish(id);
  }

  void compare(bool whole) {
    const PoolUsage usage = model_.usage();
    counts_.full += usage.free == 0 ? 1 : 0;
    EXPECT_EQ(pool_.usage(), usage) << "seed " << seed_;
    EXPECT_EQ(pool_.available(), model_.available()) << "seed " << seed_;
    if (!whole) return;
    pool_.check();
    for (const auto& [value, lease] : model_.leases()) {
      const LeaseId id = {value};
      EXPECT_EQ(pool_.promised(id), lease.promised) << "seed " << seed_;
      EXPECT_EQ(pool_.taken(id), lease.taken()) << "seed " << seed_;
      EXPECT_TRUE(std::ranges::equal(pool_.table(id), lease.table)) << "seed " << seed_;
      EXPECT_TRUE(std::ranges::equal(pool_.state_pages(id), lease.state)) << "seed " << seed_;
    }
  }

  uint64_t seed_;
  EventCounts& counts_;
  sim::Dice dice_;
  int pages_;
  int most_leases_;
  int most_at_once_;  // pages of one step; those of single pages break the pool up most
  PagePool pool_;
  Model model_;
};

void run_worlds(int worlds, int events_each, int compared_whole_every) {
  EventCounts counts;
  for (int seed = 0; seed < worlds && !::testing::Test::HasFailure(); ++seed) {
    World(static_cast<uint64_t>(seed), counts).run(events_each, compared_whole_every);
  }
  if (::testing::Test::HasFailure()) return;
  // Each thing that can happen has happened, and often.
  const int events = worlds * events_each;
  EXPECT_EQ(counts.events, events);
  const std::pair<const char*, int> happened[] = {
      {"promised", counts.promised}, {"no room", counts.no_room},   {"no lease", counts.no_lease},
      {"tables", counts.tables},     {"states", counts.states},     {"runs", counts.runs},
      {"no run", counts.no_run},     {"finished", counts.finished}, {"full", counts.full}};
  for (const auto& [what, count] : happened) EXPECT_GT(count, events / 200) << what;
}

TEST(PagePoolModel, SaysTheSameAfterEachOfTwentyThousandEvents) {
  run_worlds(40, 500, 1);
}

TEST(SlowPagePoolModel, SaysTheSameAfterEachOfAMillionEvents) {
  run_worlds(1000, 1000, 100);
}

}  // namespace
}  // namespace flashlane::memory
