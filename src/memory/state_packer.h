// Where the pieces of one sequence's state lie on its state pages: each whole inside one page
// (pack_pieces), or all of them one after another over consecutive pages (lay_run). A map depends
// on the sizes and the page alone, so it is made once at load and every sequence uses it over pages
// of its own. check_packing knows nothing of the packer: it also refuses maps that others made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"

namespace flashlane::memory {

// Of a piece's offset in its page, or in the run. Addresses are as aligned as the page bytes let
// them be: pages of a multiple of 256 bytes keep all of it.
inline constexpr size_t kPieceAlignment = 256;

struct PiecePlace {
  int page = 0;  // index into the sequence's state pages, no page of the pool
  size_t offset = 0;
  friend bool operator==(const PiecePlace&, const PiecePlace&) = default;
};

struct Packing {
  std::vector<PiecePlace> places;  // per piece, in the order of the sizes
  int pages = 0;
  size_t piece_bytes = 0;  // of all pieces, without what lies between them
  friend bool operator==(const Packing&, const Packing&) = default;
};

// First-fit decreasing; of equal sizes the earlier piece is placed first. A piece wider than a page
// is refused with its index.
Result<Packing> pack_pieces(std::span<const size_t> sizes, size_t page_bytes);

// A piece may cross the borders of pages here; its place is its start.
Packing lay_run(std::span<const size_t> sizes, size_t page_bytes);

// Of a map of pack_pieces' form: every piece placed, aligned, inside its page and beside the
// others; no page without a piece. Names the first breach.
Status check_packing(const Packing& packing, std::span<const size_t> sizes, size_t page_bytes);

// Equal maps have equal hashes, on every machine.
uint64_t packing_hash(const Packing& packing);

}  // namespace flashlane::memory
