// Weights: every tensor of the model found by name in a TensorSource, checked for dtype and shape,
// and laid out as the structs kernels take. Accepts official names and MLX conversions' names,
// stacked and split experts, plain and affine-quantised matrices, and both norm conventions. One
// tensor missing or misshapen is one line that names it. Immutable after load (model/prepare.h).
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "format/tensor_source.h"
#include "kernels/layers.h"
#include "kernels/ops.h"
#include "model/ngram.h"
#include "model/shape.h"
#include "tensor/buffer.h"

namespace flashlane::model {

struct DeltaWeights {
  kernels::Matrix in_qkv, in_z, in_b, in_a, out;
  kernels::GdnWeights step;
};

struct SparseWeights {
  kernels::Matrix query, key, value, index, out;  // query: [heads * 2 * head_dim, hidden]
  kernels::AttentionWeights attention;
};

struct PleLayer {
  kernels::Matrix key, value;  // [wide, ple_width], [hidden, ple_width]
  kernels::PleWeights inject;
  kernels::NgramTable table;
  NgramHash hash;
  bool rows_ahead = false;  // a large table in files, whose rows are asked for before they are read
};

struct LayerWeights {
  LayerKind kind = LayerKind::kDelta;
  kernels::HyperWeights attention_hyper;
  kernels::HyperWeights mlp_hyper;
  DeltaWeights delta;    // kDelta
  SparseWeights sparse;  // kSparse
  kernels::MoeWeights moe;
  int ple = -1;  // index into Weights::ple, or -1
};

struct MtpHead {
  kernels::MtpWeights fuse;
  LayerWeights layer;  // a sparse layer
  kernels::HyperWeights mixer;
};

enum class NormConvention { kCentred, kFolded };

struct Weights {
  ModelShape shape;
  kernels::Matrix embedding;  // [vocabulary, hidden]
  kernels::Matrix head;       // [vocabulary, hidden]
  std::vector<LayerWeights> layers;
  std::vector<PleLayer> ple;
  kernels::HyperWeights mixer;
  bool has_mtp = false;
  MtpHead mtp;
  NormConvention norms = NormConvention::kCentred;
  size_t stored_bytes = 0;  // of all matrices, the n-gram tables excluded
  size_t ngram_bytes = 0;   // of the n-gram tables, as stored
  std::string format;       // "bf16", "affine 6-bit group 64", for people

  // Owners of what the pointers above point to.
  std::shared_ptr<const format::TensorSource> source;
  std::deque<std::vector<float>> floats;
  Buffer device_floats;  // where a backend has its own memory: all of those, one behind the other
  std::deque<std::vector<kernels::Matrix>> shard_matrices;
  std::deque<std::vector<int64_t>> shard_starts;
  std::deque<std::vector<uint64_t>> shard_hashes;

  Weights() = default;
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;
};

// Finds and checks all tensors. Does not touch a backend, and reads vectors only: matrices are
// read (or made) when they are prepared.
Result<std::unique_ptr<Weights>> load_weights(const ModelShape& shape,
                                              std::shared_ptr<const format::TensorSource> source);

// Every matrix that projections and fused steps read: all but the embedding and the n-gram shards,
// which are looked up.
std::vector<kernels::Matrix*> kernel_matrices(Weights& weights);

// Those of one layer, the banks of experts among them; empty ones where it has none.
std::vector<const kernels::Matrix*> layer_matrices(const LayerWeights& layer);

// The rule of spec 2.3 over the means of the attention hyper-connections' norms; an error when the
// values fit neither convention.
Result<NormConvention> detect_norm_convention(std::span<const double> means,
                                              std::string_view where);

}  // namespace flashlane::model
