// Block selection on the GPU: scores of a row's complete blocks, then the best of them.
#include "kernels/cuda/attention.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kSelectThreads = 1024;
constexpr int kDigitBits = 11;
constexpr int kBins = 1 << kDigitBits;  // of a digit
constexpr int kBinsOfThread = 2;
static_assert(kBins == kBinsOfThread * kSelectThreads);

// Rows that a thread block scores against each pooled key that it reads. Few rows leave work for
// more thread blocks.
constexpr int kMostRowsAlone = 16;
constexpr int kScoredRows = 8;

// Some rows' scores of kRun blocks. Scores are not negative, so their bits have their order.
template <typename Load>
__global__ void __launch_bounds__(kKeyThreads)
    score_blocks_kernel(uint32_t* scores, const float* index, int rows, int tile, int most_blocks,
                        const __grid_constant__ Forward forward) {
  __shared__ const std::byte* keys[kRun];
  __shared__ float products[kQueriesOfFloats][kRunStride];
  let_later_start();
  wait_for_earlier();
  const AttentionWeights& w = forward.w;
  const int first = static_cast<int>(blockIdx.y) * kRun;
  const int end_row = min(rows, static_cast<int>(blockIdx.x + 1) * tile);
  for (int row = static_cast<int>(blockIdx.x) * tile; row < end_row; ++row) {
    const Forward::Place place = forward.place(row);
    const int blocks = (place.position + 1) / w.block_tokens;
    if (blocks <= w.block_budget || first >= blocks) continue;
    __syncthreads();  // nobody still reads an earlier row's keys and products
    const int block = first + Thread::index();
    if (Thread::index() < kRun) {
      keys[Thread::index()] = cached_pooled_row(
          forward.cache.pages, place.table, min(block, blocks - 1), w.block_tokens, w.index_dim);
    }
    float sum = 0;
    for (int head = 0; head < w.index_heads; head += kQueriesOfFloats) {
      const float* queries = index + (int64_t{row} * (w.index_heads + 1) + head) * w.index_dim;
      const int given = min(kQueriesOfFloats, w.index_heads - head);
      __syncthreads();  // the keys stand, and nobody still reads earlier products
      multiply_keys<Load>(products, queries, w.index_dim, given, w.index_dim, keys);
      __syncthreads();
      for (int h = 0; Thread::index() < kRun && h < given; ++h) {
        sum += fmaxf(0.0F, products[h][Thread::index()]);
      }
    }
    const float score = sum * (1.0F / sqrtf(static_cast<float>(w.index_dim)));
    if (Thread::index() < kRun && block < blocks) {
      scores[int64_t{row} * most_blocks + block] = score > 0 ? __float_as_uint(score) : 0U;
    }
  }
}

struct SelectShared {
  int bins[kBins];
  int above[kWarp], equal[kWarp];  // of each warp
  uint32_t threshold;
  int wanted;
};

// Sum of what the warps before this one hold in `values`, one each.
__device__ inline int sum_of_earlier(const int* values) {
  return __reduce_add_sync(kAllLanes, Thread::lane() < Thread::warp() ? values[Thread::lane()] : 0);
}

// Leaves the `wanted`-th highest key in shared.threshold, and in shared.wanted how many of its
// equals belong to the highest: digit by digit, the highest first. Keys have 31 bits.
__device__ void find_threshold(SelectShared& shared, const uint32_t* keys, int count, int wanted) {
  uint32_t mask = 0;  // the bits of the threshold that are known
  if (Thread::index() == 0) shared.threshold = 0;
  for (int left = 31; left > 0; left -= kDigitBits) {
    const int shift = max(left - kDigitBits, 0);
    for (int n = 0; n < kBinsOfThread; ++n) shared.bins[Thread::index() + n * kSelectThreads] = 0;
    __syncthreads();
    const uint32_t known = shared.threshold;
#pragma unroll 4
    for (int i = Thread::index(); i < count; i += kSelectThreads) {
      const uint32_t key = keys[i];
      if ((key & mask) == known) atomicAdd(&shared.bins[(key >> shift) & (kBins - 1U)], 1);
    }
    __syncthreads();
    // Neighbouring bins a thread, the highest first: how many keys lie above them?
    int bin = kBins - 1 - kBinsOfThread * Thread::index();
    const int higher = shared.bins[bin];
    const int own = higher + shared.bins[bin - 1];
    int before = own;
    for (int step = 1; step < kWarp; step *= 2) {
      const int other = __shfl_up_sync(kAllLanes, before, step);
      if (Thread::lane() >= step) before += other;
    }
    if (Thread::lane() == kWarp - 1) shared.above[Thread::warp()] = before;
    __syncthreads();
    before += sum_of_earlier(shared.above) - own;
    if (before < wanted && wanted <= before + own) {
      if (before + higher < wanted) {
        before += higher;
        --bin;
      }
      shared.threshold |= static_cast<uint32_t>(bin) << shift;
      shared.wanted = wanted - before;
    }
    __syncthreads();
    wanted = shared.wanted;
    mask |= (kBins - 1U) << shift;
  }
}

// One thread block a row: its best blocks, ascending.
__global__ void __launch_bounds__(kSelectThreads)
    pick_blocks_kernel(int32_t* blocks, int32_t* counts, int stride, const uint32_t* scores,
                       int most_blocks, const __grid_constant__ Forward forward) {
  __shared__ SelectShared shared;
  let_later_start();
  wait_for_earlier();
  const int64_t row = blockIdx.x;
  const int budget = forward.w.block_budget;
  const int count = (forward.place(blockIdx.x).position + 1) / forward.w.block_tokens;
  int32_t* chosen = blocks + row * stride;
  if (Thread::index() == 0) counts[row] = min(count, budget);
  if (count <= budget) {
    for (int i = Thread::index(); i < count; i += static_cast<int>(blockDim.x)) chosen[i] = i;
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
      const uint32_t key = i < end ? keys[i] : 0U;
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

}  // namespace

void launch_select_blocks(cudaStream_t stream, int32_t* blocks, int32_t* counts, int stride,
                          const float* index, int rows, int most_blocks, const Segments& segments,
                          const CacheView& cache, const AttentionWeights& weights,
                          uint32_t* scratch) {
  if (rows == 0) return;
  const Forward forward = {segments, cache, weights};
  const bool scored = most_blocks > weights.block_budget;
  if (scored) {
    const int tile = rows <= kMostRowsAlone ? 1 : kScoredRows;
    const dim3 grid(div_ceil(rows, tile), div_ceil(most_blocks, kRun));
    with_loader(cache.pages, index, weights.index_dim, [&](auto load) {
      launch_after(stream, score_blocks_kernel<decltype(load)>, grid, kKeyThreads, scratch, index,
                   rows, tile, most_blocks, forward);
    });
  }
  // Where all blocks are taken, no thread needs a bin.
  launch_after(stream, pick_blocks_kernel, static_cast<unsigned>(rows),
               scored ? kSelectThreads : kKeyThreads, blocks, counts, stride, scratch, most_blocks,
               forward);
}

}  // namespace flashlane::kernels::cuda
