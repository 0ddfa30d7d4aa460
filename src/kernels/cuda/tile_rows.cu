// From rows as checkpoints store them to the tiles of product_tile.cuh, at load: a thread has one
// lane's words of one step, or scale and bias of one row's group.
#include <cuda_fp16.h>

#include "base/int_math.h"
#include "kernels/cuda/product_tile.cuh"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kThreads = 256;

struct TilePart {
  DeviceMatrix to;
  MatrixPart part;
  StoredRows stored;
  int64_t first_tile = 0;
  int64_t tiles = 0;  // of the part, in each matrix
};

// Row `row` of matrix `index` among the part's stored rows, or -1 where there is none.
__device__ int64_t stored_row(const TilePart& p, int64_t index, int64_t row) {
  if (row >= p.part.first_row + p.part.row_count) return -1;
  return index * p.part.row_count + row - p.part.first_row;
}

template <int kBits>
__device__ uint32_t stored_code(const uint32_t* row, int64_t col) {
  const int64_t bit = col * kBits;
  const auto at = static_cast<int>(bit % 32);
  uint32_t code = row[bit / 32] >> at;
  if (at + kBits > 32) code |= row[bit / 32 + 1] << (32 - at);
  return code & ((1U << kBits) - 1U);
}

template <int kBits>
__global__ void tile_codes_kernel(const __grid_constant__ TilePart p) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const auto lane = static_cast<int>(thread % kWarp);
  const int64_t steps = p.to.steps();
  const int64_t step = thread / kWarp % steps;
  const int64_t tile = thread / kWarp / steps % p.tiles + p.first_tile;
  const int64_t index = thread / kWarp / steps / p.tiles;
  if (index >= p.part.count) return;
  uint32_t words[kBits] = {};
#pragma unroll
  for (int pair = 0; pair < kPairsOfStep; ++pair) {
    const int64_t row = stored_row(p, index, tile * kTileRows + pair_row(pair, lane));
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int64_t col = step * kStepCols + pair_col(pair, lane) + half;
      if (row < 0 || col >= p.to.cols) continue;
      if constexpr (kBits == kPlainBits) {
        const auto* values = reinterpret_cast<const uint16_t*>(p.stored.values);
        words[pair] |= uint32_t{values[row * p.to.cols + col]} << (16 * half);
      } else {
        const auto* codes = reinterpret_cast<const uint32_t*>(p.stored.values);
        const uint32_t code = stored_code<kBits>(codes + row * (p.to.cols * kBits / 32), col);
        const int at = pair * kBits;
        words[at / 16] |= (code << (at % 16) & 0xffffU) << (16 * half);
        if (at % 16 + kBits > 16) words[at / 16 + 1] |= code >> (16 - at % 16) << (16 * half);
      }
    }
  }
  auto* to = reinterpret_cast<uint32_t*>(
      p.to.values + static_cast<size_t>(p.part.first + index) * p.to.values_bytes() +
      static_cast<size_t>(tile * steps + step) * p.to.step_bytes());
#pragma unroll
  for (int w = 0; w < kBits; ++w) to[word_place<kBits>(w, lane)] = words[w];
}

__device__ float as_float(const std::byte* values, DType dtype, int64_t index) {
  return dtype == DType::kF32 ? reinterpret_cast<const float*>(values)[index]
                              : __half2float(reinterpret_cast<const __half*>(values)[index]);
}

__global__ void tile_scales_kernel(const __grid_constant__ TilePart p) {
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int64_t groups = int64_t{p.to.steps()} * (p.to.two_groups() ? 2 : 1);
  const auto in_tile = static_cast<int>(thread % kTileRows);
  const int64_t group = thread / kTileRows % groups;
  const int64_t tile = thread / kTileRows / groups % p.tiles + p.first_tile;
  const int64_t index = thread / kTileRows / groups / p.tiles;
  if (index >= p.part.count) return;
  const int64_t row = stored_row(p, index, tile * kTileRows + in_tile);
  const int64_t col = group * (p.to.two_groups() ? kUnit : kStepCols);
  const int64_t from = row * (p.to.cols / p.to.group) + col / p.to.group;
  const bool there = row >= 0 && col < p.to.cols;
  // Rows g and g + 8, which one lane needs, are neighbours.
  const int64_t place = (tile * groups + group) * kTileRows + in_tile % 8 * 2 + in_tile / 8;
  std::byte* to = p.to.scales + static_cast<size_t>(p.part.first + index) * p.to.scales_bytes();
  if (p.to.wide_scales()) {
    auto* both = reinterpret_cast<float2*>(to) + place;
    *both = there ? make_float2(as_float(p.stored.scales, p.to.scale_dtype, from),
                                as_float(p.stored.biases, p.to.scale_dtype, from))
                  : make_float2(0, 0);
    return;
  }
  uint32_t both = 0;
  if (there) {
    both = reinterpret_cast<const uint16_t*>(p.stored.scales)[from] |
           uint32_t{reinterpret_cast<const uint16_t*>(p.stored.biases)[from]} << 16;
  }
  reinterpret_cast<uint32_t*>(to)[place] = both;
}

template <int kBits>
void tile_codes(cudaStream_t stream, const TilePart& p) {
  const int64_t threads = p.part.count * p.tiles * p.to.steps() * kWarp;
  tile_codes_kernel<kBits>
      <<<static_cast<unsigned>(div_ceil<int64_t>(threads, kThreads)), kThreads, 0, stream>>>(p);
}

}  // namespace

void launch_tile_rows(cudaStream_t stream, const DeviceMatrix& to, const MatrixPart& part,
                      const StoredRows& stored) {
  TilePart p = {to, part, stored};
  p.first_tile = part.first_row / kTileRows;
  p.tiles = div_ceil<int64_t>(part.row_count, kTileRows);
  with_bits(to.bits, [&](auto bits) { tile_codes<bits.value>(stream, p); });
  if (to.layout != Layout::kAffine) return;
  const int64_t groups = int64_t{to.steps()} * (to.two_groups() ? 2 : 1);
  const int64_t threads = part.count * p.tiles * groups * kTileRows;
  tile_scales_kernel<<<static_cast<unsigned>(div_ceil<int64_t>(threads, kThreads)), kThreads, 0,
                       stream>>>(p);
}

}  // namespace flashlane::kernels::cuda
