// Layouts for tests: of the reference's true shape, and a run of so many state pages.
#pragma once

#include <gtest/gtest.h>

#include <utility>

#include "memory/pool_layout.h"
#include "tests/memory/reference_sizes.h"

namespace flashlane::testing {

inline memory::PoolLayout made(memory::PoolLayout::Spec spec) {
  Result<memory::PoolLayout> layout = memory::PoolLayout::make(std::move(spec));
  EXPECT_TRUE(layout.ok()) << (layout ? "" : layout.error().message);
  return *std::move(layout);
}

inline memory::PoolLayout true_shape(Head head, int page_rows = 256) {
  return made({.page_rows = page_rows,
               .page_bytes = page_bytes(page_rows, head != Head::kNone),
               .piece_bytes = reference_sizes(head),
               .form = memory::PoolLayout::StateForm::kPieces,
               .window_rows = 32});
}

inline memory::PoolLayout run_of(int pages, int page_rows, size_t bytes, int window_rows) {
  return made({.page_rows = page_rows,
               .page_bytes = bytes,
               .piece_bytes = {static_cast<size_t>(pages) * bytes},
               .form = memory::PoolLayout::StateForm::kRun,
               .window_rows = window_rows});
}

}  // namespace flashlane::testing
