// Lanes and pages for a room: the reference's admission at a memory limit (spec/kv-pool.md 4.9),
// the last byte, and random rooms against the rule itself.
#include "memory/pool_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "tests/memory/layouts.h"
#include "tests/memory/reference_sizes.h"

namespace flashlane::memory {
namespace {

using flashlane::testing::Head;
using flashlane::testing::kLogitsBytes;
using flashlane::testing::kStreamsBytes;
using flashlane::testing::made;
using flashlane::testing::page_bytes;
using flashlane::testing::reference_sizes;
using flashlane::testing::run_of;
using flashlane::testing::to_mib;
using flashlane::testing::true_shape;

using Form = PoolLayout::StateForm;
using Sizes = std::vector<size_t>;

constexpr int kMostInt = std::numeric_limits<int>::max();

constexpr size_t kWideBytes = kStreamsBytes + kLogitsBytes;  // of a lane, outside the pool

// What fits under a limit of 76 to 79 GiB, published for states in a run that has the wide buffers
// in it and for pieces with them outside. One sequence more is the engine's own and takes no page.
// The pool is known to have 325 to 338 pages at 76 GiB: every such pool must give every number.
TEST(PoolPlan, TheReferencesAdmittedStreams) {
  struct Row {
    double gib;
    int long_run, long_pieces;    // of 16,384 rows
    int short_run, short_pieces;  // of 4,096
  };
  Sizes with_wide = reference_sizes(Head::kWithLogs);
  with_wide.push_back(kStreamsBytes);
  with_wide.push_back(kLogitsBytes);
  const PoolLayout run = made({.page_rows = 256,
                               .page_bytes = page_bytes(256, true),
                               .piece_bytes = with_wide,
                               .form = Form::kRun,
                               .window_rows = 32});
  const PoolLayout pieces = true_shape(Head::kWithLogs);
  EXPECT_NEAR(to_mib(kWideBytes), 45.16, 0.006);
  EXPECT_NEAR(static_cast<double>(kWideBytes) / static_cast<double>(run.page_bytes()), 6.008,
              0.0006);
  for (size_t first = 325; first <= 338; ++first) {
    for (const Row& row : {Row{76, 3, 3, 6, 5}, Row{76.5, 4, 4, 7, 6}, Row{77, 5, 4, 8, 7},
                           Row{77.5, 5, 5, 8, 8}, Row{78, 6, 6, 8, 8}, Row{79, 7, 7, 8, 8}}) {
      const int lanes = row.gib == 76 ? 6 : 7;
      const auto more = static_cast<size_t>((row.gib - 76) * (1 << 30));
      const size_t room = first * run.page_bytes() + more;
      const auto run_pages = static_cast<int>(room / run.page_bytes());
      const size_t outside = static_cast<size_t>(lanes) * kWideBytes;
      const auto pieces_pages = static_cast<int>((room - outside) / pieces.page_bytes());
      EXPECT_EQ(1 + run.holds(16'384, run_pages, lanes), row.long_run) << row.gib;
      EXPECT_EQ(1 + pieces.holds(16'384, pieces_pages, lanes), row.long_pieces) << row.gib;
      EXPECT_EQ(1 + run.holds(4'096, run_pages, lanes), row.short_run) << row.gib;
      EXPECT_EQ(1 + pieces.holds(4'096, pieces_pages, lanes), row.short_pieces) << row.gib;
    }
  }
}

TEST(PoolPlan, LanesAndPagesAtTheLastByte) {
  const PoolLayout layout = true_shape(Head::kWithLogs);
  const size_t page = layout.page_bytes();
  const auto plan = [&](size_t room) {
    return plan_pool(layout, room, kWideBytes, 8, 16'384, 2'048);
  };
  // A whole context takes 110 pages, a further lane of 2,048 rows 54.
  ASSERT_EQ(layout.need(2'048), 54);
  for (int lanes = 1; lanes <= 8; ++lanes) {
    const int pages = 110 + (lanes - 1) * 54;
    const size_t least =
        static_cast<size_t>(lanes) * kWideBytes + static_cast<size_t>(pages) * page;
    EXPECT_EQ(plan(least), (PoolPlan{.lanes = lanes, .pages = pages}));
    if (lanes == 1) {
      EXPECT_EQ(plan(least - 1), std::nullopt);
    } else {
      ASSERT_TRUE(plan(least - 1).has_value());
      EXPECT_EQ(plan(least - 1)->lanes, lanes - 1) << "every lane's own bytes count, busy or not";
    }
    EXPECT_EQ(plan(least + page - 1), (PoolPlan{.lanes = lanes, .pages = pages}));
    EXPECT_EQ(plan(least + page), (PoolPlan{.lanes = lanes, .pages = pages + (lanes > 1 ? 1 : 0)}));
  }
  // No more than eight whole contexts, whatever the room.
  const size_t all = 8 * kWideBytes + 880 * page;
  EXPECT_EQ(plan(all - 1), (PoolPlan{.lanes = 8, .pages = 879}));
  EXPECT_EQ(plan(all), (PoolPlan{.lanes = 8, .pages = 880}));
  EXPECT_EQ(plan(all + 100 * page), (PoolPlan{.lanes = 8, .pages = 880}));
  EXPECT_EQ(plan(std::numeric_limits<size_t>::max()), (PoolPlan{.lanes = 8, .pages = 880}));
  EXPECT_EQ(plan(0), std::nullopt);
}

TEST(PoolPlan, AShortContextIsTheLeastOfAFurtherLane) {
  const PoolLayout layout = true_shape(Head::kWithLogs);
  const size_t page = layout.page_bytes();
  // 46 pages for 100 rows, whatever more a further lane should have held.
  EXPECT_EQ(plan_pool(layout, 92 * page, 0, 8, 100, 2'048), (PoolPlan{.lanes = 2, .pages = 92}));
  EXPECT_EQ(plan_pool(layout, 92 * page, 0, 1, 100, 2'048), (PoolPlan{.lanes = 1, .pages = 46}));
  EXPECT_EQ(plan_pool(layout, 91 * page, 0, 8, 100, 2'048), (PoolPlan{.lanes = 1, .pages = 46}));
}

TEST(PoolPlan, EveryPlanHoldsWhatItPromises) {
  int plans = 0;
  int most_lanes = 0;
  for (uint32_t seed = 0; seed < 2'000; ++seed) {
    std::mt19937 random(seed);
    const auto number = [&](uint32_t below) { return random() % below; };
    const PoolLayout layout = run_of(static_cast<int>(number(10)), 1 + static_cast<int>(number(9)),
                                     1 + number(500), static_cast<int>(number(9)));
    const int ceiling = 1 + static_cast<int>(number(12));
    const int context = 1 + static_cast<int>(number(100));
    const int least = static_cast<int>(number(150));
    const size_t outside = number(800);
    const size_t room = number(60'000);
    const auto plan = plan_pool(layout, room, outside, ceiling, context, least);
    const auto fits = [&](int lanes) {
      const int pages = layout.need(context) + (lanes - 1) * layout.need(std::min(least, context));
      return static_cast<size_t>(lanes) * outside +
                 static_cast<size_t>(pages) * layout.page_bytes() <=
             room;
    };
    EXPECT_EQ(plan, plan_pool(layout, room, outside, ceiling, context, least));
    EXPECT_EQ(plan.has_value(), fits(1)) << "seed " << seed;
    if (!plan) continue;
    ++plans;
    most_lanes += plan->lanes == ceiling ? 1 : 0;
    EXPECT_TRUE(fits(plan->lanes));
    EXPECT_TRUE(plan->lanes == ceiling || !fits(plan->lanes + 1));
    EXPECT_GE(layout.window_cap(plan->pages), context);
    const auto lanes = static_cast<size_t>(plan->lanes);
    const auto pages = static_cast<size_t>(plan->pages);
    EXPECT_LE(lanes * outside + pages * layout.page_bytes(), room);
    EXPECT_LE(plan->pages, plan->lanes * layout.need(context));
    EXPECT_TRUE(plan->pages == plan->lanes * layout.need(context) ||
                lanes * outside + (pages + 1) * layout.page_bytes() > room);
  }
  EXPECT_GT(plans, 1'000);
  EXPECT_GT(most_lanes, 200);
  EXPECT_GT(plans - most_lanes, 200);
}

TEST(PoolPlan, NumbersThatOverflowDoNotFit) {
  const PoolLayout layout = run_of(1, 4, 1, 0);
  constexpr size_t kMost = std::numeric_limits<size_t>::max();
  EXPECT_EQ(plan_pool(layout, kMost, kMost / 2, 8, 4, 4), (PoolPlan{.lanes = 1, .pages = 2}));
  EXPECT_EQ(plan_pool(layout, kMost, 0, 2, kMostInt, 4),
            (PoolPlan{.lanes = 2, .pages = 1'073'741'826}));
}

}  // namespace
}  // namespace flashlane::memory
