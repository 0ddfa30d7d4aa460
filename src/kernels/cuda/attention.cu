// Sparse attention on the GPU: cache writes, block selection, attention over the row's own keys.
// Eight lanes take quads of a query-key product in turn and meet by halves. A row's visible keys
// (selected blocks ascending, then the tail) go to softmax steps and partial sums by their index in
// that list alone. What shares a thread block, load widths and pages decide no bit.
#include <cstddef>

#include "base/int_math.h"
#include "kernels/cuda/device_code.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kKeyLanes = 8;  // lanes that multiply a key
constexpr int kKeys = 2;      // keys that they multiply at once
// Queries that a thread block multiplies with each key that it reads: many spare loads, few leave
// work for more thread blocks.
constexpr int kFew = 4;
constexpr int kMany = 12;
constexpr int kMostRowsOfFew = 8;
constexpr int kSelectThreads = 1024;  // and bins of a digit of 10 bits
constexpr int kStep = 512;            // visible keys of one step of the softmax
constexpr int kPanel = 256;           // output dims of one thread block
constexpr int kParts = 4;  // partial sums of weighed values, each by its own lanes of a warp
constexpr int kPartLanes = kWarp / kParts;

constexpr int kQuad = 4;
struct alignas(16) Quad {
  float of[kQuad];
};
static_assert(kPanel * kParts == kThreads * kQuad);

// What all kernels here are given.
struct Forward {
  Segments segments;
  CacheView cache;
  AttentionWeights w;
  // Of a row's own sequence.
  __device__ const int32_t* table(int row) const { return cache.tables[segment_of(segments, row)]; }
  __device__ int position(int row) const {
    const Segment& own = segments.of[segment_of(segments, row)];
    return own.start_position + row - own.first_row;
  }
};

// Of this thread, in its block.
struct Thread {
  static __device__ int index() { return static_cast<int>(threadIdx.x); }
  static __device__ int lane() { return index() % kWarp; }
  static __device__ int warp() { return index() / kWarp; }
};

// Norm and rotation in place, by one warp; `cached`, where there is one, receives them too.
__device__ void norm_and_rotate(float* x, const float* gain, int dims, int position,
                                const AttentionWeights& w, std::byte* cached = nullptr,
                                DType dtype = DType::kF32) {
  const float scale = warp_rms_scale(x, dims, w.eps);
  const auto put = [&](int i, float value) {
    x[i] = value;
    if (cached != nullptr) store_cached(cached, dtype, i, value);
  };
  const int half = w.rotary_dims / 2;
  for (int i = Thread::lane(); i < half; i += kWarp) {
    float sine, cosine;
    rotation(position, w.inverse_frequency[i], &sine, &cosine);
    const float first = x[i] * scale * gain[i];
    const float second = x[i + half] * scale * gain[i + half];
    put(i, first * cosine - second * sine);
    put(i + half, second * cosine + first * sine);
  }
  for (int i = 2 * half + Thread::lane(); i < dims; i += kWarp) put(i, x[i] * scale * gain[i]);
}

// One warp a vector: queries, keys with their values, index queries, the raw index key.
__global__ void prepare_vectors_kernel(float* query_gate, float* key, const float* value,
                                       float* index, const __grid_constant__ Forward forward) {
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
  int h = static_cast<int>(blockIdx.y) * kWarps + Thread::warp();
  if (h < w.heads) {
    float* x = query_gate + (row * w.heads + h) * 2 * w.head_dim;
    norm_and_rotate(x, w.query_gain, w.head_dim, position, w);
  } else if (h -= w.heads; h < w.kv_heads) {
    const int64_t at = (row * w.kv_heads + h) * w.head_dim;
    norm_and_rotate(key + at, w.key_gain, w.head_dim, position, w,
                    cached(pages.key_offset, h, w.head_dim), pages.dtype);
    store(cached(pages.value_offset, h, w.head_dim), value + at, w.head_dim);
  } else if (h -= w.kv_heads; h <= w.index_heads) {
    float* x = index + (row * (w.index_heads + 1) + h) * w.index_dim;
    if (h < w.index_heads) {
      norm_and_rotate(x, w.index_query_gain, w.index_dim, position, w);
    } else {
      store(cached(pages.index_offset, 0, w.index_dim), x, w.index_dim);
    }
  }
}

