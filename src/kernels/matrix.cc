// The one definition of a stored weight's value. Bytes are read with memcpy, so that rows may lie
// at any address of a mapped file.
#include "kernels/matrix.h"

#include <bit>
#include <cstring>

#include "base/check.h"
#include "kernels/matrix_check.h"
#include "tensor/affine.h"

namespace flashlane::kernels {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

template <typename T>
T load(const std::byte* data, int64_t index) {
  T value;
  std::memcpy(&value, data + static_cast<size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

float load_float(const std::byte* data, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return load<float>(data, index);
    case DType::kF16:
      return f16_to_float(load<uint16_t>(data, index));
    case DType::kBf16:
      return bf16_to_float(load<uint16_t>(data, index));
    default:
      UNREACHABLE();
  }
}

DType plain_dtype(Layout layout) {
  switch (layout) {
    case Layout::kF32:
      return DType::kF32;
    case Layout::kF16:
      return DType::kF16;
    case Layout::kBf16:
      return DType::kBf16;
    case Layout::kAffine:
      break;
  }
  UNREACHABLE();
}

// Eight codes of b bits are exactly b bytes of the stream.
void dequantize_affine(const Matrix& matrix, const std::byte* codes, const std::byte* scales,
                       const std::byte* biases, float* out) {
  const auto bits = static_cast<size_t>(matrix.bits);
  const uint64_t mask = (uint64_t{1} << bits) - 1;
  for (int64_t start = 0; start < matrix.cols; start += 8) {
    const int64_t group = start / matrix.group;
    const float scale = load_float(scales, matrix.scale_dtype, group);
    const float bias = load_float(biases, matrix.scale_dtype, group);
    uint64_t word = 0;
    std::memcpy(&word, codes + static_cast<size_t>(start / 8) * bits, bits);
    for (size_t i = 0; i < 8; ++i) {
      const float product = scale * static_cast<float>(word >> (i * bits) & mask);
      out[static_cast<size_t>(start) + i] = product + bias;
    }
  }
}

}  // namespace

Status check_matrix(const Matrix& matrix) {
  if (matrix.rows < 1 || matrix.cols < 1 || matrix.count < 1 || matrix.data == nullptr) {
    return invalid("a matrix of {} x [{}, {}] can't be prepared", matrix.count, matrix.rows,
                   matrix.cols);
  }
  if (matrix.count > 1 && matrix.stride_rows < matrix.rows) {
    return invalid("matrices of a bank overlap: {} rows, but {} from one to the next", matrix.rows,
                   matrix.stride_rows);
  }
  if (matrix.layout != Layout::kAffine) return {};
  if (!affine_bits_supported(matrix.bits)) {
    return invalid("affine matrices have 2, 3, 4, 5, 6 or 8 bits, not {}", matrix.bits);
  }
  if (!affine_group_supported(matrix.group) || matrix.cols % matrix.group != 0) {
    return invalid("{} columns can't be in affine groups of {} (32, 64 or 128 that divide them)",
                   matrix.cols, matrix.group);
  }
  if (matrix.scale_dtype != DType::kF32 && matrix.scale_dtype != DType::kF16 &&
      matrix.scale_dtype != DType::kBf16) {
    return invalid("affine scales are BF16, F16 or F32, not {}", dtype_name(matrix.scale_dtype));
  }
  if (matrix.scales == nullptr || matrix.biases == nullptr) {
    return invalid("an affine matrix of [{}, {}] lacks scales or biases", matrix.rows, matrix.cols);
  }
  return {};
}

void dequantize_row(const Matrix& matrix, int64_t index, int64_t row, float* out) {
  CHECK(index >= 0 && index < matrix.count);
  CHECK(row >= 0 && row < matrix.rows);
  const auto stored_row = static_cast<size_t>(index * matrix.stride_rows + row);
  const std::byte* values = matrix.data + stored_row * matrix.row_bytes();
  if (matrix.layout == Layout::kAffine) {
    CHECK(matrix.bits >= 2 && matrix.bits <= 8);
    CHECK(matrix.group > 0 && matrix.group % 8 == 0 && matrix.cols % matrix.group == 0);
    const size_t scale_offset = stored_row * matrix.scale_row_bytes();
    dequantize_affine(matrix, values, matrix.scales + scale_offset, matrix.biases + scale_offset,
                      out);
    return;
  }
  const DType dtype = plain_dtype(matrix.layout);
  for (int64_t i = 0; i < matrix.cols; ++i) out[i] = load_float(values, dtype, i);
}

}  // namespace flashlane::kernels
