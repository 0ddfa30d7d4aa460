// Weights as kernels see them. A Matrix is [rows, cols] row-major, plain (F32, F16, BF16) or MLX
// affine (w = scale * code + bias per group of a row, codes in one little-endian bit stream per
// row; formats: spec "MLX conversions"). A bank is `count` matrices of one shape: the experts.
// Matrices own nothing; a source owns the bytes until Ops::prepare has made the backend's own copy.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tensor/dtype.h"

namespace flashlane::kernels {

enum class Layout : uint8_t { kF32, kF16, kBf16, kAffine };

struct Matrix {
  Layout layout = Layout::kF32;
  int bits = 0;                      // affine: 2, 3, 4, 5, 6 or 8
  int group = 0;                     // affine: 32, 64 or 128 columns per scale
  DType scale_dtype = DType::kBf16;  // affine: of scales and biases (BF16, F16 or F32)
  int64_t rows = 0;                  // of one matrix of the bank
  int64_t cols = 0;
  int64_t count = 1;                  // matrices in the bank
  int64_t stride_rows = 0;            // rows from one matrix of the bank to the next (≥ rows)
  const std::byte* data = nullptr;    // codes or values of matrix 0, row 0
  const std::byte* scales = nullptr;  // affine: [.., cols / group]
  const std::byte* biases = nullptr;
  int packed = -1;  // the backend's own copy, set by Ops::prepare

  bool empty() const { return rows == 0; }
  size_t row_bytes() const {
    switch (layout) {
      case Layout::kF32:
        return static_cast<size_t>(cols) * 4;
      case Layout::kF16:
      case Layout::kBf16:
        return static_cast<size_t>(cols) * 2;
      case Layout::kAffine:
        return static_cast<size_t>(cols) * static_cast<size_t>(bits) / 8;
    }
    return 0;
  }
  size_t scale_row_bytes() const {
    return layout == Layout::kAffine ? static_cast<size_t>(cols / group) * dtype_bytes(scale_dtype)
                                     : 0;
  }
  // Bytes of the whole bank as stored, scales and biases included.
  size_t stored_bytes() const {
    return static_cast<size_t>(count * rows) * (row_bytes() + 2 * scale_row_bytes());
  }
};

// Some rows of some matrices of a bank, to be prepared at a time.
struct MatrixPart {
  int64_t first = 0;  // matrices [first, first + count) of the bank
  int64_t count = 0;
  int64_t first_row = 0;  // rows [first_row, first_row + row_count) of each
  int64_t row_count = 0;
};
// Where a part may begin inside a matrix, and end unless it is the matrix's end.
inline constexpr int64_t kPartRows = 256;

// A tensor that exists as a rule: element i is bf16(scale * r + offset), rounded after each step,
// with r = (splitmix64(hash + i) >> 40) / 2^23 - 1, and then quantised as affine_quantize_row does.
struct DrawRule {
  uint64_t hash = 0;
  float scale = 1;
  float offset = 0;
};
// Rows of such a tensor as a bank: row r of matrix m is its row first_row + m * stride_rows + r.
struct DrawnRows {
  DrawRule rule;
  int64_t first_row = 0;
};

// Writes row `row` of matrix `index` of the bank as floats: w = float(scale) * code + float(bias),
// product and sum each rounded once in f32. out: [cols]. The one definition of a weight's value.
void dequantize_row(const Matrix& matrix, int64_t index, int64_t row, float* out);

}  // namespace flashlane::kernels
