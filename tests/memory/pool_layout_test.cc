// What a sequence needs of a pool, at every border, and the law that a layout in pieces counts as a
// run of as many pages does.
#include "memory/pool_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
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

TEST(PoolLayout, TheTrueShapesPages) {
  EXPECT_EQ(to_mib(page_bytes(256, true)), 7.515625);
  EXPECT_EQ(to_mib(page_bytes(256, false)), 6.9375);
  EXPECT_EQ(true_shape(Head::kNone).state_pages(), 18);
  EXPECT_EQ(true_shape(Head::kWithoutLogs).state_pages(), 37);
  const PoolLayout layout = true_shape(Head::kWithLogs);
  EXPECT_EQ(layout.state_pages(), 45);
  EXPECT_EQ(layout.packing().pages, 45);
  EXPECT_NEAR(to_mib(45 * layout.page_bytes()), 338.203, 0.001);
  EXPECT_NEAR(to_mib(layout.padding_bytes()), 25.97, 0.006);
  EXPECT_EQ(layout.padding_bytes(), 45 * layout.page_bytes() - layout.packing().piece_bytes);
  EXPECT_EQ(layout.page_rows(), 256);
  EXPECT_EQ(layout.window_rows(), 32);
  EXPECT_EQ(layout.form(), Form::kPieces);
  EXPECT_EQ(layout.piece_bytes(), reference_sizes(Head::kWithLogs));
}

