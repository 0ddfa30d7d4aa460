// Elementwise steps, norms, routing, the best token. A thread, a warp or a block has one value or
// vector of one row to itself, so nothing depends on the rows beside it.
#include "kernels/cuda/dense.h"

#include <initializer_list>
#include <type_traits>

#include "base/int_math.h"
#include "kernels/cuda/device_code.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kFour = 4;
constexpr int kPartThreads = 128;  // of kernels with Values

unsigned blocks_for(int64_t count, int64_t per_block) {
  return static_cast<unsigned>(div_ceil(count, per_block));
}

__device__ int64_t thread_index() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__global__ void spread_kernel(float* streams, const float* embeddings, int64_t count, int copies,
                              int width) {
  let_later_start();
  wait_for_earlier();
  const int64_t i = thread_index();
  if (i >= count) return;
  const int64_t row = i / width / copies;
  streams[i] = embeddings[row * width + i % width];
}

// A block a vector.
__global__ void norms_kernel(float* out, const float* x, const float* gain, int gains, int width,
                             float eps) {
  __shared__ alignas(16) float squares[kNormWarps];
  let_later_start();
  wait_for_earlier();
  const int64_t i = blockIdx.x;
  const float* own = x + i * width;
  const float* factors = gain + i % gains * width;
  const float of_warp = squares_of_warp(own, width);
  if (threadIdx.x % kWarp == 0) squares[threadIdx.x / kWarp] = of_warp;
  __syncthreads();
  const float scale = rms_scale(squares, width, eps);
  for (int d = static_cast<int>(threadIdx.x); d < width; d += kNormThreads) {
    out[i * width + d] = own[d] * scale * factors[d];
  }
}

__global__ void scaled_silu_kernel(float* x, int64_t count, float factor) {
  let_later_start();
  wait_for_earlier();
  const int64_t i = thread_index();
  if (i < count) x[i] = silu_f32(x[i] * factor);
}

__global__ void gated_kernel(float* gate, const float* up, int64_t count) {
  let_later_start();
  wait_for_earlier();
  const int64_t i = thread_index();
  if (i < count) gate[i] = silu_f32(gate[i]) * up[i];
}

// Neighbouring values of a vector that a thread has at once: kFour where they can be read so.
template <int kEach>
struct Values {
  float of[kEach];

  __device__ static __forceinline__ Values load(const float* from) {
    Values values;
    if constexpr (kEach == kFour) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      values.of[0] = v.x, values.of[1] = v.y, values.of[2] = v.z, values.of[3] = v.w;
    } else {
      values.of[0] = *from;
    }
    return values;
  }
  __device__ __forceinline__ void store(float* to) const {
    if constexpr (kEach == kFour) {
      *reinterpret_cast<float4*>(to) = {of[0], of[1], of[2], of[3]};
    } else {
      *to = of[0];
    }
  }
};

// Grid of the kernels with Values: vectors (rows, or rows' streams), parts of hidden.
template <int kEach>
__device__ int first_of_thread() {
  return static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x) * kEach;
}

template <int kEach>
__global__ void mix_kernel(float* mixed, const float* gates, const float* normed, int streams,
                           int hidden) {
  let_later_start();
  wait_for_earlier();
  const int d = first_of_thread<kEach>();
  if (d >= hidden) return;
  const int64_t row = blockIdx.x;
  Values<kEach> sum = {};
#pragma unroll 4
  for (int c = 0; c < streams; ++c) {
    const int64_t at = (row * streams + c) * hidden + d;
    const auto gate = Values<kEach>::load(gates + at);
    const auto value = Values<kEach>::load(normed + at);
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum.of[i] += sigmoid_f32(gate.of[i]) * value.of[i];
  }
#pragma unroll
  for (float& own : sum.of) own *= 1.0F / static_cast<float>(streams);
  sum.store(mixed + row * hidden + d);
}

__global__ void inject_kernel(float* inject, int64_t count, float factor) {
  let_later_start();
  wait_for_earlier();
  const int64_t i = thread_index();
  if (i < count) inject[i] = 2.0F * sigmoid_f32(inject[i] * factor);
}

template <int kEach>
__global__ void hyper_write_kernel(float* streams, const float* inject, const float* y,
                                   int stream_count, int hidden) {
  let_later_start();
  wait_for_earlier();
  const int d = first_of_thread<kEach>();
  if (d >= hidden) return;
  const int64_t stream = blockIdx.x;
  const float share = inject[stream];
  const auto added = Values<kEach>::load(y + stream / stream_count * hidden + d);
  auto own = Values<kEach>::load(streams + stream * hidden + d);
#pragma unroll
  for (int i = 0; i < kEach; ++i) own.of[i] += share * added.of[i];
  own.store(streams + stream * hidden + d);
}

