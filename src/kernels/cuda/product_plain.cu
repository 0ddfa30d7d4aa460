// Products with weights in f32, f16 or bf16.
#include <cuda_fp16.h>

#include "kernels/cuda/product_kernel.cuh"

namespace flashlane::kernels::cuda {
namespace {

struct LoadF32 {
  static constexpr bool kScaled = false;
  static __device__ void load(const DeviceMatrix& weight, int64_t row, int64_t unit, float* values,
                              float* /*scale*/, float* /*bias*/) {
    const auto* from =
        reinterpret_cast<const float4*>(weight.values + (row * weight.units + unit) * (kUnit * 4));
#pragma unroll
    for (int i = 0; i < kUnit; i += 4) {
      const float4 four = from[i / 4];
      values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
    }
  }
};

// Two values to a word, the lower one first.
template <typename Convert>
struct LoadHalf {
  static constexpr bool kScaled = false;
  static __device__ void load(const DeviceMatrix& weight, int64_t row, int64_t unit, float* values,
                              float* /*scale*/, float* /*bias*/) {
    const auto* from =
        reinterpret_cast<const uint4*>(weight.values + (row * weight.units + unit) * (kUnit * 2));
#pragma unroll
    for (int i = 0; i < kUnit; i += 8) {
      const uint4 eight = from[i / 8];
      const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        values[i + 2 * j] = Convert::value(words[j] & 0xffffU);
        values[i + 2 * j + 1] = Convert::value(words[j] >> 16);
      }
    }
  }
};

struct FromBf16 {
  static __device__ float value(uint32_t bits) { return __uint_as_float(bits << 16); }
};
struct FromF16 {
  static __device__ float value(uint32_t bits) {
    return __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
  }
};

}  // namespace

void launch_plain_product(cudaStream_t stream, const Product& product) {
  switch (product.weight.layout) {
    case Layout::kF32:
      return launch_by_rows<LoadF32>(stream, product);
    case Layout::kF16:
      return launch_by_rows<LoadHalf<FromF16>>(stream, product);
    default:
      return launch_by_rows<LoadHalf<FromBf16>>(stream, product);
  }
}

void launch_product(cudaStream_t stream, const Product& product) {
  if (product.row_count == 0 || product.weight.rows == 0) return;
  if (product.weight.layout == Layout::kAffine) {
    launch_affine_product(stream, product);
  } else {
    launch_plain_product(stream, product);
  }
}

}  // namespace flashlane::kernels::cuda
