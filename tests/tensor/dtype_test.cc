// Conversions of the 16-bit formats, over all 65536 patterns and at every rounding boundary.
#include "tensor/dtype.h"

#include <gtest/gtest.h>

#include <limits>

namespace flashlane {
namespace {

// A pattern's value by the definition of the format, in double.
double value_of(uint32_t bits, int exponent_bits, int fraction_bits) {
  const uint32_t fraction = bits & ((1U << fraction_bits) - 1);
  const int exponent = static_cast<int>(bits >> fraction_bits & ((1U << exponent_bits) - 1));
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const double sign = (bits >> (exponent_bits + fraction_bits) & 1) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  }
  const double scaled = std::ldexp(static_cast<double>(fraction), -fraction_bits);
  return sign *
         (exponent == 0 ? std::ldexp(scaled, 1 - bias) : std::ldexp(1 + scaled, exponent - bias));
}

struct Format {
  int exponent_bits;
  int fraction_bits;
  float (*widen)(uint16_t);
  uint16_t (*narrow)(float);
};

constexpr Format kBf16 = {8, 7, bf16_to_float, float_to_bf16};
constexpr Format kF16 = {5, 10, f16_to_float, float_to_f16};

void check_every_pattern(const Format& format) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float widened = format.widen(static_cast<uint16_t>(bits));
    const double wanted = value_of(bits, format.exponent_bits, format.fraction_bits);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(widened)) << bits;
      ASSERT_TRUE(std::isnan(format.widen(format.narrow(widened)))) << bits;
      continue;
    }
    ASSERT_EQ(static_cast<double>(widened), wanted) << bits;
    ASSERT_EQ(std::signbit(widened), std::signbit(wanted)) << bits;
    ASSERT_EQ(format.narrow(widened), bits);
  }
}

// Between each finite pattern and the next: just below the middle, the middle (to the even
// pattern), just above it.
void check_rounding(const Format& format) {
  const uint32_t infinity = ((1U << format.exponent_bits) - 1) << format.fraction_bits;
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double low = value_of(bits, format.exponent_bits, format.fraction_bits);
    // What follows the largest finite value would be the next power of two.
    const double step = bits + 1 == infinity
                            ? low - value_of(bits - 1, format.exponent_bits, format.fraction_bits)
                            : value_of(bits + 1, format.exponent_bits, format.fraction_bits) - low;
    const auto middle = static_cast<float>(low + step / 2);
    ASSERT_EQ(static_cast<double>(middle), low + step / 2) << bits;
    const uint32_t even = bits + (bits & 1);
    for (const float sign : {1.0F, -1.0F}) {
      const uint32_t top = sign < 0 ? 0x8000 : 0;
      const float below = std::nextafter(middle, 0.0F);
      const float above = std::nextafter(middle, std::numeric_limits<float>::infinity());
      ASSERT_EQ(format.narrow(sign * below), bits | top);
      ASSERT_EQ(format.narrow(sign * middle), even | top);
      ASSERT_EQ(format.narrow(sign * above), (bits + 1) | top);
    }
  }
}

TEST(DType, WidensEveryPatternAndComesBack) {
  check_every_pattern(kBf16);
  check_every_pattern(kF16);
}

TEST(DType, RoundsToNearestEven) {
  check_rounding(kBf16);
  check_rounding(kF16);
}

TEST(DType, KeepsNanWhoseLowBitsAloneAreSet) {
  const float nan = std::bit_cast<float>(0x7f800001U);
  EXPECT_TRUE(std::isnan(bf16_to_float(float_to_bf16(nan))));
  EXPECT_TRUE(std::isnan(f16_to_float(float_to_f16(nan))));
  EXPECT_EQ(float_to_bf16(std::bit_cast<float>(0xffc00000U)), 0xffc0);
}

TEST(DType, NamesAreUniqueAndReadBack) {
  for (int i = 0; i <= static_cast<int>(DType::kBool); ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(dtype_from_name(dtype_name(dtype)), dtype);
    EXPECT_GT(dtype_bytes(dtype), 0U);
  }
  EXPECT_EQ(dtype_from_name("BF16"), DType::kBf16);
  EXPECT_EQ(dtype_bytes(DType::kU32), 4U);
  EXPECT_EQ(dtype_bytes(DType::kI64), 8U);
  EXPECT_EQ(dtype_from_name("bf16"), std::nullopt);
  EXPECT_EQ(dtype_from_name(""), std::nullopt);
}

}  // namespace
}  // namespace flashlane
