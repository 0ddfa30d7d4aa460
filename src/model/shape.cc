// config.json → ModelShape. One function per part of the model; each reads its keys and then checks
// what must hold between them, so that a wrong file is one line with the key, the value and the
// rule.
#include "model/shape.h"

#include <algorithm>
#include <array>

#include "format/json_fields.h"

namespace flashlane::model {
namespace {

using format::JsonFields;

// Far above any model of the architecture, and small enough for products of four to be counted.
constexpr int kMaxWidth = 1 << 20;
constexpr int kMaxHeads = 1 << 10;
constexpr int kMaxHeadDim = 1 << 12;
constexpr int kMaxLayers = 1 << 10;
constexpr int kMaxTokens = 1 << 24;  // of the vocabulary and of the context
constexpr int kMaxExperts = 1 << 14;
constexpr int kMaxStreams = 64;
constexpr int kMaxTaps = 64;
constexpr int kMaxNgram = 16;
constexpr int kMaxNgramHeads = 1 << 10;
constexpr int kMaxPleLayers = 64;
constexpr int64_t kMaxNgramBase = (int64_t{1} << 31) - 1;

constexpr std::string_view kPlace = "config.json";
constexpr std::array<std::string_view, 4> kSparseNames = {
    "full_attention", "qwen_sparse_attention", "deepseek_sparse_attention", "sparse_attention"};

bool is_sparse_name(std::string_view name) {
  return std::find(kSparseNames.begin(), kSparseNames.end(), name) != kSparseNames.end();
}

// Text that must be one of a few words, or absent.
void expect_text(JsonFields& fields, std::string_view key,
                 std::initializer_list<std::string_view> allowed, ErrorCode code) {
  if (!fields.has(key)) return;
  const std::string value = fields.text(key);
  if (std::find(allowed.begin(), allowed.end(), value) == allowed.end()) {
    fields.fail(key, fmt::format("must be {}", fmt::join(allowed, " or ")), code);
  }
}

// A switch whose other setting is a model that this engine does not run.
void expect_false(JsonFields& fields, std::string_view key) {
  if (fields.boolean(key, false)) fields.fail(key, "not built", ErrorCode::kUnsupported);
}

void read_layers(JsonFields& text, ModelShape& shape) {
  shape.layers = text.size("num_hidden_layers", 1, kMaxLayers);
  if (!text.has("layer_types")) {
    const int interval = text.size("full_attention_interval", 1, kMaxLayers, 4);
    for (int i = 0; i < shape.layers; ++i) {
      shape.layer_kinds.push_back((i + 1) % interval != 0 ? LayerKind::kDelta : LayerKind::kSparse);
    }
    return;
  }
  for (const std::string& name : text.texts("layer_types", kMaxLayers)) {
    if (name != "linear_attention" && !is_sparse_name(name)) {
      text.fail("layer_types", fmt::format("holds {}: must be linear_attention or one of {}",
                                           format::printable(name), fmt::join(kSparseNames, ", ")));
      return;
    }
    shape.layer_kinds.push_back(name == "linear_attention" ? LayerKind::kDelta
                                                           : LayerKind::kSparse);
  }
  if (text.ok() && shape.layer_kinds.size() != static_cast<size_t>(shape.layers)) {
    text.fail("layer_types", fmt::format("has {} entries: must have num_hidden_layers = {}",
                                         shape.layer_kinds.size(), shape.layers));
  }
}

void read_trunk(JsonFields& top, JsonFields& text, ModelShape& shape) {
  shape.hidden = text.size("hidden_size", 1, kMaxWidth);
  shape.vocabulary = text.size("vocab_size", 1, kMaxTokens);
  shape.max_position = text.size("max_position_embeddings", 1, kMaxTokens);
  shape.norm_eps = static_cast<float>(text.real("rms_norm_eps", 1e-20, 1, 1e-6));
  shape.streams = text.size("hc_count", 2, kMaxStreams);
  shape.low_rank = text.size("hc_lowrank", 1, kMaxWidth);
  expect_text(text, "hidden_act", {"silu"}, ErrorCode::kUnsupported);
  shape.tie_embeddings =
      text.boolean("tie_word_embeddings", top.boolean("tie_word_embeddings", false));
  if (shape.tie_embeddings != top.boolean("tie_word_embeddings", shape.tie_embeddings)) {
    text.fail("tie_word_embeddings", "must equal the one beside text_config");
  }
}

// The end token also resets the n-grams, so only the text level's counts; the first of a list.
int read_token(JsonFields& text, std::string_view key, int vocabulary) {
  const auto value = text.find(key);
  if (!value) return -1;
  if (!value->is_array()) return text.size(key, 0, vocabulary - 1);
  const auto ids = text.integers(key, 0, vocabulary - 1, 64);
  if (ids.empty()) text.fail(key, "must hold at least one token id");
  return ids.empty() ? -1 : static_cast<int>(ids.front());
}

// A number that may stand in rope_parameters or, in older files, beside it; never two different
// ones.
double read_rope_number(JsonFields& text, JsonFields* rope, std::string_view key, double low,
                        double high) {
  if (rope == nullptr || !rope->has(key)) return text.real(key, low, high);
  const double value = rope->real(key, low, high);
  if (text.real(key, low, high, value) != value) {
    text.fail(key, fmt::format("must equal rope_parameters.{} = {}", key, value));
  }
  return value;
}

void read_rope(JsonFields& text, ModelShape& shape) {
  auto rope = text.object("rope_parameters");
  auto scaling = text.object("rope_scaling");
  for (auto* fields : {rope ? &*rope : nullptr, scaling ? &*scaling : nullptr}) {
    if (fields == nullptr) continue;
    expect_text(*fields, "rope_type", {"default"}, ErrorCode::kUnsupported);
    expect_text(*fields, "type", {"default"}, ErrorCode::kUnsupported);
  }
  auto* parameters = rope ? &*rope : (scaling ? &*scaling : nullptr);
  shape.rope_theta = read_rope_number(text, parameters, "rope_theta", 1, 1e15);
  const double factor = read_rope_number(text, parameters, "partial_rotary_factor", 0, 1);
  shape.rotary_dims = static_cast<int>(static_cast<double>(shape.head_dim) * factor);
  if (!text.ok()) return;

  auto& factor_home =
      parameters != nullptr && parameters->has("partial_rotary_factor") ? *parameters : text;
  if (shape.rotary_dims < 2 || shape.rotary_dims % 2 != 0 || shape.rotary_dims > shape.index_dim) {
    factor_home.fail("partial_rotary_factor",
                     fmt::format("gives {} rotary dimensions of head_dim {}: must be even, at "
                                 "least 2 and at most indexer_head_dim = {}",
                                 shape.rotary_dims, shape.head_dim, shape.index_dim));
  }
  if (parameters == nullptr || !parameters->has("mrope_section")) return;
  int64_t sum = 0;
  for (const int64_t part : parameters->integers("mrope_section", 0, kMaxHeadDim, 3)) sum += part;
  if (text.ok() && 2 * sum != shape.rotary_dims) {
    parameters->fail("mrope_section", fmt::format("sums to {}: must sum to half of {} rotary "
                                                  "dimensions",
                                                  sum, shape.rotary_dims));
  }
}

void read_attention(JsonFields& text, ModelShape& shape) {
  shape.heads = text.size("num_attention_heads", 1, kMaxHeads);
  shape.kv_heads = text.size("num_key_value_heads", 1, kMaxHeads);
  shape.head_dim = text.size("head_dim", 1, kMaxHeadDim);
  if (shape.heads % shape.kv_heads != 0) {
    text.fail("num_key_value_heads",
              fmt::format("must divide num_attention_heads = {}", shape.heads));
  }
  expect_false(text, "attention_bias");
  // Without an indexer the layers would be dense attention, which is another model.
  shape.index_heads = text.size("indexer_n_heads", 1, kMaxHeads);
  text.size("indexer_kv_heads", 1, 1);
  shape.index_dim = text.size("indexer_head_dim", 1, kMaxHeadDim);
  shape.index_budget = text.size("indexer_budget", 1, kMaxTokens);
  shape.index_block = text.size("indexer_compress_ratio", 1, kMaxTokens);
  if (shape.index_budget % shape.index_block != 0) {
    text.fail("indexer_budget",
              fmt::format("must be a multiple of indexer_compress_ratio = {}", shape.index_block));
  }
  read_rope(text, shape);
}

void read_delta(JsonFields& text, ModelShape& shape) {
  shape.gdn_key_heads = text.size("linear_num_key_heads", 1, kMaxHeads);
  shape.gdn_value_heads = text.size("linear_num_value_heads", 1, kMaxHeads);
  shape.gdn_key_dim = text.size("linear_key_head_dim", 1, kMaxHeadDim);
  shape.gdn_value_dim = text.size("linear_value_head_dim", 1, kMaxHeadDim);
  shape.gdn_taps = text.size("linear_conv_kernel_dim", 2, kMaxTaps);
  if (shape.gdn_value_heads % shape.gdn_key_heads != 0) {
    text.fail("linear_num_value_heads",
              fmt::format("must be a multiple of linear_num_key_heads = {}", shape.gdn_key_heads));
  }
  const std::string gate = text.text("output_gate_type", text.text("hidden_act", "silu"));
  if (gate != "sigmoid" && gate != "silu") {
    text.fail("output_gate_type", "must be sigmoid or silu");
  }
  shape.gdn_output_gate = gate == "sigmoid" ? kernels::Gate::kSigmoid : kernels::Gate::kSilu;
}

void read_experts(JsonFields& text, ModelShape& shape) {
  shape.experts = text.size("num_experts", 1, kMaxExperts);
  shape.top_experts = text.size("num_experts_per_tok", 1, shape.experts);
  shape.expert_width = text.size("moe_intermediate_size", 1, kMaxWidth);
  shape.shared_width = text.size("shared_expert_intermediate_size", 1, kMaxWidth);
  shape.renormalize_experts = text.boolean("norm_topk_prob", true);
}

void read_ple_layers(JsonFields& text, ModelShape& shape) {
  for (const int64_t id : text.integers("ple_layer_ids", 1, shape.layers, kMaxPleLayers)) {
    const int layer = static_cast<int>(id) - 1;  // the file counts from one
    if (text.ok() && shape.layer_kinds[static_cast<size_t>(layer)] != LayerKind::kDelta) {
      text.fail("ple_layer_ids", fmt::format("holds {}: must name linear_attention layers", id));
    }
    shape.ple_layers.push_back(layer);
  }
  std::sort(shape.ple_layers.begin(), shape.ple_layers.end());
  const auto repeats = std::unique(shape.ple_layers.begin(), shape.ple_layers.end());
  shape.ple_layers.erase(repeats, shape.ple_layers.end());
}

void read_ple(JsonFields& text, ModelShape& shape) {
  if (!text.has("ple_layer_ids")) return;
  read_ple_layers(text, shape);
  if (shape.ple_layers.empty()) return;
  expect_text(text, "ple_embedding_dtype", {"bfloat16", "float16", "float32"},
              ErrorCode::kUnsupported);
  shape.ple_width = text.size("ple_embed_dim", 1, kMaxWidth, shape.hidden);
  shape.ple_taps = text.size("ple_conv_kernel_size", 2, kMaxTaps);
  shape.ngram_size = text.size("ngram_size", 2, kMaxNgram);
  shape.heads_per_ngram = text.size("heads_per_ngram", 1, kMaxNgramHeads / kMaxNgram);
  shape.ngram_vocab_base = text.integer("ngram_vocab_size_base", 2, kMaxNgramBase);
  shape.ngram_row_multiple = text.size("make_ngram_vocab_size_divisible_by", 1, kMaxWidth);
  shape.ngram_shards = text.size("split_ngram_parts", 1, kMaxWidth, 512);
  shape.seed = static_cast<uint64_t>(text.integer("seed", 0, INT64_MAX, 1234));
  if (shape.ple_width % shape.ngram_heads() != 0) {
    const bool given = text.has("ple_embed_dim");
    text.fail("ple_embed_dim",
              fmt::format("{}must be a multiple of (ngram_size - 1) * heads_per_ngram = {}",
                          given ? "" : fmt::format("hidden_size = {} ", shape.ple_width),
                          shape.ngram_heads()));
  }
  if (shape.eos_token < 0) text.fail("eos_token_id", "must be set: it resets the n-grams");
}

void read_mtp(JsonFields& text, ModelShape& shape) {
  auto mtp = text.object("mtp");
  const int layers = mtp ? mtp->size("num_hidden_layers", 0, 1, 0) : 0;
  shape.mtp_layers = text.size("mtp_num_hidden_layers", 0, 1, layers);
  if (shape.mtp_layers == 0) return;
  expect_false(text, "mtp_use_dedicated_embeddings");
  if (!mtp) return;
  if (mtp->has("mtp_use_hidden_state_from_layer")) {
    mtp->fail("mtp_use_hidden_state_from_layer", "must be null", ErrorCode::kUnsupported);
  }
  if (mtp->real("rope_theta", 1, 1e15, shape.rope_theta) != shape.rope_theta) {
    mtp->fail("rope_theta", fmt::format("must equal the trunk's {}", shape.rope_theta));
  }
  if (!mtp->has("layer_types")) return;
  const auto kinds = mtp->texts("layer_types", kMaxLayers);
  if (text.ok() && (kinds.size() != 1 || !is_sparse_name(kinds.front()))) {
    mtp->fail("layer_types", "must be one full_attention", ErrorCode::kUnsupported);
  }
}

// MLX's `quantization` (repeated as `quantization_config`): the default and overrides by path. What
// each tensor really is, its own scales say; anything but affine is another format.
void read_quantization(JsonFields& owner, std::string_view key, ModelShape& shape) {
  auto fields = owner.object(key);
  if (!fields) return;
  if (fields->has("quant_method")) {
    fields->fail("quant_method", "not built for the CPU: only MLX affine quantisation is",
                 ErrorCode::kUnsupported);
    return;
  }
  expect_text(*fields, "mode", {"affine"}, ErrorCode::kUnsupported);
  shape.quantization.bits = fields->size("bits", 2, 8);
  shape.quantization.group = fields->size("group_size", 32, 128);
  if (shape.quantization.bits == 7) fields->fail("bits", "must be 2, 3, 4, 5, 6 or 8");
  const int group = shape.quantization.group;
  if (group != 32 && group != 64 && group != 128) {
    fields->fail("group_size", "must be 32, 64 or 128");
  }
  for (const auto& [path, value] : fields->fields()) {
    if (!value.is_object()) continue;
    if (auto entry = fields->object(path)) {
      expect_text(*entry, "mode", {"affine"}, ErrorCode::kUnsupported);
    }
  }
}

void check_model_type(JsonFields& fields, bool required) {
  if (!required && !fields.has("model_type")) return;
  const std::string type = fields.text("model_type");
  if (fields.ok() && type != "qwen4_exp" && type != "qwen4_exp_text") {
    fields.fail("model_type", "must be qwen4_exp or qwen4_exp_text", ErrorCode::kUnsupported);
  }
}

}  // namespace

bool ModelShape::is_ple_layer(int layer) const {
  return std::binary_search(ple_layers.begin(), ple_layers.end(), layer);
}

int ModelShape::sparse_layers() const {
  return static_cast<int>(std::count(layer_kinds.begin(), layer_kinds.end(), LayerKind::kSparse));
}

int ModelShape::delta_layers() const {
  return layers - sparse_layers();
}

Result<ModelShape> parse_shape(std::string_view config_json) {
  format::JsonDocument document;
  RETURN_IF_ERROR(document.parse(config_json, kPlace));
  Status status;
  JsonFields top(document.root(), std::string(kPlace), "", &status);
  auto nested = top.object("text_config");
  JsonFields& text = nested ? *nested : top;
  check_model_type(top, true);
  check_model_type(text, false);
  RETURN_IF_ERROR(status);

  ModelShape shape;
  read_trunk(top, text, shape);
  read_layers(text, shape);
  RETURN_IF_ERROR(status);
  shape.bos_token = read_token(text, "bos_token_id", shape.vocabulary);
  shape.eos_token = read_token(text, "eos_token_id", shape.vocabulary);
  read_attention(text, shape);
  read_delta(text, shape);
  read_experts(text, shape);
  RETURN_IF_ERROR(status);
  read_ple(text, shape);
  read_mtp(text, shape);
  for (const std::string_view key : {"quantization_config", "quantization"}) {
    if (nested) read_quantization(*nested, key, shape);
    read_quantization(top, key, shape);
  }
  RETURN_IF_ERROR(status);
  return shape;
}

}  // namespace flashlane::model
