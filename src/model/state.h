// What a sequence carries besides its tokens, and where it lies: pieces (recurrent states, records,
// convolution histories, the last wide row) and rows in pages (keys, values, index keys of every
// sparse layer, the MTP head's last). StateLayout is numbers only; a SequenceState is pointers into
// storage that somebody else owns. Any prefix of a decode window can be committed by setting
// pending_rows: nothing is copied (spec 5).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/batch.h"
#include "model/shape.h"

namespace flashlane::model {

struct StatePiece {
  std::string name;
  size_t bytes = 0;
  size_t offset = 0;  // when all pieces lie in one block, 256-byte aligned
};

struct KvLayerOffsets {
  size_t key = 0, value = 0, index = 0, pooled = 0;
};

struct StateLayout {
  std::vector<StatePiece> pieces;
  size_t pieces_bytes = 0;
  DType kv_dtype = DType::kF32;
  int page_rows = 0;
  size_t page_bytes = 0;
  std::vector<KvLayerOffsets> kv_layers;  // trunk's sparse layers in order, then the MTP head's

  // Pages that `tokens` rows need.
  int pages_for(int tokens) const { return (tokens + page_rows - 1) / page_rows; }
};

// page_rows must be a multiple of shape.index_block.
StateLayout make_state_layout(const ModelShape& shape, DType kv_dtype, int page_rows);

struct SequenceState {
  std::vector<kernels::GdnState> gdn;  // per DeltaNet layer, in layer order
  std::vector<kernels::PleState> ple;  // per n-gram layer
  float* last_wide = nullptr;  // [wide]: streams of the last committed row (for the MTP head)
  const int32_t* page_table = nullptr;
  int pending_rows = 0;  // see kernels::Segment; set by whoever commits
};

// The first `rows` rows of a page, to another that is zero where they are not.
void copy_rows(const ModelShape& shape, const StateLayout& layout, const std::byte* from, int rows,
               std::byte* to);

// Points a state at its pieces, zeroed memory in the order of layout.pieces. Allocates only when
// the state was never bound to a model of this shape.
void bind_state(SequenceState& state, const ModelShape& shape, std::span<std::byte* const> pieces);

// A state whose pieces lie one after the other in one zeroed block of layout.pieces_bytes.
SequenceState bind_state(const ModelShape& shape, const StateLayout& layout, std::byte* block,
                         const int32_t* page_table);

// The K/V view of one layer (index into layout.kv_layers) in a pool at `base`.
kernels::KvPages kv_pages(const StateLayout& layout, std::byte* base, int kv_layer);

}  // namespace flashlane::model
