// Products of up to 16 rows of x: a block of warps has some tiles of weight rows, a warp one slice
// of one tile, whose codes it asks for several steps ahead and before it looks at x. See
// product_tile.cuh for the order of sums.
#pragma once

#include "kernels/cuda/product_tile.cuh"

namespace flashlane::kernels::cuda {

inline constexpr int kMostFewWarps = 16;  // of a block
inline constexpr int kTileOfX = 8;        // rows of x that one tensor product takes
// Floats between the columns of a warp's sums, so that lanes write to banks of their own.
inline constexpr int kSumStride = kTileRows + 4;

// Entries of one format and number of slices, and which blocks are whose.
struct FewLaunch {
  FewProducts products;
  int first_block[kMostFewEntries + 1] = {};
  int slices = 1;
  int subs = 1;         // tiles of a block
  bool aligned = true;  // rows of x can be read four floats at a time
};

// As many as registers allow.
template <int kBits, int kXTiles>
inline constexpr int kStepsAhead = (kBits <= 6 ? 4 : (kBits == 8 ? 3 : 2)) - (kXTiles > 1 ? 1 : 0);

// What a block works on.
struct FewWork {
  int entry = 0;
  int local = 0;   // block of the entry (and of its expert)
  int matrix = 0;  // of the bank
  int row_count = 0;
};

template <int kXTiles>
struct FewShared {
  float sums[kMostFewWarps][kXTiles * kTileOfX][kSumStride];
  int pairs[kFewRows];  // of a listed entry: those that chose the expert, ascending
  int pair_count;
};

// By one warp: the pairs that chose expert ids[pair]; none where an earlier pair's block has them.
__device__ inline void find_pairs(int* pairs, int* count, const int32_t* ids, int all, int pair) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int expert = ids[pair];
  int found = 0;
  for (int first = 0; first < all; first += kWarp) {
    const int p = first + lane;
    const bool same = p < all && ids[p] == expert;
    const unsigned who = __ballot_sync(kAllLanes, same);
    const bool taken = __any_sync(kAllLanes, same && p < pair);
    if (taken) {
      if (lane == 0) *count = 0;
      return;
    }
    const int place = found + __popc(who & ((1U << lane) - 1U));
    if (same && place < kFewRows) pairs[place] = p;
    found += __popc(who);
  }
  if (lane == 0) *count = min(found, kFewRows);
}

// One lane's part of x for a step: two units of eight columns, of one row each x tile.
template <int kXTiles>
struct StepOfX {
  float values[kXTiles][2][8];

  __device__ __forceinline__ void load(const float* const (&rows)[kXTiles], int step, int64_t cols,
                                       bool aligned) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int n = 0; n < kXTiles; ++n) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int64_t col = int64_t{step} * kStepCols + u * kUnit + lane % 4 * 8;
        float(&to)[8] = values[n][u];
        const bool whole = rows[n] != nullptr && aligned && col < cols;
        if (whole) {
          const float4 a = *reinterpret_cast<const float4*>(rows[n] + col);
          const float4 b = *reinterpret_cast<const float4*>(rows[n] + col + 4);
          to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w;
          to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
        } else {
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            to[i] = rows[n] != nullptr && col + i < cols ? rows[n][col + i] : 0.0F;
          }
        }
      }
    }
  }
  __device__ __forceinline__ void pack(uint32_t (&x)[kXTiles][2][4]) const {
#pragma unroll
    for (int n = 0; n < kXTiles; ++n) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[n][i / 4][i % 4] =
            pack_bf16(values[n][i / 4][i % 4 * 2], values[n][i / 4][i % 4 * 2 + 1]);
      }
    }
  }
};

// A tile's codes and scales, a few steps ahead.
template <int kBits, int kXTiles>
struct StepsOfTile {
  static constexpr int kAhead = kStepsAhead<kBits, kXTiles>;
  uint32_t words[kAhead][kBits];
  uint4 scales[kAhead];  // bf16 pairs; wide ones are read when they are due

  const std::byte* values;
  const std::byte* all_scales;  // of the tile and this lane's two rows
  size_t step_bytes, group_bytes;
  bool two, wide;

