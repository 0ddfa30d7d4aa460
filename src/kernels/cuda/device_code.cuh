// What the kernels share: sums in one fixed order, norms, rotation, cache rows. Compiled without
// contraction (-fmad=false); where a fused multiply-add is meant, it says fmaf. Nothing depends on
// the number of rows.
#pragma once

#include <cuda_bf16.h>

#include <algorithm>

#include "kernels/cuda/launch.h"
#include "kernels/elementary.h"

namespace flashlane::kernels::cuda {

inline constexpr int kWarp = 32;
inline constexpr unsigned kAllLanes = 0xffffffffU;

// Programmatic launches (launch_after): a kernel may begin while those before it still run. It
// reads and writes nothing of theirs before it has waited; each kernel so launched waits, so that
// whoever waits for it has waited for all.
__device__ inline void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}
// What is launched next may take the room that this kernel leaves.
__device__ inline void let_later_start() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}

// 0 where the device doesn't say.
inline int device_attribute(cudaDeviceAttr attribute) {
  int device = 0;
  int value = 0;
  const bool said = cudaGetDevice(&device) == cudaSuccess &&
                    cudaDeviceGetAttribute(&value, attribute, device) == cudaSuccess;
  return said ? value : 0;
}
// Whether kernels here were compiled to wait, and the device begins them early (dense.cu).
bool launches_early();
// Of shared memory of one block, beside what its kernel names (at most kNamedSharedBytes). All that
// the device gives would leave nothing for the cache beside it.
inline constexpr int kNamedSharedBytes = 4 << 10;
inline int most_shared_bytes() {
  constexpr int kMost = 180 << 10;
  static const int known = std::min(
      kMost, device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin) - kNamedSharedBytes);
  return known;
}

// For kernels that wait_for_earlier. shared_bytes: of shared memory beside what the kernel names.
template <typename... Parameters, typename... Arguments>
void launch_sized(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, int threads,
                  size_t shared_bytes, const Arguments&... arguments) {
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = launches_early() ? 1 : 0;
  // What fails is found where launches are (cudaGetLastError).
  (void)cudaLaunchKernelEx(&config, kernel, arguments...);
}
template <typename... Parameters, typename... Arguments>
void launch_after(cudaStream_t stream, void (*kernel)(Parameters...), dim3 grid, int threads,
                  const Arguments&... arguments) {
  launch_sized(stream, kernel, grid, threads, 0, arguments...);
}

// Over the lanes of a warp, by halves; every lane gets the same bits.
__device__ inline float warp_sum(float value) {
  for (int step = kWarp / 2; step > 0; step /= 2) value += __shfl_xor_sync(kAllLanes, value, step);
  return value;
}

// Over a block of whole warps, at most 32: each warp's sum, then those by halves. `partial`: 32
// floats of shared memory. Every thread gets the sum; all must call.
__device__ inline float block_sum(float value, float* partial) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
  const float own = warp_sum(value);
  __syncthreads();  // whoever still reads an earlier sum
  if (lane == 0) partial[threadIdx.x / kWarp] = own;
  __syncthreads();
  return warp_sum(lane < warps ? partial[lane] : 0.0F);
}

__device__ __forceinline__ void load_eight(float (&v)[8], const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  const float4 b = *reinterpret_cast<const float4*>(from + 4);
  v[0] = a.x, v[1] = a.y, v[2] = a.z, v[3] = a.w;
  v[4] = b.x, v[5] = b.y, v[6] = b.z, v[7] = b.w;
}
__device__ inline bool in_fours(const float* x, int count) {  // load_eight may be used
  return count % 8 == 0 && reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0;
}

// Threads of the blocks that norm a hyper-connection's streams. The order of the squares' sum: a
// thread has eight elements side by side, then the next eight kNormThreads * 8 on; the lanes of a
// warp meet by halves, and so do the warps.
inline constexpr int kNormThreads = 512;
inline constexpr int kNormWarps = kNormThreads / kWarp;

