// Tiles of weights as the tensor cores take them, and the one order in which a product is summed.
//
// A tile has 16 weight rows; a step of 64 columns is two units of 32, each two products of 16
// columns (mma.m16n8k16: weights are the 16 rows, x the 8 columns). Lane 4g + t holds columns 8t to
// 8t + 7 of each unit, of weight rows g and g + 8 and of x's row g. The bits of a code up to 255
// are those of a bf16, code * 2^-133, which tensor products take exactly; so codes need no
// conversion, and x, times 2^64, brings the sums back to where f32 is at home (below 2^64, and
// above some 2^-57). A group's sum of code * x is scaled once in f32, and its bias goes on the sum
// of its x: a unit's is a product with codes of 1, and a step's group of 64 columns adds its two
// units'. Steps are cut into chunks (the streams of a hyper-connection, else one) and these into
// slices that the shape alone chooses; a slice is summed in ascending order from zero, slices of a
// chunk are added in ascending order to zero, and so are chunks.
#pragma once

#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/product.h"

namespace flashlane::kernels::cuda {

inline constexpr int kXTileRows = 8;     // of x, that one tensor product takes
inline constexpr int kPairsOfStep = 16;  // of a lane: two neighbouring columns of a row
inline constexpr int kMostSlices = 16;
inline constexpr int kMostSlicesOfFew = 8;  // of few tiles, which others are launched with
inline constexpr int kFewTiles = 16;
inline constexpr int kMostGatedSlices = 4;  // so that a block has both weights' tiles
inline constexpr int kWantedWarps = 1000;   // a slice of a tile each
inline constexpr int kLeastSteps = 2;       // of a slice
inline constexpr int kBankTiles = 5;        // as if so many experts were in use

// Slices of a chunk, a power of two.
__host__ __device__ inline int slices_of(const DeviceMatrix& weight, int chunks, bool gated) {
  const int tiles = weight.tiles() * (weight.count > 1 ? kBankTiles : chunks) * (gated ? 2 : 1);
  const int steps = weight.steps() / chunks;
  int most = weight.tiles() * chunks < kFewTiles ? kMostSlicesOfFew : kMostSlices;
  if (gated) most = kMostGatedSlices;
  int slices = 1;
  while (slices < most && tiles * slices < kWantedWarps && steps >= 2 * slices * kLeastSteps) {
    slices *= 2;
  }
  return slices;
}
// The step that a slice begins with, always an even one.
__host__ __device__ inline int slice_begin(int slice, int slices, int steps) {
#ifdef __CUDA_ARCH__
  const int shift = __ffs(slices) - 1;
#else
  int shift = 0;
  while (1 << shift < slices) ++shift;
#endif
  const int begin = (slice * ((steps + 1) / 2) >> shift) * 2;
  return begin < steps ? begin : steps;
}

// Pair `p` of a step: unit p / 8, product p / 4 % 2, row g + 8 (p % 2), first column 8t + 4 (p / 4
// % 2) + 2 (p / 2 % 2) of the unit.
__host__ __device__ inline int pair_row(int p, int lane) {
  return lane / 4 + 8 * (p % 2);
}
__host__ __device__ inline int pair_col(int p, int lane) {
  return 32 * (p / 8) + 8 * (lane % 4) + 4 * (p / 4 % 2) + 2 * (p / 2 % 2);
}

// A lane's words of a step lie in vectors of four, then two, then one; each vector's lanes side by
// side. Where word `w` is, in words.
template <int kBits>
__host__ __device__ inline int word_place(int w, int lane) {
  constexpr int kQuads = kBits / 4 * 4;
  if (w < kQuads) return w / 4 * 128 + lane * 4 + w % 4;
  constexpr int kTwos = kBits % 4 / 2 * 2;
  if (w < kQuads + kTwos) return kQuads * 32 + lane * 2 + (w - kQuads);
  return (kQuads + kTwos) * 32 + lane;
}

// Asynchronous copies to shared memory.
__device__ __forceinline__ void copy_piece(uint32_t to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
__device__ __forceinline__ void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
// Until all but the last `kLater` groups of copies are there.
template <int kLater>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
}

// From a copy in shared memory.
template <int kBits>
__device__ __forceinline__ void load_codes(uint32_t (&words)[kBits], const std::byte* step,
                                           int lane) {
  const auto* from = reinterpret_cast<const uint32_t*>(step);
#pragma unroll
  for (int w = 0; w + 4 <= kBits; w += 4) {
    const auto v = *reinterpret_cast<const uint4*>(from + word_place<kBits>(w, lane));
    words[w] = v.x, words[w + 1] = v.y, words[w + 2] = v.z, words[w + 3] = v.w;
  }
  constexpr int kQuads = kBits / 4 * 4;
  if constexpr (kBits % 4 >= 2) {
    const auto v = *reinterpret_cast<const uint2*>(from + word_place<kBits>(kQuads, lane));
    words[kQuads] = v.x, words[kQuads + 1] = v.y;
  }
  if constexpr (kBits % 2 == 1) {
    words[kBits - 1] =
        *reinterpret_cast<const uint32_t*>(from + word_place<kBits>(kBits - 1, lane));
  }
}

// (a & mask) | b as one instruction, where compilers make two of two constants.
__device__ __forceinline__ uint32_t pick_bits(uint32_t a, uint32_t mask, uint32_t b) {
  uint32_t both;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(both) : "r"(a), "r"(mask), "r"(b));
  return both;
}

