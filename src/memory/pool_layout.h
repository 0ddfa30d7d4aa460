// What one sequence needs of a pool, in numbers: its state pages, whatever their form, and the
// pages of its table. Everything that counts pages asks here, admission and load report alike, so
// that the two can't differ (P3); state_pages() is the one place where states become pages. Below
// it the questions asked once at load: which page rows are legal and waste least (P4, P8), and how
// many lanes and pages a room takes (P7).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/result.h"
#include "memory/state_packer.h"

namespace flashlane::memory {

class PoolLayout {
 public:
  enum class StateForm : uint8_t {
    kRun,     // consecutive pages
    kPieces,  // any pages, every piece inside one
  };
  struct Spec {
    int page_rows = 0;
    size_t page_bytes = 0;
    std::vector<size_t> piece_bytes;  // per piece of one sequence's state
    StateForm form = StateForm::kPieces;
    int window_rows = 0;  // that a decode window may write past a reply's last token
  };
  // Of sequences without a state, in pages of 256 rows.
  PoolLayout() : spec_{.page_rows = 256, .page_bytes = 1, .piece_bytes = {}} {}
  // Refuses a piece wider than a page; smallest_page_rows says what would do.
  static Result<PoolLayout> make(Spec spec);

  StateForm form() const { return spec_.form; }
  int state_pages() const { return packing_.pages; }
  int page_rows() const { return spec_.page_rows; }
  size_t page_bytes() const { return spec_.page_bytes; }
  int window_rows() const { return spec_.window_rows; }
  const std::vector<size_t>& piece_bytes() const { return spec_.piece_bytes; }
  const Packing& packing() const { return packing_; }

  // Table pages of so many rows.
  int pages_for(int rows) const;
  // State and table pages of a sequence of so many rows, prompt and reply; window rows are added
  // here. The most an int holds where it would be more: no pool has that.
  int need(int rows) const;
  // Of a session that holds so many rows, its margin among them.
  int session_pages(int rows) const { return state_pages() + pages_for(rows); }
  // Sequences of that size an empty pool admits.
  int holds(int rows, int pages, int lanes) const;
  // The most rows, prompt and reply, of one sequence that has a pool for itself; 0 if none fits.
  int window_cap(int pages) const;
  // Of the state pages, what no piece takes.
  size_t padding_bytes() const;

 private:
  PoolLayout(Spec spec, Packing packing);

  Spec spec_;
  Packing packing_;
};

// Rows come in blocks of `block`, which no page divides; `block_bytes` is what one takes over all
// layers. A page of so many rows then has page_rows / block * block_bytes.

// The fewest rows, whole blocks, whose page takes the largest piece.
int smallest_page_rows(size_t largest_piece, size_t block_bytes, int block);

struct PageRowsChoice {
  int page_rows = 0;
  int state_pages = 0;
  size_t state_bytes = 0;     // of those pages
  size_t overhead_bytes = 0;  // their padding, and half a page for a table's last
};

// In pieces; page_rows must be legal.
PageRowsChoice price_page_rows(int page_rows, size_t block_bytes, int block,
                               std::span<const size_t> sizes);

// Of the legal page rows at most `within` away, those of the least overhead; of equals the nearest,
// then the smaller. The smallest legal ones where none is as near.
PageRowsChoice best_page_rows_near(int page_rows, int within, size_t block_bytes, int block,
                                   std::span<const size_t> sizes);

struct PoolPlan {
  int lanes = 0;
  int pages = 0;
  friend bool operator==(const PoolPlan&, const PoolPlan&) = default;
};

// The most lanes, up to most_lanes, for which the room takes lane_bytes each (what a lane has
// outside the pool, busy or not), pages for one sequence of the whole context and for `least_rows`
// in every further lane. Pages then take what is left, but no more than all lanes could use.
// Nothing if not even one lane fits.
std::optional<PoolPlan> plan_pool(const PoolLayout& layout, size_t room_bytes, size_t lane_bytes,
                                  int most_lanes, int context, int least_rows);

}  // namespace flashlane::memory
