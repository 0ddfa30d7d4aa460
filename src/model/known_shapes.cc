// The shapes that `synth:` knows, as literal values: the tiny model of spec 8, the bundled nano and
// the real model of spec 1.1. Shared here is only what all three have in common.
#include <algorithm>

#include "model/shape.h"

namespace flashlane::model {
namespace {

std::vector<LayerKind> three_delta_one_sparse(int layers) {
  std::vector<LayerKind> kinds;
  kinds.reserve(static_cast<size_t>(layers));
  for (int i = 0; i < layers; ++i) {
    kinds.push_back(i % 4 == 3 ? LayerKind::kSparse : LayerKind::kDelta);
  }
  return kinds;
}

ModelShape family(int layers) {
  ModelShape shape;
  shape.layers = layers;
  shape.layer_kinds = three_delta_one_sparse(layers);
  shape.norm_eps = 1e-6F;
  shape.rope_theta = 1e7;
  shape.kv_heads = 2;
  shape.index_block = 4;
  shape.gdn_taps = 4;
  shape.gdn_output_gate = kernels::Gate::kSigmoid;
  shape.streams = 4;
  shape.ple_layers = {1};
  shape.ple_taps = 4;
  shape.ngram_size = 3;
  shape.ngram_row_multiple = 128;
  shape.seed = 1234;
  shape.mtp_layers = 1;
  return shape;
}

ModelShape tiny() {
  ModelShape shape = family(8);
  shape.hidden = 128;
  shape.vocabulary = 512;
  shape.max_position = 4096;
  shape.heads = 4;
  shape.head_dim = 64;
  shape.rotary_dims = 16;
  shape.index_heads = 4;
  shape.index_dim = 32;
  shape.index_budget = 16;
  shape.gdn_key_heads = 2;
  shape.gdn_value_heads = 6;
  shape.gdn_key_dim = 32;
  shape.gdn_value_dim = 32;
  shape.experts = 16;
  shape.top_experts = 4;
  shape.expert_width = 64;
  shape.shared_width = 64;
  shape.low_rank = 64;
  shape.ple_width = 128;
  shape.heads_per_ngram = 2;
  shape.ngram_vocab_base = 1000;
  shape.ngram_shards = 4;
  shape.bos_token = 500;
  shape.eos_token = 500;
  return shape;
}

ModelShape nano() {
  ModelShape shape = family(8);
  shape.hidden = 384;
  shape.vocabulary = 8192;
  shape.max_position = 32768;
  shape.heads = 4;
  shape.head_dim = 256;
  shape.rotary_dims = 64;
  shape.index_heads = 2;
  shape.index_dim = 128;
  shape.index_budget = 256;
  shape.gdn_key_heads = 2;
  shape.gdn_value_heads = 6;
  shape.gdn_key_dim = 128;
  shape.gdn_value_dim = 128;
  shape.experts = 16;
  shape.top_experts = 4;
  shape.expert_width = 128;
  shape.shared_width = 128;
  shape.low_rank = 64;
  shape.ple_width = 512;
  shape.heads_per_ngram = 8;
  shape.ngram_vocab_base = 16000;
  shape.ngram_shards = 4;
  shape.bos_token = 8160;
  shape.eos_token = 8160;
  return shape;
}

ModelShape full_size() {
  ModelShape shape = family(48);
  shape.hidden = 2560;
  shape.vocabulary = 248320;
  shape.max_position = 262144;
  shape.heads = 24;
  shape.head_dim = 256;
  shape.rotary_dims = 64;
  shape.index_heads = 4;
  shape.index_dim = 128;
  shape.index_budget = 2048;
  shape.gdn_key_heads = 16;
  shape.gdn_value_heads = 48;
  shape.gdn_key_dim = 128;
  shape.gdn_value_dim = 128;
  shape.experts = 512;
  shape.top_experts = 10;
  shape.expert_width = 640;
  shape.shared_width = 640;
  shape.low_rank = 320;
  shape.ple_width = 2560;
  shape.heads_per_ngram = 8;
  shape.ngram_vocab_base = 20'000'000;
  shape.ngram_shards = 128;
  shape.bos_token = 248044;
  shape.eos_token = 248044;
  return shape;
}

}  // namespace

Result<ModelShape> synthetic_shape(std::string_view name, int layers) {
  ModelShape shape;
  if (name == "tiny") {
    shape = tiny();
  } else if (name == "nano") {
    shape = nano();
  } else if (name == "true") {
    shape = full_size();
  } else {
    return invalid("synthetic shape \"{}\" is not known: must be tiny, nano or true", name);
  }
  if (layers == 0) return shape;
  const int fewest = shape.ple_layers.back() + 1;
  if (layers < fewest || layers > shape.layers) {
    return invalid("layers={} of synthetic shape {}: must be from {} (the n-gram layer) to {}",
                   layers, name, fewest, shape.layers);
  }
  shape.layers = layers;
  shape.layer_kinds.resize(static_cast<size_t>(layers));
  return shape;
}

}  // namespace flashlane::model
