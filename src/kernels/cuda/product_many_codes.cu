// Kernels for many rows: affine codes of 4, 6 and 8 bits.
#include "kernels/cuda/product_many_launch.cuh"

namespace flashlane::kernels::cuda {

template void launch_many<4>(cudaStream_t, const ManyLaunch&, int, dim3);
template void launch_many<6>(cudaStream_t, const ManyLaunch&, int, dim3);
template void launch_many<8>(cudaStream_t, const ManyLaunch&, int, dim3);

}  // namespace flashlane::kernels::cuda
