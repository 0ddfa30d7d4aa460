// Cost tables: what was measured stays, what lies between and beyond follows the stated rules, and
// bad input never gets in.
#include "scheduler/cost_table.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cmath>
#include <limits>
#include <random>

namespace flashlane::scheduler {
namespace {

const std::vector<MeasuredCost> kMeasured = {
    {1, 10.3}, {2, 12.1}, {4, 15.1}, {8, 21.0}, {16, 32.2}};

TEST(CostTable, KeepsWhatWasMeasured) {
  const CostTable table(kMeasured, 16);
  for (const MeasuredCost& point : kMeasured) EXPECT_EQ(table.ms(point.rows), point.ms);
  EXPECT_EQ(table.limit(), 16);
}

TEST(CostTable, IsLinearBetween) {
  const CostTable table(kMeasured, 16);
  EXPECT_DOUBLE_EQ(table.ms(3), 13.6);
  EXPECT_DOUBLE_EQ(table.ms(6), 18.05);
  EXPECT_DOUBLE_EQ(table.ms(12), 26.6);
}

TEST(CostTable, BelowTheSmallestCostsAsMuchAsIt) {
  const CostTable table(std::vector<MeasuredCost>{{4, 9.0}, {8, 10.0}}, 8);
  EXPECT_EQ(table.ms(1), 9.0);
  EXPECT_EQ(table.ms(3), 9.0);
  EXPECT_EQ(table.ms(5), 9.25);
}

TEST(CostTable, PastTheWidestGrowsWithTheRows) {
  const CostTable table(std::vector<MeasuredCost>{{1, 3.0}, {4, 6.0}}, 16);
  EXPECT_DOUBLE_EQ(table.ms(6), 9.0);
  EXPECT_DOUBLE_EQ(table.ms(16), 24.0);
}

TEST(CostTable, OnePairIsAPriceByTheRow) {
  const CostTable table(std::vector<MeasuredCost>{{1, 0.43}}, 16);
  for (int rows = 1; rows <= 16; ++rows) EXPECT_DOUBLE_EQ(table.ms(rows), 0.43 * rows);
}

TEST(CostTable, PointsPastTheLimitStillBearOnWhatLiesBefore) {
  const CostTable table(std::vector<MeasuredCost>{{1, 1.0}, {9, 9.0}}, 4);
  EXPECT_EQ(table.limit(), 4);
  EXPECT_EQ(table.ms(4), 4.0);
  EXPECT_FALSE(table.covers(5));
  EXPECT_FALSE(table.covers(0));
}

TEST(CostTable, TakesPairsInAnyOrderAndTheBestOfRuns) {
  const CostTable sorted(kMeasured, 16);
  const CostTable shuffled(
      std::vector<MeasuredCost>{
          {8, 21.0}, {2, 14.0}, {16, 32.2}, {1, 10.3}, {2, 12.1}, {4, 15.1}, {2, 13.0}, {1, 99.0}},
      16);
  for (int rows = 1; rows <= 16; ++rows) EXPECT_EQ(shuffled.ms(rows), sorted.ms(rows));
}

TEST(CostTable, LeavesOutWhatIsNoMeasurement) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  const std::vector<MeasuredCost> bad = {{0, 1.0},  {-3, 1.0},         {2, 0.0},
                                         {2, -1.0}, {3, std::nan("")}, {4, kInfinity}};
  EXPECT_TRUE(CostTable(bad, 16).empty());
  std::vector<MeasuredCost> mixed = bad;
  mixed.push_back({2, 5.0});
  const CostTable table(mixed, 4);
  EXPECT_EQ(table.ms(1), 5.0);
  EXPECT_EQ(table.ms(2), 5.0);
  EXPECT_EQ(table.ms(4), 10.0);
}

TEST(CostTable, IsEmptyWithoutInputOrRows) {
  EXPECT_TRUE(CostTable().empty());
  EXPECT_TRUE(CostTable({}, 16).empty());
  EXPECT_TRUE(CostTable(kMeasured, 0).empty());
  EXPECT_FALSE(CostTable().covers(1));
}

TEST(CostTable, LiftsDipsWhereAsked) {
  const std::vector<MeasuredCost> dip = {{1, 10.0}, {2, 12.0}, {4, 8.0}, {8, 20.0}};
  const CostTable as_measured(dip, 8);
  EXPECT_EQ(as_measured.ms(4), 8.0);
  const CostTable lifted(dip, 8, CostShape::kNonDecreasing);
  EXPECT_EQ(lifted.ms(2), 12.0);
  EXPECT_EQ(lifted.ms(3), 12.0);
  EXPECT_EQ(lifted.ms(4), 12.0);
  EXPECT_EQ(lifted.ms(6), 16.0);
  EXPECT_EQ(lifted.ms(8), 20.0);
}

TEST(CostTable, AnyInputGivesACompletePositiveTable) {
  EXPECT_TRUE(rc::check("complete, positive, and rising where asked", [](uint32_t seed) {
    std::mt19937 random(seed);
    const auto roll = [&](int low, int high) {
      return std::uniform_int_distribution<int>(low, high)(random);
    };
    std::vector<MeasuredCost> points;
    for (int i = roll(0, 12); i > 0; --i) points.push_back({roll(-2, 40), roll(-4, 40) / 4.0});
    bool usable = false;
    for (const MeasuredCost& point : points) usable |= point.rows >= 1 && point.ms > 0;
    const CostTable table(points, 16);
    RC_ASSERT(table.empty() == !usable);
    const CostTable lifted(points, 16, CostShape::kNonDecreasing);
    for (int rows = 1; rows <= table.limit(); ++rows) {
      RC_ASSERT(table.ms(rows) > 0);
      RC_ASSERT(lifted.ms(rows) >= table.ms(rows) - 1e-9);
      if (rows > 1) RC_ASSERT(lifted.ms(rows) >= lifted.ms(rows - 1) - 1e-9);
    }
  }));
}

}  // namespace
}  // namespace flashlane::scheduler
