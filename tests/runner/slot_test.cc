// Where a slot's rows and state lie: only in the pages that it was given, and a table names the
// null page wherever it has none (P1, P2, P5).
#include "runner/slot.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "tests/support/tiny_model.h"

namespace flashlane::runner {
namespace {

using flashlane::testing::tiny_model;
using Pages = std::vector<memory::PageId>;

constexpr int kContext = 60;
constexpr int kPageRows = 16;
constexpr int kBacklog = 32;

class SlotTest : public ::testing::Test {
 protected:
  SlotTest()
      : storage_(
            make_storage(tiny_model().shape(), DType::kF32, kPageRows, StateForm::kRun, kBacklog)
                .value()),
        pages_(4 * storage_.pool.need(kContext)),
        pool_((static_cast<size_t>(pages_) + 1) * storage_.pool.page_bytes()),
        slot_(tiny_model().shape(), storage_, pool_.data(), pages_, kContext, kBacklog) {}

  Pages state_from(int first) const {
    Pages pages(static_cast<size_t>(storage_.pool.state_pages()));
    std::iota(pages.begin(), pages.end(), first);
    return pages;
  }
  // The whole table, beyond what is mapped.
  Pages table() {
    const int32_t* first = slot_.state().page_table;
    return {first, first + Slot::table_pages(storage_, kContext)};
  }

  Storage storage_;
  int pages_;
  Buffer pool_;
  Slot slot_;
  SlotProgress progress_;
};

TEST_F(SlotTest, ATableNamesTheNullPageWhereItHasNone) {
  const memory::PageId null_page = pages_;
  EXPECT_EQ(table(), Pages(table().size(), null_page));
  slot_.open(state_from(0), progress_);
  slot_.map(Pages{7, 3}, progress_);
  slot_.map(Pages{5}, progress_);
  Pages expected(table().size(), null_page);
  std::copy_n(Pages{7, 3, 5}.begin(), 3, expected.begin());
  EXPECT_EQ(table(), expected);
  EXPECT_EQ(progress_.mapped_pages, 3);
  // The next sequence inherits nothing.
  slot_.open(state_from(20), progress_);
  EXPECT_EQ(table(), Pages(table().size(), null_page));
  EXPECT_EQ(progress_.mapped_pages, 0);
}

TEST_F(SlotTest, AStateIsZeroedAndNothingBesideIt) {
  std::fill_n(pool_.as<unsigned char>(), pool_.bytes(), 0xAB);
  const Pages state = state_from(2);
  slot_.open(state, progress_);
  const size_t page_bytes = storage_.pool.page_bytes();
  const auto* bytes = pool_.as<unsigned char>();
  size_t zeros = 0;
  for (size_t i = 0; i < pool_.bytes(); ++i) {
    const auto page = static_cast<memory::PageId>(i / page_bytes);
    const bool own = page >= state.front() && page <= state.back();
    if (!own) {
      ASSERT_EQ(bytes[i], 0xAB) << "page " << page;
    }
    zeros += bytes[i] == 0 ? 1 : 0;
  }
  EXPECT_EQ(zeros, storage_.pool.packing().piece_bytes);
}

}  // namespace
}  // namespace flashlane::runner
