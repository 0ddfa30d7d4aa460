// The legal page rows and their prices: the reference's published ones (spec/kv-pool.md 4.7
// and 4.10).
#include "memory/pool_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tests/memory/layouts.h"
#include "tests/memory/reference_sizes.h"

namespace flashlane::memory {
namespace {

using flashlane::testing::block_bytes;
using flashlane::testing::Head;
using flashlane::testing::kBf16;
using flashlane::testing::kBlock;
using flashlane::testing::kFp8;
using flashlane::testing::kInt4;
using flashlane::testing::kInt8;
using flashlane::testing::kStateBytes;
using flashlane::testing::page_bytes;
using flashlane::testing::reference_sizes;
using flashlane::testing::RowFormat;
using flashlane::testing::to_mib;
using flashlane::testing::true_shape;

using Sizes = std::vector<size_t>;

TEST(PageRows, TheSmallestLegalOnes) {
  struct Row {
    RowFormat format;
    int with_head;
    int without;
  };
  for (const Row& row :
       {Row{kBf16, 104, 112}, Row{kFp8, 176, 192}, Row{kInt8, 172, 188}, Row{kInt4, 272, 296}}) {
    for (const bool head : {true, false}) {
      const int expected = head ? row.with_head : row.without;
      const size_t block = block_bytes(row.format, head);
      const Sizes sizes = reference_sizes(head ? Head::kWithLogs : Head::kNone);
      const size_t largest = *std::max_element(sizes.begin(), sizes.end());
      EXPECT_EQ(largest, kStateBytes);
      EXPECT_EQ(smallest_page_rows(largest, block, kBlock), expected);
      // One block less refuses, by the layout itself.
      const auto at = [&](int rows) {
        return PoolLayout::make({.page_rows = rows,
                                 .page_bytes = static_cast<size_t>(rows / kBlock) * block,
                                 .piece_bytes = sizes});
      };
      EXPECT_TRUE(at(expected).ok());
      ASSERT_FALSE(at(expected - kBlock).ok());
      EXPECT_TRUE(at(expected - kBlock).error().message.starts_with("piece over page: piece 0"));
    }
  }
  EXPECT_EQ(smallest_page_rows(1000, 100, 1), 10);
  EXPECT_EQ(smallest_page_rows(1001, 100, 1), 11);
  EXPECT_EQ(smallest_page_rows(0, 100, 4), 4);
}

TEST(PageRows, TheReferencesTableOfPrices) {
  struct Row {
    int page_rows;
    double page_mib;
    int pages;
    double state_mib, padding_mib, overhead_mib;
  };
  const Sizes sizes = reference_sizes(Head::kWithLogs);
  size_t bytes = 0;
  for (const size_t size : sizes) bytes += size;
  for (const Row& row :
       {Row{104, 3.053, 104, 317.5, 5.3, 6.8}, Row{112, 3.288, 103, 338.7, 26.4, 28.1},
        Row{128, 3.758, 102, 383.3, 71.1, 73.0}, Row{192, 5.637, 72, 405.8, 93.6, 96.4},
        Row{208, 6.106, 52, 317.5, 5.3, 8.4}, Row{256, 7.516, 45, 338.2, 26.0, 29.7},
        Row{260, 7.633, 42, 320.6, 8.4, 12.2}, Row{320, 9.395, 35, 328.8, 16.6, 21.3},
        Row{464, 13.622, 23, 313.3, 1.1, 7.9}, Row{512, 15.031, 21, 315.7, 3.4, 10.9}}) {
    const PageRowsChoice price =
        price_page_rows(row.page_rows, block_bytes(kBf16, true), kBlock, sizes);
    EXPECT_EQ(price.page_rows, row.page_rows);
    EXPECT_EQ(price.state_pages, row.pages) << row.page_rows;
    EXPECT_NEAR(to_mib(page_bytes(row.page_rows, true)), row.page_mib, 0.0006);
    EXPECT_NEAR(to_mib(price.state_bytes), row.state_mib, 0.06) << row.page_rows;
    EXPECT_NEAR(to_mib(price.state_bytes - bytes), row.padding_mib, 0.06) << row.page_rows;
    // The table adds what it had rounded.
    EXPECT_NEAR(to_mib(price.overhead_bytes), row.overhead_mib, 0.11) << row.page_rows;
    EXPECT_EQ(price.overhead_bytes,
              price.state_bytes - bytes + page_bytes(row.page_rows, true) / 2);
    EXPECT_EQ(true_shape(Head::kWithLogs, row.page_rows).padding_bytes(),
              price.state_bytes - bytes);
  }
}

TEST(PageRows, OtherFormatsAndNoHead) {
  const auto padding_percent = [](RowFormat format, int rows, int pages) {
    const Sizes sizes = reference_sizes(Head::kWithLogs);
    const PageRowsChoice price = price_page_rows(rows, block_bytes(format, true), kBlock, sizes);
    EXPECT_TRUE(pages == 0 || price.state_pages == pages) << price.state_pages;
    const size_t half_page = static_cast<size_t>(rows / kBlock) * block_bytes(format, true) / 2;
    return 100.0 * static_cast<double>(price.overhead_bytes - half_page) /
           static_cast<double>(price.state_bytes);
  };
  EXPECT_NEAR(padding_percent(kFp8, 256, 90), 20.6, 0.06);
  EXPECT_NEAR(padding_percent(kFp8, 512, 37), 3.4, 0.06);
  EXPECT_NEAR(padding_percent(kInt8, 256, 0), 22.4, 0.06);
  EXPECT_NEAR(padding_percent(kInt8, 512, 0), 5.6, 0.06);
  EXPECT_NEAR(padding_percent(kInt4, 1024, 0), 5.3, 0.06);
  for (const auto& [rows, mib] :
       {std::pair(128, 14.6), std::pair(256, 14.6), std::pair(384, 14.6), std::pair(512, 14.6),
        std::pair(228, 0.9), std::pair(456, 0.9), std::pair(1024, 0.7)}) {
    EXPECT_NEAR(to_mib(true_shape(Head::kNone, rows).padding_bytes()), mib, 0.06) << rows;
  }
}

TEST(PageRows, TheBestNearThose) {
  const Sizes sizes = reference_sizes(Head::kWithLogs);
  const size_t block = block_bytes(kBf16, true);
  const auto best = [&](int rows, int within) {
    return best_page_rows_near(rows, within, block, kBlock, sizes).page_rows;
  };
  // 208 rows waste as much, to the byte, and are three times as far.
  EXPECT_EQ(best(256, 64), 240);
  EXPECT_EQ(price_page_rows(208, block, kBlock, sizes).overhead_bytes,
            price_page_rows(240, block, kBlock, sizes).overhead_bytes);
  EXPECT_EQ(best(223, 64), 208);
  EXPECT_EQ(best(224, 16), 208) << "as near: the smaller";
  EXPECT_EQ(best(225, 17), 240);
  EXPECT_EQ(best(256, 15), 260);
  EXPECT_EQ(best(256, 16), 240);
  EXPECT_EQ(best(256, 4), 260) << "the last in reach";
  EXPECT_EQ(best(256, 3), 256);
  EXPECT_EQ(best(255, 0), 104) << "no multiple there";
  EXPECT_EQ(best(128, 64), 104) << "the smallest legal rows";
  EXPECT_EQ(best(40, 63), 104) << "none legal there";
  // All that was in reach, by trying.
  const PageRowsChoice found = best_page_rows_near(400, 120, block, kBlock, sizes);
  for (int rows = 280; rows <= 520; rows += kBlock) {
    EXPECT_GE(price_page_rows(rows, block, kBlock, sizes).overhead_bytes, found.overhead_bytes);
  }
}

}  // namespace
}  // namespace flashlane::memory