// Two codes, or bf16 values, the lower column in the lower half. Each half of the words is a stream
// of the pairs' codes.
template <int kBits>
__device__ __forceinline__ uint32_t code_pair(const uint32_t (&words)[kBits], int p) {
  if constexpr (kBits == kPlainBits) {
    return words[p];
  } else if constexpr (kBits == 8) {
    return __byte_perm(words[p / 2], 0, p % 2 == 0 ? 0x4240 : 0x4341);
  } else {
    constexpr uint32_t kMask = ((1U << kBits) - 1U) * 0x00010001U;
    const int i = p * kBits / 16;
    const int shift = p * kBits % 16;
    uint32_t codes = words[i] >> shift;
    if (shift + kBits > 16) {
      const uint32_t low = ((1U << (16 - shift)) - 1U) * 0x00010001U;
      return pick_bits(words[i + 1] << (16 - shift), kMask & ~low, codes & low);
    }
    return codes & kMask;
  }
}

__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

using Sums = float[4];  // of a lane: rows g (twice) and g + 8 (twice) with x's rows 2t and 2t + 1

__device__ __forceinline__ void multiply_tile(Sums& sums, const uint32_t (&weights)[4], uint32_t x0,
                                              uint32_t x1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
      "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(weights[0]), "r"(weights[1]), "r"(weights[2]), "r"(weights[3]), "r"(x0), "r"(x1));
}

// x as products take it, and sums of such products as what they are.
inline constexpr float kScaleOfX = 0x1p64F;
template <int kBits>
__device__ __forceinline__ float unscaled(float sum) {
  return sum * (kBits == kPlainBits ? 0x1p-64F : 0x1p69F);
}
__device__ __forceinline__ uint32_t pack_x(float low, float high) {
  return pack_bf16(low * kScaleOfX, high * kScaleOfX);
}

// Of one unit, the sums of x rows 2t and 2t + 1 in sums[0] and [1].
__device__ __forceinline__ void sum_unit_of_x(Sums& sums, const uint32_t (&x)[4]) {
  constexpr uint32_t kOnes = 0x00010001U;
  const uint32_t ones[4] = {kOnes, kOnes, kOnes, kOnes};
  sums[0] = sums[1] = sums[2] = sums[3] = 0;
  multiply_tile(sums, ones, x[0], x[1]);
  multiply_tile(sums, ones, x[2], x[3]);
}

// Scale and bias of a lane's two rows in one group.
struct Scales {
  float scale[2], bias[2];
};
__device__ __forceinline__ Scales unpack_scales(uint32_t low_row, uint32_t high_row) {
  return {{__uint_as_float(low_row << 16), __uint_as_float(high_row << 16)},
          {__uint_as_float(low_row & 0xffff0000U), __uint_as_float(high_row & 0xffff0000U)}};
}

// A group's sums, and those of its x's rows 2t and 2t + 1, to the total.
__device__ __forceinline__ void add_group(Sums& total, Sums& part, const Scales& scales, float x0,
                                          float x1) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    total[i] = fmaf(scales.scale[i / 2], part[i], total[i]);
    total[i] = fmaf(scales.bias[i / 2], i % 2 == 0 ? x0 : x1, total[i]);
    part[i] = 0;
  }
}

}  // namespace flashlane::kernels::cuda