__global__ void add_to_streams_kernel(float* out, const float* added, int64_t count,
                                      int stream_count, int hidden) {
  let_later_start();
  wait_for_earlier();
  const int64_t i = thread_index();
  if (i < count) out[i] += added[i / hidden / stream_count * hidden + i % hidden];
}

// Keys have the order of the floats; NaN goes where -inf is, and 0 is less than all.
__device__ uint32_t key_of(float value) {
  const uint32_t bits = __float_as_uint(isnan(value) ? -INFINITY : value + 0.0F);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffU : 0x80000000U);
}
__device__ float value_of(uint32_t key) {
  return __uint_as_float(key ^ ((key >> 31) != 0 ? 0x80000000U : 0xffffffffU));
}

// A warp a row; a lane holds the keys of up to kHeld experts, and loses each that was chosen.
template <int kHeld>
__global__ void route_kernel(int32_t* ids, float* gates, const float* logits, int rows, int experts,
                             int top, bool renormalize) {
  let_later_start();
  wait_for_earlier();
  const int row = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / kWarp;
  if (row >= rows) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const float* own = logits + int64_t{row} * experts;
  uint32_t keys[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i) {
    const int e = lane + i * kWarp;
    keys[i] = e < experts ? key_of(own[e]) : 0U;
  }
  float highest = 0;
  float total = 0;
  for (int k = 0; k < top; ++k) {
    uint32_t best = 0;
    int index = experts;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (keys[i] > best) best = keys[i], index = lane + i * kWarp;
    }
    const uint32_t key = __reduce_max_sync(kAllLanes, best);
    const int id = __reduce_min_sync(kAllLanes, best == key ? index : experts);
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      if (lane + i * kWarp == id) keys[i] = 0;
    }
    const float value = value_of(key);
    if (k == 0) highest = value;
    const float weight = exp_f32(value - highest);
    total += weight;
    if (lane == 0) ids[int64_t{row} * top + k] = id, gates[int64_t{row} * top + k] = weight;
  }
  if (!renormalize) {
    total = 0;
    for (int e = lane; e < experts; e += kWarp) total += exp_f32(own[e] - highest);
    total = warp_sum(total);
  }
  __syncwarp();
  for (int k = lane; k < top; k += kWarp) gates[int64_t{row} * top + k] /= total;
}

// A block an expert: how many pairs go to those before it, and which are its own, ascending.
__global__ void expert_lists_kernel(int32_t* starts, int32_t* list, const int32_t* ids, int pairs,
                                    int experts) {
  __shared__ int counts[2][kWarps];
  let_later_start();
  wait_for_earlier();
  const int expert = static_cast<int>(blockIdx.x);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  // A warp has neighbouring pairs.
  const int share = div_ceil(pairs, kThreads) * kWarp;
  const int begin = min(warp * share, pairs);
  const int end = min(begin + share, pairs);
  int before = 0;
  int own = 0;
  for (int p = begin + lane; p < end; p += kWarp) {
    before += ids[p] < expert ? 1 : 0;
    own += ids[p] == expert ? 1 : 0;
  }
  before = __reduce_add_sync(kAllLanes, before);
  own = __reduce_add_sync(kAllLanes, own);
  if (lane == 0) counts[0][warp] = before, counts[1][warp] = own;
  __syncthreads();
  int at = 0;
  int all = 0;
  for (int w = 0; w < kWarps; ++w) {
    at += counts[0][w] + (w < warp ? counts[1][w] : 0);
    all += counts[0][w];
  }
  if (threadIdx.x == 0) {
    starts[expert] = all;
    if (expert == 0) starts[experts] = pairs;
  }
  for (int first = begin; first < end; first += kWarp) {
    const int p = first + lane;
    const bool mine = p < end && ids[p] == expert;
    const unsigned who = __ballot_sync(kAllLanes, mine);
    if (mine) list[at + __popc(who & ((1U << lane) - 1U))] = p;
    at += __popc(who);
  }
}

