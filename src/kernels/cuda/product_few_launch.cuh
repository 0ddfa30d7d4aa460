// launch_few, for those files that make its kernels.
#pragma once

#include "kernels/cuda/product_few.cuh"

namespace flashlane::kernels::cuda {

template <int kBits, int kXTiles, int kWarps>
void launch_few_blocks(cudaStream_t stream, const FewLaunch& launch) {
  static_assert(sizeof(FewShared) <= kNamedSharedBytes);
  const auto kernel = few_rows_kernel<kBits, kXTiles, kWarps>;
  static const cudaError_t allowed = cudaFuncSetAttribute(
      kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most_shared_bytes());
  (void)allowed;  // else that error is found where launches are
  launch_sized(stream, kernel, static_cast<unsigned>(launch.blocks), kWarps * kWarp,
               static_cast<size_t>(launch.shared_bytes()), launch);
}

template <int kBits, int kXTiles>
void launch_few_tiles(cudaStream_t stream, const FewLaunch& launch) {
  if (launch.warps == kMostWarps) {
    launch_few_blocks<kBits, kXTiles, kMostWarps>(stream, launch);
  } else {
    launch_few_blocks<kBits, kXTiles, kFewerWarps>(stream, launch);
  }
}

template <int kBits>
void launch_few(cudaStream_t stream, const FewLaunch& launch) {
  if (launch.products.row_count <= kNormedRows) {
    launch_few_tiles<kBits, 1>(stream, launch);
  } else {
    launch_few_tiles<kBits, 2>(stream, launch);
  }
}

}  // namespace flashlane::kernels::cuda
