// The arithmetic of Gated DeltaNet, each piece of it written once for all kernels, so that a row
// has the same bits in a prompt chunk, at any place of a decode window and replayed from its
// records. Every sum has an order that only the weights' shape chooses.
#pragma once

#include "kernels/cuda/device_code.cuh"

namespace flashlane::kernels::cuda {

// What the kernels of a step share.
struct GdnStep {
  GdnWeights weights;
  Segments segments;
  GdnStates states;
  int channels = 0;
  Role role = Role::kPrompt;
  int rows = 0;
  float* out = nullptr;
  const float *qkv = nullptr, *z = nullptr, *b = nullptr, *a = nullptr;
  // Only where a step takes several launches:
  float* mixed = nullptr;   // [rows, channels]: convolved; queries and keys normalised
  float* decays = nullptr;  // [rows, value_heads]: exp(g)
  float* betas = nullptr;   // [rows, value_heads]
  float* copies = nullptr;  // a recurrent state per segment; the fast recurrence needs none
};

// recurrent_decode.cu: a decode step in one launch. False where it can't be, and nothing was done.
bool launch_gdn_decode(cudaStream_t stream, const GdnStep& step);

__device__ inline int lane_index() {
  return static_cast<int>(threadIdx.x) % kWarp;
}
__device__ inline int warp_index() {
  return static_cast<int>(threadIdx.x) / kWarp;
}

// A channel's convolution, of weight(j) with input(j) for each tap j. kTaps 0: any.
template <int kTaps, typename Weight, typename Input>
__device__ __forceinline__ float convolved(int taps, Weight weight, Input input) {
  const int count = kTaps > 0 ? kTaps : taps;
  float sum = 0;
#pragma unroll 4
  for (int j = 0; j < count; ++j) sum = fmaf(weight(j), input(j), sum);
  return sum;
}

enum class HeadKind : uint8_t { kQuery, kKey, kValue };

// What follows the convolution of a head, by a warp: lane l has elements l, l + 32, … of the
// `count` that there are. Silu in place; returns the factor that each is yet to be multiplied with.
template <int kOfLane>
__device__ __forceinline__ float activate(float (&own)[kOfLane], int count, HeadKind kind) {
  float squares = 0;
#pragma unroll
  for (int t = 0; t < kOfLane; ++t) {
    own[t] = lane_index() + t * kWarp < count ? silu_f32(own[t]) : 0;
    squares = fmaf(own[t], own[t], squares);
  }
  if (kind == HeadKind::kValue) return 1.0F;
  const float scale = kind == HeadKind::kQuery ? 1.0F / sqrtf(static_cast<float>(count)) : 1.0F;
  return scale / sqrtf(warp_sum(squares) + 1e-6F);
}

// exp(g) of a row and value head.
__device__ inline float decay_of(float a, float a_log, float dt_bias) {
  const float rate = -exp_f32(a_log) * softplus(a + dt_bias);
  return exp_f32(rate);
}

// The state's update, of live rows and of replayed ones.
__device__ inline float advanced(float state, float decay, float key, float delta) {
  return fmaf(key, delta, state * decay);
}
// `product`: the key with the state before it decays.
__device__ inline float delta_of(float value, float beta, float decay, float product) {
  return beta * (value - decay * product);
}

__device__ inline float gate_of(float z, Gate kind) {
  return kind == Gate::kSigmoid ? sigmoid_f32(z) : silu_f32(z);
}
// `scale`: warp_rms_scale of the head's read-outs.
__device__ inline float finished(float read_out, float scale, float gain, float gate) {
  return read_out * scale * gain * gate;
}

// The fast recurrence, where key_dim = value_dim = 128. A warp has eight columns of a head's state
// in registers: four lanes share a column, each with every fourth four keys, so that a warp reads
// shared memory without conflicts.
inline constexpr int kDim = 128;
inline constexpr int kParts = 4;
inline constexpr int kColumns = 8;  // of a warp
static_assert(kParts * kColumns == kWarp);

inline bool has_fast_shape(const GdnWeights& w) {
  return w.key_dim == kDim && w.value_dim == kDim;
}

// Rows of a block with kBlockColumns columns of a head: what pending ones have of it, and live
// ones.
template <int kRows, int kBlockColumns>
struct alignas(16) PendingTile {
  float keys[kRows][kDim];
  float values[kRows][kBlockColumns];  // of pending rows: their deltas
  float decays[kRows];
};
template <int kRows, int kBlockColumns>
struct Tile : PendingTile<kRows, kBlockColumns> {
  float queries[kRows][kDim];
  float betas[kRows];
};
// What the rows of a tile give, of one warp. Parts of a read-out are added after the last row, so
// that no row waits for the lanes to meet.
template <int kRows>
struct Results {
  float parts[kRows][kParts][kColumns];
  float deltas[kRows][kColumns];