// A row's pairs in ascending id.
template <int kEach>
__global__ void sum_experts_kernel(float* out, const float* routed, const int32_t* ids,
                                   const float* gates, const float* shared,
                                   const float* shared_gate, int top, int hidden) {
  let_later_start();
  wait_for_earlier();
  __shared__ int order[kMostTopExperts];
  const int64_t row = blockIdx.x;
  const int32_t* own = ids + row * top;
  for (int k = static_cast<int>(threadIdx.x); k < top; k += static_cast<int>(blockDim.x)) {
    int before = 0;
    for (int j = 0; j < top; ++j) before += own[j] < own[k] ? 1 : 0;
    order[before] = k;
  }
  __syncthreads();
  const float gate = sigmoid_f32(shared_gate[row]);
  const int d = first_of_thread<kEach>();
  if (d >= hidden) return;
  Values<kEach> sum = {};
#pragma unroll 5
  for (int k = 0; k < top; ++k) {
    const int64_t pair = row * top + order[k];
    const float share = gates[pair];
    const auto value = Values<kEach>::load(routed + pair * hidden + d);
#pragma unroll
    for (int i = 0; i < kEach; ++i) sum.of[i] += share * value.of[i];
  }
  const auto value = Values<kEach>::load(shared + row * hidden + d);
#pragma unroll
  for (int i = 0; i < kEach; ++i) sum.of[i] = sum.of[i] + gate * value.of[i];
  sum.store(out + row * hidden + d);
}

// Whether (value, index) goes before: larger first, then the lower index.
__device__ bool goes_before(float value, int index, float other, int other_index) {
  return value > other || (value == other && index < other_index);
}

struct Best {
  float value;
  int index;
};

// The first of all lanes' candidates, for every lane.
__device__ Best warp_first(Best own) {
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Best other = {__shfl_xor_sync(kAllLanes, own.value, step),
                        __shfl_xor_sync(kAllLanes, own.index, step)};
    if (goes_before(other.value, other.index, own.value, own.index)) own = other;
  }
  return own;
}

// Grid: rows, parts of the vocabulary. NaN is never the largest.
__global__ void best_of_parts_kernel(Best* parts, const float* logits, int vocabulary) {
  __shared__ Best bests[kWarps];
  let_later_start();
  wait_for_earlier();
  const float* own = logits + int64_t{blockIdx.x} * vocabulary;
  const int share = div_ceil(vocabulary, kArgmaxParts);
  const int begin = static_cast<int>(blockIdx.y) * share;
  Best best = {-INFINITY, vocabulary};
#pragma unroll 4
  for (int i = begin + static_cast<int>(threadIdx.x); i < min(begin + share, vocabulary);
       i += kThreads) {
    if (own[i] > best.value) best = {own[i], i};
  }
  best = warp_first(best);
  if (threadIdx.x % kWarp == 0) bests[threadIdx.x / kWarp] = best;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) {
    if (goes_before(bests[w].value, bests[w].index, best.value, best.index)) best = bests[w];
  }
  parts[blockIdx.x * kArgmaxParts + blockIdx.y] = best;
}

// A warp a row. Where nothing is the largest, the first token.
__global__ void argmax_kernel(int32_t* tokens, const Best* parts, int vocabulary) {
  let_later_start();
  wait_for_earlier();
  static_assert(kArgmaxParts == kWarp);
  const Best best = warp_first(parts[blockIdx.x * kArgmaxParts + threadIdx.x]);
  if (threadIdx.x == 0) tokens[blockIdx.x] = best.index < vocabulary ? best.index : 0;
}

// call(n), the Values of a thread as a constant, and the grid for `vectors`.
template <typename Call>
void with_values(int64_t vectors, int hidden, std::initializer_list<const float*> all,
                 const Call& call) {
  constexpr int64_t kManyVectors = 256;  // fewer leave threads idle: each has one value then
  const bool fours = vectors >= kManyVectors && hidden % kFour == 0 &&
                     std::all_of(all.begin(), all.end(), [](const float* x) {
                       return reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0;
                     });
  const auto grid = [&](int each) {
    return dim3(static_cast<unsigned>(vectors), blocks_for(hidden, int64_t{kPartThreads} * each));
  };
  if (fours) {
    call(std::integral_constant<int, kFour>(), grid(kFour));
  } else {
    call(std::integral_constant<int, 1>(), grid(1));
  }
}

}  // namespace

// Code of an older architecture that the driver compiled for this device doesn't wait.
bool launches_early() {
  static const bool known = [] {
    cudaFuncAttributes attributes = {};
    return device_attribute(cudaDevAttrComputeCapabilityMajor) >= 9 &&
           cudaFuncGetAttributes(&attributes, spread_kernel) == cudaSuccess &&
           attributes.ptxVersion >= 90;
  }();
  return known;
}

