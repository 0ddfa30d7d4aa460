// Products of counts and bytes are taken checked or in 64 bits: contexts and rooms come from
// options, sizes from a checkpoint.
#include "memory/pool_layout.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/check.h"
#include "base/int_math.h"

namespace flashlane::memory {
namespace {

constexpr int64_t kMostInt = std::numeric_limits<int>::max();

int clamp_to_int(int64_t value) {
  return static_cast<int>(std::clamp<int64_t>(value, 0, kMostInt));
}

size_t checked_bytes(size_t count, size_t bytes) {
  const std::optional<size_t> product = checked_mul(count, bytes);
  CHECK(product.has_value());
  return *product;
}

// A run's end over all pieces, and its pages, must be numbers before it is laid.
Status check_run(const PoolLayout::Spec& spec) {
  size_t end = 0;
  for (const size_t bytes : spec.piece_bytes) {
    const std::optional<size_t> aligned = checked_add(end, kPieceAlignment);
    const std::optional<size_t> next = aligned ? checked_add(*aligned, bytes) : std::nullopt;
    if (!next) return invalid("{} pieces: their bytes overflow", spec.piece_bytes.size());
    end = *next;
  }
  if (end / spec.page_bytes >= static_cast<size_t>(kMostInt)) {
    return invalid("a state of {} bytes is too many pages of {}", end, spec.page_bytes);
  }
  return {};
}

}  // namespace

PoolLayout::PoolLayout(Spec spec, Packing packing)
    : spec_(std::move(spec)), packing_(std::move(packing)) {}

Result<PoolLayout> PoolLayout::make(Spec spec) {
  if (spec.page_rows < 1 || spec.page_bytes < 1 || spec.window_rows < 0) {
    return invalid("no layout of {} page rows, {} page bytes and {} window rows", spec.page_rows,
                   spec.page_bytes, spec.window_rows);
  }
  Packing packing;
  if (spec.form == StateForm::kRun) {
    RETURN_IF_ERROR(check_run(spec));
    packing = lay_run(spec.piece_bytes, spec.page_bytes);
  } else {
    ASSIGN_OR_RETURN(packing, pack_pieces(spec.piece_bytes, spec.page_bytes));
    RETURN_IF_ERROR(check_packing(packing, spec.piece_bytes, spec.page_bytes));
  }
  if (!checked_mul(static_cast<size_t>(packing.pages), spec.page_bytes)) {
    return invalid("{} state pages of {} bytes overflow", packing.pages, spec.page_bytes);
  }
  return PoolLayout(std::move(spec), std::move(packing));
}

int PoolLayout::pages_for(int rows) const {
  CHECK_GE(rows, 0);
  return div_ceil(rows, spec_.page_rows);
}

int PoolLayout::need(int rows) const {
  CHECK_GE(rows, 0);
  const int64_t all_rows = int64_t{rows} + spec_.window_rows;
  return clamp_to_int(state_pages() + div_ceil(all_rows, int64_t{spec_.page_rows}));
}

int PoolLayout::holds(int rows, int pages, int lanes) const {
  CHECK_GE(rows, 1);
  CHECK_GE(pages, 0);
  CHECK_GE(lanes, 0);
  return std::min(lanes, pages / need(rows));
}

int PoolLayout::window_cap(int pages) const {
  CHECK_GE(pages, 0);
  const int64_t table_rows = (int64_t{pages} - state_pages()) * spec_.page_rows;
  return clamp_to_int(table_rows - spec_.window_rows);
}

size_t PoolLayout::padding_bytes() const {
  return checked_bytes(static_cast<size_t>(state_pages()), spec_.page_bytes) - packing_.piece_bytes;
}

int smallest_page_rows(size_t largest_piece, size_t block_bytes, int block) {
  CHECK_GE(block_bytes, size_t{1});
  CHECK_GE(block, 1);
  const size_t blocks = std::max<size_t>(1, div_ceil(largest_piece, block_bytes));
  const size_t rows = checked_bytes(blocks, static_cast<size_t>(block));
  CHECK_LE(rows, static_cast<size_t>(kMostInt));
  return static_cast<int>(rows);
}

PageRowsChoice price_page_rows(int page_rows, size_t block_bytes, int block,
                               std::span<const size_t> sizes) {
  CHECK(block >= 1 && page_rows >= block && page_rows % block == 0);
  const size_t page_bytes = checked_bytes(static_cast<size_t>(page_rows / block), block_bytes);
  const Result<Packing> packing = pack_pieces(sizes, page_bytes);
  CHECK(packing.ok());
  const size_t state_bytes = checked_bytes(static_cast<size_t>(packing->pages), page_bytes);
  const auto overhead_bytes = checked_add(state_bytes - packing->piece_bytes, page_bytes / 2);
  CHECK(overhead_bytes.has_value());
  return {.page_rows = page_rows,
          .state_pages = packing->pages,
          .state_bytes = state_bytes,
          .overhead_bytes = *overhead_bytes};
}

PageRowsChoice best_page_rows_near(int page_rows, int within, size_t block_bytes, int block,
                                   std::span<const size_t> sizes) {
  CHECK_GE(page_rows, 1);
  CHECK_GE(within, 0);
  const size_t largest = sizes.empty() ? 0 : *std::max_element(sizes.begin(), sizes.end());
  const int smallest = smallest_page_rows(largest, block_bytes, block);
  const int64_t last = std::min(int64_t{page_rows} + within, kMostInt);
  const int64_t first =
      std::max(int64_t{smallest}, round_up(int64_t{page_rows} - within, int64_t{block}));
  std::optional<PageRowsChoice> best;
  for (int64_t rows = first; rows <= last; rows += block) {
    const PageRowsChoice choice =
        price_page_rows(static_cast<int>(rows), block_bytes, block, sizes);
    // The smaller of two as near comes first and stays.
    const auto rank = [&](const PageRowsChoice& of) {
      return std::pair(of.overhead_bytes, std::abs(of.page_rows - page_rows));
    };
    if (!best || rank(choice) < rank(*best)) best = choice;
  }
  return best ? *best : price_page_rows(smallest, block_bytes, block, sizes);
}

std::optional<PoolPlan> plan_pool(const PoolLayout& layout, size_t room_bytes, size_t lane_bytes,
                                  int most_lanes, int context, int least_rows) {
  CHECK_GE(most_lanes, 1);
  CHECK_GE(context, 1);
  CHECK_GE(least_rows, 0);
  const int64_t whole_need = layout.need(context);
  const int64_t further_need = layout.need(std::min(least_rows, context));
  for (int lanes = most_lanes; lanes >= 1; --lanes) {
    const auto outside_bytes = checked_mul(static_cast<size_t>(lanes), lane_bytes);
    if (!outside_bytes || *outside_bytes > room_bytes) continue;
    const size_t pages_in_room = (room_bytes - *outside_bytes) / layout.page_bytes();
    const auto pages = static_cast<int64_t>(std::min(pages_in_room, static_cast<size_t>(kMostInt)));
    if (pages < whole_need + (lanes - 1) * further_need) continue;
    return PoolPlan{.lanes = lanes, .pages = static_cast<int>(std::min(pages, lanes * whole_need))};
  }
  return std::nullopt;
}

}  // namespace flashlane::memory
