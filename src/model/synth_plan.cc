// The tensors of a synthetic model (spec 2.1 for names and shapes, 8.1 for values). What a format
// quantises is what a conversion would: matrices and expert banks, but not the router.
#include "model/synth_plan.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "base/int_math.h"
#include "base/keyed_random.h"
#include "model/ngram.h"
#include "tensor/affine.h"

namespace flashlane::model {
namespace {

constexpr std::string_view kText = "model.language_model.";

class Planner {
 public:
  Planner(const SynthSpec& spec, const ModelShape& shape) : spec_(spec), shape_(shape) {}

  SynthPlan plan();

 private:
  enum class Storage { kPlain, kQuantised };

  void add(const std::string& name, std::vector<int64_t> dims, Storage storage);
  void matrix(const std::string& path, int64_t rows, int64_t cols) {
    add(path + ".weight", {rows, cols}, Storage::kQuantised);
  }
  void vector(const std::string& name, int64_t length) { add(name, {length}, Storage::kPlain); }
  void hyper(const std::string& path, bool has_inject);
  void delta(const std::string& path);
  void sparse(const std::string& path);
  void moe(const std::string& path);
  void layer(const std::string& path, LayerKind kind);
  void ple(const std::string& path, int layer_index, int rank);
  void mtp();

  const SynthSpec& spec_;
  const ModelShape& shape_;
  SynthPlan plan_;
};

void Planner::add(const std::string& name, std::vector<int64_t> dims, Storage storage) {
  PlannedTensor tensor;
  tensor.name = name;
  tensor.shape = std::move(dims);
  if (storage == Storage::kQuantised && spec_.bits != 0) {
    tensor.group = affine_group_that_divides(spec_.group, tensor.cols());
    tensor.bits = tensor.group == 0 ? 0 : spec_.bits;
  }
  plan_.bytes += tensor.bytes();
  plan_.tensors.push_back(std::move(tensor));
}

void Planner::hyper(const std::string& path, bool has_inject) {
  vector(path + "hc_norm.weight", shape_.wide());
  matrix(path + "input_mix_weight_down", shape_.low_rank, shape_.wide());
  matrix(path + "input_mix_weight_up", shape_.wide(), shape_.low_rank);
  if (has_inject) matrix(path + "block_inject_weight", shape_.streams, shape_.wide());
}

void Planner::delta(const std::string& path) {
  const int value_width = shape_.gdn_value_heads * shape_.gdn_value_dim;
  matrix(path + "in_proj_qkv", shape_.gdn_channels(), shape_.hidden);
  matrix(path + "in_proj_z", value_width, shape_.hidden);
  matrix(path + "in_proj_b", shape_.gdn_value_heads, shape_.hidden);
  matrix(path + "in_proj_a", shape_.gdn_value_heads, shape_.hidden);
  add(path + "conv1d.weight", {shape_.gdn_channels(), 1, shape_.gdn_taps}, Storage::kPlain);
  vector(path + "A_log", shape_.gdn_value_heads);
  vector(path + "dt_bias", shape_.gdn_value_heads);
  vector(path + "norm.weight", shape_.gdn_value_dim);
  matrix(path + "out_proj", shape_.hidden, value_width);
}

void Planner::sparse(const std::string& path) {
  const int query_width = shape_.heads * shape_.head_dim;
  const int kv_width = shape_.kv_heads * shape_.head_dim;
  matrix(path + "q_proj", 2 * query_width, shape_.hidden);
  matrix(path + "k_proj", kv_width, shape_.hidden);
  matrix(path + "v_proj", kv_width, shape_.hidden);
  matrix(path + "o_proj", shape_.hidden, query_width);
  vector(path + "q_norm.weight", shape_.head_dim);
  vector(path + "k_norm.weight", shape_.head_dim);
  matrix(path + "indexer.index_qk_proj", (shape_.index_heads + 1) * shape_.index_dim,
         shape_.hidden);
  vector(path + "indexer.q_layernorm.weight", shape_.index_dim);
  vector(path + "indexer.k_layernorm.weight", shape_.index_dim);
}

void Planner::moe(const std::string& path) {
  const int64_t experts = shape_.experts;
  const int64_t width = shape_.expert_width;
  const int64_t hidden = shape_.hidden;
  add(path + "gate.weight", {experts, hidden}, Storage::kPlain);
  add(path + "experts.gate_up_proj", {experts, 2 * width, hidden}, Storage::kQuantised);
  add(path + "experts.down_proj", {experts, hidden, width}, Storage::kQuantised);
  matrix(path + "shared_expert.gate_proj", shape_.shared_width, hidden);
  matrix(path + "shared_expert.up_proj", shape_.shared_width, hidden);
  matrix(path + "shared_expert.down_proj", hidden, shape_.shared_width);
  matrix(path + "shared_expert_gate", 1, hidden);
}

void Planner::layer(const std::string& path, LayerKind kind) {
  hyper(path + "attn_hyper_connection.", true);
  hyper(path + "mlp_hyper_connection.", true);
  if (kind == LayerKind::kDelta) {
    delta(path + "linear_attn.");
  } else {
    sparse(path + "self_attn.");
  }
  moe(path + "mlp.");
}

void Planner::ple(const std::string& path, int layer_index, int rank) {
  matrix(path + "key_proj", shape_.wide(), shape_.ple_width);
  matrix(path + "value_proj", shape_.hidden, shape_.ple_width);
  for (const char* norm : {"norm_key.weight", "norm_query.weight", "norm_conv.weight"}) {
    vector(path + norm, shape_.wide());
  }
  add(path + "conv1d.weight", {shape_.wide(), 1, shape_.ple_taps}, Storage::kPlain);

  // Equal chunks; the last ones may be short.
  const int64_t rows = make_ngram_hash(shape_, rank).table_rows;
  const int64_t chunk = div_ceil(rows, static_cast<int64_t>(shape_.ngram_shards));
  PlannedTable planned;
  planned.layer = layer_index;
  ComputedTable& table = planned.table;
  const int width = shape_.ngram_row_width();
  if (spec_.bits != 0) table.group = affine_group_that_divides(spec_.group, width);
  table.bits = table.group == 0 ? 0 : spec_.bits;
  table.shard_starts.push_back(0);
  for (int64_t start = 0; start < rows; start += chunk) {
    const int64_t count = std::min(chunk, rows - start);
    const std::string name = path + "ple_embedding.ngram_embedding.shard_" +
                             std::to_string(table.shard_hashes.size()) + ".weight";
    table.shard_hashes.push_back(fnv1a64(name) ^ spec_.seed);
    table.shard_starts.push_back(start + count);
    if (spec_.store_ngram) add(name, {count, width}, Storage::kQuantised);
  }
  if (!spec_.store_ngram) plan_.tables.push_back(std::move(planned));
}

void Planner::mtp() {
  const std::string path = "mtp.";
  matrix(path + "fc_embedding", shape_.hidden, shape_.hidden);
  matrix(path + "fc_hidden", shape_.hidden, shape_.hidden);
  vector(path + "pre_fc_norm_embedding.weight", shape_.hidden);
  vector(path + "pre_fc_norm_hidden.weight", shape_.wide());
  hyper(path + "hyper_connection_mixer.", false);
  for (int i = 0; i < shape_.mtp_layers; ++i) {
    layer(path + "layers." + std::to_string(i) + ".", LayerKind::kSparse);
  }
}

SynthPlan Planner::plan() {
  const std::string text(kText);
  matrix(text + "embed_tokens", shape_.vocabulary, shape_.hidden);
  if (!shape_.tie_embeddings) matrix("lm_head", shape_.vocabulary, shape_.hidden);
  hyper(text + "hyper_connection_mixer.", false);
  int rank = 0;
  for (int i = 0; i < shape_.layers; ++i) {
    const std::string path = text + "layers." + std::to_string(i) + ".";
    layer(path, shape_.layer_kinds[static_cast<size_t>(i)]);
    if (shape_.is_ple_layer(i)) ple(path + "ple.", i, rank++);
  }
  if (shape_.mtp_layers > 0) mtp();
  return std::move(plan_);
}

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace

ValueRule value_rule(std::string_view name, int64_t last_dim) {
  if (name.ends_with("embed_tokens.weight")) return {1.0F, 0.0F};
  if (contains(name, "ngram_embedding.shard_")) return {1.0F, 0.0F};
  if (name.ends_with("conv1d.weight") || name.ends_with("mlp.gate.weight")) return {0.5F, 0.0F};
  if (name.ends_with("linear_attn.norm.weight")) return {0.25F, 1.0F};
  if (name.ends_with(".A_log") || name.ends_with(".dt_bias")) return {1.0F, 0.0F};
  const std::string_view module = name.substr(0, name.rfind('.'));
  if (contains(module.substr(module.rfind('.') + 1), "norm")) return {0.25F, 0.0F};
  CHECK_GT(last_dim, 0);
  const int log2_floor = std::bit_width(static_cast<uint64_t>(last_dim)) - 1;
  return {1.0F / static_cast<float>(uint64_t{1} << (log2_floor / 2)), 0.0F};
}

int64_t PlannedTensor::rows() const {
  int64_t count = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) count *= shape[i];
  return count;
}

size_t PlannedTensor::data_bytes() const {
  const auto elements = static_cast<size_t>(rows() * cols());
  return bits == 0 ? elements * 2 : elements * static_cast<size_t>(bits) / 8;
}

size_t PlannedTensor::scale_bytes() const {
  return bits == 0 ? 0 : static_cast<size_t>(rows() * (cols() / group)) * 2;
}

SynthPlan make_synth_plan(const SynthSpec& spec, const ModelShape& shape) {
  return Planner(spec, shape).plan();
}

}  // namespace flashlane::model