TEST(PoolLayout, NeedAtEveryBorder) {
  const PoolLayout layout = true_shape(Head::kWithLogs);
  EXPECT_EQ(layout.pages_for(0), 0);
  EXPECT_EQ(layout.pages_for(1), 1);
  EXPECT_EQ(layout.pages_for(256), 1);
  EXPECT_EQ(layout.pages_for(257), 2);
  EXPECT_EQ(layout.pages_for(kMostInt), 8'388'608);
  // 32 window rows behind the reply.
  EXPECT_EQ(layout.need(0), 46);
  EXPECT_EQ(layout.need(224), 46);
  EXPECT_EQ(layout.need(225), 47);
  EXPECT_EQ(layout.need(4'096), 62);
  EXPECT_EQ(layout.need(16'384), 110);
  EXPECT_EQ(layout.need(kMostInt), 45 + 8'388'609);
  // More than an int holds is more than any pool has.
  const PoolLayout narrow = run_of(3, 1, 64, 7);
  EXPECT_EQ(narrow.need(kMostInt - 10), kMostInt);
  EXPECT_EQ(narrow.need(kMostInt - 11), kMostInt - 1);
  EXPECT_EQ(narrow.need(kMostInt), kMostInt);
}

TEST(PoolLayout, HoldsWhatFitsExactly) {
  const PoolLayout layout = true_shape(Head::kWithLogs);
  EXPECT_EQ(layout.holds(16'384, 109, 8), 0);
  EXPECT_EQ(layout.holds(16'384, 110, 8), 1);
  EXPECT_EQ(layout.holds(16'384, 329, 8), 2);
  EXPECT_EQ(layout.holds(16'384, 330, 8), 3);
  EXPECT_EQ(layout.holds(16'384, 330, 2), 2);
  EXPECT_EQ(layout.holds(16'384, 330, 0), 0);
  EXPECT_EQ(layout.holds(16'384, 0, 8), 0);
}

TEST(PoolLayout, TheWindowCapIsExact) {
  for (const int window_rows : {0, 1, 32, 255, 256, 300}) {
    const PoolLayout layout = made({.page_rows = 256,
                                    .page_bytes = page_bytes(256, true),
                                    .piece_bytes = reference_sizes(Head::kWithLogs),
                                    .window_rows = window_rows});
    for (int pages = 0; pages < 120; ++pages) {
      const int cap = layout.window_cap(pages);
      EXPECT_EQ(cap, std::max(0, (pages - 45) * 256 - window_rows)) << pages;
      EXPECT_TRUE(cap == 0 || layout.need(cap) <= pages) << pages;
      EXPECT_GT(layout.need(cap + 1), pages) << pages << " pages, window " << window_rows;
    }
  }
  EXPECT_EQ(true_shape(Head::kWithLogs).window_cap(46), 224);
  EXPECT_EQ(true_shape(Head::kWithLogs).window_cap(kMostInt), kMostInt);
}

// Sizes, pages and questions of any kind: the forms differ in where states lie and in nothing else.
TEST(PoolLayout, PiecesCountAsARunOfAsManyPages) {
  int plans = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    const auto number = [&](int least, int most) {
      return least + static_cast<int>(random() % static_cast<uint32_t>(most - least + 1));
    };
    const auto page = static_cast<size_t>(number(1, 40)) * 256;
    Sizes sizes;
    for (int left = number(1, 40); left > 0; --left) {
      sizes.push_back(static_cast<size_t>(number(1, static_cast<int>(page))));
    }
    const int page_rows = number(1, 64);
    const int window_rows = number(0, 20);
    const PoolLayout pieces = made({.page_rows = page_rows,
                                    .page_bytes = page,
                                    .piece_bytes = sizes,
                                    .form = Form::kPieces,
                                    .window_rows = window_rows});
    const PoolLayout run = run_of(pieces.state_pages(), page_rows, page, window_rows);
    ASSERT_EQ(run.state_pages(), pieces.state_pages());
    EXPECT_EQ(run.padding_bytes(), size_t{0});
    for (int question = 0; question < 20; ++question) {
      const int rows = number(1, 1000);
      const int pages = number(0, 300);
      const int lanes = number(1, 9);
      EXPECT_EQ(pieces.need(rows), run.need(rows));
      EXPECT_EQ(pieces.need(rows), pieces.state_pages() + pieces.pages_for(rows + window_rows));
      EXPECT_EQ(pieces.holds(rows, pages, lanes), run.holds(rows, pages, lanes));
      EXPECT_EQ(pieces.window_cap(pages), run.window_cap(pages));
      const size_t room = static_cast<size_t>(pages) * page * static_cast<size_t>(lanes);
      const auto outside = static_cast<size_t>(number(0, 30'000));
      const int least = number(0, 600);
      const auto plan = plan_pool(pieces, room, outside, lanes, rows, least);
      EXPECT_EQ(plan, plan_pool(run, room, outside, lanes, rows, least));
      plans += plan ? 1 : 0;
    }
  }
  EXPECT_GT(plans, 2000);
}

TEST(PoolLayout, ARunCountsItsWideBuffersIn) {
  Sizes sizes = reference_sizes(Head::kWithLogs);
  sizes.push_back(kStreamsBytes);
  sizes.push_back(kLogitsBytes);
  PoolLayout::Spec spec = {.page_rows = 256,
                           .page_bytes = page_bytes(256, true),
                           .piece_bytes = sizes,
                           .form = Form::kRun,
                           .window_rows = 32};
  EXPECT_EQ(made(spec).state_pages(), 48);
  EXPECT_EQ(made(spec).need(16'384), 113);
  EXPECT_NEAR(to_mib(made(spec).packing().piece_bytes), 357.39, 0.006);
  spec.form = Form::kPieces;
  const Result<PoolLayout> refused = PoolLayout::make(spec);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kInvalidArgument);
  EXPECT_EQ(refused.error().message,
            "piece over page: piece 223 takes 31457280 bytes, a page has 7880704");
}

TEST(PoolLayout, WhatIsNoLayoutIsRefused) {
  const PoolLayout::Spec good = {.page_rows = 4, .page_bytes = 64, .piece_bytes = {64}};
  EXPECT_TRUE(PoolLayout::make(good).ok());
  PoolLayout::Spec spec = good;
  spec.page_rows = 0;
  EXPECT_FALSE(PoolLayout::make(spec).ok());
  spec = good;
  spec.window_rows = -1;
  EXPECT_FALSE(PoolLayout::make(spec).ok());
  constexpr size_t kMost = std::numeric_limits<size_t>::max();
  for (const Form form : {Form::kRun, Form::kPieces}) {
    spec = {.page_rows = 4, .page_bytes = 0, .piece_bytes = {}, .form = form};
    EXPECT_FALSE(PoolLayout::make(spec).ok());
    spec.page_bytes = kMost;
    spec.piece_bytes = {kMost, kMost};
    EXPECT_FALSE(PoolLayout::make(spec).ok()) << "the sum is no number";
    spec.page_bytes = kMost / 2 + 1;
    spec.piece_bytes = {kMost / 2, kMost / 2};
    EXPECT_FALSE(PoolLayout::make(spec).ok()) << "two such pages are none";
    spec = {.page_rows = 4, .page_bytes = 64, .piece_bytes = {}, .form = form};
    EXPECT_EQ(made(spec).need(5), 2) << "no state at all";
  }
  spec = {.page_rows = 4, .page_bytes = 1, .piece_bytes = {kMost / 2}, .form = Form::kRun};
  EXPECT_FALSE(PoolLayout::make(spec).ok()) << "more pages than an int counts";
}

}  // namespace
}  // namespace flashlane::memory
