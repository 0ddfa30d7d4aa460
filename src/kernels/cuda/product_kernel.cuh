// The product's kernel, for every way that weights are stored (Load) and some numbers of rows that
// are read together. See product.h for what keeps its bits.
#pragma once

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/product.h"

namespace flashlane::kernels::cuda {

inline constexpr int kWarps = 8;      // of a block
inline constexpr int kOutputs = 2;    // weight rows of a warp
inline constexpr int kChunk = kWarp;  // units of a warp at a time, one a lane
inline constexpr int kPaddedWords =
    17;  // of a unit of x in shared memory: 16 and one for the banks
inline constexpr int kWords = kUnit / 2;  // two bf16 values each

// x of kRows rows for one chunk of columns, rounded to bf16; zero beyond the columns and rows.
template <int kRows>
struct StagedRows {
  uint32_t words[kRows * kChunk * kPaddedWords];
  float sums[kRows * kChunk];  // of each unit's values
};

__device__ inline uint32_t pack_bf16(float low, float high) {
  const uint32_t a = __bfloat16_as_ushort(__float2bfloat16_rn(low));
  const uint32_t b = __bfloat16_as_ushort(__float2bfloat16_rn(high));
  return a | (b << 16);
}

// rows[r]: where row r of x begins, null for none.
template <int kRows, bool kSums>
__device__ void stage_rows(StagedRows<kRows>& staged, const float* const* rows, int64_t cols,
                           int64_t first_unit) {
  __syncthreads();  // whoever still reads the chunk before
  for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunk * kWords; i += kWarps * kWarp) {
    const int row = i / (kChunk * kWords);
    const int in_row = i % (kChunk * kWords);
    const int64_t column = first_unit * kUnit + int64_t{2} * in_row;
    const float* x = rows[row];
    const float low = x != nullptr && column < cols ? x[column] : 0.0F;
    const float high = x != nullptr && column + 1 < cols ? x[column + 1] : 0.0F;
    staged.words[(row * kChunk + in_row / kWords) * kPaddedWords + in_row % kWords] =
        pack_bf16(low, high);
  }
  __syncthreads();
  if constexpr (kSums) {
    for (int i = static_cast<int>(threadIdx.x); i < kRows * kChunk; i += kWarps * kWarp) {
      float sum = 0;
      for (int j = 0; j < kWords; ++j) {
        const uint32_t word = staged.words[i * kPaddedWords + j];
        sum += __uint_as_float(word << 16);
        sum += __uint_as_float(word & 0xffff0000U);
      }
      staged.sums[i] = sum;
    }
    __syncthreads();
  }
}

// total[r] += what this lane's unit adds to the product of row r and the weights w.
template <int kRows, typename Load>
__device__ void add_unit(float* total, const StagedRows<kRows>& staged, const float* weights,
                         float scale, float bias) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const uint32_t* words = &staged.words[(r * kChunk + lane) * kPaddedWords];
    float sum = 0;
#pragma unroll
    for (int j = 0; j < kWords; ++j) {
      const uint32_t word = words[j];
      sum = fmaf(__uint_as_float(word << 16), weights[2 * j], sum);
      sum = fmaf(__uint_as_float(word & 0xffff0000U), weights[2 * j + 1], sum);
    }
    if constexpr (Load::kScaled) {
      const float codes = scale * sum;
      total[r] += fmaf(bias, staged.sums[r * kChunk + lane], codes);
    } else {
      total[r] += sum;
    }
  }
}

// Up to kRows rows of x against this warp's weight rows, written to the rows of out.
template <int kRows, typename Load>
__device__ void multiply_rows(StagedRows<kRows>& staged, const Product& product, int64_t matrix,
                              const float* const* rows, const int64_t* out_rows, int row_count) {
  const DeviceMatrix& weight = product.weight;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t first = (int64_t{blockIdx.x} * kWarps + threadIdx.x / kWarp) * kOutputs;
  float total[kOutputs][kRows] = {};
  for (int64_t unit = 0; unit < weight.units; unit += kChunk) {
    stage_rows<kRows, Load::kScaled>(staged, rows, weight.cols, unit);
    if (unit + lane >= weight.units) continue;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      if (first + o >= weight.rows) break;
      float weights[kUnit];
      float scale = 1;
      float bias = 0;
      Load::load(weight, matrix * weight.rows + first + o, unit + lane, weights, &scale, &bias);
      add_unit<kRows, Load>(total[o], staged, weights, scale, bias);
    }
  }
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float sum = warp_sum(total[o][r]);
      if (lane == 0 && r < row_count && first + o < weight.rows) {
        product.out[out_rows[r] * weight.rows + first + o] = sum;
      }
    }
  }
}

// Grid: x over weight rows, y over tiles of rows, or over the matrices of the bank.
template <int kRows, typename Load>
__global__ void __launch_bounds__(kWarps* kWarp) product_kernel(const Product product) {
  __shared__ StagedRows<kRows> staged;
  __shared__ const float* rows[kRows];
  __shared__ int64_t out_rows[kRows];
  const ExpertLists& lists = product.lists;
  const bool listed = lists.list != nullptr;
  const int64_t matrix = listed ? blockIdx.y : 0;
  const int begin = listed ? lists.starts[matrix] : static_cast<int>(blockIdx.y) * kRows;
  const int end = listed ? lists.starts[matrix + 1] : min(begin + kRows, product.row_count);
  for (int tile = begin; tile < end; tile += kRows) {
    const int row_count = min(kRows, end - tile);
    __syncthreads();  // whoever still reads the tile before
    if (threadIdx.x < kRows) {
      const int r = static_cast<int>(threadIdx.x);
      const int64_t pair = r >= row_count ? 0 : (listed ? lists.list[tile + r] : tile + r);
      const int64_t from = listed ? pair / lists.pairs_per_row : pair;
      rows[r] = r < row_count ? product.x + from * product.weight.cols : nullptr;
      out_rows[r] = pair;
    }
    __syncthreads();
    multiply_rows<kRows, Load>(staged, product, matrix, rows, out_rows, row_count);
  }
}

template <int kRows, typename Load>
void launch_rows(cudaStream_t stream, const Product& product) {
  const int64_t per_block = int64_t{kWarps} * kOutputs;
  const dim3 grid(static_cast<unsigned>((product.weight.rows + per_block - 1) / per_block),
                  static_cast<unsigned>(product.lists.list != nullptr
                                            ? product.weight.count
                                            : (product.row_count + kRows - 1) / kRows));
  product_kernel<kRows, Load><<<grid, kWarps * kWarp, 0, stream>>>(product);
}

// How many rows are read together changes no bit.
template <typename Load>
void launch_by_rows(cudaStream_t stream, const Product& product) {
  if (product.row_count == 1) {
    launch_rows<1, Load>(stream, product);
  } else if (product.row_count <= 4) {
    launch_rows<4, Load>(stream, product);
  } else {
    launch_rows<8, Load>(stream, product);
  }
}

}  // namespace flashlane::kernels::cuda
