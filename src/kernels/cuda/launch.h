// Launches of the CUDA kernels: what cuda_ops.cc (host C++) and the .cu files share. Every pointer
// that a kernel follows is one that the GPU can; segments and states travel by value. All launches
// go to one stream and nothing here waits. A launch that the device refuses is found by whoever
// waits for the stream.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/layers.h"

namespace flashlane::kernels::cuda {

// Sequences of one forward.
inline constexpr int kMostSegments = 32;

struct Segments {
  int count = 0;
  Segment of[kMostSegments];
};

struct GdnStates {
  GdnState of[kMostSegments];
};
struct PleStates {
  PleState of[kMostSegments];
};
struct CacheView {
  KvPages pages;
  const int32_t* tables[kMostSegments] = {};  // on the device
};

inline constexpr int kMostGdnHeadDim = 256;

// Gated DeltaNet. scratch: gdn_scratch_floats. `rows` is the forward's row count.
int64_t gdn_scratch_floats(int rows, const GdnWeights& weights);
void launch_gdn_step(cudaStream_t stream, float* out, const float* qkv, const float* z,
                     const float* b, const float* a, Role role, int rows, const Segments& segments,
                     const GdnStates& states, const GdnWeights& weights, float* scratch);
void launch_settle_gdn(cudaStream_t stream, const GdnState& state, int pending_rows,
                       const GdnWeights& weights);

// The n-gram layer after its projections. `added` may be null. scratch: ple_scratch_floats.
int64_t ple_scratch_floats(int rows, const PleWeights& weights);
void launch_ple_inject(cudaStream_t stream, float* streams, float* added, const float* key,
                       const float* value, Role role, int rows, const Segments& segments,
                       const PleStates& states, const PleWeights& weights, float* scratch);
void launch_settle_ple(cudaStream_t stream, const PleState& state, int pending_rows,
                       const PleWeights& weights);

// Attention. most_blocks: of the longest sequence here, complete ones.
void launch_attention_prepare(cudaStream_t stream, float* query_gate, float* key,
                              const float* value, float* index, int rows, const Segments& segments,
                              const CacheView& cache, const AttentionWeights& weights);
// scratch: rows * most_blocks 32-bit words, used only where most_blocks > block_budget.
void launch_select_blocks(cudaStream_t stream, int32_t* blocks, int32_t* counts, int stride,
                          const float* index, int rows, int most_blocks, const Segments& segments,
                          const CacheView& cache, const AttentionWeights& weights,
                          uint32_t* scratch);
// scratch: sparse_attend_scratch_floats. Caches in bf16 lie at multiples of 16 bytes where head_dim
// is a multiple of 64, which model::StateLayout sees to.
int64_t sparse_attend_scratch_floats(int rows, const AttentionWeights& weights);
void launch_sparse_attend(cudaStream_t stream, float* out, const float* query_gate,
                          const int32_t* blocks, const int32_t* counts, int stride, int rows,
                          const Segments& segments, const CacheView& cache,
                          const AttentionWeights& weights, float* scratch);

}  // namespace flashlane::kernels::cuda
