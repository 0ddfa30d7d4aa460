// x as the products of few rows read it: units of 32 columns, [units][rows][32] in bf16. Rows end
// with whole steps; what is beyond the columns is zero.
#pragma once

#include "kernels/cuda/product_tile.cuh"

namespace flashlane::kernels::cuda {

inline constexpr int kTileOfX = 8;     // rows of x that one tensor product takes
inline constexpr int kUnitBytes = 64;  // of a row

struct XUnits {
  std::byte* values = nullptr;
  int rows = 0;
};

__host__ __device__ constexpr int units_of(int cols) {
  return (cols + kStepCols - 1) / kStepCols * 2;
}
__host__ __device__ constexpr int units_bytes(int rows, int cols) {
  return units_of(cols) * rows * kUnitBytes;
}

__device__ __forceinline__ void load_eight(float (&v)[8], const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  const float4 b = *reinterpret_cast<const float4*>(from + 4);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}

// Eight units of a row, by a warp.
template <typename Source>
__device__ __forceinline__ void make_units_of_row(const XUnits& x, int cols, int row,
                                                  int first_unit, const Source& source) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int unit = first_unit + lane / 4;
  const int col = unit * kUnit + lane % 4 * 8;
  if (unit >= units_of(cols)) return;
  float v[8] = {};
  if (col < cols) source.get(v, row, col);
  uint32_t packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[i] = pack_bf16(v[2 * i], v[2 * i + 1]);
  *reinterpret_cast<uint4*>(x.values + (int64_t{unit} * x.rows + row) * kUnitBytes +
                            lane % 4 * 16) = {packed[0], packed[1], packed[2], packed[3]};
}

// All units, by a block. `cols`: a multiple of eight.
template <typename Source>
__device__ __forceinline__ void make_units(const XUnits& x, int cols, const Source& source) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int parts = (units_of(cols) + 7) / 8;
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x) / kWarp; i < parts * x.rows; i += warps) {
    make_units_of_row(x, cols, i / parts, i % parts * 8, source);
  }
}

}  // namespace flashlane::kernels::cuda
