// launch_few, for those files that make its kernels.
#pragma once

#include "kernels/cuda/product_few.cuh"

namespace flashlane::kernels::cuda {

template <int kBits, int kXTiles>
void launch_few_tiles(cudaStream_t stream, const FewLaunch& launch) {
  static_assert(sizeof(FewShared<kXTiles>) <= kNamedSharedBytes);
  static const cudaError_t allowed =
      cudaFuncSetAttribute(few_rows_kernel<kBits, kXTiles>,
                           cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes());
  (void)allowed;  // else that error is found where launches are
  const int blocks = launch.first_block[launch.products.entry_count];
  launch_sized(stream, few_rows_kernel<kBits, kXTiles>, static_cast<unsigned>(blocks), kNormThreads,
               static_cast<size_t>(launch.shared_bytes()), launch);
}

template <int kBits>
void launch_few(cudaStream_t stream, const FewLaunch& launch) {
  if (launch.products.row_count <= kTileOfX) {
    launch_few_tiles<kBits, 1>(stream, launch);
  } else {
    launch_few_tiles<kBits, 2>(stream, launch);
  }
}

}  // namespace flashlane::kernels::cuda
