// The weights and sizes of each fused step, as kernels take them: made once at load by
// model::Weights, which owns all the bytes they point to. Norm gains are the factors that multiply
// the normalised vector (1 + stored weight for centred norms), in f32, whatever the file stores.
#pragma once

#include <cstdint>

#include "kernels/matrix.h"

namespace flashlane::kernels {

enum class Gate : uint8_t { kSigmoid, kSilu };

// Hyper-connection read (spec 3.3). wide = streams * hidden.
struct HyperWeights {
  int streams = 0;
  int hidden = 0;
  int low_rank = 0;
  float eps = 0;
  const float* gain = nullptr;  // [wide]
  Matrix down;                  // [low_rank, wide]
  Matrix up;                    // [wide, low_rank]
  Matrix inject;                // [streams, wide]; empty in the final mixers
};

// Gated DeltaNet after its input projections (spec 3.5). channels = 2*key_heads*key_dim +
// value_heads*value_dim.
struct GdnWeights {
  int key_heads = 0;
  int value_heads = 0;
  int key_dim = 0;
  int value_dim = 0;
  int taps = 0;
  float eps = 0;
  Gate output_gate = Gate::kSigmoid;
  const float* conv = nullptr;       // [channels, taps]; the last tap is the current token
  const float* a_log = nullptr;      // [value_heads]
  const float* dt_bias = nullptr;    // [value_heads]
  const float* norm_gain = nullptr;  // [value_dim]

  int channels() const { return 2 * key_heads * key_dim + value_heads * value_dim; }
};

// Sparse attention after its projections (spec 3.6 to 3.8).
struct AttentionWeights {
  int heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int rotary_dims = 0;  // of attention heads and of indexer heads
  int index_heads = 0;
  int index_dim = 0;
  int block_tokens = 0;  // tokens pooled into one block
  int block_budget = 0;  // most complete blocks a query attends to
  float eps = 0;
  const float* query_gain = nullptr;         // [head_dim]
  const float* key_gain = nullptr;           // [head_dim]
  const float* index_query_gain = nullptr;   // [index_dim]
  const float* index_key_gain = nullptr;     // [index_dim]
  const float* inverse_frequency = nullptr;  // [rotary_dims / 2], f32
};

// Routed experts and the gated shared expert (spec 3.9).
struct MoeWeights {
  int hidden = 0;
  int experts = 0;
  int top_experts = 0;
  int width = 0;
  int shared_width = 0;
  bool renormalize = true;
  Matrix router;                  // [experts, hidden]
  Matrix gate, up;                // banks [experts][width, hidden]
  Matrix down;                    // bank [experts][hidden, width]
  Matrix shared_gate, shared_up;  // [shared_width, hidden]
  Matrix shared_down;             // [hidden, shared_width]
  Matrix shared_router;           // [1, hidden]
};

// The n-gram layer after its projections (spec 3.4).
struct PleWeights {
  int streams = 0;
  int hidden = 0;
  int taps = 0;
  int dilation = 0;
  float eps = 0;
  const float* key_gain = nullptr;    // [streams * hidden]
  const float* query_gain = nullptr;  // [streams * hidden]
  const float* conv_gain = nullptr;   // [streams * hidden]
  const float* conv = nullptr;        // [streams * hidden, taps]; the last tap is the current token

  int history() const { return (taps - 1) * dilation; }
};

// The n-gram table: row-wise shards, stored or computed (synthetic models: element i of shard s is
// round_bf16(scale * r_i), r_i from splitmix64(shard hash + i); spec 8.1). A computed table with
// bits != 0 passes each row through the affine quantiser, so that it equals the same table stored.
struct NgramTable {
  int row_width = 0;
  int heads = 0;
  const Matrix* shards = nullptr;         // [shard_count]; empty matrices when computed
  const int64_t* shard_starts = nullptr;  // [shard_count + 1]: first row of each shard
  int shard_count = 0;
  bool computed = false;
  const uint64_t* shard_hashes = nullptr;  // [shard_count], computed only
  int bits = 0;                            // computed only: 0 = bf16 values
  int group = 0;
};

// The MTP head's input (spec 4.1).
struct MtpWeights {
  int streams = 0;
  int hidden = 0;
  float eps = 0;
  const float* embedding_gain = nullptr;  // [hidden]
  const float* hidden_gain = nullptr;     // [streams * hidden], one norm over all
  Matrix embedding_projection;            // [hidden, hidden]
  Matrix hidden_projection;               // [hidden, hidden]
};

}  // namespace flashlane::kernels
