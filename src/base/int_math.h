// Integer arithmetic that does not lie: rounding helpers, and checked operations for numbers that
// come from files and requests.
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>

namespace flashlane {

template <std::integral T>
constexpr T div_ceil(T value, T divisor) {
  return static_cast<T>(value / divisor + (value % divisor != 0 ? 1 : 0));
}

template <std::integral T>
constexpr T round_up(T value, T multiple) {
  return static_cast<T>(div_ceil(value, multiple) * multiple);
}

template <std::integral T>
constexpr std::optional<T> checked_add(T a, T b) {
  T out;
  if (__builtin_add_overflow(a, b, &out)) return std::nullopt;
  return out;
}

template <std::integral T>
constexpr std::optional<T> checked_mul(T a, T b) {
  T out;
  if (__builtin_mul_overflow(a, b, &out)) return std::nullopt;
  return out;
}

}  // namespace flashlane
