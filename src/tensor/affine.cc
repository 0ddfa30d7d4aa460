// MLX affine quantisation: the rounding order below is the one that MLX uses, so that its files and
// ours hold the same codes. Eight codes of b bits are exactly b bytes, which is the unit here. The
// quantiser's one body is compiled for each instruction level that makes a difference.
#include "tensor/affine.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <type_traits>

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

constexpr size_t kWidth = 8;
constexpr size_t kWidestGroup = 128;
using Floats = float __attribute__((vector_size(kWidth * 4)));
using Ints = int32_t __attribute__((vector_size(kWidth * 4)));

struct Edges {
  float minimum = 0;
  float maximum = 0;
};

[[gnu::always_inline]] inline Edges edges_of(const float* values, size_t count) {
  Floats low;
  std::memcpy(&low, values, sizeof(low));
  Floats high = low;
  for (size_t i = kWidth; i < count; i += kWidth) {
    Floats v;
    std::memcpy(&v, values + i, sizeof(v));
    low = v < low ? v : low;
    high = v > high ? v : high;
  }
  Edges edges = {low[0], high[0]};
  for (size_t lane = 1; lane < kWidth; ++lane) {
    edges.minimum = std::min(edges.minimum, low[lane]);
    edges.maximum = std::max(edges.maximum, high[lane]);
  }
  return edges;
}

// One group: the scale is signed so that the end of the range farther from zero is exact. Every
// instruction level computes the same: each step is one rounded operation.
[[gnu::always_inline]] inline void quantize_group(const float* values, size_t count, int bits,
                                                  uint8_t* codes, uint16_t* scale_bits,
                                                  uint16_t* bias_bits) {
  const auto [minimum, maximum] = edges_of(values, count);
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
  alignas(64) int32_t wide[kWidestGroup];
  for (size_t i = 0; i < count; i += kWidth) {
    // Codes come from the unrounded scale and bias; only storing rounds them. Clamped first, a code
    // is small enough to be rounded to even by adding and taking away 1.5 * 2^23.
    Floats v;
    std::memcpy(&v, values + i, sizeof(v));
    v = (v - bias) / scale;
    v = v < 0.0F ? Floats{} : v;
    v = v > top ? Floats{} + top : v;
    v = (v + 12582912.0F) - 12582912.0F;
    const Ints code = __builtin_convertvector(v, Ints);
    std::memcpy(wide + i, &code, sizeof(code));
  }
  for (size_t i = 0; i < count; ++i) codes[i] = static_cast<uint8_t>(wide[i]);
  *scale_bits = float_to_bf16(scale);
  *bias_bits = float_to_bf16(bias);
}

struct RowOfGroups {
  const float* values;
  size_t width;  // of a group
  size_t groups;
  int bits;
  uint8_t* codes;
  uint16_t* scales;
  uint16_t* biases;
};

[[gnu::always_inline]] inline void quantize_groups(const RowOfGroups& row) {
  for (size_t i = 0; i < row.groups; ++i) {
    quantize_group(row.values + i * row.width, row.width, row.bits, row.codes + i * row.width,
                   &row.scales[i], &row.biases[i]);
  }
}

using Quantize = void (*)(const RowOfGroups&);

void quantize_plain(const RowOfGroups& row) {
  quantize_groups(row);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void quantize_avx2(const RowOfGroups& row) {
  quantize_groups(row);
}
[[gnu::target("avx512f,avx512dq,avx512bw,avx512vl")]] void quantize_avx512(const RowOfGroups& row) {
  quantize_groups(row);
}
#endif

Quantize best_quantize() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
    return quantize_avx512;
  }
  if (__builtin_cpu_supports("avx2")) return quantize_avx2;
#endif
  return quantize_plain;
}

// Eight codes, a byte each in `bytes`, as 8 * bits bits: neighbours are joined, then pairs, then
// fours.
template <int bits>
uint64_t joined(uint64_t bytes) {
  const uint64_t pairs = (bytes & 0x00ff00ff00ff00ffULL) | (bytes >> 8 & 0x00ff00ff00ff00ffULL)
                                                               << bits;
  const uint64_t fours = (pairs & 0x0000ffff0000ffffULL) | (pairs >> 16 & 0x0000ffff0000ffffULL)
                                                               << 2 * bits;
  return (fours & 0xffffffffULL) | fours >> 32 << 4 * bits;
}

template <int bits>
uint64_t parted(uint64_t word) {
  constexpr uint64_t kFour = (uint64_t{1} << 4 * bits) - 1;
  constexpr uint64_t kPair = ((uint64_t{1} << 2 * bits) - 1) * 0x0000000100000001ULL;
  constexpr uint64_t kCode = ((uint64_t{1} << bits) - 1) * 0x0001000100010001ULL;
  const uint64_t fours = (word & kFour) | (word >> 4 * bits & kFour) << 32;
  const uint64_t pairs = (fours & kPair) | (fours >> 2 * bits & kPair) << 16;
  return (pairs & kCode) | (pairs >> bits & kCode) << 8;
}

template <int bits>
void pack_units(const uint8_t* codes, std::byte* packed, size_t units) {
  constexpr uint64_t kTooWide =
      bits == 8 ? 0 : ~(((uint64_t{1} << bits) - 1) * 0x0101010101010101ULL);
  for (size_t unit = 0; unit < units; ++unit) {
    uint64_t bytes;
    std::memcpy(&bytes, codes + unit * 8, 8);
    CHECK_EQ(bytes & kTooWide, 0U);
    const uint64_t word = joined<bits>(bytes);
    std::memcpy(packed + unit * bits, &word, bits);
  }
}

template <int bits>
void unpack_units(const std::byte* packed, uint8_t* codes, size_t units) {
  for (size_t unit = 0; unit < units; ++unit) {
    uint64_t word = 0;
    std::memcpy(&word, packed + unit * bits, bits);
    const uint64_t bytes = parted<bits>(word);
    std::memcpy(codes + unit * 8, &bytes, 8);
  }
}

// Calls body(std::integral_constant<int, bits>).
template <typename Body>
void with_bits(int bits, const Body& body) {
  switch (bits) {
    case 2:
      return body(std::integral_constant<int, 2>());
    case 3:
      return body(std::integral_constant<int, 3>());
    case 4:
      return body(std::integral_constant<int, 4>());
    case 5:
      return body(std::integral_constant<int, 5>());
    case 6:
      return body(std::integral_constant<int, 6>());
    case 8:
      return body(std::integral_constant<int, 8>());
    default:
      UNREACHABLE();
  }
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
  static const Quantize chosen = best_quantize();
  chosen({row.data(), width, scales.size(), bits, codes.data(), scales.data(), biases.data()});
}

void affine_pack(std::span<const uint8_t> codes, int bits, std::span<std::byte> packed) {
  CHECK(affine_bits_supported(bits));
  CHECK_EQ(codes.size() % 8, 0U);
  CHECK_EQ(packed.size(), codes.size() / 8 * static_cast<size_t>(bits));
  with_bits(bits, [&](auto width) {
    pack_units<decltype(width)::value>(codes.data(), packed.data(), codes.size() / 8);
  });
}

void affine_unpack(std::span<const std::byte> packed, int bits, std::span<uint8_t> codes) {
  CHECK(affine_bits_supported(bits));
  CHECK_EQ(codes.size() % 8, 0U);
  CHECK_EQ(packed.size(), codes.size() / 8 * static_cast<size_t>(bits));
  with_bits(bits, [&](auto width) {
    unpack_units<decltype(width)::value>(packed.data(), codes.data(), codes.size() / 8);
  });
}

}  // namespace flashlane
