#include "model/state.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/int_math.h"

namespace flashlane::model {
namespace {

constexpr size_t kPieceAlignment = 256;

class PieceList {
 public:
  explicit PieceList(StateLayout& layout) : layout_(layout) {}
  void add(std::string name, size_t floats) {
    const size_t bytes = floats * sizeof(float);
    layout_.pieces.push_back({std::move(name), bytes, layout_.pieces_bytes});
    layout_.pieces_bytes = round_up(layout_.pieces_bytes + bytes, kPieceAlignment);
  }

 private:
  StateLayout& layout_;
};

size_t window(int rows_before) {
  return static_cast<size_t>(rows_before) + static_cast<size_t>(kernels::kMaxWindow);
}

void add_delta_pieces(const ModelShape& shape, int layer, PieceList& list) {
  const std::string prefix = "layer" + std::to_string(layer) + ".";
  const auto key_heads = static_cast<size_t>(shape.gdn_key_heads);
  const auto value_heads = static_cast<size_t>(shape.gdn_value_heads);
  const auto key_dim = static_cast<size_t>(shape.gdn_key_dim);
  const auto value_dim = static_cast<size_t>(shape.gdn_value_dim);
  list.add(prefix + "recurrent", value_heads * key_dim * value_dim);
  list.add(prefix + "conv", window(shape.gdn_taps - 1) * static_cast<size_t>(shape.gdn_channels()));
  list.add(prefix + "record_keys", window(0) * key_heads * key_dim);
  list.add(prefix + "record_deltas", window(0) * value_heads * value_dim);
  list.add(prefix + "record_decays", window(0) * value_heads);
}

}  // namespace

StateLayout make_state_layout(const ModelShape& shape, DType kv_dtype, int page_rows) {
  CHECK(page_rows > 0 && page_rows % shape.index_block == 0);
  StateLayout layout;
  layout.kv_dtype = kv_dtype;
  layout.page_rows = page_rows;
  PieceList list(layout);
  for (int layer = 0; layer < shape.layers; ++layer) {
    if (shape.layer_kinds[static_cast<size_t>(layer)] == LayerKind::kDelta) {
      add_delta_pieces(shape, layer, list);
    }
  }
  for (const int layer : shape.ple_layers) {
    const int history = (shape.ple_taps - 1) * shape.ngram_size;
    list.add("layer" + std::to_string(layer) + ".ngram_conv",
             window(history) * static_cast<size_t>(shape.wide()));
  }
  list.add("last_wide", static_cast<size_t>(shape.wide()));

  const size_t element = dtype_bytes(kv_dtype);
  const auto rows = static_cast<size_t>(page_rows);
  const size_t kv_plane = rows * static_cast<size_t>(shape.kv_heads * shape.head_dim) * element;
  const size_t index_plane = rows * static_cast<size_t>(shape.index_dim) * element;
  const int kv_layers = shape.sparse_layers() + (shape.mtp_layers > 0 ? 1 : 0);
  for (int i = 0; i < kv_layers; ++i) {
    KvLayerOffsets offsets;
    offsets.key = layout.page_bytes;
    offsets.value = offsets.key + kv_plane;
    offsets.index = offsets.value + kv_plane;
    offsets.pooled = offsets.index + index_plane;
    layout.page_bytes =
        round_up(offsets.pooled + index_plane / static_cast<size_t>(shape.index_block), size_t{64});
    layout.kv_layers.push_back(offsets);
  }
  // Pieces lie in pages too.
  layout.page_bytes = round_up(layout.page_bytes, kPieceAlignment);
  return layout;
}

void copy_rows(const ModelShape& shape, const StateLayout& layout, const std::byte* from, int rows,
               std::byte* to) {
  CHECK(rows >= 0 && rows <= layout.page_rows);
  std::memset(to, 0, layout.page_bytes);
  const size_t element = dtype_bytes(layout.kv_dtype);
  const auto copy = [&](size_t offset, int count, int width) {
    std::memcpy(to + offset, from + offset,
                static_cast<size_t>(count) * static_cast<size_t>(width) * element);
  };
  const size_t plane = static_cast<size_t>(layout.page_rows) * static_cast<size_t>(shape.head_dim);
  for (const KvLayerOffsets& offsets : layout.kv_layers) {
    for (int head = 0; head < shape.kv_heads; ++head) {
      const size_t at = static_cast<size_t>(head) * plane * element;
      copy(offsets.key + at, rows, shape.head_dim);
      copy(offsets.value + at, rows, shape.head_dim);
    }
    copy(offsets.index, rows, shape.index_dim);
    copy(offsets.pooled, div_ceil(rows, shape.index_block), shape.index_dim);
  }
}

void bind_state(SequenceState& state, const ModelShape& shape, std::span<std::byte* const> pieces) {
  size_t next = 0;
  const auto take = [&] { return reinterpret_cast<float*>(pieces[next++]); };
  state.gdn.clear();
  for (int i = 0; i < shape.delta_layers(); ++i) {
    kernels::GdnState gdn;
    gdn.recurrent = take();
    gdn.conv_history = take();
    gdn.record_keys = take();
    gdn.record_deltas = take();
    gdn.record_decays = take();
    state.gdn.push_back(gdn);
  }
  state.ple.clear();
  for (size_t i = 0; i < shape.ple_layers.size(); ++i) state.ple.push_back({take()});
  state.last_wide = take();
  CHECK_EQ(next, pieces.size());
}

SequenceState bind_state(const ModelShape& shape, const StateLayout& layout, std::byte* block,
                         const int32_t* page_table) {
  std::vector<std::byte*> pieces;
  for (const StatePiece& piece : layout.pieces) pieces.push_back(block + piece.offset);
  SequenceState state;
  state.page_table = page_table;
  bind_state(state, shape, pieces);
  return state;
}

kernels::KvPages kv_pages(const StateLayout& layout, std::byte* base, int kv_layer) {
  const KvLayerOffsets& offsets = layout.kv_layers.at(static_cast<size_t>(kv_layer));
  kernels::KvPages pages;
  pages.base = base;
  pages.page_bytes = layout.page_bytes;
  pages.page_rows = layout.page_rows;
  pages.dtype = layout.kv_dtype;
  pages.key_offset = offsets.key;
  pages.value_offset = offsets.value;
  pages.index_offset = offsets.index;
  pages.pooled_offset = offsets.pooled;
  return pages;
}

}  // namespace flashlane::model
