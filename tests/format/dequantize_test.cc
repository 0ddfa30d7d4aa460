// A stored weight's value: rows of the bundled model as another implementation read them, and every
// layout at every address.
#include <gtest/gtest.h>

#include <cstring>

#include "base/keyed_random.h"
#include "format/checkpoint.h"
#include "format/safetensors.h"
#include "kernels/matrix.h"
#include "tensor/affine.h"
#include "tensor/dtype.h"
#include "tests/support/tensor_values.h"

namespace flashlane::format {
namespace {

constexpr int kAllBits[] = {2, 3, 4, 5, 6, 8};

kernels::Matrix bank_of(const TensorSource& source, const std::string& path) {
  const TensorView* weight = source.find(path + ".weight");
  const TensorView* scales = source.find(path + ".scales");
  const TensorView* biases = source.find(path + ".biases");
  if (weight == nullptr || scales == nullptr || biases == nullptr) return {};
  kernels::Matrix matrix;
  matrix.layout = kernels::Layout::kAffine;
  matrix.bits = 6;
  matrix.cols = weight->dim(-1) * 32 / matrix.bits;
  matrix.group = static_cast<int>(matrix.cols / scales->dim(-1));
  matrix.rows = weight->dim(-2);
  matrix.stride_rows = matrix.rows;
  matrix.count = weight->rank == 3 ? weight->dim(0) : 1;
  matrix.data = weight->data;
  matrix.scales = scales->data;
  matrix.biases = biases->data;
  return matrix;
}

TEST(DequantizeRow, EqualsTheReferenceOnTheBundledModel) {
  const auto model = Checkpoint::open(FLASHLANE_SOURCE_DIR "/models/flash-next-nano-6bit");
  const auto fixture =
      SafetensorsFile::open(FLASHLANE_SOURCE_DIR "/tests/fixtures/nano/dequant_6bit.safetensors");
  ASSERT_TRUE(model.ok() && fixture.ok());
  int compared = 0;
  for (const std::string& name : (*fixture)->names()) {
    if (!name.ends_with(".rows")) continue;
    const std::string path = name.substr(0, name.size() - 5);
    const kernels::Matrix matrix = bank_of(**model, path);
    ASSERT_FALSE(matrix.empty()) << path;
    const int64_t index = path.ends_with("switch_mlp.down_proj") ? 5 : 0;
    const auto rows = values_of<int32_t>(*(*fixture)->find(name));
    const TensorView* values = (*fixture)->find(path + ".values");
    const auto* codes = (*fixture)->find(path + ".codes")->as<uint8_t>();
    const auto cols = static_cast<size_t>(matrix.cols);
    ASSERT_EQ(values->dim(1), matrix.cols) << path;
    const auto expected = values_of<float>(*values);
    for (int64_t i = 0; i < values->dim(0); ++i) {
      std::vector<float> out(cols);
      kernels::dequantize_row(matrix, index, rows[static_cast<size_t>(i)], out.data());
      const float* wanted = expected.data() + static_cast<size_t>(i) * cols;
      EXPECT_EQ(std::memcmp(out.data(), wanted, cols * sizeof(float)), 0) << path << " row " << i;
      std::vector<uint8_t> unpacked(cols);
      const auto stored_row =
          static_cast<size_t>(index * matrix.stride_rows + rows[static_cast<size_t>(i)]);
      affine_unpack({matrix.data + stored_row * matrix.row_bytes(), matrix.row_bytes()},
                    matrix.bits, unpacked);
      EXPECT_EQ(std::memcmp(unpacked.data(), codes + static_cast<size_t>(i) * cols, cols), 0);
      ++compared;
    }
  }
  EXPECT_EQ(compared, 36);
}

// All widths and scale types, at every address, in a bank with space between its matrices.
TEST(DequantizeRow, ReadsEveryLayoutAtAnyAddress) {
  constexpr int64_t kCols = 64;
  const auto code_at = [](size_t row, size_t col, int bits) {
    return static_cast<uint8_t>(keyed_bits(1, row, col) >> (64 - bits));
  };
  for (const int bits : kAllBits) {
    for (const DType scale_dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
      for (const size_t shift : {0, 1, 3}) {
        kernels::Matrix matrix;
        matrix.layout = kernels::Layout::kAffine;
        matrix.bits = bits;
        matrix.group = 32;
        matrix.scale_dtype = scale_dtype;
        matrix.rows = 2;
        matrix.cols = kCols;
        matrix.count = 2;
        matrix.stride_rows = 3;
        std::vector<std::byte> codes(shift + 6 * matrix.row_bytes());
        std::vector<std::byte> scales(shift + 6 * matrix.scale_row_bytes());
        std::vector<std::byte> biases = scales;
        const size_t scale_bytes = dtype_bytes(scale_dtype);
        const auto put = [&](std::vector<std::byte>& to, size_t i, float value) {
          const uint16_t half =
              scale_dtype == DType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
          const void* from = scale_dtype == DType::kF32 ? static_cast<const void*>(&value) : &half;
          std::memcpy(to.data() + shift + i * scale_bytes, from, scale_bytes);
        };
        for (size_t row = 0; row < 6; ++row) {
          std::vector<uint8_t> row_codes(kCols);
          for (size_t col = 0; col < kCols; ++col) row_codes[col] = code_at(row, col, bits);
          affine_pack(
              row_codes, bits,
              std::span(codes).subspan(shift + row * matrix.row_bytes(), matrix.row_bytes()));
          for (size_t group = 0; group < 2; ++group) {
            put(scales, row * 2 + group, 0.25F * static_cast<float>(row + group + 1));
            put(biases, row * 2 + group, -static_cast<float>(row));
          }
        }
        matrix.data = codes.data() + shift;
        matrix.scales = scales.data() + shift;
        matrix.biases = biases.data() + shift;
        std::vector<float> out(kCols);
        kernels::dequantize_row(matrix, 1, 1, out.data());
        for (size_t col = 0; col < kCols; ++col) {
          const size_t group = col / 32;
          const float scale = 0.25F * static_cast<float>(4 + group + 1);
          EXPECT_EQ(out[col], scale * code_at(4, col, bits) - 4.0F) << bits << " bits, " << col;
        }
      }
    }
  }
}

TEST(DequantizeRow, ReadsPlainRows) {
  const std::vector<float> floats = {1.5F, -2.0F, 0.125F, 3.0F};
  std::vector<uint16_t> bf16s;
  std::vector<uint16_t> f16s;
  for (const float value : floats) {
    bf16s.push_back(float_to_bf16(value));
    f16s.push_back(float_to_f16(value));
  }
  const std::pair<kernels::Layout, const void*> cases[] = {{kernels::Layout::kF32, floats.data()},
                                                           {kernels::Layout::kBf16, bf16s.data()},
                                                           {kernels::Layout::kF16, f16s.data()}};
  for (const auto& [layout, data] : cases) {
    kernels::Matrix matrix;
    matrix.layout = layout;
    matrix.rows = 2;
    matrix.cols = 2;
    matrix.data = static_cast<const std::byte*>(data);
    std::vector<float> out(2);
    kernels::dequantize_row(matrix, 0, 1, out.data());
    EXPECT_EQ(out, (std::vector<float>{0.125F, 3.0F}));
  }
}

TEST(DequantizeRowDeath, RefusesRowsOutside) {
  float out = 0;
  kernels::Matrix matrix;
  matrix.rows = 1;
  matrix.cols = 1;
  matrix.data = reinterpret_cast<const std::byte*>(&out);
  EXPECT_DEATH(kernels::dequantize_row(matrix, 0, 1, &out), "row >= 0 && row < matrix.rows");
  EXPECT_DEATH(kernels::dequantize_row(matrix, 1, 0, &out), "index >= 0 && index < matrix.count");
}

}  // namespace
}  // namespace flashlane::format