// One warp a row: the pooled key of the block that the row completes, if it does. A launch of its
// own, since the block's raw keys may come from several rows of this forward.
__global__ void pool_keys_kernel(const __grid_constant__ Forward forward) {
  extern __shared__ float mean[];
  const AttentionWeights& w = forward.w;
  const KvPages& pages = forward.cache.pages;
  const int32_t* table = forward.table(blockIdx.x);
  const int tokens = forward.position(blockIdx.x) + 1;
  if (tokens % w.block_tokens != 0) return;
  const int block = tokens / w.block_tokens - 1;
  const int first = block * w.block_tokens;
  // A block lies in one page, so its rows are neighbours.
  const std::byte* raw = cached_row(pages, table, pages.index_offset, 0, first, w.index_dim);
  for (int d = Thread::lane(); d < w.index_dim; d += kWarp) {
    float sum = 0;
    for (int t = 0; t < w.block_tokens; ++t) {
      sum += load_cached(raw, pages.dtype, t * w.index_dim + d);
    }
    mean[d] = sum / static_cast<float>(w.block_tokens);
  }
  __syncwarp();
  norm_and_rotate(mean, w.index_key_gain, w.index_dim, first, w,
                  cached_pooled_row(pages, table, block, w.block_tokens, w.index_dim), pages.dtype);
}

// Elements at … at + 3 of a cache row; zeros where the row ends. kWide: rows are aligned and whole
// quads, so that one load does.
template <typename T, bool kWide>
struct Loader {
  using OfQuery = Loader<float, kWide>;
  static __device__ Quad quad(const std::byte* row, int at, int width) {
    const T* x = reinterpret_cast<const T*>(row) + at;
    if constexpr (!kWide) {
      const auto one = [&](int i) { return at + i < width ? static_cast<float>(x[i]) : 0.0F; };
      return {one(0), one(1), one(2), one(3)};
    } else if constexpr (sizeof(T) == sizeof(float)) {
      const float4 all = __ldg(reinterpret_cast<const float4*>(x));
      return {all.x, all.y, all.z, all.w};
    } else {
      const uint2 two = __ldg(reinterpret_cast<const uint2*>(x));
      return {__uint_as_float(two.x << 16), __uint_as_float(two.x & 0xffff0000U),
              __uint_as_float(two.y << 16), __uint_as_float(two.y & 0xffff0000U)};
    }
  }
};

// dots[key][query] of `count` keys, by all threads of the block; dots and keys lie in shared
// memory. queries: `given` of kQueries, each `stride` behind the one before; the others' dots mean
// nothing.
template <typename Load, int kQueries>
__device__ void dot_keys(float* dots, const float* queries, int64_t stride, int given, int dims,
                         const std::byte* const* keys, int count) {
  constexpr int kGroups = kThreads / kKeyLanes;
  const int lane = Thread::index() % kKeyLanes;
  for (int first = 0; first < count; first += kKeys * kGroups) {
    const int own = first + Thread::index() / kKeyLanes;
    float sums[kKeys][kQueries] = {};
    const std::byte* rows[kKeys];
    for (int n = 0; n < kKeys; ++n) rows[n] = keys[min(own + n * kGroups, count - 1)];
    for (int at = lane * kQuad; at < dims; at += kKeyLanes * kQuad) {
      Quad key[kKeys];
      for (int n = 0; n < kKeys; ++n) key[n] = Load::quad(rows[n], at, dims);
#pragma unroll
      for (int q = 0; q < kQueries; ++q) {
        const float* query = queries + min(q, given - 1) * stride;
        const Quad x = Load::OfQuery::quad(reinterpret_cast<const std::byte*>(query), at, dims);
        for (int n = 0; n < kKeys; ++n) {
          for (int j = 0; j < kQuad; ++j) sums[n][q] = fmaf(x.of[j], key[n].of[j], sums[n][q]);
        }
      }
    }
#pragma unroll
    for (int q = 0; q < kQueries; ++q) {
      for (int n = 0; n < kKeys; ++n) {
        float sum = sums[n][q];
        for (int step = kKeyLanes / 2; step > 0; step /= 2) {
          sum += __shfl_xor_sync(kAllLanes, sum, step);
        }
        const int key = own + n * kGroups;
        if (lane == 0 && key < count) dots[key * kQueries + q] = sum;
      }
    }
  }
}

