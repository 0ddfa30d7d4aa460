// x as the products of few rows read it: units of 32 columns, [units][rows][32] in bf16 as pack_x
// gives it, and the units' sums. Rows end with whole steps; what is beyond the columns is zero.
#pragma once

#include "kernels/cuda/product_tile.cuh"

namespace flashlane::kernels::cuda {

inline constexpr int kUnitBytes = 64;  // of a row

struct XUnits {
  std::byte* values = nullptr;
  float2* sums = nullptr;  // [steps][rows]: of a step's two units
  int rows = 0;
};

__host__ __device__ constexpr int units_of(int cols) {
  return (cols + kStepCols - 1) / kStepCols * 2;
}
__host__ __device__ constexpr int units_bytes(int rows, int cols) {
  constexpr int kAlignment = 16;
  const int bytes = units_of(cols) * rows * (kUnitBytes + static_cast<int>(sizeof(float)));
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}
// In `room`, of units_bytes, aligned to 16.
__host__ __device__ inline XUnits units_in(std::byte* room, int rows, int cols) {
  return {room, reinterpret_cast<float2*>(room + int64_t{units_of(cols)} * rows * kUnitBytes),
          rows};
}

inline constexpr int kUnitsOfWarp = kWarp / 4;  // that a warp makes at once
__host__ __device__ constexpr int unit_parts_of(int cols) {
  return (units_of(cols) + kUnitsOfWarp - 1) / kUnitsOfWarp;
}

// A part of a row's units, by a warp; lane 4u + t has columns 8t to 8t + 7 of unit u, as if the
// units were rows of a tile of x, so that one product gives the sums of all.
struct UnitPart {
  int row = 0;
  int part = 0;
  float values[8];

  template <typename Source>
  __device__ __forceinline__ void load(int cols, const Source& source) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int col = part * kUnitsOfWarp * kUnit + lane * 8;
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = 0;
    if (col < cols) source.get(values, row, col);
  }
  __device__ __forceinline__ void store(const XUnits& x, int cols) const {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    const int unit = part * kUnitsOfWarp + lane / 4;
    const int units = units_of(cols);
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) packed[i] = pack_x(values[2 * i], values[2 * i + 1]);
    if (unit < units) {
      *reinterpret_cast<uint4*>(x.values + (int64_t{unit} * x.rows + row) * kUnitBytes +
                                lane % 4 * 16) = {packed[0], packed[1], packed[2], packed[3]};
    }
    Sums sums;
    sum_unit_of_x(sums, packed);
    const int step = part * (kUnitsOfWarp / 2) + lane;
    if (lane < 4 && 2 * step < units) x.sums[step * x.rows + row] = {sums[0], sums[1]};
  }
};

// All units, by a block; meanwhile() runs once the first values are asked for. `cols`: a multiple
// of eight.
template <typename Source, typename Meanwhile>
__device__ __forceinline__ void make_units(const XUnits& x, int cols, const Source& source,
                                           const Meanwhile& meanwhile) {
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const int parts = unit_parts_of(cols);
  int row = 0;
  int part = static_cast<int>(threadIdx.x) / kWarp;
  bool more = true;
  const auto next = [&](UnitPart& own) {  // the same for all lanes
    while (part >= parts) part -= parts, ++row;
    more = row < x.rows;
    own.row = row, own.part = part;
    part += warps;
    if (more) own.load(cols, source);
    return more;
  };
  UnitPart own[2];
  bool there[2] = {next(own[0]), next(own[1])};
  meanwhile();
#pragma unroll 1
  while (there[0]) {
    own[0].store(x, cols);
    if (there[1]) own[1].store(x, cols);
    if (!more) break;
    there[0] = next(own[0]);
    there[1] = next(own[1]);
  }
}

}  // namespace flashlane::kernels::cuda
