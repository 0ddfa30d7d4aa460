#include "tensor/dtype.h"

#include <array>
#include <utility>

namespace flashlane {
namespace {

constexpr std::array<std::pair<DType, std::string_view>, 14> kNames = {{
    {DType::kF64, "F64"},
    {DType::kF32, "F32"},
    {DType::kF16, "F16"},
    {DType::kBf16, "BF16"},
    {DType::kF8E4M3, "F8_E4M3"},
    {DType::kI64, "I64"},
    {DType::kI32, "I32"},
    {DType::kI16, "I16"},
    {DType::kI8, "I8"},
    {DType::kU64, "U64"},
    {DType::kU32, "U32"},
    {DType::kU16, "U16"},
    {DType::kU8, "U8"},
    {DType::kBool, "BOOL"},
}};

}  // namespace

std::string_view dtype_name(DType dtype) {
  for (const auto& [value, name] : kNames) {
    if (value == dtype) return name;
  }
  return "?";
}

std::optional<DType> dtype_from_name(std::string_view name) {
  for (const auto& [value, known] : kNames) {
    if (known == name) return value;
  }
  return std::nullopt;
}

float f16_to_float(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fU;
  const uint32_t fraction = bits & 0x3ffU;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  const float magnitude = static_cast<float>(fraction) * 0x1.0p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

uint16_t float_to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const float magnitude = std::bit_cast<float>(bits & 0x7fffffffU);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00U);
  if (magnitude >= 65520.0F) return static_cast<uint16_t>(sign | 0x7c00U);
  if (magnitude < 0x1.0p-14F) {
    // Subnormal: the exact product is an integer count of 2^-24 after rounding to even.
    return static_cast<uint16_t>(sign |
                                 static_cast<uint16_t>(std::nearbyint(magnitude * 0x1.0p24F)));
  }
  const uint32_t rounded = (bits & 0x7fffffffU) + 0xfffU + ((bits >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - (112U << 23)) >> 13));
}

}  // namespace flashlane