// One row's scores of kThreads blocks. Scores are not negative, so their bits have their order.
template <typename Load>
__global__ void __launch_bounds__(kThreads, 4)
    score_blocks_kernel(uint32_t* scores, const float* index, int most_blocks,
                        const __grid_constant__ Forward forward) {
  __shared__ const std::byte* keys[kThreads];
  __shared__ float dots[kThreads * kFew];
  const AttentionWeights& w = forward.w;
  const int64_t row = blockIdx.x;
  const int blocks = (forward.position(blockIdx.x) + 1) / w.block_tokens;
  const int first = static_cast<int>(blockIdx.y) * kThreads;
  if (blocks <= w.block_budget || first >= blocks) return;
  const int block = first + Thread::index();
  if (block < blocks) {
    keys[Thread::index()] = cached_pooled_row(forward.cache.pages, forward.table(blockIdx.x), block,
                                              w.block_tokens, w.index_dim);
  }
  float sum = 0;
  for (int head = 0; head < w.index_heads; head += kFew) {
    const float* queries = index + (row * (w.index_heads + 1) + head) * w.index_dim;
    const int given = min(kFew, w.index_heads - head);
    __syncthreads();  // the keys stand, and nobody still reads earlier dots
    dot_keys<Load, kFew>(dots, queries, w.index_dim, given, w.index_dim, keys,
                         min(kThreads, blocks - first));
    __syncthreads();
    for (int h = 0; block < blocks && h < given; ++h) {
      sum += fmaxf(0.0F, dots[Thread::index() * kFew + h]);
    }
  }
  const float score = sum * (1.0F / sqrtf(static_cast<float>(w.index_dim)));
  if (block < blocks) scores[row * most_blocks + block] = score > 0 ? __float_as_uint(score) : 0U;
}

struct SelectShared {
  int bins[kSelectThreads];
  int above[kWarp], equal[kWarp];  // of each warp
  uint32_t threshold;
  int wanted;
};

// Sum of what the warps before this one hold in `values`, one each.
__device__ inline int sum_of_earlier(const int* values) {
  return __reduce_add_sync(kAllLanes, Thread::lane() < Thread::warp() ? values[Thread::lane()] : 0);
}

// Leaves the `wanted`-th highest key in shared.threshold, and in shared.wanted how many of its
// equals belong to the highest: digit by digit, the highest first.
__device__ void find_threshold(SelectShared& shared, const uint32_t* keys, int count, int wanted) {
  uint32_t mask = 0;  // the bits of the threshold that are known
  if (Thread::index() == 0) shared.threshold = 0;
  for (const int shift : {22, 12, 2, 0}) {
    shared.bins[Thread::index()] = 0;
    __syncthreads();
    const uint32_t known = shared.threshold;
#pragma unroll 4
    for (int i = Thread::index(); i < count; i += kSelectThreads) {
      const uint32_t key = __ldg(keys + i);
      if ((key & mask) == known) atomicAdd(&shared.bins[(key >> shift) & (kSelectThreads - 1U)], 1);
    }
    __syncthreads();
    // A bin a thread, the highest first: how many keys lie above it?
    const int bin = kSelectThreads - 1 - Thread::index();
    const int own = shared.bins[bin];
    int before = own;
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, before, step);
      if (Thread::lane() >= step) before += other;
    }
    if (Thread::lane() == kWarp - 1) shared.above[Thread::warp()] = before;
    __syncthreads();
    before += sum_of_earlier(shared.above) - own;
    if (before < wanted && wanted <= before + own) {
      shared.threshold |= static_cast<uint32_t>(bin) << shift;
      shared.wanted = wanted - before;
    }
    __syncthreads();
    wanted = shared.wanted;
    mask |= (kSelectThreads - 1U) << shift;
  }
}

