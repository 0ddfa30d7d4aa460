// Products of many rows of x (prompts): a block has 64 rows of x and 8 tiles of weight rows, a warp
// one tile. x goes through shared memory as bf16, a step ahead, and its sums are made there once
// for all warps. The same sums in the same order as for few rows: product_tile.cuh.
#pragma once

#include "kernels/cuda/product_tile.cuh"

namespace flashlane::kernels::cuda {

inline constexpr int kManyWarps = 8;
inline constexpr int kManyThreads = kManyWarps * kWarp;
inline constexpr int kManyRows = 64;  // of x
inline constexpr int kManyXTiles = kManyRows / 8;
static_assert(kManyXTiles == kManyWarps);  // a warp sums an x tile
// bf16 values between rows of x: half the banks further, so that lanes read without conflicts.
inline constexpr int kXStride = kStepCols + 32;

struct ManyShared {
  alignas(16) uint16_t x[2][kManyRows][kXStride];
  float sums[2][2][kManyRows];  // of a step's two groups; of one, in the second
  const float* rows[kManyRows];
  int64_t out_rows[kManyRows];
};

// This thread's part of a step of x: sixteen columns of a row.
struct PartOfX {
  static constexpr int kCols = 16;
  float values[kCols];

  static __device__ int row() { return static_cast<int>(threadIdx.x) / (kStepCols / kCols); }
  static __device__ int first() {
    return static_cast<int>(threadIdx.x) % (kStepCols / kCols) * kCols;
  }
  __device__ __forceinline__ void load(const float* from, int step, int64_t cols, bool aligned) {
    const int64_t col = int64_t{step} * kStepCols + first();
#pragma unroll
    for (int i = 0; i < kCols; i += 4) {
      if (from != nullptr && aligned && col + i < cols) {
        const float4 v = *reinterpret_cast<const float4*>(from + col + i);
        values[i] = v.x, values[i + 1] = v.y, values[i + 2] = v.z, values[i + 3] = v.w;
      } else {
#pragma unroll
        for (int j = i; j < i + 4; ++j) {
          values[j] = from != nullptr && col + j < cols ? from[col + j] : 0.0F;
        }
      }
    }
  }
  __device__ __forceinline__ void store(uint16_t (&to)[kManyRows][kXStride]) const {
#pragma unroll
    for (int i = 0; i < kCols; i += 8) {
      uint4 eight;
      eight.x = pack_bf16(values[i], values[i + 1]);
      eight.y = pack_bf16(values[i + 2], values[i + 3]);
      eight.z = pack_bf16(values[i + 4], values[i + 5]);
      eight.w = pack_bf16(values[i + 6], values[i + 7]);
      *reinterpret_cast<uint4*>(&to[row()][first() + i]) = eight;
    }
  }
};

__device__ __forceinline__ void load_x_unit(uint32_t (&x)[4],
                                            const uint16_t (&from)[kManyRows][kXStride], int tile,
                                            int u) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const uint4 v =
      *reinterpret_cast<const uint4*>(&from[tile * 8 + lane / 4][u * kUnit + lane % 4 * 8]);
  x[0] = v.x, x[1] = v.y, x[2] = v.z, x[3] = v.w;
}

// By each warp for one x tile: the sums of its rows in each group of a step.
__device__ __forceinline__ void sum_x(float (&sums)[2][kManyRows],
                                      const uint16_t (&from)[kManyRows][kXStride], bool two) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  Sums own = {};
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    uint32_t x[4];
    load_x_unit(x, from, warp, u);
    add_unit_of_x(own, x);
    if (u == 0 && !two) continue;
    if (lane < 4) {  // every row of ones has the same sums
      sums[u][warp * 8 + 2 * lane] = own[0];
      sums[u][warp * 8 + 2 * lane + 1] = own[1];
    }
    own[0] = own[1] = own[2] = own[3] = 0;
  }
}

// Where a warp's tile lies.
struct ManyTile {
  const std::byte* values;
  const std::byte* scales;  // of this lane's two rows
  size_t step_bytes, group_bytes;
  bool two, wide;