  __device__ float read_out(int r, int column) const {
    const auto& of_row = parts[r];
    return (of_row[0][column] + of_row[1][column]) + (of_row[2][column] + of_row[3][column]);
  }
};

using Part = float[kDim / kParts];  // a lane's part of a column, a key or a query

__device__ inline int part_index() {
  return lane_index() / kColumns;
}
// Element e of a part is key key_of(e).
__device__ inline int key_of(int e) {
  return (e / 4 * kParts + part_index()) * 4 + e % 4;
}

__device__ __forceinline__ void load_part(Part& part, const float* x) {
#pragma unroll
  for (int e = 0; e < kDim / kParts; e += 4) {
    const float4 four = *reinterpret_cast<const float4*>(x + key_of(e));
    part[e] = four.x, part[e + 1] = four.y, part[e + 2] = four.z, part[e + 3] = four.w;
  }
}

__device__ __forceinline__ float part_product(const Part& x, const Part& y) {
  float sum[4] = {};
#pragma unroll
  for (int e = 0; e < kDim / kParts; ++e) sum[e % 4] = fmaf(x[e], y[e], sum[e % 4]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

__device__ __forceinline__ void advance_part(Part& state, float decay, const Part& key,
                                             float delta) {
#pragma unroll
  for (int e = 0; e < kDim / kParts; ++e) state[e] = advanced(state[e], decay, key[e], delta);
}

// Both: `memory` is the lane's column of the state.
__device__ __forceinline__ void load_state(Part& state, const float* memory) {
#pragma unroll
  for (int e = 0; e < kDim / kParts; ++e) state[e] = memory[key_of(e) * kDim];
}
__device__ __forceinline__ void store_state(float* memory, const Part& state) {
#pragma unroll
  for (int e = 0; e < kDim / kParts; ++e) memory[key_of(e) * kDim] = state[e];
}

// The first `count` rows of a tile, by one warp.
template <int kRows, int kBlockColumns>
__device__ __forceinline__ void replay_rows(Part& state,
                                            const PendingTile<kRows, kBlockColumns>& tile,
                                            int count) {
  const int column = warp_index() * kColumns + lane_index() % kColumns;
#pragma unroll 1
  for (int r = 0; r < count; ++r) {
    Part key;
    load_part(key, tile.keys[r]);
    advance_part(state, tile.decays[r], key, tile.values[r][column]);
  }
}

// Rows [first, last) of a tile, by one warp.
template <int kRows, int kBlockColumns>
__device__ __forceinline__ void run_rows(Part& state, Results<kRows>& results,
                                         const Tile<kRows, kBlockColumns>& tile, int first,
                                         int last) {
  constexpr int kAtOnce = kRows > 4 ? 2 : 1;  // code that few rows pass once costs its fetching
  const int column = lane_index() % kColumns;
#pragma unroll kAtOnce
  for (int r = first; r < last; ++r) {
    Part key, query;
    load_part(key, tile.keys[r]);
    load_part(query, tile.queries[r]);
    float product = part_product(state, key);
    product += __shfl_xor_sync(kAllLanes, product, 2 * kColumns);
    product += __shfl_xor_sync(kAllLanes, product, kColumns);
    const float delta = delta_of(tile.values[r][warp_index() * kColumns + column], tile.betas[r],
                                 tile.decays[r], product);
    advance_part(state, tile.decays[r], key, delta);
    results.parts[r][part_index()][column] = part_product(state, query);
    if (part_index() == 0) results.deltas[r][column] = delta;
  }
}

}  // namespace flashlane::kernels::cuda
