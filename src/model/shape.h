// ModelShape: every size and switch of a qwen4_exp text model, parsed from config.json and checked
// against the constraints of the architecture (spec 1). Every size is bounded, so that the elements
// of any tensor of the model, in bytes, fit in 63 bits, and the int functions below can't overflow.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/layers.h"

namespace flashlane::model {

enum class LayerKind : uint8_t { kDelta, kSparse };

struct QuantizationDefault {
  int bits = 0;  // 0: the configuration names none
  int group = 0;

  bool operator==(const QuantizationDefault&) const = default;
};

struct ModelShape {
  int hidden = 0;
  int layers = 0;
  std::vector<LayerKind> layer_kinds;
  int vocabulary = 0;
  float norm_eps = 1e-6F;
  int max_position = 0;
  bool tie_embeddings = false;

  int heads = 0, kv_heads = 0, head_dim = 0;
  int rotary_dims = 0;
  double rope_theta = 0;
  int index_heads = 0, index_dim = 0, index_budget = 0, index_block = 0;

  int gdn_key_heads = 0, gdn_value_heads = 0, gdn_key_dim = 0, gdn_value_dim = 0, gdn_taps = 0;
  kernels::Gate gdn_output_gate = kernels::Gate::kSigmoid;

  int experts = 0, top_experts = 0, expert_width = 0, shared_width = 0;
  bool renormalize_experts = true;

  int streams = 0, low_rank = 0;

  std::vector<int> ple_layers;  // zero-indexed layer numbers, ascending, without repeats
  int ple_width = 0, ple_taps = 0, ngram_size = 0, heads_per_ngram = 0;
  int64_t ngram_vocab_base = 0;
  int ngram_row_multiple = 0;  // the table's rows are padded to a multiple of this
  int ngram_shards = 0;
  uint64_t seed = 1234;

  int bos_token = -1;  // -1: none
  int eos_token = -1;  // also the n-gram reset token
  int mtp_layers = 0;
  QuantizationDefault quantization;

  int wide() const { return streams * hidden; }
  int gdn_channels() const {
    return 2 * gdn_key_heads * gdn_key_dim + gdn_value_heads * gdn_value_dim;
  }
  int ngram_heads() const { return (ngram_size - 1) * heads_per_ngram; }
  int ngram_row_width() const { return ple_width / ngram_heads(); }
  int block_budget() const { return index_budget / index_block; }
  bool is_ple_layer(int layer) const;
  int sparse_layers() const;  // of the trunk
  int delta_layers() const;

  bool operator==(const ModelShape&) const = default;
};

// Errors name the key, the value and the constraint; the text is called "config.json" in them.
Result<ModelShape> parse_shape(std::string_view config_json);

// The shapes that `synth:` knows: "tiny" (spec 8), "nano" and "true"; `layers` keeps the first
// ones, 0 = all of them.
Result<ModelShape> synthetic_shape(std::string_view name, int layers);

}  // namespace flashlane::model