  __device__ ManyTile(const DeviceMatrix& weight, int64_t matrix, int tile)
      : step_bytes(weight.step_bytes()),
        group_bytes(weight.group_bytes()),
        two(weight.two_groups()),
        wide(weight.wide_scales()) {
    const auto steps = static_cast<size_t>(weight.steps());
    const auto before = static_cast<size_t>(matrix);
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    values = weight.values + before * weight.values_bytes() +
             static_cast<size_t>(tile) * steps * step_bytes;
    scales = weight.scales + before * weight.scales_bytes() +
             static_cast<size_t>(tile) * steps * (two ? 2 : 1) * group_bytes +
             static_cast<size_t>(lane / 4) * (group_bytes / 8);
  }
  __device__ __forceinline__ Scales scales_of(int step, int u) const {
    const std::byte* from = scales + static_cast<size_t>(two ? 2 * step + u : step) * group_bytes;
    if (wide) {
      const float4 v = *reinterpret_cast<const float4*>(from);
      return {{v.x, v.z}, {v.y, v.w}};
    }
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    return unpack_scales(v.x, v.y);
  }
};

template <int kBits>
__device__ __forceinline__ void add_many_step(Sums (&total)[kManyXTiles], Sums (&part)[kManyXTiles],
                                              const ManyTile& tile, const uint32_t (&words)[kBits],
                                              const Scales (&scales)[2], const ManyShared& shared,
                                              int buffer, int row_count) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int u = 0; u < 2; ++u) {
    uint32_t weights[2][4];
#pragma unroll
    for (int p = 0; p < 8; ++p) weights[p / 4][p % 4] = code_pair<kBits>(words, u * 8 + p);
#pragma unroll
    for (int n = 0; n < kManyXTiles; ++n) {
      if (n * 8 >= row_count) break;
      uint32_t x[4];
      load_x_unit(x, shared.x[buffer], n, u);
      multiply_tile(part[n], weights[0], x[0], x[1]);
      multiply_tile(part[n], weights[1], x[2], x[3]);
      if constexpr (kBits != kPlainBits) {
        if (u == 0 && !tile.two) continue;
        const float* sums = &shared.sums[buffer][u][n * 8 + 2 * (lane % 4)];
        add_group(total[n], part[n], scales[u], sums[0], sums[1]);
      }
    }
  }
}

__device__ __forceinline__ void add_and_clear(Sums (&to)[kManyXTiles], Sums (&from)[kManyXTiles]) {
#pragma unroll
  for (int i = 0; i < kManyXTiles * 4; ++i) {
    to[i / 4][i % 4] += from[i / 4][i % 4];
    from[i / 4][i % 4] = 0;
  }
}

