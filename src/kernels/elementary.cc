#include "kernels/elementary.h"

#include <array>

namespace flashlane::kernels {
namespace {

constexpr double kLn2High = 6.93147180369123816490e-01;  // 32 significant bits
constexpr double kLn2Low = 1.90821492927058770002e-10;
constexpr double kLog2E = 1.44269504088896338700e+00;

// pi/2 in three parts: the first two have 33 bits each, so that n times them is exact for n < 2^20.
constexpr double kHalfPi1 = 1.57079632673412561417e+00;
constexpr double kHalfPi2 = 6.07710050630396597660e-11;
constexpr double kHalfPi3 = 2.02226624879595063154e-21;
constexpr double kTwoOverPi = 6.36619772367581382433e-01;

// Rounds to the nearest integer, ties to even, for |x| < 2^51.
double round_even(double x) {
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52
  return (x + kShift) - kShift;
}

template <size_t N>
double horner(double x, const std::array<double, N>& coefficients) {
  double sum = coefficients[0];
  for (size_t i = 1; i < N; ++i) sum = sum * x + coefficients[i];
  return sum;
}

}  // namespace

double log_f64(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  int exponent = static_cast<int>((bits >> 52) & 0x7ff) - 1023;
  double mantissa = std::bit_cast<double>((bits & 0x000fffffffffffffULL) | 0x3ff0000000000000ULL);
  if (mantissa > 1.41421356237309504880) {
    mantissa *= 0.5;
    ++exponent;
  }
  // ln m = 2 (s + s^3/3 + s^5/5 + …) with s = (m-1)/(m+1), |s| < 0.1716.
  const double s = (mantissa - 1.0) / (mantissa + 1.0);
  const double square = s * s;
  static constexpr std::array<double, 12> kOdd = {1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17,
                                                  1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9,
                                                  1.0 / 7,  1.0 / 5,  1.0 / 3,  1.0};
  const double series = 2.0 * s * horner(square, kOdd);
  const double e = exponent;
  return e * kLn2High + (e * kLn2Low + series);
}

double exp_f64(double x) {
  if (x != x) return x;
  if (x > 709.0) return std::bit_cast<double>(0x7ff0000000000000ULL);
  if (x < -708.0) return 0.0;
  const double n = round_even(x * kLog2E);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  static constexpr std::array<double, 14> kFactorials = {1.0 / 6227020800.0,
                                                         1.0 / 479001600.0,
                                                         1.0 / 39916800.0,
                                                         1.0 / 3628800.0,
                                                         1.0 / 362880.0,
                                                         1.0 / 40320.0,
                                                         1.0 / 5040.0,
                                                         1.0 / 720.0,
                                                         1.0 / 120.0,
                                                         1.0 / 24.0,
                                                         1.0 / 6.0,
                                                         1.0 / 2.0,
                                                         1.0,
                                                         1.0};
  const auto exponent = static_cast<int64_t>(n);
  const double scale = std::bit_cast<double>(static_cast<uint64_t>(exponent + 1023) << 52);
  return horner(r, kFactorials) * scale;
}

void sincos_f64(double angle, double* sine, double* cosine) {
  const double n = round_even(angle * kTwoOverPi);
  const double r = ((angle - n * kHalfPi1) - n * kHalfPi2) - n * kHalfPi3;
  const double square = r * r;
  static constexpr std::array<double, 8> kSine = {
      -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0, 1.0 / 362880.0,
      -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0,        1.0};
  static constexpr std::array<double, 9> kCosine = {1.0 / 20922789888000.0,
                                                    -1.0 / 87178291200.0,
                                                    1.0 / 479001600.0,
                                                    -1.0 / 3628800.0,
                                                    1.0 / 40320.0,
                                                    -1.0 / 720.0,
                                                    1.0 / 24.0,
                                                    -1.0 / 2.0,
                                                    1.0};
  const double s = r * horner(square, kSine);
  const double c = horner(square, kCosine);
  switch (static_cast<int64_t>(n) & 3) {
    case 0:
      *sine = s, *cosine = c;
      break;
    case 1:
      *sine = c, *cosine = -s;
      break;
    case 2:
      *sine = -s, *cosine = -c;
      break;
    default:
      *sine = -c, *cosine = s;
      break;
  }
}

}  // namespace flashlane::kernels
