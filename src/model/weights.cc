// Assembling the model's weights layer by layer from a TensorSource. Each function fills one struct
// of kernels/layers.h and names the tensors as the model card does; checks live in weights_names.
#include "model/weights.h"

#include <algorithm>
#include <map>

#include "kernels/elementary.h"
#include "model/weights_names.h"
#include "model/weights_ngram.h"

namespace flashlane::model {
namespace {

using kernels::Matrix;

// Fills a Weights from a source; used once.
class Loader {
 public:
  Loader(Weights& weights, TensorPrefixes prefixes)
      : weights_(weights),
        shape_(weights.shape),
        prefixes_(std::move(prefixes)),
        reader_(*weights.source, weights) {}

  Status load();

 private:
  Status load_norm_conventions();
  Status load_ends();
  Status load_trunk();
  Status load_mtp();
  Status load_hyper(kernels::HyperWeights& hyper, const std::string& path, NormConvention norms,
                    bool has_inject);
  Status load_delta(DeltaWeights& delta, const std::string& path);
  Status load_sparse(SparseWeights& sparse, const std::string& path, NormConvention norms);
  Status load_moe(kernels::MoeWeights& moe, const std::string& path);
  Status load_experts(kernels::MoeWeights& moe, const std::string& path);
  Status load_layer(LayerWeights& layer, const std::string& path, NormConvention norms);
  Status refuse_single_experts(const std::string& path);
  const float* inverse_frequency();