// One thread block a row: its best blocks, ascending.
__global__ void __launch_bounds__(kSelectThreads)
    pick_blocks_kernel(int32_t* blocks, int32_t* counts, int stride, const uint32_t* scores,
                       int most_blocks, const __grid_constant__ Forward forward) {
  __shared__ SelectShared shared;
  const int64_t row = blockIdx.x;
  const int budget = forward.w.block_budget;
  const int count = (forward.position(blockIdx.x) + 1) / forward.w.block_tokens;
  int32_t* chosen = blocks + row * stride;
  if (Thread::index() == 0) counts[row] = min(count, budget);
  if (count <= budget) {
    for (int i = Thread::index(); i < count; i += kSelectThreads) chosen[i] = i;
    return;
  }
  const uint32_t* keys = scores + row * most_blocks;
  find_threshold(shared, keys, count, budget);
  const uint32_t threshold = shared.threshold;
  const int wanted = shared.wanted;

  // Each warp takes neighbouring blocks: it counts them, then knows where its own begin.
  const int share = div_ceil(count, kSelectThreads) * kWarp;
  const int end = min(count, (Thread::warp() + 1) * share);
  const unsigned lower_lanes = (1U << Thread::lane()) - 1U;
  int above = 0, equal = 0;
  for (const bool counted : {false, true}) {
#pragma unroll 4
    for (int first = Thread::warp() * share; first < end; first += kWarp) {
      const int i = first + Thread::lane();
      const uint32_t key = i < end ? __ldg(keys + i) : 0U;
      const unsigned all_above = __ballot_sync(kAllLanes, key > threshold);
      const unsigned all_equal = __ballot_sync(kAllLanes, i < end && key == threshold);
      const int equals = equal + __popc(all_equal & lower_lanes);
      const bool is_equal = i < end && key == threshold && equals < wanted;
      if (counted && (key > threshold || is_equal)) {
        chosen[above + __popc(all_above & lower_lanes) + min(equals, wanted)] = i;
      }
      above += __popc(all_above);
      equal += __popc(all_equal);
    }
    if (counted) return;
    shared.above[Thread::warp()] = above;
    shared.equal[Thread::warp()] = equal;
    __syncthreads();
    above = sum_of_earlier(shared.above);
    equal = sum_of_earlier(shared.equal);
  }
}

template <int kHeads>
struct AttendShared {
  alignas(16) float weights[kStep * kHeads];  // [key, head]: products, then the softmax's weights
  const std::byte* keys[kStep];
  float highest[kHeads], total[kHeads], rescale[kHeads];  // of the keys so far
};

// Products become weights under the running maximum; a warp takes a head.
template <int kHeads>
__device__ void softmax_step(AttendShared<kHeads>& shared, int count, float scale) {
  for (int h = Thread::warp(); h < kHeads; h += kWarps) {
    float highest = shared.highest[h];
    for (int i = Thread::lane(); i < count; i += kWarp) {
      highest = fmaxf(highest, shared.weights[i * kHeads + h] * scale);
    }
    for (int step = kWarp / 2; step > 0; step /= 2) {
      highest = fmaxf(highest, __shfl_xor_sync(kAllLanes, highest, step));
    }
    float sum = 0;
    for (int i = Thread::lane(); i < count; i += kWarp) {
      float& weight = shared.weights[i * kHeads + h];
      weight = exp_f32(weight * scale - highest);
      sum += weight;
    }
    sum = warp_sum(sum);
    if (Thread::lane() != 0) continue;
    shared.rescale[h] = exp_f32(shared.highest[h] - highest);
    shared.total[h] = fmaf(shared.total[h], shared.rescale[h], sum);
    shared.highest[h] = highest;
  }
}