// This warp's share, in every lane.
__device__ inline float squares_of_warp(const float* x, int count) {
  float sum = 0;
  const bool fours = in_fours(x, count);
#pragma unroll 2
  for (int i = static_cast<int>(threadIdx.x) * 8; i < count; i += kNormThreads * 8) {
    if (fours) {
      float v[8];
      load_eight(v, x + i);
#pragma unroll
      for (int k = 0; k < 8; ++k) sum = fmaf(v[k], v[k], sum);
    } else {
      for (int k = i; k < min(i + 8, count); ++k) sum = fmaf(x[k], x[k], sum);
    }
  }
  return warp_sum(sum);
}
// 1 / sqrt(mean of squares + eps). `squares`: of the warps, aligned to 16.
__device__ inline float rms_scale(const float (&squares)[kNormWarps], int count, float eps) {
  static_assert(kNormWarps == 16);
  float s[8], high[8];
  load_eight(s, squares);
  load_eight(high, squares + 8);
#pragma unroll
  for (int i = 0; i < 8; ++i) s[i] += high[i];
  const float sum = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
  return 1.0F / sqrtf(sum / static_cast<float>(count) + eps);
}

__device__ inline int segment_of(const Segments& segments, int row) {
  int s = 0;
  while (row >= segments.of[s].first_row + segments.of[s].row_count) ++s;
  return s;
}

// 1 / sqrt(mean of squares + eps) of `count` values, by one warp: lane l sums elements l, l + 32, …
__device__ inline float warp_rms_scale(const float* x, int count, float eps) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % kWarp; i < count; i += kWarp) {
    sum = fmaf(x[i], x[i], sum);
  }
  return 1.0F / sqrtf(warp_sum(sum) / static_cast<float>(count) + eps);
}

// The rotation's sine and cosine; the angle is an f32 product, as in the model's own
// implementations.
__device__ inline void rotation(int position, float inverse_frequency, float* sine, float* cosine) {
  double s;
  double c;
  sincos(static_cast<double>(static_cast<float>(position) * inverse_frequency), &s, &c);
  *sine = static_cast<float>(s);
  *cosine = static_cast<float>(c);
}

__device__ inline float softplus(float x) {
  return x > 20.0F ? x : static_cast<float>(log1p(exp(static_cast<double>(x))));
}

// Element `i` of a cache row, in its dtype.
__device__ inline void store_cached(std::byte* row, DType dtype, int i, float value) {
  if (dtype == DType::kF32) {
    reinterpret_cast<float*>(row)[i] = value;
  } else {
    reinterpret_cast<__nv_bfloat16*>(row)[i] = __float2bfloat16_rn(value);
  }
}

__device__ inline size_t cached_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

// As kernels::cache_row and kernels::pooled_row (paging.h), for the device.
__device__ inline std::byte* cached_row(const KvPages& pages, const int32_t* table, size_t offset,
                                        int plane, int row, int width) {
  const int page = row / pages.page_rows;
  const int in_page = row - page * pages.page_rows;
  const size_t index = (static_cast<size_t>(plane) * static_cast<size_t>(pages.page_rows) +
                        static_cast<size_t>(in_page)) *
                       static_cast<size_t>(width);
  return pages.base + static_cast<size_t>(table[page]) * pages.page_bytes + offset +
         index * cached_bytes(pages.dtype);
}
__device__ inline std::byte* cached_pooled_row(const KvPages& pages, const int32_t* table,
                                               int block, int block_tokens, int width) {
  const int blocks_per_page = pages.page_rows / block_tokens;
  const int page = block / blocks_per_page;
  const int in_page = block - page * blocks_per_page;
  return pages.base + static_cast<size_t>(table[page]) * pages.page_bytes + pages.pooled_offset +
         static_cast<size_t>(in_page) * static_cast<size_t>(width) * cached_bytes(pages.dtype);
}

}  // namespace flashlane::kernels::cuda
