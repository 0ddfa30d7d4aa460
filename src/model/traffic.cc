// Every name that a forward reports stands for the weights and states it has just read.
#include "model/traffic.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "base/check.h"

namespace flashlane::model {
namespace {

using kernels::Matrix;
using kernels::Segment;

size_t floats_bytes(int64_t count) {
  return static_cast<size_t>(count) * sizeof(float);
}

// One row of a table that is looked up, scales and biases included.
size_t table_row_bytes(const Matrix& matrix) {
  return matrix.row_bytes() + 2 * matrix.scale_row_bytes();
}

size_t matrices_bytes(std::initializer_list<const Matrix*> matrices) {
  size_t bytes = 0;
  for (const Matrix* matrix : matrices) bytes += matrix->stored_bytes();
  return bytes;
}

// "layer12_experts" → 12 and "experts"; nothing for other names.
struct LayerName {
  int layer = -1;
  std::string_view what;
};
LayerName parse_name(std::string_view name) {
  constexpr std::string_view kPrefix = "layer";
  LayerName parsed;
  if (!name.starts_with(kPrefix)) return parsed;
  const char* end = name.data() + name.size();
  const auto [after, code] =
      std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), parsed.layer);
  if (code != std::errc() || after == end || *after != '_') return {};
  parsed.what = std::string_view(after + 1, static_cast<size_t>(end - after - 1));
  return parsed;
}

}  // namespace

double Traffic::experts_per_layer() const {
  const int64_t layers = trunk_layers > 0 ? trunk_layers : mtp_layers;
  const int64_t experts = trunk_layers > 0 ? trunk_experts : mtp_experts;
  return layers == 0 ? 0 : static_cast<double>(experts) / static_cast<double>(layers);
}

Traffic& Traffic::operator+=(const Traffic& other) {
  weight_bytes += other.weight_bytes;
  expert_bytes += other.expert_bytes;
  state_bytes += other.state_bytes;
  kv_bytes += other.kv_bytes;
  trunk_layers += other.trunk_layers;
  trunk_experts += other.trunk_experts;
  mtp_layers += other.mtp_layers;
  mtp_experts += other.mtp_experts;
  return *this;
}

TrafficCounter::TrafficCounter(const Weights& weights, DType kv_dtype)
    : weights_(weights), kv_element_(dtype_bytes(kv_dtype)) {}

Traffic TrafficCounter::take() {
  return std::exchange(traffic_, {});
}

void TrafficCounter::begin(const kernels::Batch& batch) {
  batch_ = batch;
  traffic_.weight_bytes +=
      static_cast<size_t>(batch.row_count) * table_row_bytes(weights_.embedding);
}

void TrafficCounter::floats(std::string_view name, const float* /*values*/, int /*rows*/,
                            int /*width*/) {
  if (name == "final_mixed") {
    traffic_.weight_bytes +=
        matrices_bytes({&weights_.mixer.down, &weights_.mixer.up, &weights_.head});
  } else if (name == "mtp_mixed") {
    traffic_.weight_bytes +=
        matrices_bytes({&weights_.mtp.mixer.down, &weights_.mtp.mixer.up, &weights_.head});
  } else if (name == "mtp_fused") {
    traffic_.weight_bytes += matrices_bytes(
        {&weights_.mtp.fuse.embedding_projection, &weights_.mtp.fuse.hidden_projection});
  }
}

void TrafficCounter::ints(std::string_view name, const int32_t* values, int rows, int width) {
  if (name == "mtp_experts") {
    count_layer(weights_.mtp.layer, values, rows, width);
    return;
  }
  const LayerName parsed = parse_name(name);
  const std::string_view what = name.starts_with("mtp_") ? name.substr(4) : parsed.what;
  if (what == "block_counts") {
    block_counts_.assign(values, values + rows);
  } else if (what == "blocks") {
    count_attention(values, width);
  } else if (what == "experts") {
    const LayerWeights& layer = weights_.layers.at(static_cast<size_t>(parsed.layer));
    count_layer(layer, values, rows, width);
    if (layer.kind == LayerKind::kDelta) count_delta_state();
  } else if (what == "ngram_rows") {
    const LayerWeights& layer = weights_.layers.at(static_cast<size_t>(parsed.layer));
    count_ngram(weights_.ple.at(static_cast<size_t>(layer.ple)), rows);
  }
}