// Adds the step's weighed values at one quad of dims, from every kParts-th key.
template <typename Load, int kHeads>
__device__ __forceinline__ void weigh_values(Quad (&sums)[kHeads],
                                             const AttendShared<kHeads>& shared, int count,
                                             ptrdiff_t to_value, int at, int head_dim) {
  for (int h = 0; h < kHeads; ++h) {
    for (float& sum : sums[h].of) sum *= shared.rescale[h];
  }
#pragma unroll 4
  for (int i = Thread::lane() / kPartLanes; i < count; i += kParts) {
    const Quad value = Load::quad(shared.keys[i] + to_value, at, head_dim);
#pragma unroll
    for (int h = 0; h < kHeads; h += kQuad) {
      const Quad weight = *reinterpret_cast<const Quad*>(shared.weights + i * kHeads + h);
      for (int n = 0; n < kQuad; ++n) {
        for (int j = 0; j < kQuad; ++j) {
          sums[h + n].of[j] = fmaf(weight.of[n], value.of[j], sums[h + n].of[j]);
        }
      }
    }
  }
}

// One row, up to kHeads query heads of one K/V head, kPanel dims of their outputs.
template <typename Load, int kHeads>
__global__ void __launch_bounds__(kThreads, 2)
    attend_kernel(float* out, const float* query_gate, const int32_t* blocks, const int32_t* counts,
                  int stride, const __grid_constant__ Forward forward) {
  __shared__ AttendShared<kHeads> shared;
  const AttentionWeights& w = forward.w;
  const KvPages& pages = forward.cache.pages;
  const int64_t row = blockIdx.x;
  const int dims = w.head_dim;
  const int group = w.heads / w.kv_heads;
  const int tiles = div_ceil(group, kHeads);
  const int kv_head = static_cast<int>(blockIdx.y) / tiles;
  const int in_group = static_cast<int>(blockIdx.y) % tiles * kHeads;
  const int heads = min(kHeads, group - in_group);
  const int64_t head = row * w.heads + kv_head * group + in_group;
  const float* query = query_gate + head * 2 * dims;
  if (Thread::index() < kHeads) {
    shared.highest[Thread::index()] = -INFINITY;
    shared.total[Thread::index()] = 0;
  }
  const int32_t* table = forward.table(blockIdx.x);
  const int tokens = forward.position(blockIdx.x) + 1;
  const int chosen = counts[row];
  const int visible = chosen * w.block_tokens + tokens % w.block_tokens;
  const auto to_value = static_cast<ptrdiff_t>(pages.value_offset - pages.key_offset);
  const int quad = Thread::warp() * kPartLanes + Thread::lane() % kPartLanes;
  const int at = static_cast<int>(blockIdx.z) * kPanel + quad * kQuad;
  Quad sums[kHeads] = {};
  for (int first = 0; first < visible; first += kStep) {
    const int count = min(kStep, visible - first);
    __syncthreads();
    for (int i = Thread::index(); i < count; i += kThreads) {
      const int n = (first + i) / w.block_tokens;  // the tail comes behind the chosen blocks
      const int block = n < chosen ? blocks[row * stride + n] : tokens / w.block_tokens;
      const int token = block * w.block_tokens + (first + i) % w.block_tokens;
      shared.keys[i] = cached_row(pages, table, pages.key_offset, kv_head, token, dims);
    }
    __syncthreads();
    dot_keys<Load, kHeads>(shared.weights, query, 2 * dims, heads, dims, shared.keys, count);
    __syncthreads();
    softmax_step(shared, count, 1.0F / sqrtf(static_cast<float>(dims)));
    __syncthreads();
    if (at < dims) weigh_values<Load>(sums, shared, count, to_value, at, dims);
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) {
    for (int j = 0; j < kQuad; ++j) {
      float sum = sums[h].of[j];
      for (int step = kPartLanes; step < kWarp; step *= 2) {
        sum += __shfl_xor_sync(kAllLanes, sum, step);
      }
      if (Thread::lane() >= kPartLanes || h >= heads || at + j >= dims) continue;
      const float gate = query[(2 * h + 1) * dims + at + j];
      out[(head + h) * dims + at + j] = sum / shared.total[h] * sigmoid_f32(gate);
    }
  }
}

