// Launches of what looks at one row alone, beside the products (product.h): norms, gates, sums,
// routing, the best token. As in launch.h: device pointers, one stream, no waiting.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/product.h"

namespace flashlane::kernels::cuda {

inline constexpr int kMostTopExperts = 64;  // of a row
inline constexpr int kMostExperts = 1024;

// streams[row, c, :] = embeddings[row, :].
void launch_spread(cudaStream_t stream, float* streams, const float* embeddings, int rows,
                   int copies, int width);
// out[i, :] = rms norm of x[i, :] times gain[i % gains, :], each of `width`.
void launch_norms(cudaStream_t stream, float* out, const float* x, const float* gain,
                  int64_t vectors, int gains, int width, float eps);
// x = silu(x * factor).
void launch_scaled_silu(cudaStream_t stream, float* x, int64_t count, float factor);
// gate = silu(gate) * up.
void launch_gated(cudaStream_t stream, float* gate, const float* up, int64_t count);
// mixed[row, d] = mean over streams c of sigmoid(gates) * normed, both [rows, streams, hidden].
void launch_mix(cudaStream_t stream, float* mixed, const float* gates, const float* normed,
                int rows, int streams, int hidden);
// inject = 2 sigmoid(inject * factor).
void launch_inject(cudaStream_t stream, float* inject, int64_t count, float factor);
// streams[row, c, :] += inject[row, c] * y[row, :].
void launch_hyper_write(cudaStream_t stream, float* streams, const float* inject, const float* y,
                        int rows, int count, int hidden);
// out[row, c, :] += added[row, :].
void launch_add_to_streams(cudaStream_t stream, float* out, const float* added, int rows, int count,
                           int hidden);

// logits: [rows, experts]; the best `top` of each row, ties to the lower id, with their weights.
void launch_route(cudaStream_t stream, int32_t* ids, float* gates, const float* logits, int rows,
                  int experts, int top, bool renormalize);
// Of rows * top pairs: which belong to each expert. starts: [experts + 1], list: [rows * top].
void launch_expert_lists(cudaStream_t stream, int32_t* starts, int32_t* list, const int32_t* ids,
                         int pairs, int experts);
// out[row, :] = routed experts in ascending id, then sigmoid(shared_gate[row]) * shared[row, :].
void launch_sum_experts(cudaStream_t stream, float* out, const float* routed, const int32_t* ids,
                        const float* gates, const float* shared, const float* shared_gate, int rows,
                        int top, int hidden);

// tokens[row] = the index of the largest of logits[row, :], ties to the lower. scratch:
// kArgmaxFloats a row.
inline constexpr int kArgmaxParts = 32;
inline constexpr int kArgmaxFloats = 2 * kArgmaxParts;
void launch_argmax(cudaStream_t stream, int32_t* tokens, const float* logits, int rows,
                   int vocabulary, float* scratch);

}  // namespace flashlane::kernels::cuda
