// Matrix products on the GPU: out[row, n] = weight[n, :] · bf16(x[row, :]), for plain rows or for
// the rows that chose an expert of a bank. One arithmetic for 1 row or thousands: lane l of a warp
// sums columns of units l, l + 32, … in ascending order, and the lanes are summed by halves, so a
// row's bits depend on nothing beside it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/matrix.h"

namespace flashlane::kernels::cuda {

// Columns that a lane takes at a time; groups of a scale are whole units.
inline constexpr int kUnit = 32;

// A prepared bank on the device. A row's codes are `bits` words a unit; plain rows are padded with
// zeros to whole units.
struct DeviceMatrix {
  Layout layout = Layout::kF32;
  DType scale_dtype = DType::kBf16;
  int bits = 0;
  int group = 0;
  int64_t rows = 0;  // of one matrix
  int64_t cols = 0;
  int64_t units = 0;
  int64_t count = 0;
  std::byte* values = nullptr;
  std::byte* scales = nullptr;  // [count * rows, cols / group]
  std::byte* biases = nullptr;

  size_t row_bytes() const {
    switch (layout) {
      case Layout::kF32:
        return static_cast<size_t>(units) * kUnit * 4;
      case Layout::kF16:
      case Layout::kBf16:
        return static_cast<size_t>(units) * kUnit * 2;
      case Layout::kAffine:
        return static_cast<size_t>(units) * 4 * static_cast<size_t>(bits);
    }
    return 0;
  }
  size_t scale_row_bytes() const {
    return layout == Layout::kAffine ? static_cast<size_t>(cols / group) * dtype_bytes(scale_dtype)
                                     : 0;
  }
};

// Which rows of x go with which matrix of a bank: pairs of a row and one of its experts, grouped by
// expert. Null `list`: all rows, matrix 0.
struct ExpertLists {
  const int32_t* starts = nullptr;  // [experts + 1]
  const int32_t* list = nullptr;    // pairs, ascending within an expert
  int pairs_per_row = 1;            // pair p reads row p / pairs_per_row of x, writes row p of out
};

struct Product {
  DeviceMatrix weight;
  const float* x = nullptr;  // [.., cols]
  float* out = nullptr;      // [.., rows of the weight]
  int row_count = 0;         // with lists: of pairs
  ExpertLists lists = {};
};

void launch_product(cudaStream_t stream, const Product& product);
// Of those layouts alone; launch_product chooses.
void launch_affine_product(cudaStream_t stream, const Product& product);
void launch_plain_product(cudaStream_t stream, const Product& product);

}  // namespace flashlane::kernels::cuda
