// What kernels see of a step: rows, grouped into segments of consecutive rows of one sequence, and
// where each sequence's state lies. Plain data; the runner fills it. One forward holds segments of
// one role: prompt (every row is kept) or decode (the first row is kept, later ones may be rolled
// back: they leave records, and the state stays at the first row until the next forward says how
// many were kept).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/dtype.h"

namespace flashlane::kernels {

// The most rows of a decode segment: the pending token and its drafts. Also the most rows of a
// decode forward over all segments.
inline constexpr int kMaxWindow = 16;

enum class Role : uint8_t { kPrompt, kDecode };

struct Segment {
  int first_row = 0;  // index of its first row in the forward
  int row_count = 0;
  int start_position = 0;  // absolute position of its first row
  // Rows of the sequence's previous decode segment that were kept and are not yet in the state, the
  // first row included: 0 when the state is settled, else 1..kMaxWindow. The kernels apply rows
  // 1..pending_rows-1 of the records (row 0 is in the recurrent state already) and take convolution
  // history from column pending_rows on.
  int pending_rows = 0;
};

struct Batch {
  Role role = Role::kPrompt;
  int row_count = 0;
  std::span<const int32_t> tokens;    // [row_count]
  std::span<const Segment> segments;  // cover the rows in order, none empty
};

// One DeltaNet layer of one sequence.
struct GdnState {
  float* recurrent = nullptr;      // [value_heads, key_dim, value_dim]
  float* conv_history = nullptr;   // [taps - 1 + kMaxWindow, channels], oldest first
  float* record_keys = nullptr;    // [kMaxWindow, key_heads, key_dim]: normalised k
  float* record_deltas = nullptr;  // [kMaxWindow, value_heads, value_dim]
  float* record_decays = nullptr;  // [kMaxWindow, value_heads]: exp(g)
};

// One n-gram layer of one sequence.
struct PleState {
  float* conv_history = nullptr;  // [(taps - 1) * dilation + kMaxWindow, streams * hidden]
};

// Where one attention layer keeps its rows inside the pages of a pool. Row r of a sequence is row
// r % page_rows of page table[r / page_rows]; a page of a layer holds keys [kv_heads, page_rows,
// head_dim], values likewise, raw index keys [page_rows, index_dim] and pooled index keys
// [page_rows / block_tokens, index_dim]. page_rows is a multiple of block_tokens.
struct KvPages {
  std::byte* base = nullptr;
  size_t page_bytes = 0;
  int page_rows = 0;
  DType dtype = DType::kF32;  // F32 or BF16, of all four
  size_t key_offset = 0;      // bytes from the page's start
  size_t value_offset = 0;
  size_t index_offset = 0;
  size_t pooled_offset = 0;
};

struct KvView {
  KvPages pages;
  std::span<const int32_t* const> tables;  // page table of each segment's sequence
};

}  // namespace flashlane::kernels
