// launch_few, for those files that make its kernels.
#pragma once

#include "kernels/cuda/product_few.cuh"

namespace flashlane::kernels::cuda {

template <int kBits>
void launch_few(cudaStream_t stream, const FewLaunch& launch) {
  const int blocks = launch.first_block[launch.products.entry_count];
  const int threads = launch.slices * launch.subs * kWarp;
  const auto kernel =
      launch.products.row_count <= kTileOfX ? few_rows_kernel<kBits, 1> : few_rows_kernel<kBits, 2>;
  launch_after(stream, kernel, dim3(static_cast<unsigned>(blocks)), threads, launch);
}

}  // namespace flashlane::kernels::cuda
