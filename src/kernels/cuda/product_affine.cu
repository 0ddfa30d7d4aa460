// Products with affine weights: w = scale * code + bias. Codes are exact in f32, so a unit's sum of
// x * code is scaled once, and its bias goes on the sum of its x.
#include <cuda_fp16.h>

#include "kernels/cuda/product_kernel.cuh"

namespace flashlane::kernels::cuda {
namespace {

__device__ float load_scale(const std::byte* scales, DType dtype, int64_t index) {
  switch (dtype) {
    case DType::kF32:
      return reinterpret_cast<const float*>(scales)[index];
    case DType::kF16:
      return __half2float(reinterpret_cast<const __half*>(scales)[index]);
    default:
      return __bfloat162float(reinterpret_cast<const __nv_bfloat16*>(scales)[index]);
  }
}

// The widest loads that a unit's address allows: it is a multiple of its size.
template <int kBits>
__device__ void load_words(const std::byte* from, uint32_t* words) {
  if constexpr (kBits % 4 == 0) {
    for (int i = 0; i < kBits; i += 4) {
      const uint4 four = reinterpret_cast<const uint4*>(from)[i / 4];
      words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
    }
  } else if constexpr (kBits % 2 == 0) {
    for (int i = 0; i < kBits; i += 2) {
      const uint2 two = reinterpret_cast<const uint2*>(from)[i / 2];
      words[i] = two.x, words[i + 1] = two.y;
    }
  } else {
    for (int i = 0; i < kBits; ++i) words[i] = reinterpret_cast<const uint32_t*>(from)[i];
  }
}

template <int kBits>
struct LoadAffine {
  static constexpr bool kScaled = true;

  static __device__ void load(const DeviceMatrix& weight, int64_t row, int64_t unit, float* codes,
                              float* scale, float* bias) {
    uint32_t words[kBits + 1];
    load_words<kBits>(weight.values + (row * weight.units + unit) * (4 * kBits), words);
    words[kBits] = 0;
    const int64_t group = row * (weight.cols / weight.group) + unit * kUnit / weight.group;
    *scale = load_scale(weight.scales, weight.scale_dtype, group);
    *bias = load_scale(weight.biases, weight.scale_dtype, group);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      const int bit = i * kBits;
      const uint32_t both =
          __funnelshift_r(words[bit / 32], words[bit / 32 + 1], static_cast<unsigned>(bit % 32));
      codes[i] = static_cast<float>(both & ((1U << kBits) - 1));
    }
  }
};

}  // namespace

void launch_affine_product(cudaStream_t stream, const Product& product) {
  switch (product.weight.bits) {
    case 2:
      return launch_by_rows<LoadAffine<2>>(stream, product);
    case 3:
      return launch_by_rows<LoadAffine<3>>(stream, product);
    case 4:
      return launch_by_rows<LoadAffine<4>>(stream, product);
    case 5:
      return launch_by_rows<LoadAffine<5>>(stream, product);
    case 6:
      return launch_by_rows<LoadAffine<6>>(stream, product);
    default:
      return launch_by_rows<LoadAffine<8>>(stream, product);
  }
}

}  // namespace flashlane::kernels::cuda
