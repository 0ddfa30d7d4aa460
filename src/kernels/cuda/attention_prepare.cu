// Norms, rotation and cache writes of an attention layer on the GPU. A warp has one vector; what it
// needs beside that vector's values (gains, sines and cosines, its place in the cache) is there
// before earlier kernels are waited for.
#include "kernels/cuda/attention.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kPrepareWarps = 4;  // of a thread block, where shared memory allows

// What one warp takes: a query, key, value, index query, raw index key, or the pooled key of the
// block that the row completes.
struct Vector {
  const float* from = nullptr;  // none: a pooled key, which is made here
  float* to = nullptr;          // where it is wanted beside the cache
  const float* gain = nullptr;  // none: it is neither normed nor rotated
  int dims = 0;                 // none: the warp has nothing to do
  int position = 0;             // that it turns by
  std::byte* cached = nullptr;
};

// A warp's shared memory: the vector, its gains, the sines and cosines of its rotation.
struct Room {
  float* x;
  float* gain;
  float* sine;
  float* cosine;
  static __host__ __device__ int longest(const AttentionWeights& w) {
    return w.head_dim > w.index_dim ? w.head_dim : w.index_dim;
  }
  static __host__ __device__ int floats(const AttentionWeights& w) {
    return 2 * longest(w) + w.rotary_dims;
  }
  __device__ Room(float* first, const AttentionWeights& w)
      : x(first), gain(x + longest(w)), sine(gain + longest(w)), cosine(sine + w.rotary_dims / 2) {}
};

struct Buffers {
  float* query_gate;
  float* key;
  const float* value;
  float* index;
};

// The h-th vector of a row.
__device__ Vector vector_of(int h, int64_t row, const Forward::Place& place, const Buffers& buffers,
                            const Forward& forward) {
  const AttentionWeights& w = forward.w;
  const KvPages& pages = forward.cache.pages;
  const auto cached = [&](size_t offset, int plane, int dims) {
    return cached_row(pages, place.table, offset, plane, place.position, dims);
  };
  Vector own;
  own.dims = w.head_dim;
  own.position = place.position;
  if (h < w.heads) {
    own.from = own.to = buffers.query_gate + (row * w.heads + h) * 2 * w.head_dim;
    own.gain = w.query_gain;
    return own;
  }
  h -= w.heads;
  if (h < 2 * w.kv_heads) {
    const bool is_key = h < w.kv_heads;
    const int plane = is_key ? h : h - w.kv_heads;
    const int64_t at = (row * w.kv_heads + plane) * w.head_dim;
    own.from = is_key ? buffers.key + at : buffers.value + at;
    own.to = is_key ? buffers.key + at : nullptr;
    own.gain = is_key ? w.key_gain : nullptr;
    own.cached = cached(is_key ? pages.key_offset : pages.value_offset, plane, w.head_dim);
    return own;
  }
  h -= 2 * w.kv_heads;
  own.dims = w.index_dim;
  if (h <= w.index_heads) {
    const bool is_query = h < w.index_heads;
    float* x = buffers.index + (row * (w.index_heads + 1) + h) * w.index_dim;
    own.from = x;
    own.to = is_query ? x : nullptr;
    own.gain = is_query ? w.index_query_gain : nullptr;
    own.cached = is_query ? nullptr : cached(pages.index_offset, 0, w.index_dim);
    return own;
  }
  if (h > w.index_heads + 1 || (place.position + 1) % w.block_tokens != 0) return Vector();
  own.gain = w.index_key_gain;
  own.position = place.position + 1 - w.block_tokens;  // its block's first
  own.cached = cached_pooled_row(pages, place.table, own.position / w.block_tokens, w.block_tokens,
                                 w.index_dim);
  return own;
}

// The mean of the raw index keys of a block that the row completes, by one warp. They are taken as
// the cache has them; those of this forward's rows are only now on their way there, so they are
// rounded here. Many are loaded before the first is added, and they are added in their order.
__device__ void pool_keys(float* mean, const std::byte* raw, const float* index, int64_t row,
                          const Forward::Place& place, const Forward& forward) {
  constexpr int kTokens = 4, kDims = 4;  // loaded at once, by a lane
  const AttentionWeights& w = forward.w;
  const bool is_f32 = forward.cache.pages.dtype == DType::kF32;
  // Tokens of the block that the cache has; the row of this forward that would be the block's
  // first.
  const int cached = place.start_position - (place.position + 1 - w.block_tokens);
  const int64_t first_row = row + 1 - w.block_tokens;
  for (int d = Thread::lane(); d < w.index_dim; d += kDims * kWarp) {
    float sums[kDims] = {};
    for (int first = 0; first < w.block_tokens; first += kTokens) {
      uint32_t bits[kTokens][kDims] = {};
#pragma unroll
      for (int t = 0; t < kTokens; ++t) {
        const int token = first + t;
        if (token >= w.block_tokens) break;
        const bool is_cached = token < cached;
        const auto* narrow = reinterpret_cast<const uint16_t*>(raw) + token * w.index_dim + d;
        const float* wide = reinterpret_cast<const float*>(raw) + token * w.index_dim + d;
        if (!is_cached) {
          const int64_t from = (first_row + token) * (w.index_heads + 1) + w.index_heads;
          wide = index + from * w.index_dim + d;
        }
#pragma unroll
        for (int n = 0; n < kDims; ++n) {
          if (d + n * kWarp >= w.index_dim) break;
          bits[t][n] = is_cached && !is_f32 ? uint32_t{narrow[n * kWarp]} << 16
                                            : __float_as_uint(wide[n * kWarp]);
        }
      }
#pragma unroll
      for (int i = 0; i < kTokens * kDims; ++i) {
        if (first + i / kDims >= w.block_tokens) break;
        const float value = __uint_as_float(bits[i / kDims][i % kDims]);
        // What the cache has in bf16 stays what it is.
        sums[i % kDims] += is_f32 ? value : __bfloat162float(__float2bfloat16_rn(value));
      }
    }
#pragma unroll
    for (int n = 0; n < kDims; ++n) {
      const int at = d + n * kWarp;
      if (at < w.index_dim) mean[at] = sums[n] / static_cast<float>(w.block_tokens);
    }
  }
}

