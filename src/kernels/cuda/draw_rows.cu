// Making synthetic rows: draws as model/synth_values.cc does, quantises as tensor/affine.cc does,
// step by step, each rounded once (-fmad=false), so the bits are the host's. Rows follow each other
// without gaps in the tensor and as stored, and a group is never cut, so rows need not be told
// apart: eight values are a thread's, and a group's threads lie in one warp.
#include "base/keyed_random.h"
#include "kernels/cuda/device_code.cuh"
#include "kernels/cuda/draw_rows.h"
#include "kernels/cuda/product.h"

namespace flashlane::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kValues = 8;  // of a thread: their codes are as many bytes as a code has bits
constexpr int kMostBits = 8;

__device__ float drawn_value(const DrawRule& rule, uint64_t element) {
  // 24 bits: the product and the difference are exact in f32.
  const auto bits = static_cast<uint32_t>(splitmix64(rule.hash + element) >> 40);
  const float r = static_cast<float>(bits) * 0x1.0p-23F - 1.0F;
  return __bfloat162float(__float2bfloat16_rn(rule.scale * r + rule.offset));
}

__device__ uint16_t bf16_bits(float value) {
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

__global__ void draw_plain(const DrawRule rule, uint64_t first, int64_t count, uint16_t* values) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  values[i] = bf16_bits(drawn_value(rule, first + static_cast<uint64_t>(i)));
}

struct Steps {
  float scale;
  float bias;
};

// The scale is signed so that the end of the range farther from zero is exact.
__device__ Steps steps_between(float minimum, float maximum, float top) {
  float scale = fmaxf((maximum - minimum) / top, 1e-7F);
  const bool low_end = fabsf(minimum) > fabsf(maximum);
  const float edge = low_end ? minimum : maximum;
  if (!low_end) scale = -scale;
  const float count = rintf(edge / scale);
  if (count == 0) return {scale, 0};
  return {edge / count, edge};
}

// Clamped first, a code is small enough to be rounded to even by adding 1.5 * 2^23, after which it
// is the sum's low bits.
__device__ uint64_t code_of(float value, const Steps& steps, float top) {
  const float code = fminf(fmaxf((value - steps.bias) / steps.scale, 0.0F), top);
  return __float_as_uint(code + 12582912.0F) & 0xffU;
}

struct AffineRows {
  DrawRule rule;
  uint64_t first = 0;     // element of the tensor
  int64_t threads = 0;    // that have values
  int group_threads = 0;  // of a group: 4, 8 or 16
  uint32_t* codes = nullptr;
  uint16_t* scales = nullptr;
  uint16_t* biases = nullptr;
};

// A warp's codes go through shared memory, so that they leave it as words side by side. Threads
// behind the last value run along, since the others of their warp exchange values with theirs.
template <int bits>
__global__ void draw_affine(const AffineRows rows) {
  __shared__ uint32_t packed[kThreads / kWarp][kWarp * kMostBits / 4];
  constexpr float kTop = (1 << bits) - 1;
  const int64_t thread = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;

  float values[kValues];
  float minimum = 0;
  float maximum = 0;
#pragma unroll
  for (int k = 0; k < kValues; ++k) {
    values[k] = drawn_value(rows.rule, rows.first + static_cast<uint64_t>(thread * kValues + k));
    minimum = k == 0 ? values[k] : fminf(minimum, values[k]);
    maximum = k == 0 ? values[k] : fmaxf(maximum, values[k]);
  }
  for (int step = rows.group_threads / 2; step > 0; step /= 2) {
    minimum = fminf(minimum, __shfl_xor_sync(kAllLanes, minimum, step));
    maximum = fmaxf(maximum, __shfl_xor_sync(kAllLanes, maximum, step));
  }
  const Steps steps = steps_between(minimum, maximum, kTop);

  uint64_t stream = 0;
#pragma unroll
  for (int k = 0; k < kValues; ++k) stream |= code_of(values[k], steps, kTop) << (k * bits);
  uint32_t* own = packed[threadIdx.x / kWarp];
  auto* bytes = reinterpret_cast<uint8_t*>(own) + lane * bits;
#pragma unroll
  for (int b = 0; b < bits; ++b) bytes[b] = static_cast<uint8_t>(stream >> (8 * b));
  __syncwarp();

  const int64_t warp_first = thread - lane;
  const auto words = static_cast<int>(min(rows.threads - warp_first, int64_t{kWarp}) * bits / 4);
  uint32_t* out = rows.codes + warp_first * bits / 4;
  for (int i = lane; i < words; i += kWarp) out[i] = own[i];
  if (thread >= rows.threads || thread % rows.group_threads != 0) return;
  rows.scales[thread / rows.group_threads] = bf16_bits(steps.scale);
  rows.biases[thread / rows.group_threads] = bf16_bits(steps.bias);
}

unsigned blocks_of(int64_t threads) {
  return static_cast<unsigned>((threads + kThreads - 1) / kThreads);
}

template <int bits>
void launch_affine(cudaStream_t stream, const AffineRows& rows) {
  draw_affine<bits><<<blocks_of(rows.threads), kThreads, 0, stream>>>(rows);
}

}  // namespace

void launch_draw_rows(cudaStream_t stream, const DrawRule& rule, int64_t first_row, int64_t rows,
                      int64_t cols, int bits, int group, std::byte* values, uint16_t* scales,
                      uint16_t* biases) {
  const auto first = static_cast<uint64_t>(first_row * cols);
  const int64_t count = rows * cols;
  if (count == 0) return;
  if (bits == 0) {
    draw_plain<<<blocks_of(count), kThreads, 0, stream>>>(rule, first, count,
                                                          reinterpret_cast<uint16_t*>(values));
    return;
  }
  AffineRows affine;
  affine.rule = rule;
  affine.first = first;
  affine.threads = count / kValues;
  affine.group_threads = group / kValues;
  affine.codes = reinterpret_cast<uint32_t*>(values);
  affine.scales = scales;
  affine.biases = biases;
  with_code_bits(bits, [&](auto own) { launch_affine<own.value>(stream, affine); });
}

}  // namespace flashlane::kernels::cuda
