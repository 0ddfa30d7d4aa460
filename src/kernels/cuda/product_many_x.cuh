// x as the products of many rows read it: [rows][steps][64] in bf16, times 2^64, what is beyond the
// columns zero; with it the sums of each row's units. And with lists the parts of an expert's rows
// that blocks work on.
#pragma once

#include "kernels/cuda/product_tile.cuh"

namespace flashlane::kernels::cuda {

inline constexpr int kXStepBytes = 2 * kStepCols;  // of a row
inline constexpr int kPartUnit = 2 * kXTileRows;   // rows that are skipped or not
inline constexpr int kMostXTiles = 8;              // of a block

struct PackedX {
  std::byte* values = nullptr;
  float2* sums = nullptr;  // [rows][steps]: of both units
};

// Some of an expert's rows; none: nothing to do.
struct alignas(16) ManyItem {
  int matrix, first, row_count, unused;
};

// Packs x of a product, unless that was done, and with lists makes items of at most part_rows rows,
// item_count in all (as many as there may be).
struct ManyPacking {
  const float* x = nullptr;
  PackedX to;
  int rows = 0;  // 0: x is packed
  int64_t cols = 0;
  ExpertLists lists = {};
  ManyItem* items = nullptr;  // null: no lists
  int item_count = 0;
  int experts = 0;
  int part_rows = 0;
};
void launch_many_packing(cudaStream_t stream, const ManyPacking& packing);

}  // namespace flashlane::kernels::cuda
