// Sizes of the step buffers: each scratch buffer is as wide as the widest of its uses in block.cc.
#include <algorithm>
#include <array>

#include "base/int_math.h"
#include "model/forward.h"

namespace flashlane::model {
namespace {

// Widths of Activations::scratch, in the order block.cc names them.
std::array<int, 5> scratch_widths(const ModelShape& shape) {
  const int value_width = shape.gdn_value_heads * shape.gdn_value_dim;
  const int kv_width = shape.kv_heads * shape.head_dim;
  const int attention_width = shape.heads * shape.head_dim;
  return {
      std::max({shape.gdn_channels(), 2 * attention_width, shape.ple_width, shape.hidden}),
      std::max({value_width, kv_width, shape.wide()}),
      std::max({shape.gdn_value_heads, kv_width, shape.hidden}),
      std::max({shape.gdn_value_heads, (shape.index_heads + 1) * shape.index_dim, shape.wide()}),
      std::max(value_width, attention_width),
  };
}

}  // namespace

Activations::Activations(const ModelShape& shape, int max_rows, Memory& memory)
    : max_rows_(max_rows) {
  const auto rows = static_cast<size_t>(max_rows);
  const auto widths = scratch_widths(shape);
  selection.stride = shape.block_budget();
  size_t bytes = 0;
  const auto place = [&bytes, rows](size_t width, size_t element) {
    const size_t offset = bytes;
    bytes += round_up(rows * width * element, size_t{64});
    return offset;
  };
  const auto wide = static_cast<size_t>(shape.wide());
  const auto heads =
      shape.ple_layers.empty() ? size_t{0} : static_cast<size_t>(shape.ngram_heads());
  const size_t streams_at = place(wide, 4);
  const size_t other_at = place(wide, 4);
  const size_t mixed_at = place(static_cast<size_t>(shape.hidden), 4);
  const size_t inject_at = place(static_cast<size_t>(shape.streams), 4);
  const size_t block_at = place(static_cast<size_t>(shape.hidden), 4);
  std::array<size_t, 5> scratch_at;
  for (size_t i = 0; i < widths.size(); ++i)
    scratch_at[i] = place(static_cast<size_t>(widths[i]), 4);
  const size_t ids_at = place(static_cast<size_t>(shape.top_experts), 4);
  const size_t gates_at = place(static_cast<size_t>(shape.top_experts), 4);
  const size_t blocks_at = place(static_cast<size_t>(selection.stride), 4);
  const size_t counts_at = place(1, 4);

  buffer_ = Buffer(bytes, memory);
  ngram_rows.resize(rows * heads);
  const auto at = [this]<typename T>(size_t offset, T*& pointer) {
    pointer = reinterpret_cast<T*>(buffer_.data() + offset);
  };
  at(streams_at, streams);
  at(other_at, other_streams);
  at(mixed_at, mixed);
  at(inject_at, inject);
  at(block_at, block_out);
  for (size_t i = 0; i < widths.size(); ++i) at(scratch_at[i], scratch[i]);
  at(ids_at, expert_ids);
  at(gates_at, expert_gates);
  at(blocks_at, selection.blocks);
  at(counts_at, selection.counts);
  gdn_states.reserve(kernels::kMaxWindow);
  ple_states.reserve(kernels::kMaxWindow);
  tables.reserve(kernels::kMaxWindow);
}

kernels::OpsLimits ops_limits(const ModelShape& shape, int max_rows, int context) {
  const auto widths = scratch_widths(shape);
  kernels::OpsLimits limits;
  limits.rows = max_rows;
  limits.widest = std::max(shape.wide(), *std::max_element(widths.begin(), widths.end()));
  limits.vocabulary = shape.vocabulary;
  limits.context = context;
  limits.experts = shape.experts;
  limits.top_experts = shape.top_experts;
  limits.gdn_head_dim = std::max(shape.gdn_key_dim, shape.gdn_value_dim);
  limits.expert_width = std::max(shape.expert_width, shape.shared_width);
  limits.expert_input = shape.hidden;
  limits.low_rank = shape.low_rank;
  limits.heads = shape.heads;
  limits.head_dim = shape.head_dim;
  limits.block_tokens = shape.index_block;
  limits.block_budget = shape.block_budget();
  return limits;
}

}  // namespace flashlane::model
