// launch_many, for those files that make its kernels.
#pragma once

#include "kernels/cuda/product_many.cuh"

namespace flashlane::kernels::cuda {

template <int kBits, int kXTiles, bool kTwoGroups>
void launch_many_groups(cudaStream_t stream, const ManyLaunch& launch, dim3 grid) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(many_rows_kernel<kBits, kXTiles, kTwoGroups>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes());
  (void)allowed;  // else that error is found where launches are
  const int bytes = many_stages(kXTiles) * many_stage_bytes(launch.product.weight, kXTiles);
  launch_sized(stream, many_rows_kernel<kBits, kXTiles, kTwoGroups>, grid, kManyThreads,
               static_cast<size_t>(bytes), launch);
}

template <int kBits, int kXTiles>
void launch_many_tiles(cudaStream_t stream, const ManyLaunch& launch, dim3 grid) {
  if constexpr (kBits != kPlainBits) {
    if (launch.product.weight.two_groups()) {
      return launch_many_groups<kBits, kXTiles, true>(stream, launch, grid);
    }
  }
  launch_many_groups<kBits, kXTiles, false>(stream, launch, grid);
}

template <int kBits>
void launch_many(cudaStream_t stream, const ManyLaunch& launch, int x_tiles, dim3 grid) {
  if (x_tiles == 2) {
    launch_many_tiles<kBits, 2>(stream, launch, grid);
  } else if (x_tiles == 4) {
    launch_many_tiles<kBits, 4>(stream, launch, grid);
  } else {
    launch_many_tiles<kBits, kMostXTiles>(stream, launch, grid);
  }
}

}  // namespace flashlane::kernels::cuda