// Up to kManyRows rows of x, which shared.rows and out_rows name, against this warp's tile.
template <int kBits>
__device__ void multiply_many(ManyShared& shared, const Product& product, int64_t matrix, int tile,
                              int row_count) {
  const DeviceMatrix& weight = product.weight;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int steps = weight.steps();
  const int chunk_steps = steps / product.chunks;
  const int slices = slices_of(weight, product.chunks, product.gated);
  const bool own = tile < weight.tiles();
  const bool aligned = weight.cols % 4 == 0 && reinterpret_cast<uintptr_t>(product.x) % 16 == 0;
  const ManyTile from(weight, matrix, own ? tile : 0);
  const float* row = shared.rows[PartOfX::row()];
  PartOfX x;
  x.load(row, 0, weight.cols, aligned);
  x.store(shared.x[0]);
  if (steps > 1) x.load(row, 1, weight.cols, aligned);
  uint32_t words[2][kBits];
  if (own) load_codes<kBits, LoadOnce>(words[0], from.values, lane);
  __syncthreads();
  sum_x(shared.sums[0], shared.x[0], from.two);
  __syncthreads();
  Sums whole[kManyXTiles] = {}, chunk[kManyXTiles] = {};
  Sums total[kManyXTiles] = {}, part[kManyXTiles] = {};
  int slice = 0;
  int chunk_begin = 0;
  const auto step_of = [&](int step, uint32_t(&now)[kBits], uint32_t(&next)[kBits]) {
    const bool more = step + 1 < steps;
    if (more) {
      x.store(shared.x[(step + 1) % 2]);
      if (own) {
        load_codes<kBits, LoadOnce>(
            next, from.values + static_cast<size_t>(step + 1) * from.step_bytes, lane);
      }
      if (step + 2 < steps) x.load(row, step + 2, weight.cols, aligned);
    }
    __syncthreads();  // the next step's x lies there
    if (more) sum_x(shared.sums[(step + 1) % 2], shared.x[(step + 1) % 2], from.two);
    if (own) {
      Scales scales[2] = {};
      if constexpr (kBits != kPlainBits) {
        if (from.two) scales[0] = from.scales_of(step, 0);
        scales[1] = from.scales_of(step, 1);
      }
      add_many_step<kBits>(total, part, from, now, scales, shared, step % 2, row_count);
      if (step + 1 == chunk_begin + slice_begin(slice + 1, slices, chunk_steps)) {
        ++slice;
        add_and_clear(chunk, kBits == kPlainBits ? part : total);
      }
      if (step + 1 == chunk_begin + chunk_steps) {
        slice = 0;
        chunk_begin = step + 1;
        add_and_clear(whole, chunk);
      }
    }
    __syncthreads();  // its sums, too, and this step's x may be overwritten
  };
  for (int step = 0; step < steps; step += 2) {
    step_of(step, words[0], words[1]);
    if (step + 1 < steps) step_of(step + 1, words[1], words[0]);
  }
  if (!own) return;
#pragma unroll
  for (int n = 0; n < kManyXTiles; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int in_x = n * 8 + 2 * (lane % 4) + i % 2;
      const int64_t at = int64_t{tile} * kTileRows + lane / 4 + 8 * (i / 2);
      if (in_x < row_count && at < weight.rows) {
        product.out[shared.out_rows[in_x] * weight.rows + at] = whole[n][i];
      }
    }
  }
}

// Grid: x over weight rows, y over parts of x, or over the matrices of the bank.
template <int kBits>
__global__ void __launch_bounds__(kManyThreads, 1) many_rows_kernel(const Product product) {
  __shared__ ManyShared shared;
  let_later_start();
  wait_for_earlier();
  const ExpertLists& lists = product.lists;
  const bool listed = lists.list != nullptr;
  const int64_t matrix = listed ? blockIdx.y : 0;
  const int begin = listed ? lists.starts[matrix] : static_cast<int>(blockIdx.y) * kManyRows;
  const int end = listed ? lists.starts[matrix + 1] : min(begin + kManyRows, product.row_count);
  const int tile =
      static_cast<int>(blockIdx.x) * kManyWarps + static_cast<int>(threadIdx.x) / kWarp;
  for (int first = begin; first < end; first += kManyRows) {
    const int row_count = min(kManyRows, end - first);
    __syncthreads();  // whoever still reads what came before
    if (threadIdx.x < kManyRows) {
      const int r = static_cast<int>(threadIdx.x);
      const int64_t pair = r >= row_count ? 0 : (listed ? lists.list[first + r] : first + r);
      const int64_t from = listed ? pair / lists.pairs_per_row : pair;
      shared.rows[r] = r < row_count ? product.x + from * product.weight.cols : nullptr;
      shared.out_rows[r] = pair;
    }
    __syncthreads();
    multiply_many<kBits>(shared, product, matrix, tile, row_count);
  }
}

// Defined for the bits of codes, and kPlainBits, in product_many*.cu.
template <int kBits>
void launch_many(cudaStream_t stream, const Product& product) {
  const dim3 grid(static_cast<unsigned>((product.weight.tiles() + kManyWarps - 1) / kManyWarps),
                  static_cast<unsigned>(product.lists.list != nullptr
                                            ? product.weight.count
                                            : (product.row_count + kManyRows - 1) / kManyRows));
  launch_after(stream, many_rows_kernel<kBits>, grid, kManyThreads, product);
}

}  // namespace flashlane::kernels::cuda