  __device__ __forceinline__ void begin(const DeviceMatrix& weight, int matrix, int tile) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const auto before = static_cast<size_t>(matrix);
    step_bytes = weight.step_bytes();
    group_bytes = weight.group_bytes();
    two = weight.two_groups();
    wide = weight.wide_scales();
    const auto steps = static_cast<size_t>(weight.steps());
    values = weight.values + before * weight.values_bytes() +
             static_cast<size_t>(tile) * steps * step_bytes;
    all_scales = weight.scales + before * weight.scales_bytes() +
                 static_cast<size_t>(tile) * steps * (two ? 2 : 1) * group_bytes +
                 static_cast<size_t>(lane / 4) * (group_bytes / 8);
  }
  __device__ __forceinline__ void load(int j, int step) {
    load_codes<kBits>(words[j], values + static_cast<size_t>(step) * step_bytes,
                      static_cast<int>(threadIdx.x) % kWarp);
    if constexpr (kBits != kPlainBits) {
      if (wide) return;
      const std::byte* from = all_scales + static_cast<size_t>(two ? 2 * step : step) * group_bytes;
      const uint2 first = load_once(reinterpret_cast<const uint2*>(from));
      scales[j].x = first.x, scales[j].y = first.y;
      if (!two) return;
      const uint2 second = load_once(reinterpret_cast<const uint2*>(from + group_bytes));
      scales[j].z = second.x, scales[j].w = second.y;
    }
  }
  // Of unit `u`'s group; where the step has one group, of unit 1's.
  __device__ __forceinline__ Scales scales_of(int j, int step, int u) const {
    if (wide) {
      const std::byte* from =
          all_scales + static_cast<size_t>(two ? 2 * step + u : step) * group_bytes;
      const float4 v = *reinterpret_cast<const float4*>(from);
      return {{v.x, v.z}, {v.y, v.w}};
    }
    if (two && u == 1) return unpack_scales(scales[j].z, scales[j].w);
    return unpack_scales(scales[j].x, scales[j].y);
  }
};

// total += the step's product with the x tiles that are in use.
template <int kBits, int kXTiles>
__device__ __forceinline__ void add_step(Sums (&total)[kXTiles], Sums (&part)[kXTiles],
                                         Sums (&of_x)[kXTiles],
                                         const StepsOfTile<kBits, kXTiles>& steps, int j, int step,
                                         const uint32_t (&x)[kXTiles][2][4], int row_count) {
#pragma unroll
  for (int u = 0; u < 2; ++u) {
#pragma unroll
    for (int m = 0; m < 2; ++m) {
      uint32_t weights[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) weights[r] = code_pair<kBits>(steps.words[j], u * 8 + m * 4 + r);
#pragma unroll
      for (int n = 0; n < kXTiles; ++n) {
        if (n == 0 || n * kTileOfX < row_count) {
          multiply_tile(part[n], weights, x[n][u][2 * m], x[n][u][2 * m + 1]);
        }
      }
    }
    if constexpr (kBits != kPlainBits) {
#pragma unroll
      for (int n = 0; n < kXTiles; ++n) {
        if (n == 0 || n * kTileOfX < row_count) add_unit_of_x(of_x[n], x[n][u]);
      }
      if (u == 0 && !steps.two) continue;
      const Scales scales = steps.scales_of(j, step, u);
#pragma unroll
      for (int n = 0; n < kXTiles; ++n) {
        add_group(total[n], part[n], scales, of_x[n][0], of_x[n][1]);
        of_x[n][0] = of_x[n][1] = of_x[n][2] = of_x[n][3] = 0;
      }
    }
  }
}

__device__ inline FewWork find_work(const FewLaunch& launch) {
  FewWork work;
  const int block = static_cast<int>(blockIdx.x);
  while (block >= launch.first_block[work.entry + 1]) ++work.entry;
  work.local = block - launch.first_block[work.entry];
  work.row_count = launch.products.row_count;
  return work;
}

// The tile of a block's part `sub`.
__device__ inline int tile_of(const FewEntry& entry, const FewWork& work, int sub, int subs) {
  switch (entry.epilogue) {
    case Epilogue::kGated:
      return work.local;
    case Epilogue::kMix:
      return sub * (entry.weight.tiles() / entry.streams) + work.local;
    default:
      return work.local * subs + sub;
  }
}

