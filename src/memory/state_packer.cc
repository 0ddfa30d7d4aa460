// Hundreds of pieces on dozens of pages, once at load: every piece looks at the pages in turn.
#include "memory/state_packer.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <optional>

#include "base/check.h"
#include "base/int_math.h"
#include "base/keyed_random.h"

namespace flashlane::memory {
namespace {

std::optional<size_t> checked_sum(std::span<const size_t> sizes) {
  size_t sum = 0;
  for (const size_t bytes : sizes) {
    const std::optional<size_t> next = checked_add(sum, bytes);
    if (!next) return std::nullopt;
    sum = *next;
  }
  return sum;
}

// Where the next piece after `used` bytes may begin.
std::optional<size_t> next_start(size_t used) {
  const std::optional<size_t> last = checked_add(used, kPieceAlignment - 1);
  if (!last) return std::nullopt;
  return *last / kPieceAlignment * kPieceAlignment;
}

bool fits(size_t offset, size_t bytes, size_t page_bytes) {
  return bytes <= page_bytes && offset <= page_bytes - bytes;
}

Status check_place(const Packing& packing, size_t piece, size_t bytes, size_t page_bytes) {
  const PiecePlace& place = packing.places[piece];
  if (place.page < 0 || place.page >= packing.pages) {
    return error(ErrorCode::kInternal, "page out of range: piece {} lies on page {} of {}", piece,
                 place.page, packing.pages);
  }
  if (place.offset % kPieceAlignment != 0) {
    return error(ErrorCode::kInternal, "misaligned: piece {} begins at byte {} of page {}", piece,
                 place.offset, place.page);
  }
  if (!fits(place.offset, bytes, page_bytes)) {
    return error(ErrorCode::kInternal,
                 "past page: piece {} of {} bytes begins at byte {} of page {}, which has {}",
                 piece, bytes, place.offset, place.page, page_bytes);
  }
  return {};
}

// Neighbours on a page, once all are known to lie inside theirs.
Status check_overlap(const Packing& packing, std::span<const size_t> sizes) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::erase_if(order, [&](size_t piece) { return sizes[piece] == 0; });
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const PiecePlace& left = packing.places[a];
    const PiecePlace& right = packing.places[b];
    if (left.page != right.page) return left.page < right.page;
    return left.offset != right.offset ? left.offset < right.offset : a < b;
  });
  for (size_t i = 1; i < order.size(); ++i) {
    const PiecePlace& before = packing.places[order[i - 1]];
    const PiecePlace& after = packing.places[order[i]];
    if (before.page != after.page || before.offset + sizes[order[i - 1]] <= after.offset) continue;
    return error(ErrorCode::kInternal, "overlap: pieces {} and {} share bytes of page {}",
                 order[i - 1], order[i], after.page);
  }
  return {};
}

}  // namespace

Result<Packing> pack_pieces(std::span<const size_t> sizes, size_t page_bytes) {
  CHECK_LE(sizes.size(), static_cast<size_t>(std::numeric_limits<int>::max()));
  const std::optional<size_t> piece_bytes = checked_sum(sizes);
  if (!piece_bytes) return invalid("{} pieces: their bytes overflow", sizes.size());
  for (size_t piece = 0; piece < sizes.size(); ++piece) {
    if (sizes[piece] <= page_bytes) continue;
    return invalid("piece over page: piece {} takes {} bytes, a page has {}", piece, sizes[piece],
                   page_bytes);
  }
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sizes[a] > sizes[b]; });

  Packing packing{.places = std::vector<PiecePlace>(sizes.size()), .piece_bytes = *piece_bytes};
  std::vector<size_t> used;  // bytes, per page
  for (const size_t piece : order) {
    size_t page = 0;
    size_t offset = 0;
    for (; page < used.size(); ++page) {
      const std::optional<size_t> start = next_start(used[page]);
      if (!start || !fits(*start, sizes[piece], page_bytes)) continue;
      offset = *start;
      break;
    }
    if (page == used.size()) used.push_back(0);
    packing.places[piece] = {.page = static_cast<int>(page), .offset = offset};
    used[page] = offset + sizes[piece];
  }
  packing.pages = static_cast<int>(used.size());
  return packing;
}

Packing lay_run(std::span<const size_t> sizes, size_t page_bytes) {
  CHECK_GE(page_bytes, size_t{1});
  Packing packing;
  size_t used = 0;
  for (const size_t bytes : sizes) {
    const std::optional<size_t> start = next_start(used);
    const std::optional<size_t> end = start ? checked_add(*start, bytes) : std::nullopt;
    CHECK(end.has_value());
    const size_t page = *start / page_bytes;
    CHECK_LT(page, static_cast<size_t>(std::numeric_limits<int>::max()));
    packing.places.push_back(
        {.page = static_cast<int>(page), .offset = *start - page * page_bytes});
    packing.piece_bytes += bytes;
    used = *end;
  }
  const size_t pages = div_ceil(used, page_bytes);
  CHECK_LE(pages, static_cast<size_t>(std::numeric_limits<int>::max()));
  packing.pages = static_cast<int>(pages);
  return packing;
}

Status check_packing(const Packing& packing, std::span<const size_t> sizes, size_t page_bytes) {
  if (packing.places.size() != sizes.size()) {
    return error(ErrorCode::kInternal, "missing piece: {} pieces have {} places", sizes.size(),
                 packing.places.size());
  }
  std::vector<int> pages_held;
  for (size_t piece = 0; piece < sizes.size(); ++piece) {
    RETURN_IF_ERROR(check_place(packing, piece, sizes[piece], page_bytes));
    pages_held.push_back(packing.places[piece].page);
  }
  RETURN_IF_ERROR(check_overlap(packing, sizes));
  std::sort(pages_held.begin(), pages_held.end());
  const auto distinct = std::unique(pages_held.begin(), pages_held.end()) - pages_held.begin();
  if (distinct != packing.pages) {
    return error(ErrorCode::kInternal, "empty page: {} of {} pages hold a piece", distinct,
                 packing.pages);
  }
  const std::optional<size_t> piece_bytes = checked_sum(sizes);
  if (packing.piece_bytes != piece_bytes) {
    return error(ErrorCode::kInternal, "wrong sum: the map says {} bytes, the pieces take {}",
                 packing.piece_bytes, piece_bytes.value_or(0));
  }
  return {};
}

uint64_t packing_hash(const Packing& packing) {
  uint64_t hash = splitmix64(static_cast<uint64_t>(packing.pages));
  hash = splitmix64(hash ^ packing.piece_bytes);
  for (const PiecePlace& place : packing.places) {
    hash = splitmix64(hash ^ static_cast<uint64_t>(place.page));
    hash = splitmix64(hash ^ place.offset);
  }
  return hash;
}

}  // namespace flashlane::memory