// Calls with the loader of rows of `width` values, which are multiplied with `queries`.
template <typename Call>
void with_loader(const KvPages& pages, const float* queries, int width, const Call& call) {
  const size_t at = reinterpret_cast<size_t>(pages.base) | pages.page_bytes | pages.key_offset |
                    pages.value_offset | pages.pooled_offset;
  const bool wide = width % kQuad == 0 && at % (kQuad * dtype_bytes(pages.dtype)) == 0 &&
                    reinterpret_cast<size_t>(queries) % sizeof(Quad) == 0;
  if (pages.dtype == DType::kF32) {
    wide ? call(Loader<float, true>()) : call(Loader<float, false>());
  } else {
    wide ? call(Loader<__nv_bfloat16, true>()) : call(Loader<__nv_bfloat16, false>());
  }
}

}  // namespace

void launch_attention_prepare(cudaStream_t stream, float* query_gate, float* key,
                              const float* value, float* index, int rows, const Segments& segments,
                              const CacheView& cache, const AttentionWeights& weights) {
  if (rows == 0) return;
  const Forward forward = {segments, cache, weights};
  const int vectors = weights.heads + weights.kv_heads + weights.index_heads + 1;
  const dim3 grid(rows, div_ceil(vectors, kWarps));
  prepare_vectors_kernel<<<grid, kThreads, 0, stream>>>(query_gate, key, value, index, forward);
  pool_keys_kernel<<<rows, kWarp, sizeof(float) * weights.index_dim, stream>>>(forward);
}

void launch_select_blocks(cudaStream_t stream, int32_t* blocks, int32_t* counts, int stride,
                          const float* index, int rows, int most_blocks, const Segments& segments,
                          const CacheView& cache, const AttentionWeights& weights,
                          uint32_t* scratch) {
  if (rows == 0) return;
  const Forward forward = {segments, cache, weights};
  if (most_blocks > weights.block_budget) {
    const dim3 grid(rows, div_ceil(most_blocks, kThreads));
    with_loader(cache.pages, index, weights.index_dim, [&](auto load) {
      score_blocks_kernel<decltype(load)>
          <<<grid, kThreads, 0, stream>>>(scratch, index, most_blocks, forward);
    });
  }
  pick_blocks_kernel<<<rows, kSelectThreads, 0, stream>>>(blocks, counts, stride, scratch,
                                                          most_blocks, forward);
}

void launch_sparse_attend(cudaStream_t stream, float* out, const float* query_gate,
                          const int32_t* blocks, const int32_t* counts, int stride, int rows,
                          const Segments& segments, const CacheView& cache,
                          const AttentionWeights& weights) {
  if (rows == 0) return;
  const Forward forward = {segments, cache, weights};
  const int dims = weights.head_dim;
  const int group = weights.heads / weights.kv_heads;
  const bool few = group <= kFew || rows <= kMostRowsOfFew;
  const dim3 grid(rows, weights.kv_heads * div_ceil(group, few ? kFew : kMany),
                  div_ceil(dims, kPanel));
  with_loader(cache.pages, query_gate, dims, [&](auto load) {
    using Load = decltype(load);
    const auto kernel = few ? attend_kernel<Load, kFew> : attend_kernel<Load, kMany>;
    kernel<<<grid, kThreads, 0, stream>>>(out, query_gate, blocks, counts, stride, forward);
  });
}

}  // namespace flashlane::kernels::cuda