// Sums of the slices of a block's parts, then what follows the product, to memory.
template <int kXTiles>
__device__ void write_rows(const FewShared<kXTiles>& shared, const FewLaunch& launch,
                           const FewEntry& entry, const FewWork& work) {
  const int slices = launch.slices;
  const bool one_value = entry.epilogue == Epilogue::kGated || entry.epilogue == Epilogue::kMix;
  const int parts = one_value ? 1 : launch.subs;
  const auto sum_of = [&](int sub, int n, int r) {
    float sum = 0;
    for (int s = 0; s < slices; ++s) sum += shared.sums[sub * slices + s][n][r];
    return sum;
  };
  const int values = parts * work.row_count * kTileRows;
  for (int i = static_cast<int>(threadIdx.x); i < values; i += static_cast<int>(blockDim.x)) {
    const int r = i % kTileRows;
    const int n = i / kTileRows % work.row_count;
    const int sub = i / kTileRows / work.row_count;
    const int64_t row = entry.listed ? shared.pairs[n] : n;
    const int64_t at = int64_t{tile_of(entry, work, sub, launch.subs)} * kTileRows + r;
    int64_t width = entry.weight.rows;
    float value = 0;
    switch (entry.epilogue) {
      case Epilogue::kGated:
        value = silu_f32(sum_of(0, n, r)) * sum_of(1, n, r);
        break;
      case Epilogue::kMix: {
        width /= entry.streams;
        const float* normed = entry.normed + row * entry.streams * width + at;
        for (int c = 0; c < entry.streams; ++c) {
          value += sigmoid_f32(sum_of(c, n, r)) * normed[c * width];
        }
        value *= 1.0F / static_cast<float>(entry.streams);
        break;
      }
      case Epilogue::kSilu:
        value = silu_f32(sum_of(sub, n, r) * entry.factor);
        break;
      case Epilogue::kInject:
        value = 2.0F * sigmoid_f32(sum_of(sub, n, r) * entry.factor);
        break;
      case Epilogue::kNone:
        value = sum_of(sub, n, r);
        break;
    }
    if (at < width) entry.out[row * width + at] = value;
  }
}

template <int kBits, int kXTiles>
__global__ void __launch_bounds__(kMostFewWarps* kWarp, 1)
    few_rows_kernel(const __grid_constant__ FewLaunch launch) {
  __shared__ FewShared<kXTiles> shared;
  let_later_start();
  FewWork work = find_work(launch);
  const FewEntry& entry = launch.products.entries[work.entry];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  if (entry.listed) {
    wait_for_earlier();
    const int all = launch.products.row_count * launch.products.top;
    const int pair = work.local % all;
    work.local /= all;
    work.matrix = launch.products.ids[pair];
    if (warp == 0) find_pairs(shared.pairs, &shared.pair_count, launch.products.ids, all, pair);
    __syncthreads();
    work.row_count = shared.pair_count;
    if (work.row_count == 0) return;
  }

  const int sub = warp / launch.slices;
  const int slice = warp % launch.slices;
  const DeviceMatrix& weight =
      entry.epilogue == Epilogue::kGated && sub == 1 ? entry.second : entry.weight;
  const int tile = tile_of(entry, work, sub, launch.subs);
  const int all_steps = weight.steps();
  const int begin = slice_begin(slice, launch.slices, all_steps);
  const int end = tile < weight.tiles() ? slice_begin(slice + 1, launch.slices, all_steps) : begin;
  StepsOfTile<kBits, kXTiles> steps;
  constexpr int kAhead = kStepsAhead<kBits, kXTiles>;
  steps.begin(weight, work.matrix, tile);
#pragma unroll
  for (int j = 0; j < kAhead; ++j) {
    if (begin + j < end) steps.load(j, begin + j);
  }
  if (!entry.listed) wait_for_earlier();

  const float* rows[kXTiles];
#pragma unroll
  for (int n = 0; n < kXTiles; ++n) {
    const int own = n * kTileOfX + lane / 4;
    const int64_t row =
        entry.listed && own < work.row_count ? shared.pairs[own] / entry.pairs_per_row : own;
    rows[n] = own < work.row_count ? entry.x + row * weight.cols : nullptr;
  }
  StepOfX<kXTiles> x;
  if (begin < end) x.load(rows, begin, weight.cols, launch.aligned);
  Sums total[kXTiles] = {}, part[kXTiles] = {}, of_x[kXTiles] = {};
  for (int first = begin; first < end; first += kAhead) {
#pragma unroll
    for (int j = 0; j < kAhead; ++j) {
      const int step = first + j;
      if (step >= end) break;
      uint32_t packed[kXTiles][2][4];
      x.pack(packed);
      if (step + 1 < end) x.load(rows, step + 1, weight.cols, launch.aligned);
      add_step<kBits, kXTiles>(total, part, of_x, steps, j, step, packed, work.row_count);
      if (step + kAhead < end) steps.load(j, step + kAhead);
    }
  }

#pragma unroll
  for (int n = 0; n < kXTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float value = kBits == kPlainBits ? part[n][i] : total[n][i];
      shared.sums[warp][n * kTileOfX + 2 * (lane % 4) + i % 2][lane / 4 + 8 * (i / 2)] = value;
    }
  }
  __syncthreads();
  write_rows(shared, launch, entry, work);
}

// Defined for the bits of codes, and kPlainBits, in product_few*.cu.
template <int kBits>
void launch_few(cudaStream_t stream, const FewLaunch& launch);

}  // namespace flashlane::kernels::cuda