void TrafficCounter::count_layer(const LayerWeights& layer, const int32_t* experts, int rows,
                                 int width) {
  const kernels::MoeWeights& moe = layer.moe;
  const size_t chosen = distinct(experts, static_cast<size_t>(rows) * static_cast<size_t>(width));
  for (const Matrix* matrix : layer_matrices(layer)) {
    const bool bank = matrix == &moe.gate || matrix == &moe.up || matrix == &moe.down;
    if (bank) {
      traffic_.expert_bytes += matrix->stored_bytes() / static_cast<size_t>(matrix->count) * chosen;
    } else {
      traffic_.weight_bytes += matrix->stored_bytes();
    }
  }
  const bool mtp = &layer == &weights_.mtp.layer;
  (mtp ? traffic_.mtp_layers : traffic_.trunk_layers) += 1;
  (mtp ? traffic_.mtp_experts : traffic_.trunk_experts) += static_cast<int64_t>(chosen);
}

// The recurrent state is read and written once a forward, whatever its rows. Rows of a decode
// window leave records; those of the window before are read where more than its first row was kept.
void TrafficCounter::count_delta_state() {
  const ModelShape& shape = weights_.shape;
  const int64_t keys = int64_t{shape.gdn_key_heads} * shape.gdn_key_dim;
  const int64_t values = int64_t{shape.gdn_value_heads} * shape.gdn_value_dim;
  const int64_t recurrent = values * shape.gdn_key_dim;
  const int64_t record = keys + values + shape.gdn_value_heads;
  for (const Segment& segment : batch_.segments) {
    const int64_t written = batch_.role == kernels::Role::kDecode ? segment.row_count : 0;
    const int64_t read = std::max(0, segment.pending_rows - 1);
    const int64_t history = shape.gdn_taps - 1 + segment.row_count;
    traffic_.state_bytes +=
        floats_bytes(2 * recurrent + record * (written + read) + history * shape.gdn_channels());
  }
}

void TrafficCounter::count_ngram(const PleLayer& ple, int rows) {
  const kernels::NgramTable& table = ple.table;
  traffic_.weight_bytes += matrices_bytes({&ple.key, &ple.value});
  // A computed table is read from nowhere.
  if (!table.computed) {
    traffic_.weight_bytes += static_cast<size_t>(rows) * static_cast<size_t>(table.heads) *
                             table_row_bytes(table.shards[0]);
  }
  for (const Segment& segment : batch_.segments) {
    const int64_t history = ple.inject.history() + segment.row_count;
    traffic_.state_bytes += floats_bytes(history * weights_.shape.wide());
  }
}

// Each segment reads the positions that any of its rows selected, its tail, and, where there is a
// choice to make, one pooled key of every complete block; it writes its own rows.
void TrafficCounter::count_attention(const int32_t* blocks, int stride) {
  const ModelShape& shape = weights_.shape;
  const int64_t kv_width = 2 * int64_t{shape.kv_heads} * shape.head_dim;
  CHECK_EQ(block_counts_.size(), static_cast<size_t>(batch_.row_count));
  std::vector<int32_t> chosen;
  for (const Segment& segment : batch_.segments) {
    chosen.clear();
    for (int i = 0; i < segment.row_count; ++i) {
      const auto row = static_cast<size_t>(segment.first_row + i);
      const int32_t* of_row = blocks + row * static_cast<size_t>(stride);
      chosen.insert(chosen.end(), of_row, of_row + block_counts_[row]);
    }
    const auto selected = static_cast<int64_t>(distinct(chosen.data(), chosen.size()));
    const int64_t read = selected * shape.index_block + tail_positions(segment, selected);
    const int end = segment.start_position + segment.row_count;
    const int64_t complete = end / shape.index_block;
    const int64_t scored = complete > shape.block_budget() ? complete : 0;
    traffic_.kv_bytes += static_cast<size_t>((read + segment.row_count) * kv_width +
                                             (scored + segment.row_count) * shape.index_dim) *
                         kv_element_;
  }
}

// Positions that only tails show: those behind the last complete block of the row that looks first.
int64_t TrafficCounter::tail_positions(const Segment& segment, int64_t selected) const {
  const int block = weights_.shape.index_block;
  const int start = segment.start_position;
  const auto chosen_end = sorted_.begin() + selected;
  int64_t count = 0;
  for (int at = (start + 1) / block * block; at < start + segment.row_count; ++at) {
    const bool tail = (std::max(at, start) + 1) / block * block <= at;
    if (tail && !std::binary_search(sorted_.begin(), chosen_end, at / block)) ++count;
  }
  return count;
}

// Leaves them in front of sorted_, ascending.
size_t TrafficCounter::distinct(const int32_t* ids, size_t count) {
  sorted_.assign(ids, ids + count);
  std::sort(sorted_.begin(), sorted_.end());
  return static_cast<size_t>(std::unique(sorted_.begin(), sorted_.end()) - sorted_.begin());
}

}  // namespace flashlane::model
