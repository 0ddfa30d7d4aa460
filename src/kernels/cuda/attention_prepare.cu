// Norms, rotation and cache writes of an attention layer on the GPU.
#include "kernels/cuda/attention.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kPrepareWarps = 4;  // of a thread block

// A rotation's sine and cosine.
struct Turn {
  float sine = 0;
  float cosine = 0;
};
__device__ inline Turn turn_of(int position, int pair, const AttentionWeights& w) {
  Turn turn;
  if (pair < w.rotary_dims / 2) {
    rotation(position, w.inverse_frequency[pair], &turn.sine, &turn.cosine);
  }
  return turn;
}

// Norm and rotation in place, by one warp; `cached`, where there is one, receives them too. `turn`:
// of the lane's first pair, and nearly always its only one.
__device__ void norm_and_rotate(float* x, const float* gain, int dims, int position, Turn turn,
                                const AttentionWeights& w, std::byte* cached = nullptr,
                                DType dtype = DType::kF32) {
  const float scale = warp_rms_scale(x, dims, w.eps);
  const auto put = [&](int i, float value) {
    x[i] = value;
    if (cached != nullptr) store_cached(cached, dtype, i, value);
  };
  const int half = w.rotary_dims / 2;
  for (int i = Thread::lane(); i < half; i += kWarp) {
    if (i >= kWarp) turn = turn_of(position, i, w);
    const float first = x[i] * scale * gain[i];
    const float second = x[i + half] * scale * gain[i + half];
    put(i, first * turn.cosine - second * turn.sine);
    put(i + half, second * turn.cosine + first * turn.sine);
  }
  for (int i = 2 * half + Thread::lane(); i < dims; i += kWarp) put(i, x[i] * scale * gain[i]);
}

// The pooled key of the block that the row completes, by one warp. Raw keys are taken as the cache
// has them; those of this forward's rows are only now on their way there, so they are rounded here.
__device__ void pool_keys(const float* index, int row, const Turn& turn, float* mean,
                          const Forward& forward) {
  const AttentionWeights& w = forward.w;
  const KvPages& pages = forward.cache.pages;
  const Segment& own = forward.segments.of[segment_of(forward.segments, row)];
  const int32_t* table = forward.table(row);
  const int first = forward.position(row) + 1 - w.block_tokens;
  // A block lies in one page, so its rows are neighbours.
  const std::byte* raw = cached_row(pages, table, pages.index_offset, 0, first, w.index_dim);
  for (int d = Thread::lane(); d < w.index_dim; d += kWarp) {
    float sum = 0;
    for (int t = 0; t < w.block_tokens; ++t) {
      if (first + t < own.start_position) {
        sum += load_cached(raw, pages.dtype, t * w.index_dim + d);
        continue;
      }
      const int64_t from = own.first_row + first + t - own.start_position;
      const float value = index[(from * (w.index_heads + 1) + w.index_heads) * w.index_dim + d];
      sum += pages.dtype == DType::kF32 ? value : __bfloat162float(__float2bfloat16_rn(value));
    }
    mean[d] = sum / static_cast<float>(w.block_tokens);
  }
  __syncwarp();
  norm_and_rotate(
      mean, w.index_key_gain, w.index_dim, first, turn, w,
      cached_pooled_row(pages, table, first / w.block_tokens, w.block_tokens, w.index_dim),
      pages.dtype);
}

// One warp a vector: queries, keys with their values, index queries, the raw index key, the pooled
// key of a block.
__global__ void prepare_kernel(float* query_gate, float* key, const float* value, float* index,
                               const __grid_constant__ Forward forward) {
  extern __shared__ float mean[];  // of the one warp that pools
  const AttentionWeights& w = forward.w;
  const KvPages& pages = forward.cache.pages;
  const int64_t row = blockIdx.x;
  const int32_t* table = forward.table(blockIdx.x);
  const int position = forward.position(blockIdx.x);
  const auto cached = [&](size_t offset, int plane, int dims) {
    return cached_row(pages, table, offset, plane, position, dims);
  };
  const auto store = [&](std::byte* to, const float* x, int dims) {
    for (int i = Thread::lane(); i < dims; i += kWarp) store_cached(to, pages.dtype, i, x[i]);
  };
  int h = static_cast<int>(blockIdx.y) * kPrepareWarps + Thread::warp();
  // The turn needs nothing of earlier kernels: it is made while they finish. A pooled key turns by
  // its block's first position.
  const int pooled = w.heads + w.kv_heads + w.index_heads + 1;
  const Turn turn =
      turn_of(h < pooled ? position : position + 1 - w.block_tokens, Thread::lane(), w);
  let_later_start();
  wait_for_earlier();
  if (h < w.heads) {
    float* x = query_gate + (row * w.heads + h) * 2 * w.head_dim;
    norm_and_rotate(x, w.query_gain, w.head_dim, position, turn, w);
  } else if (h -= w.heads; h < w.kv_heads) {
    const int64_t at = (row * w.kv_heads + h) * w.head_dim;
    store(cached(pages.value_offset, h, w.head_dim), value + at, w.head_dim);
    norm_and_rotate(key + at, w.key_gain, w.head_dim, position, turn, w,
                    cached(pages.key_offset, h, w.head_dim), pages.dtype);
  } else if (h -= w.kv_heads; h <= w.index_heads) {
    float* x = index + (row * (w.index_heads + 1) + h) * w.index_dim;
    if (h < w.index_heads) {
      norm_and_rotate(x, w.index_query_gain, w.index_dim, position, turn, w);
    } else {
      store(cached(pages.index_offset, 0, w.index_dim), x, w.index_dim);
    }
  } else if (h == w.index_heads + 1 && (position + 1) % w.block_tokens == 0) {
    pool_keys(index, static_cast<int>(row), turn, mean, forward);
  }
}

}  // namespace

void launch_attention_prepare(cudaStream_t stream, float* query_gate, float* key,
                              const float* value, float* index, int rows, const Segments& segments,
                              const CacheView& cache, const AttentionWeights& weights) {
  if (rows == 0) return;
  const Forward forward = {segments, cache, weights};
  const int vectors = weights.heads + weights.kv_heads + weights.index_heads + 2;
  const dim3 grid(rows, div_ceil(vectors, kPrepareWarps));
  launch_sized(stream, prepare_kernel, grid, kPrepareWarps * kWarp,
               sizeof(float) * weights.index_dim, query_gate, key, value, index, forward);
}

}  // namespace flashlane::kernels::cuda