  Weights& weights_;
  const ModelShape& shape_;
  TensorPrefixes prefixes_;
  TensorReader reader_;
  NormConvention mtp_norms_ = NormConvention::kCentred;
};

std::string layer_path(const std::string& prefix, int layer) {
  return prefix + "layers." + std::to_string(layer) + ".";
}

Status Loader::load() {
  if (shape_.mtp_layers > 1) {
    return error(ErrorCode::kUnsupported, "mtp_num_hidden_layers is {}, expected 0 or 1",
                 shape_.mtp_layers);
  }
  weights_.has_mtp = shape_.mtp_layers > 0 && !prefixes_.mtp.empty();
  RETURN_IF_ERROR(load_norm_conventions());
  RETURN_IF_ERROR(load_ends());
  RETURN_IF_ERROR(load_trunk());
  if (weights_.has_mtp) RETURN_IF_ERROR(load_mtp());
  return {};
}

Status Loader::load_norm_conventions() {
  std::vector<double> means;
  for (int i = 0; i < shape_.layers; ++i) {
    const std::string path = layer_path(prefixes_.text, i) + "attn_hyper_connection.hc_norm.weight";
    ASSIGN_OR_RETURN(const double mean, reader_.mean(path, shape_.wide()));
    means.push_back(mean);
  }
  ASSIGN_OR_RETURN(weights_.norms, detect_norm_convention(means, reader_.source_name()));
  mtp_norms_ = weights_.norms;
  if (!weights_.has_mtp || !prefixes_.mtp_apart) return {};

  // A head from another conversion may follow the other convention.
  means.clear();
  for (const char* part : {"layers.0.attn_hyper_connection", "layers.0.mlp_hyper_connection",
                           "hyper_connection_mixer"}) {
    const std::string name = prefixes_.mtp + part + ".hc_norm.weight";
    ASSIGN_OR_RETURN(const double mean, reader_.mean(name, shape_.wide()));
    means.push_back(mean);
  }
  ASSIGN_OR_RETURN(mtp_norms_, detect_norm_convention(
                                   means, reader_.source_name() + " (" + prefixes_.mtp + ")"));
  return {};
}

Status Loader::load_ends() {
  ASSIGN_OR_RETURN(weights_.embedding, reader_.matrix(prefixes_.text + "embed_tokens",
                                                      shape_.vocabulary, shape_.hidden));
  if (shape_.tie_embeddings) {
    weights_.head = weights_.embedding;
  } else {
    ASSIGN_OR_RETURN(weights_.head,
                     reader_.matrix(prefixes_.head, shape_.vocabulary, shape_.hidden));
  }
  return load_hyper(weights_.mixer, prefixes_.text + "hyper_connection_mixer.", weights_.norms,
                    false);
}

Status Loader::load_trunk() {
  int rank = 0;
  weights_.layers.resize(static_cast<size_t>(shape_.layers));
  for (int i = 0; i < shape_.layers; ++i) {
    LayerWeights& layer = weights_.layers[static_cast<size_t>(i)];
    layer.kind = shape_.layer_kinds[static_cast<size_t>(i)];
    const std::string path = layer_path(prefixes_.text, i);
    RETURN_IF_ERROR(load_layer(layer, path, weights_.norms));
    if (!shape_.is_ple_layer(i)) continue;
    layer.ple = rank;
    RETURN_IF_ERROR(load_ple(weights_, reader_, path + "ple.", i, rank));
    ++rank;
  }
  return {};
}

Status Loader::load_layer(LayerWeights& layer, const std::string& path, NormConvention norms) {
  RETURN_IF_ERROR(load_hyper(layer.attention_hyper, path + "attn_hyper_connection.", norms, true));
  RETURN_IF_ERROR(load_hyper(layer.mlp_hyper, path + "mlp_hyper_connection.", norms, true));
  if (layer.kind == LayerKind::kDelta) {
    RETURN_IF_ERROR(load_delta(layer.delta, path + "linear_attn."));
  } else {
    RETURN_IF_ERROR(load_sparse(layer.sparse, path + "self_attn.", norms));
  }
  return load_moe(layer.moe, path + "mlp.");
}

Status Loader::load_hyper(kernels::HyperWeights& hyper, const std::string& path,
                          NormConvention norms, bool has_inject) {
  const int wide = shape_.wide();
  hyper.streams = shape_.streams;
  hyper.hidden = shape_.hidden;
  hyper.low_rank = shape_.low_rank;
  hyper.eps = shape_.norm_eps;
  ASSIGN_OR_RETURN(hyper.gain, reader_.gain(path + "hc_norm.weight", wide, norms));
  ASSIGN_OR_RETURN(hyper.down,
                   reader_.matrix(path + "input_mix_weight_down", shape_.low_rank, wide));
  ASSIGN_OR_RETURN(hyper.up, reader_.matrix(path + "input_mix_weight_up", wide, shape_.low_rank));
  if (has_inject) {
    ASSIGN_OR_RETURN(hyper.inject,
                     reader_.matrix(path + "block_inject_weight", shape_.streams, wide));
  }
  return {};
}

Status Loader::load_delta(DeltaWeights& delta, const std::string& path) {
  kernels::GdnWeights& step = delta.step;
  step.key_heads = shape_.gdn_key_heads;
  step.value_heads = shape_.gdn_value_heads;
  step.key_dim = shape_.gdn_key_dim;
  step.value_dim = shape_.gdn_value_dim;
  step.taps = shape_.gdn_taps;
  step.eps = shape_.norm_eps;
  step.output_gate = shape_.gdn_output_gate;
  const int hidden = shape_.hidden;
  const int channels = shape_.gdn_channels();
  const int value_width = step.value_heads * step.value_dim;
  ASSIGN_OR_RETURN(delta.in_qkv, reader_.matrix(path + "in_proj_qkv", channels, hidden));
  ASSIGN_OR_RETURN(delta.in_z, reader_.matrix(path + "in_proj_z", value_width, hidden));
  ASSIGN_OR_RETURN(delta.in_b, reader_.matrix(path + "in_proj_b", step.value_heads, hidden));
  ASSIGN_OR_RETURN(delta.in_a, reader_.matrix(path + "in_proj_a", step.value_heads, hidden));
  ASSIGN_OR_RETURN(delta.out, reader_.matrix(path + "out_proj", hidden, value_width));
  ASSIGN_OR_RETURN(step.conv, reader_.convolution(path + "conv1d.weight", channels, step.taps));
  ASSIGN_OR_RETURN(step.a_log, reader_.vector(path + "A_log", step.value_heads));
  ASSIGN_OR_RETURN(step.dt_bias, reader_.vector(path + "dt_bias", step.value_heads));
  // The one norm that every file stores as the gain itself.
  ASSIGN_OR_RETURN(step.norm_gain, reader_.vector(path + "norm.weight", step.value_dim));
  return {};
}

Status Loader::load_sparse(SparseWeights& sparse, const std::string& path, NormConvention norms) {
  kernels::AttentionWeights& attention = sparse.attention;
  attention.heads = shape_.heads;
  attention.kv_heads = shape_.kv_heads;
  attention.head_dim = shape_.head_dim;
  attention.rotary_dims = shape_.rotary_dims;
  attention.index_heads = shape_.index_heads;
  attention.index_dim = shape_.index_dim;
  attention.block_tokens = shape_.index_block;
  attention.block_budget = shape_.block_budget();
  attention.eps = shape_.norm_eps;
  attention.inverse_frequency = inverse_frequency();
  const int hidden = shape_.hidden;
  const int query_width = shape_.heads * shape_.head_dim;
  const int kv_width = shape_.kv_heads * shape_.head_dim;
  const int index_width = (shape_.index_heads + 1) * shape_.index_dim;
  ASSIGN_OR_RETURN(sparse.query, reader_.matrix(path + "q_proj", 2 * query_width, hidden));
  ASSIGN_OR_RETURN(sparse.key, reader_.matrix(path + "k_proj", kv_width, hidden));
  ASSIGN_OR_RETURN(sparse.value, reader_.matrix(path + "v_proj", kv_width, hidden));
  ASSIGN_OR_RETURN(sparse.index,
                   reader_.matrix(path + "indexer.index_qk_proj", index_width, hidden));
  ASSIGN_OR_RETURN(sparse.out, reader_.matrix(path + "o_proj", hidden, query_width));
  ASSIGN_OR_RETURN(attention.query_gain,
                   reader_.gain(path + "q_norm.weight", shape_.head_dim, norms));
  ASSIGN_OR_RETURN(attention.key_gain,
                   reader_.gain(path + "k_norm.weight", shape_.head_dim, norms));
  ASSIGN_OR_RETURN(attention.index_query_gain,
                   reader_.gain(path + "indexer.q_layernorm.weight", shape_.index_dim, norms));
  ASSIGN_OR_RETURN(attention.index_key_gain,
                   reader_.gain(path + "indexer.k_layernorm.weight", shape_.index_dim, norms));
  return {};
}

// theta^(-2i / rotary_dims), rounded once to f32.
const float* Loader::inverse_frequency() {
  std::vector<float> values(static_cast<size_t>(shape_.rotary_dims / 2));
  const double log_theta = kernels::log_f64(shape_.rope_theta);
  for (size_t i = 0; i < values.size(); ++i) {
    const double exponent = 2.0 * static_cast<double>(i) / shape_.rotary_dims;
    values[i] = static_cast<float>(kernels::exp_f64(-exponent * log_theta));
  }
  return weights_.floats.emplace_back(std::move(values)).data();
}

Status Loader::load_moe(kernels::MoeWeights& moe, const std::string& path) {
  moe.hidden = shape_.hidden;
  moe.experts = shape_.experts;
  moe.top_experts = shape_.top_experts;
  moe.width = shape_.expert_width;
  moe.shared_width = shape_.shared_width;
  moe.renormalize = shape_.renormalize_experts;
  ASSIGN_OR_RETURN(moe.router, reader_.matrix(path + "gate", shape_.experts, shape_.hidden));
  RETURN_IF_ERROR(load_experts(moe, path));
  const std::string shared = path + "shared_expert.";
  const int width = shape_.shared_width;
  ASSIGN_OR_RETURN(moe.shared_gate, reader_.matrix(shared + "gate_proj", width, shape_.hidden));
  ASSIGN_OR_RETURN(moe.shared_up, reader_.matrix(shared + "up_proj", width, shape_.hidden));
  ASSIGN_OR_RETURN(moe.shared_down, reader_.matrix(shared + "down_proj", shape_.hidden, width));
  ASSIGN_OR_RETURN(moe.shared_router,
                   reader_.matrix(path + "shared_expert_gate", 1, shape_.hidden));
  return {};
}

// Releases for other engines keep each expert apart, in formats that this backend does not read.
Status Loader::refuse_single_experts(const std::string& path) {
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    const std::string single = path + "experts.0." + part;
    const TensorView* view = reader_.find(single + ".weight");
    if (view == nullptr) continue;
    std::string_view format = dtype_name(view->dtype);
    if (reader_.has(single + ".weight_scale_inv") || view->dtype == DType::kF8E4M3)
      format = "FP8";
    else if (reader_.has(single + ".weight_scale"))
      format = "NVFP4";
    return error(ErrorCode::kUnsupported,
                 "tensor {}.weight: {} experts stored one by one are served on CUDA only; expected "
                 "{}experts.gate_up_proj or {}switch_mlp.gate_proj",
                 single, format, path, path);
  }
  return {};
}

Status Loader::load_experts(kernels::MoeWeights& moe, const std::string& path) {
  const int64_t experts = shape_.experts;
  const int64_t width = shape_.expert_width;
  const int64_t hidden = shape_.hidden;
  const std::string split = path + "switch_mlp.";
  bool is_split = false;
  for (const char* part : {"gate_proj", "up_proj", "down_proj"}) {
    is_split = is_split || reader_.has(split + part + ".weight");
  }
  if (is_split) {
    ASSIGN_OR_RETURN(moe.gate, reader_.bank(split + "gate_proj", experts, width, hidden));
    ASSIGN_OR_RETURN(moe.up, reader_.bank(split + "up_proj", experts, width, hidden));
    ASSIGN_OR_RETURN(moe.down, reader_.bank(split + "down_proj", experts, hidden, width));
    return {};
  }
  RETURN_IF_ERROR(refuse_single_experts(path));
  ASSIGN_OR_RETURN(const Matrix both,
                   reader_.bank(path + "experts.gate_up_proj", experts, 2 * width, hidden));
  ASSIGN_OR_RETURN(moe.down, reader_.bank(path + "experts.down_proj", experts, hidden, width));
  // Each expert's rows are its gate, then its up: two banks that step over each other's rows.
  moe.gate = both;
  moe.gate.rows = width;
  moe.up = moe.gate;
  moe.up.data += static_cast<size_t>(width) * both.row_bytes();
  if (both.layout == kernels::Layout::kAffine) {
    moe.up.scales += static_cast<size_t>(width) * both.scale_row_bytes();
    moe.up.biases += static_cast<size_t>(width) * both.scale_row_bytes();
  }
  return {};
}

Status Loader::load_mtp() {
  MtpHead& mtp = weights_.mtp;
  const std::string& path = prefixes_.mtp;
  const int hidden = shape_.hidden;
  mtp.fuse.streams = shape_.streams;
  mtp.fuse.hidden = hidden;
  mtp.fuse.eps = shape_.norm_eps;
  ASSIGN_OR_RETURN(mtp.fuse.embedding_gain,
                   reader_.gain(path + "pre_fc_norm_embedding.weight", hidden, mtp_norms_));
  ASSIGN_OR_RETURN(mtp.fuse.hidden_gain,
                   reader_.gain(path + "pre_fc_norm_hidden.weight", shape_.wide(), mtp_norms_));
  ASSIGN_OR_RETURN(mtp.fuse.embedding_projection,
                   reader_.matrix(path + "fc_embedding", hidden, hidden));
  ASSIGN_OR_RETURN(mtp.fuse.hidden_projection, reader_.matrix(path + "fc_hidden", hidden, hidden));
  mtp.layer.kind = LayerKind::kSparse;
  RETURN_IF_ERROR(load_layer(mtp.layer, layer_path(path, 0), mtp_norms_));
  return load_hyper(mtp.mixer, path + "hyper_connection_mixer.", mtp_norms_, false);
}

std::string format_name(const Matrix& matrix) {
  switch (matrix.layout) {
    case kernels::Layout::kF32:
      return "f32";
    case kernels::Layout::kF16:
      return "f16";
    case kernels::Layout::kBf16:
      return "bf16";
    case kernels::Layout::kAffine:
      return fmt::format("affine {}-bit group {}", matrix.bits, matrix.group);
  }
  return {};
}

// Names the format that holds the most bytes, and says what differs from it.
void describe(Weights& weights) {
  std::map<std::string, size_t> bytes_by_format;
  const auto count = [&](const Matrix& matrix) {
    bytes_by_format[format_name(matrix)] += matrix.stored_bytes();
    weights.stored_bytes += matrix.stored_bytes();
  };
  for (const Matrix* matrix : kernel_matrices(weights)) count(*matrix);
  if (!weights.shape.tie_embeddings) count(weights.embedding);
  const auto most =
      std::max_element(bytes_by_format.begin(), bytes_by_format.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  weights.format = most->first;
  if (weights.shape.mtp_layers > 0 && !weights.has_mtp) {
    weights.format += ", without the MTP head that the configuration names";
  }
}

// `Layer` is LayerWeights, const or not, and `List` a vector of pointers that are as const.
template <typename Layer, typename List>
void add_layer_matrices(Layer& layer, List& matrices) {
  for (auto* hyper : {&layer.attention_hyper, &layer.mlp_hyper}) {
    matrices.insert(matrices.end(), {&hyper->down, &hyper->up, &hyper->inject});
  }
  if (layer.kind == LayerKind::kDelta) {
    auto& delta = layer.delta;
    matrices.insert(matrices.end(),
                    {&delta.in_qkv, &delta.in_z, &delta.in_b, &delta.in_a, &delta.out});
  } else {
    auto& sparse = layer.sparse;
    matrices.insert(matrices.end(),
                    {&sparse.query, &sparse.key, &sparse.value, &sparse.index, &sparse.out});
  }
  auto& moe = layer.moe;
  matrices.insert(matrices.end(), {&moe.router, &moe.gate, &moe.up, &moe.down, &moe.shared_gate,
                                   &moe.shared_up, &moe.shared_down, &moe.shared_router});
}

}  // namespace

std::vector<Matrix*> kernel_matrices(Weights& weights) {
  std::vector<Matrix*> matrices;
  for (LayerWeights& layer : weights.layers) add_layer_matrices(layer, matrices);
  for (PleLayer& ple : weights.ple) matrices.insert(matrices.end(), {&ple.key, &ple.value});
  matrices.insert(matrices.end(), {&weights.mixer.down, &weights.mixer.up, &weights.head});
  if (!weights.has_mtp) return matrices;
  MtpHead& mtp = weights.mtp;
  matrices.insert(matrices.end(), {&mtp.fuse.embedding_projection, &mtp.fuse.hidden_projection});
  add_layer_matrices(mtp.layer, matrices);
  matrices.insert(matrices.end(), {&mtp.mixer.down, &mtp.mixer.up});
  return matrices;
}

std::vector<const Matrix*> layer_matrices(const LayerWeights& layer) {
  std::vector<const Matrix*> matrices;
  add_layer_matrices(layer, matrices);
  return matrices;
}

Result<std::unique_ptr<Weights>> load_weights(const ModelShape& shape,
                                              std::shared_ptr<const format::TensorSource> source) {
  auto weights = std::make_unique<Weights>();
  weights->shape = shape;
  weights->source = std::move(source);
  ASSIGN_OR_RETURN(TensorPrefixes prefixes, find_prefixes(*weights->source));
  RETURN_IF_ERROR(Loader(*weights, std::move(prefixes)).load());
  describe(*weights);
  return weights;
}

}  // namespace flashlane::model
