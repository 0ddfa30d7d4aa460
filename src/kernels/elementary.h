// Our own elementary functions, so that bits do not depend on which variant a C library picks for
// the CPU. Plain adds and multiplies in IEEE order (contraction is off), branch-free where a loop
// over them should vectorise. Float versions are within 2 units in the last place.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace flashlane::kernels {

// exp(x) in f32; 0 below -87.3, infinity above 88.7.
constexpr float exp_f32(float x) {
  const float clamped = x < -87.3F ? -87.3F : (x > 88.7F ? 88.7F : x);
  // Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even.
  const float shifted = clamped * 1.44269504F + 12582912.0F;
  const float n = shifted - 12582912.0F;
  const float r = (clamped - n * 0.693359375F) - n * -2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * r + 1.3981999507e-3F;
  p = p * r + 8.3334519073e-3F;
  p = p * r + 4.1665795894e-2F;
  p = p * r + 1.6666665459e-1F;
  p = p * r + 5.0000001201e-1F;
  const float mantissa = (p * r) * r + r + 1.0F;
  const int32_t exponent = std::bit_cast<int32_t>(shifted) - 0x4B400000;
  // Two factors, so that n = 128 and n = -127 stay representable.
  const int32_t half = exponent >> 1;
  const float first = std::bit_cast<float>((half + 127) << 23);
  const float second = std::bit_cast<float>((exponent - half + 127) << 23);
  const float value = (mantissa * first) * second;
  const float low = x < -87.3F ? 0.0F : value;
  const float high = x > 88.7F ? INFINITY : low;
  return x == x ? high : x;
}

constexpr float sigmoid_f32(float x) {
  return 1.0F / (1.0F + exp_f32(-x));
}
constexpr float silu_f32(float x) {
  return x / (1.0F + exp_f32(-x));
}

// Natural logarithm of a positive, finite, normal double; within a few units in the last place.
double log_f64(double x);
double exp_f64(double x);
// Sine and cosine; within 1e-15 for angles up to 2^20 in magnitude, 1e-9 up to 2^24.
void sincos_f64(double angle, double* sine, double* cosine);

// ln(1 + e^x), the identity above 20.
inline float softplus_f32(float x) {
  if (x > 20.0F) return x;
  // The quotient takes out the rounding of 1 + t, which would swallow a small t.
  const double t = exp_f64(static_cast<double>(x));
  const double sum = 1.0 + t;
  return static_cast<float>(sum == 1.0 ? t : log_f64(sum) * (t / (sum - 1.0)));
}

}  // namespace flashlane::kernels
