// What leaves the process of a kept state is the state alone: bytes that lie beside it on its
// pages, other sequences' rows among them, are zero in what is read (H4, P5).
#include "runner/kept_arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/int_math.h"
#include "runner/runner.h"
#include "tests/support/tiny_model.h"

namespace flashlane::runner {
namespace {

using flashlane::testing::tiny_model;

// Bytes of one page that are read, where the arena is full of ones.
int64_t read_bytes(const KeptArena& arena, const Storage& storage, int index, int rows,
                   std::span<const memory::PageId> pages) {
  std::vector<std::byte> out(storage.pool.page_bytes(), std::byte{0x55});
  arena.read(pages, index, rows, out);
  EXPECT_EQ(std::count(out.begin(), out.end(), std::byte{0x55}), 0);
  return std::count(out.begin(), out.end(), std::byte{0xff});
}

class KeptArenaTest : public ::testing::TestWithParam<StateForm> {};
INSTANTIATE_TEST_SUITE_P(Forms, KeptArenaTest,
                         ::testing::Values(StateForm::kRun, StateForm::kPieces));

TEST_P(KeptArenaTest, NothingBesideTheStateIsRead) {
  const model::ModelShape& shape = tiny_model("cpu").shape();
  RunnerOptions options{.context = 64, .state_form = GetParam()};
  options.page_rows = GetParam() == StateForm::kRun ? 2 * shape.index_block
                                                    : default_page_rows(shape, options.kv_dtype);
  const Storage storage = sequence_storage(shape, options).value();
  const int state_pages = storage.pool.state_pages();
  const int page_rows = storage.rows.page_rows;
  const int rows = page_rows + page_rows / 2 + 1;
  std::vector<memory::PageId> pages(static_cast<size_t>(state_pages) + 2);
  std::iota(pages.rbegin(), pages.rend(), 0);
  KeptArena arena(shape, storage, static_cast<int>(pages.size()));
  for (const memory::PageId page : pages) {
    std::memset(arena.page(page), 0xff, storage.pool.page_bytes());
  }
  int64_t of_state = 0;
  for (int i = 0; i < state_pages; ++i) of_state += read_bytes(arena, storage, i, rows, pages);
  EXPECT_EQ(of_state, static_cast<int64_t>(std::accumulate(storage.piece_bytes.begin(),
                                                           storage.piece_bytes.end(), size_t{0})));
  const auto of_rows = [&](int count) {
    const int64_t values = 2LL * shape.kv_heads * shape.head_dim * count +
                           int64_t{shape.index_dim} * (count + div_ceil(count, shape.index_block));
    return values * static_cast<int64_t>(storage.rows.kv_layers.size()) *
           static_cast<int64_t>(dtype_bytes(options.kv_dtype));
  };
  EXPECT_EQ(read_bytes(arena, storage, state_pages, rows, pages), of_rows(page_rows));
  EXPECT_EQ(read_bytes(arena, storage, state_pages + 1, rows, pages), of_rows(rows - page_rows));
}

TEST(KeptArena, WhatIsWrittenIsReadAgain) {
  const model::ModelShape& shape = tiny_model("cpu").shape();
  RunnerOptions options{.context = 64, .page_rows = 2 * shape.index_block};
  options.state_form = StateForm::kRun;
  const Storage storage = sequence_storage(shape, options).value();
  KeptArena arena(shape, storage, storage.pool.state_pages() + 1);
  std::vector<memory::PageId> pages(static_cast<size_t>(storage.pool.state_pages()) + 1);
  std::iota(pages.begin(), pages.end(), 0);
  std::vector<std::byte> in(storage.pool.page_bytes(), std::byte{7});
  std::vector<std::byte> once(in.size());
  std::vector<std::byte> twice(in.size());
  arena.write(pages.back(), in);
  arena.read(pages, storage.pool.state_pages(), 3, once);
  arena.write(pages.back(), once);
  arena.read(pages, storage.pool.state_pages(), 3, twice);
  EXPECT_EQ(once, twice);
  EXPECT_GT(std::count(once.begin(), once.end(), std::byte{7}), 0);
}

}  // namespace
}  // namespace flashlane::runner
