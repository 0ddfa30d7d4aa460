// Packing of x, a warp eight rows and some steps, and the items of experts, by one more block.
#include "base/int_math.h"
#include "kernels/cuda/product_many_x.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kWarpSteps = 4;

__host__ __device__ int packing_steps(const ManyPacking& packing) {
  return static_cast<int>((packing.cols + kStepCols - 1) / kStepCols);
}
// Blocks that pack.
__host__ __device__ int packing_blocks(const ManyPacking& packing) {
  const int row_tiles = div_ceil(packing.rows, kXTileRows);
  return div_ceil(row_tiles * div_ceil(packing_steps(packing), kWarpSteps), kWarps);
}

// Whether a lane's eight columns are there and can be read as two vectors, in every unit.
__device__ __forceinline__ bool has_whole_units(const ManyPacking& packing) {
  return packing.cols % kStepCols == 0 && reinterpret_cast<uintptr_t>(packing.x) % 16 == 0;
}

// Eight columns of a row.
template <bool kWhole>
__device__ __forceinline__ void load_columns(float (&v)[8], const float* row, int64_t col,
                                             int64_t cols) {
  if constexpr (kWhole) {
    load_eight(v, row + col);
  } else {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = col + i < cols ? row[col + i] : 0.0F;
  }
}

// Two steps of a lane's row. Lane 4g + t packs columns 8t to 8t + 7 of row g's units, and so has
// them as a tensor product takes them. All is asked for before anything is needed: what is beyond
// the rows or the steps is read of the last one, and not kept.
constexpr int kStepsAtOnce = 2;
template <bool kWhole>
__device__ __forceinline__ void pack_steps(const ManyPacking& packing, int first_row, int first) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int steps = packing_steps(packing);
  const int row = first_row + lane / 4;
  const float* from = packing.x + min(row, packing.rows - 1) * packing.cols;
  float values[kStepsAtOnce][2][8];
#pragma unroll
  for (int s = 0; s < kStepsAtOnce; ++s) {
    const int64_t col = int64_t{min(first + s, steps - 1)} * kStepCols + lane % 4 * 8;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      load_columns<kWhole>(values[s][u], from, col + u * kUnit, packing.cols);
    }
  }
#pragma unroll
  for (int s = 0; s < kStepsAtOnce; ++s) {
    const int step = first + s;
    Sums sums[2];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const float(&v)[8] = values[s][u];
      uint32_t packed[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) packed[i] = pack_x(v[2 * i], v[2 * i + 1]);
      sum_unit_of_x(sums[u], packed);
      if (row >= packing.rows || step >= steps) continue;
      *reinterpret_cast<uint4*>(packing.to.values + (int64_t{row} * steps + step) * kXStepBytes +
                                u * 64 +
                                lane % 4 * 16) = {packed[0], packed[1], packed[2], packed[3]};
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {  // every row of ones has the same sums
      const int own = first_row + 2 * lane + i;
      if (lane < 4 && own < packing.rows && step < steps) {
        packing.to.sums[int64_t{own} * steps + step] = {sums[0][i], sums[1][i]};
      }
    }
  }
}

__device__ __forceinline__ void pack_rows(const ManyPacking& packing, int warp) {
  const int parts = div_ceil(packing_steps(packing), kWarpSteps);
  const int first_row = warp / parts * kXTileRows;
  if (first_row >= packing.rows) return;
  const int first = warp % parts * kWarpSteps;
  const bool whole = has_whole_units(packing);
#pragma unroll 1
  for (int s = 0; s < kWarpSteps; s += kStepsAtOnce) {
    if (whole) {
      pack_steps<true>(packing, first_row, first + s);
    } else {
      pack_steps<false>(packing, first_row, first + s);
    }
  }
}

// By one block. A thread has neighbouring experts.
__device__ void make_items(const ManyPacking& packing) {
  __shared__ int counts[kWarps];
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % kWarp;
  const int share = div_ceil(packing.experts, kThreads);
  const int begin = min(thread * share, packing.experts);
  const int end = min(begin + share, packing.experts);
  const int32_t* starts = packing.lists.starts;
  const auto parts_of = [&](int e) {
    return div_ceil(starts[e + 1] - starts[e], packing.part_rows);
  };
  int own = 0;
  for (int e = begin; e < end; ++e) own += parts_of(e);
  int up_to = own;  // of the warp's threads
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(kAllLanes, up_to, step);
    if (lane >= step) up_to += before;
  }
  if (lane == kWarp - 1) counts[thread / kWarp] = up_to;
  __syncthreads();
  int at = up_to - own;
  int all = 0;
  for (int w = 0; w < kWarps; ++w) {
    at += w < thread / kWarp ? counts[w] : 0;
    all += counts[w];
  }
  for (int e = begin; e < end; ++e) {
    const int rows = starts[e + 1] - starts[e];
    const int parts = parts_of(e);
    if (parts == 0) continue;
    const int most = div_ceil(div_ceil(rows, parts), kPartUnit) * kPartUnit;
    for (int p = 0; p < parts; ++p) {
      packing.items[at++] = {e, starts[e] + p * most, min(most, rows - p * most), 0};
    }
  }
  for (int i = all + thread; i < packing.item_count; i += kThreads) packing.items[i] = {};
}

__global__ void __launch_bounds__(kThreads)
    many_packing_kernel(const __grid_constant__ ManyPacking packing) {
  let_later_start();
  wait_for_earlier();
  const int block = static_cast<int>(blockIdx.x);
  if (block < packing_blocks(packing)) {
    pack_rows(packing, block * kWarps + static_cast<int>(threadIdx.x) / kWarp);
  } else {
    make_items(packing);
  }
}

}  // namespace

void launch_many_packing(cudaStream_t stream, const ManyPacking& packing) {
  const int blocks = packing_blocks(packing) + (packing.items != nullptr ? 1 : 0);
  if (blocks == 0) return;
  launch_after(stream, many_packing_kernel, static_cast<unsigned>(blocks), kThreads, packing);
}

}  // namespace flashlane::kernels::cuda
