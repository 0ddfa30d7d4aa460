// The set of ids at the sizes where a word or a level ends, against std::set.
#include "memory/id_set.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/sim/dice.h"

namespace flashlane::memory {
namespace {

TEST(IdSet, HoldsEveryIdOfAnySizeAtFirst) {
  for (const int size : {1, 2, 63, 64, 65, 4095, 4096, 4097, 262144, 262145}) {
    IdSet ids(size);
    ids.check();
    EXPECT_EQ(ids.size(), size);
    EXPECT_EQ(ids.count(), size);
    EXPECT_EQ(ids.lowest(), 0);
    EXPECT_EQ(ids.highest(), size - 1);
    EXPECT_EQ(ids.highest_run(size), 0);
    EXPECT_EQ(ids.highest_run(size + 1), std::nullopt);
  }
}

TEST(IdSet, FindsTheLastMemberFromBothEnds) {
  for (const int size : {1, 64, 65, 4096, 4097}) {
    for (const int left : {0, size / 2, size - 1}) {
      IdSet ids(size);
      for (int id = 0; id < size; ++id) {
        if (id != left) ids.remove(id);
      }
      ids.check();
      EXPECT_EQ(ids.lowest(), left);
      EXPECT_EQ(ids.highest(), left);
      EXPECT_EQ(ids.highest_run(1), left);
      EXPECT_EQ(ids.highest_run(2), std::nullopt);
      ids.remove(left);
      ids.check();
      EXPECT_EQ(ids.count(), 0);
      EXPECT_EQ(ids.highest_run(1), std::nullopt);
      ids.insert(left);
      ids.check();
      EXPECT_EQ(ids.lowest(), left);
    }
  }
}

TEST(IdSet, ARunMayCrossWordsButNoGap) {
  IdSet ids(200);
  ids.remove(130);
  EXPECT_EQ(ids.highest_run(69), 131);
  EXPECT_EQ(ids.highest_run(70), 60);
  EXPECT_EQ(ids.highest_run(130), 0);
  EXPECT_EQ(ids.highest_run(131), std::nullopt);
  ids.remove(63);
  EXPECT_EQ(ids.highest_run(66), 134);
  EXPECT_EQ(ids.highest_run(70), std::nullopt);
  EXPECT_EQ(ids.highest_run(69), 131);
  ids.remove(199);
  EXPECT_EQ(ids.highest_run(68), 131);
  EXPECT_EQ(ids.highest_run(69), std::nullopt);
}

TEST(IdSet, IsWhatASetIs) {
  sim::Dice dice(3);
  for (const int size : {1, 70, 5000}) {
    IdSet ids(size);
    std::set<int> model;
    for (int id = 0; id < size; ++id) model.insert(id);
    // Emptied and filled again in turns, so that words and whole levels become empty.
    for (int event = 0; event < 12 * size; ++event) {
      const int id = dice.roll(0, size - 1);
      const bool emptying = event / (3 * size) % 2 == 0;
      EXPECT_EQ(ids.contains(id), model.contains(id));
      if (emptying && model.erase(id) == 1) ids.remove(id);
      if (!emptying && model.insert(id).second) ids.insert(id);
      ASSERT_EQ(ids.count(), static_cast<int>(model.size()));
      if (model.empty()) continue;
      ASSERT_EQ(ids.lowest(), *model.begin());
      ASSERT_EQ(ids.highest(), *model.rbegin());
    }
    ids.check();
  }
}

TEST(IdSetDeathTest, MisuseIsABug) {
  IdSet ids(2);
  EXPECT_DEATH(ids.insert(0), "!contains");
  EXPECT_DEATH(static_cast<void>(ids.contains(2)), "id < size_");
  EXPECT_DEATH(static_cast<void>(ids.contains(-1)), "id >= 0");
  EXPECT_DEATH(static_cast<void>(ids.highest_run(0)), "0 against 1");
  ids.remove(0);
  EXPECT_DEATH(ids.remove(0), "contains");
  ids.remove(1);
  EXPECT_DEATH(static_cast<void>(ids.lowest()), "count_ >= 1");
  EXPECT_DEATH(static_cast<void>(ids.highest()), "count_ >= 1");
  EXPECT_DEATH(IdSet(0), "size >= 1");
}

}  // namespace
}  // namespace flashlane::memory
