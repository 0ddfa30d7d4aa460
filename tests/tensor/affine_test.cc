// Affine quantisation: bit order by the published examples, the quantiser by its rule.
#include "tensor/affine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/keyed_random.h"
#include "tensor/dtype.h"

namespace flashlane {
namespace {

constexpr int kAllBits[] = {2, 3, 4, 5, 6, 8};

std::vector<uint32_t> packed_words(const std::vector<uint8_t>& codes, int bits) {
  std::vector<uint32_t> words(codes.size() * static_cast<size_t>(bits) / 32);
  affine_pack(codes, bits, std::as_writable_bytes(std::span(words)));
  return words;
}

TEST(Affine, PacksTheExamples) {
  EXPECT_EQ(packed_words({0, 1, 2, 3, 4, 5, 6, 7}, 4), (std::vector<uint32_t>{0x76543210}));
  EXPECT_EQ(packed_words({1, 2, 3, 4, 5, 6, 7, 8}, 8),
            (std::vector<uint32_t>{0x04030201, 0x08070605}));
  std::vector<uint8_t> rising;
  std::vector<uint8_t> stepping;
  for (int i = 0; i < 16; ++i) {
    rising.push_back(static_cast<uint8_t>(i));
    stepping.push_back(static_cast<uint8_t>((5 * i + 3) % 64));
  }
  EXPECT_EQ(packed_words(rising, 6), (std::vector<uint32_t>{0x440c2040, 0xa2481c61, 0x3ce34c2c}));
  EXPECT_EQ(packed_words(stepping, 6), (std::vector<uint32_t>{0x1748d203, 0x5c2b9a17, 0x38913feb}));
}

// Against the definition: element k occupies bits [k*bits, (k+1)*bits) of one little-endian stream.
TEST(Affine, PacksAndUnpacksEveryWidth) {
  for (const int bits : kAllBits) {
    ASSERT_TRUE(affine_bits_supported(bits));
    const auto width = static_cast<size_t>(bits);
    std::vector<uint8_t> codes(96);
    for (size_t i = 0; i < codes.size(); ++i) {
      codes[i] = static_cast<uint8_t>(keyed_bits(7, i, width) >> (64 - width));
    }
    std::vector<std::byte> packed(codes.size() * width / 8);
    affine_pack(codes, bits, packed);
    for (size_t bit = 0; bit < packed.size() * 8; ++bit) {
      const int stored = std::to_integer<int>(packed[bit / 8] >> (bit % 8)) & 1;
      ASSERT_EQ(stored, codes[bit / width] >> (bit % width) & 1) << bits << " bits, bit " << bit;
    }
    std::vector<uint8_t> back(codes.size());
    affine_unpack(packed, bits, back);
    EXPECT_EQ(back, codes);
  }
  for (const int bits : {-1, 0, 1, 7, 9, 16}) EXPECT_FALSE(affine_bits_supported(bits));
}

// The rule, one value at a time.
void quantize_plainly(std::span<const float> row, int bits, size_t group,
                      std::vector<uint8_t>& codes, std::vector<uint16_t>& scales,
                      std::vector<uint16_t>& biases) {
  for (size_t start = 0; start < row.size(); start += group) {
    const auto values = row.subspan(start, group);
    const float minimum = *std::min_element(values.begin(), values.end());
    const float maximum = *std::max_element(values.begin(), values.end());
    const auto top = static_cast<float>((1 << bits) - 1);
    float scale = std::max((maximum - minimum) / top, 1e-7F);
    const bool low_end = std::fabs(minimum) > std::fabs(maximum);
    const float edge = low_end ? minimum : maximum;
    if (!low_end) scale = -scale;
    const float steps = std::nearbyint(edge / scale);
    const float bias = steps != 0 ? edge : 0;
    if (steps != 0) scale = edge / steps;
    for (const float value : values) {
      const float code = std::nearbyint((value - bias) / scale);
      codes.push_back(static_cast<uint8_t>(std::clamp(code, 0.0F, top)));
    }
    scales.push_back(float_to_bf16(scale));
    biases.push_back(float_to_bf16(bias));
  }
}

TEST(Affine, TheFastQuantiserFollowsTheRuleToTheBit) {
  uint64_t draws = 0;
  for (const int bits : kAllBits) {
    for (const int group : {32, 64, 128}) {
      for (int kind = 0; kind < 40; ++kind) {
        std::vector<float> row(256);
        for (float& value : row) {
          const double u = keyed_uniform(3, ++draws, 1) * 2 - 1;
          // Smooth, coarse (ties between two codes), tiny, shifted, one-sided, constant and zeros.
          const double shapes[] = {u, std::round(u * 16) / 32, u * 1e-9, u + 40, -std::fabs(u), 1.5,
                                   0, u < 0.9 ? -0.0 : 0.0};
          value = static_cast<float>(shapes[kind % 8]);
          if (kind % 3 == 0) value = round_to_bf16(value);
        }
        std::vector<uint8_t> codes(row.size());
        std::vector<uint16_t> scales(row.size() / static_cast<size_t>(group));
        std::vector<uint16_t> biases(scales.size());
        affine_quantize_row(row, bits, group, codes, scales, biases);
        std::vector<uint8_t> plain_codes;
        std::vector<uint16_t> plain_scales;
        std::vector<uint16_t> plain_biases;
        quantize_plainly(row, bits, static_cast<size_t>(group), plain_codes, plain_scales,
                         plain_biases);
        ASSERT_EQ(codes, plain_codes) << bits << " bits, group " << group << ", kind " << kind;
        ASSERT_EQ(scales, plain_scales) << bits << " bits, group " << group << ", kind " << kind;
        ASSERT_EQ(biases, plain_biases) << bits << " bits, group " << group << ", kind " << kind;
      }
    }
  }
}

TEST(Affine, ChoosesGroups) {
  EXPECT_EQ(affine_group_that_divides(128, 256), 128);
  EXPECT_EQ(affine_group_that_divides(64, 256), 64);
  EXPECT_EQ(affine_group_that_divides(64, 160), 32);
  EXPECT_EQ(affine_group_that_divides(128, 192), 64);
  EXPECT_EQ(affine_group_that_divides(32, 128), 32);
  EXPECT_EQ(affine_group_that_divides(128, 48), 0);
  EXPECT_EQ(affine_group_that_divides(64, 0), 0);
  EXPECT_TRUE(affine_group_supported(32) && affine_group_supported(64) &&
              affine_group_supported(128));
  EXPECT_FALSE(affine_group_supported(16) || affine_group_supported(96));
}

struct Quantized {
  std::vector<uint8_t> codes;
  std::vector<uint16_t> scales, biases;
};

Quantized quantize(const std::vector<float>& row, int bits, int group) {
  const size_t groups = row.size() / static_cast<size_t>(group);
  Quantized out{std::vector<uint8_t>(row.size()), std::vector<uint16_t>(groups),
                std::vector<uint16_t>(groups)};
  affine_quantize_row(row, bits, group, out.codes, out.scales, out.biases);
  return out;
}

// Worked by hand: minimum -1, maximum 0.5, n = 3. The edge is -1, delta 0.5, q0 = -2, so delta
// stays 0.5 and bias is -1.
TEST(Affine, QuantizesFromTheFartherEnd) {
  std::vector<float> row(32, 0.0F);
  row[0] = -1.0F;
  row[1] = 0.5F;
  row[2] = -0.75F;  // halfway between two codes, to the even one
  row[3] = -0.25F;
  const auto low = quantize(row, 2, 32);
  EXPECT_EQ(bf16_to_float(low.scales[0]), 0.5F);
  EXPECT_EQ(bf16_to_float(low.biases[0]), -1.0F);
  EXPECT_EQ(std::vector<uint8_t>(low.codes.begin(), low.codes.begin() + 5),
            (std::vector<uint8_t>{0, 3, 0, 2, 2}));
  for (float& value : row) value = -value;
  const auto high = quantize(row, 2, 32);
  EXPECT_EQ(bf16_to_float(high.scales[0]), -0.5F);
  EXPECT_EQ(bf16_to_float(high.biases[0]), 1.0F);
  EXPECT_EQ(high.codes, low.codes);
}

// Here q0 changes delta: minimum 0.4, maximum 1, n = 3: delta = -0.2 gives q0 = -5 and stays; with
// minimum 0.35 delta = -0.65/3, q0 = rint(-4.615) = -5, so delta becomes 1/-5.
TEST(Affine, MakesZeroRepresentable) {
  std::vector<float> row(32, 0.35F);
  row[5] = 1.0F;
  const auto out = quantize(row, 2, 32);
  EXPECT_EQ(out.scales[0], float_to_bf16(-0.2F));
  EXPECT_EQ(out.biases[0], float_to_bf16(1.0F));
  EXPECT_EQ(out.codes[5], 0);
  EXPECT_EQ(out.codes[0], 3);  // (0.35 - 1) / -0.2 = 3.25
}

TEST(Affine, QuantizesZerosAndConstants) {
  const auto zeros = quantize(std::vector<float>(64, 0.0F), 4, 64);
  EXPECT_EQ(bf16_to_float(zeros.biases[0]), 0.0F);
  for (const uint8_t code : zeros.codes) EXPECT_EQ(code, 0);
  const auto constant = quantize(std::vector<float>(64, 2.5F), 4, 64);
  for (const uint8_t code : constant.codes) {
    const float value =
        bf16_to_float(constant.scales[0]) * code + bf16_to_float(constant.biases[0]);
    EXPECT_EQ(value, 2.5F);
  }
}

// Every value lands within half a step, plus what storing scale and bias as bf16 costs.
TEST(Affine, StaysNearTheValues) {
  for (const int bits : kAllBits) {
    for (const int group : {32, 64, 128}) {
      std::vector<float> row(256);
      for (size_t i = 0; i < row.size(); ++i) {
        row[i] = static_cast<float>(keyed_uniform(3, i, static_cast<uint64_t>(bits)) * 2 - 1);
      }
      const auto out = quantize(row, bits, group);
      for (size_t i = 0; i < row.size(); ++i) {
        const size_t g = i / static_cast<size_t>(group);
        const float scale = bf16_to_float(out.scales[g]);
        const float bias = bf16_to_float(out.biases[g]);
        ASSERT_LT(out.codes[i], 1 << bits);
        const float value = scale * out.codes[i] + bias;
        // Moving the edge to a multiple of the step can push the other end past the last code.
        const float tolerance = std::fabs(scale) * 1.02F + 0.01F;
        ASSERT_NEAR(value, row[i], tolerance) << bits << " bits, group " << group << ", " << i;
      }
    }
  }
}

}  // namespace
}  // namespace flashlane