// From the room to where it is wanted; the lanes have written what stands there each for itself.
__device__ void finish(const Room& room, const Vector& own, const AttentionWeights& w,
                       DType dtype) {
  const bool normed = own.gain != nullptr;
  const float scale = normed ? warp_rms_scale(room.x, own.dims, w.eps) : 1.0F;
  __syncwarp();
  const int half = w.rotary_dims / 2;
#pragma unroll 4
  for (int i = Thread::lane(); i < own.dims; i += kWarp) {
    float value = room.x[i];
    if (normed) value = value * scale * room.gain[i];
    if (normed && i < 2 * half) {
      const bool is_first = i < half;
      const int pair = is_first ? i : i - half;
      const int other = is_first ? i + half : pair;
      const float turned = room.x[other] * scale * room.gain[other] * room.sine[pair];
      value *= room.cosine[pair];
      value = is_first ? value - turned : value + turned;
    }
    if (own.to != nullptr) own.to[i] = value;
    if (own.cached != nullptr) store_cached(own.cached, dtype, i, value);
  }
}

__device__ void start_copies(float* to, const float* from, int dims) {
#pragma unroll 4
  for (int i = Thread::lane(); i < dims; i += kWarp) start_copy<4>(to + i, from + i);
}

__global__ void __launch_bounds__(kPrepareWarps* kWarp)
    prepare_kernel(Buffers buffers, const __grid_constant__ Forward forward) {
  extern __shared__ float rooms[];
  let_later_start();
  const AttentionWeights& w = forward.w;
  const KvPages& pages = forward.cache.pages;
  const int64_t row = blockIdx.x;
  const Forward::Place place = forward.place(blockIdx.x);
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const Vector own = vector_of(static_cast<int>(blockIdx.y) * warps + Thread::warp(), row, place,
                               buffers, forward);
  const Room room(rooms + Thread::warp() * Room::floats(w), w);
  if (own.gain != nullptr) {
    start_copies(room.gain, own.gain, own.dims);
#pragma unroll 1
    for (int pair = Thread::lane(); pair < w.rotary_dims / 2; pair += kWarp) {
      rotation(own.position, w.inverse_frequency[pair], &room.sine[pair], &room.cosine[pair]);
    }
  }
  // A block lies in one page, so its rows are neighbours.
  const std::byte* raw = nullptr;
  const bool is_pooled = own.from == nullptr && own.dims > 0;
  if (is_pooled) {
    raw = cached_row(pages, place.table, pages.index_offset, 0, own.position, w.index_dim);
    if (Thread::lane() < w.block_tokens) {
      const int bytes = w.index_dim * static_cast<int>(cached_bytes(pages.dtype));
      ask_for(raw + Thread::lane() * bytes, bytes);
    }
  }
  wait_for_earlier();
  if (is_pooled) {
    pool_keys(room.x, raw, buffers.index, row, place, forward);
  } else {
    start_copies(room.x, own.from, own.dims);
  }
  await_copies();
  finish(room, own, w, pages.dtype);
}

}  // namespace

void launch_attention_prepare(cudaStream_t stream, float* query_gate, float* key,
                              const float* value, float* index, int rows, const Segments& segments,
                              const CacheView& cache, const AttentionWeights& weights) {
  if (rows == 0) return;
  const Forward forward = {segments, cache, weights};
  const int vectors = weights.heads + 2 * weights.kv_heads + weights.index_heads + 2;
  constexpr size_t kMostShared = 48 << 10;  // that every kernel may have
  const size_t room = sizeof(float) * Room::floats(weights);
  const int warps = std::clamp(static_cast<int>(kMostShared / room), 1, kPrepareWarps);
  const dim3 grid(rows, div_ceil(vectors, warps));
  launch_sized(stream, prepare_kernel, grid, warps * kWarp, room * warps,
               Buffers{query_gate, key, value, index}, forward);
}

}  // namespace flashlane::kernels::cuda
