// The order of sums in docs/row_rule.md, written out in plain scalar steps, and every level of the
// cpu backend held to it by bits, so that the levels are equal to each other whichever of them a
// machine has. avx512_bf16 has an order of its own and is left to the row rule.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "tensor/affine.h"
#include "tensor/dtype.h"
#include "tests/kernels/test_cases.h"

namespace flashlane::kernels::test {
namespace {

std::vector<Backend> levels_of_one_order() {
  std::vector<Backend> levels = backends();
  std::erase_if(levels, [](const Backend& level) {
    return level.name == "reference" || level.name == "cpu_avx512_bf16" || level.name == "cuda";
  });
  return levels;
}

float scalar_at(const std::byte* data, DType dtype, int64_t index) {
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, data + index * 4, sizeof(value));
    return value;
  }
  uint16_t half;
  std::memcpy(&half, data + index * 2, sizeof(half));
  return dtype == DType::kBf16 ? bf16_to_float(half) : f16_to_float(half);
}

// 32 values: i with i + 16, then the tree of 8, 4, 2, 1; more are sums of two halves.
float tree_sum(const float* x, int count) {
  if (count > 32) return tree_sum(x, count / 2) + tree_sum(x + count / 2, count / 2);
  float lanes[16];
  for (int i = 0; i < 16; ++i) lanes[i] = x[i] + x[i + 16];
  for (int step = 8; step > 0; step /= 2) {
    for (int i = 0; i < step; ++i) lanes[i] += lanes[i + step];
  }
  return lanes[0];
}

// One output of one input row. Columns beyond the matrix are zeros, up to a whole group.
float product(const Matrix& matrix, int64_t row, const float* x) {
  const bool affine = matrix.layout == Layout::kAffine;
  const int group = affine ? matrix.group : 64;
  const int64_t padded = (matrix.cols + group - 1) / group * group;
  std::vector<float> weights(static_cast<size_t>(padded), 0);
  std::vector<float> rounded(static_cast<size_t>(padded), 0);
  for (int64_t i = 0; i < matrix.cols; ++i) {
    rounded[static_cast<size_t>(i)] = bf16_to_float(float_to_bf16(x[i]));
  }
  if (affine) {
    std::vector<uint8_t> codes(static_cast<size_t>(matrix.cols));
    const std::byte* at = matrix.data + static_cast<size_t>(row) * matrix.row_bytes();
    affine_unpack({at, matrix.row_bytes()}, matrix.bits, codes);
    for (size_t i = 0; i < codes.size(); ++i) weights[i] = codes[i];
  } else {
    dequantize_row(matrix, 0, row, weights.data());
  }
  float total = 0;
  for (int64_t first = 0; first < padded; first += group) {
    float partial = 0;
    for (int64_t chunk = first; chunk < first + group; chunk += 32) {
      float even = 0;
      float odd = 0;
      for (int64_t i = chunk; i < chunk + 32; i += 2) {
        const auto at = static_cast<size_t>(i);
        even = std::fma(weights[at], rounded[at], even);
        odd = std::fma(weights[at + 1], rounded[at + 1], odd);
      }
      partial += even + odd;
    }
    if (!affine) {
      total += partial;
      continue;
    }
    const int64_t at = row * (matrix.cols / group) + first / group;
    total = std::fma(scalar_at(matrix.scales, matrix.scale_dtype, at), partial, total);
    total = std::fma(scalar_at(matrix.biases, matrix.scale_dtype, at),
                     tree_sum(&rounded[static_cast<size_t>(first)], group), total);
  }
  return total;
}

TEST(ProductOrder, EveryLevelFollowsItInEveryFormat) {
  constexpr int kRows = 9;  // enough for tile registers where there are any
  const auto levels = levels_of_one_order();
  ASSERT_FALSE(levels.empty());
  for (const Backend& level : levels) {
    for (const Format& format : all_formats()) {
      const int64_t cols = format.layout == Layout::kAffine ? 256 : 73;
      const auto ops = level.make(2);
      Store store;
      Random random(5);
      Matrix matrix = store.matrix(random, format, 1, 37, cols);
      const Matrix source = matrix;
      ASSERT_TRUE(ops->prepare(matrix).ok());
      const auto in = random.values(kRows * cols, -2, 2);
      for (const int rows : {1, kRows}) {
        std::vector<float> out(static_cast<size_t>(rows) * 37, -1);
        ops->project(out.data(), in.data(), rows, matrix);
        for (int64_t i = 0; i < rows * 37; ++i) {
          ASSERT_EQ(out[static_cast<size_t>(i)],
                    product(source, i % 37, &in[static_cast<size_t>(i / 37 * cols)]))
              << level.name << " " << format.name << ", output " << i % 37 << " of row " << i / 37
              << " of " << rows;
        }
      }
    }
  }
}

// 64 products of 2^-140, which only denormal numbers could hold.
TEST(ProductOrder, DenormalNumbersCountAsZeroAtEveryLevel) {
  constexpr int kCols = 64;
  const std::vector<uint16_t> weights(16 * kCols, float_to_bf16(0x1p-100F));
  for (const Backend& level : backends()) {
    if (level.name == "reference" || level.name == "cuda") continue;
    const auto ops = level.make(1);
    Matrix matrix;
    matrix.layout = Layout::kBf16;
    matrix.rows = matrix.stride_rows = 16;
    matrix.cols = kCols;
    matrix.data = reinterpret_cast<const std::byte*>(weights.data());
    ASSERT_TRUE(ops->prepare(matrix).ok());
    const std::vector<float> in(8 * kCols, 0x1p-40F);
    for (const int rows : {1, 8}) {
      std::vector<float> out(static_cast<size_t>(rows) * 16, -1);
      ops->project(out.data(), in.data(), rows, matrix);
      for (const float value : out) EXPECT_EQ(value, 0.0F) << level.name << ", " << rows << " rows";
    }
  }
}

}  // namespace
}  // namespace flashlane::kernels::test