void launch_spread(cudaStream_t stream, float* streams, const float* embeddings, int rows,
                   int copies, int width) {
  const int64_t count = int64_t{rows} * copies * width;
  if (count == 0) return;
  launch_after(stream, spread_kernel, blocks_for(count, kThreads), kThreads, streams, embeddings,
               count, copies, width);
}

void launch_norms(cudaStream_t stream, float* out, const float* x, const float* gain,
                  int64_t vectors, int gains, int width, float eps) {
  if (vectors == 0) return;
  launch_after(stream, norms_kernel, static_cast<unsigned>(vectors), kNormThreads, out, x, gain,
               gains, width, eps);
}

void launch_scaled_silu(cudaStream_t stream, float* x, int64_t count, float factor) {
  if (count == 0) return;
  launch_after(stream, scaled_silu_kernel, blocks_for(count, kThreads), kThreads, x, count, factor);
}

void launch_gated(cudaStream_t stream, float* gate, const float* up, int64_t count) {
  if (count == 0) return;
  launch_after(stream, gated_kernel, blocks_for(count, kThreads), kThreads, gate, up, count);
}

void launch_mix(cudaStream_t stream, float* mixed, const float* gates, const float* normed,
                int rows, int streams, int hidden) {
  if (rows == 0) return;
  with_values(rows, hidden, {mixed, gates, normed}, [&](auto each, dim3 grid) {
    launch_after(stream, mix_kernel<each.value>, grid, kPartThreads, mixed, gates, normed, streams,
                 hidden);
  });
}

void launch_inject(cudaStream_t stream, float* inject, int64_t count, float factor) {
  if (count == 0) return;
  launch_after(stream, inject_kernel, blocks_for(count, kThreads), kThreads, inject, count, factor);
}

void launch_hyper_write(cudaStream_t stream, float* streams, const float* inject, const float* y,
                        int rows, int count, int hidden) {
  if (rows == 0) return;
  with_values(int64_t{rows} * count, hidden, {streams, y}, [&](auto each, dim3 grid) {
    launch_after(stream, hyper_write_kernel<each.value>, grid, kPartThreads, streams, inject, y,
                 count, hidden);
  });
}

void launch_add_to_streams(cudaStream_t stream, float* out, const float* added, int rows, int count,
                           int hidden) {
  const int64_t all = int64_t{rows} * count * hidden;
  if (all == 0) return;
  launch_after(stream, add_to_streams_kernel, blocks_for(all, kThreads), kThreads, out, added, all,
               count, hidden);
}

void launch_route(cudaStream_t stream, int32_t* ids, float* gates, const float* logits, int rows,
                  int experts, int top, bool renormalize) {
  if (rows == 0) return;
  constexpr int kFew = 16;
  static_assert(kMostExperts % kWarp == 0);
  const auto kernel =
      experts <= kFew * kWarp ? route_kernel<kFew> : route_kernel<kMostExperts / kWarp>;
  launch_after(stream, kernel, blocks_for(rows, kWarps), kThreads, ids, gates, logits, rows,
               experts, top, renormalize);
}

void launch_expert_lists(cudaStream_t stream, int32_t* starts, int32_t* list, const int32_t* ids,
                         int pairs, int experts) {
  launch_after(stream, expert_lists_kernel, static_cast<unsigned>(experts), kThreads, starts, list,
               ids, pairs, experts);
}

void launch_sum_experts(cudaStream_t stream, float* out, const float* routed, const int32_t* ids,
                        const float* gates, const float* shared, const float* shared_gate, int rows,
                        int top, int hidden) {
  if (rows == 0) return;
  with_values(rows, hidden, {out, routed, shared}, [&](auto each, dim3 grid) {
    launch_after(stream, sum_experts_kernel<each.value>, grid, kPartThreads, out, routed, ids,
                 gates, shared, shared_gate, top, hidden);
  });
}

void launch_argmax(cudaStream_t stream, int32_t* tokens, const float* logits, int rows,
                   int vocabulary, float* scratch) {
  if (rows == 0) return;
  static_assert(sizeof(Best) == kArgmaxFloats / kArgmaxParts * sizeof(float));
  auto* parts = reinterpret_cast<Best*>(scratch);
  launch_after(stream, best_of_parts_kernel, dim3(static_cast<unsigned>(rows), kArgmaxParts),
               kThreads, parts, logits, vocabulary);
  launch_after(stream, argmax_kernel, static_cast<unsigned>(rows), kWarp, tokens, parts,
               vocabulary);
}

}  // namespace flashlane::kernels::cuda
