// MLX affine quantisation: the rounding order below is the one that MLX uses, so that its files and
// ours hold the same codes. Eight codes of b bits are exactly b bytes, which is the unit here.
#include "tensor/affine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "base/check.h"
#include "tensor/dtype.h"

namespace flashlane {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

bool affine_bits_supported(int bits) {
  return (bits >= 2 && bits <= 6) || bits == 8;
}

bool affine_group_supported(int group) {
  return group == 32 || group == 64 || group == 128;
}

int affine_group_that_divides(int wanted, int64_t cols) {
  for (const int group : {128, 64, 32}) {
    if (group <= wanted && cols > 0 && cols % group == 0) return group;
  }
  return 0;
}

namespace {

// One group: the scale is signed so that the end of the range farther from zero is exact.
void quantize_group(std::span<const float> values, int bits, std::span<uint8_t> codes,
                    uint16_t* scale_bits, uint16_t* bias_bits) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  const float minimum = *low;
  const float maximum = *high;
  const auto top = static_cast<float>((1 << bits) - 1);
  float scale = std::max((maximum - minimum) / top, 1e-7F);
  const bool low_end = std::fabs(minimum) > std::fabs(maximum);
  const float edge = low_end ? minimum : maximum;
  if (!low_end) scale = -scale;
  const float steps = std::nearbyint(edge / scale);
  float bias = 0;
  if (steps != 0) {
    scale = edge / steps;
    bias = edge;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    // Codes come from the unrounded scale and bias; only storing rounds them.
    const float code = std::nearbyint((values[i] - bias) / scale);
    codes[i] = static_cast<uint8_t>(std::clamp(code, 0.0F, top));
  }
  *scale_bits = float_to_bf16(scale);
  *bias_bits = float_to_bf16(bias);
}

}  // namespace

void affine_quantize_row(std::span<const float> row, int bits, int group, std::span<uint8_t> codes,
                         std::span<uint16_t> scales, std::span<uint16_t> biases) {
  CHECK(affine_bits_supported(bits));
  CHECK(affine_group_supported(group));
  const auto width = static_cast<size_t>(group);
  CHECK_EQ(row.size() % width, 0U);
  CHECK_EQ(codes.size(), row.size());
  CHECK_EQ(scales.size(), row.size() / width);
  CHECK_EQ(biases.size(), row.size() / width);
  for (size_t i = 0; i < scales.size(); ++i) {
    quantize_group(row.subspan(i * width, width), bits, codes.subspan(i * width, width), &scales[i],
                   &biases[i]);
  }
}

void affine_pack(std::span<const uint8_t> codes, int bits, std::span<std::byte> packed) {
  CHECK(affine_bits_supported(bits));
  const auto width = static_cast<size_t>(bits);
  CHECK_EQ(codes.size() % 8, 0U);
  CHECK_EQ(packed.size(), codes.size() / 8 * width);
  for (size_t unit = 0; unit < codes.size() / 8; ++unit) {
    uint64_t word = 0;
    for (size_t i = 0; i < 8; ++i) {
      const uint64_t code = codes[unit * 8 + i];
      CHECK_LT(code, uint64_t{1} << width);
      word |= code << (i * width);
    }
    std::memcpy(packed.data() + unit * width, &word, width);
  }
}

void affine_unpack(std::span<const std::byte> packed, int bits, std::span<uint8_t> codes) {
  CHECK(affine_bits_supported(bits));
  const auto width = static_cast<size_t>(bits);
  CHECK_EQ(codes.size() % 8, 0U);
  CHECK_EQ(packed.size(), codes.size() / 8 * width);
  const uint64_t mask = (uint64_t{1} << width) - 1;
  for (size_t unit = 0; unit < codes.size() / 8; ++unit) {
    uint64_t word = 0;
    std::memcpy(&word, packed.data() + unit * width, width);
    for (size_t i = 0; i < 8; ++i) {
      codes[unit * 8 + i] = static_cast<uint8_t>(word >> (i * width) & mask);
    }
  }
}

}  // namespace flashlane
