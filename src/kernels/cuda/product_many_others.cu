// Kernels for many rows: bf16 values, and affine codes of 2, 3 and 5 bits.
#include "kernels/cuda/product_many_launch.cuh"

namespace flashlane::kernels::cuda {

template void launch_many<kPlainBits>(cudaStream_t, const ManyLaunch&, int, dim3);
template void launch_many<2>(cudaStream_t, const ManyLaunch&, int, dim3);
template void launch_many<3>(cudaStream_t, const ManyLaunch&, int, dim3);
template void launch_many<5>(cudaStream_t, const ManyLaunch&, int, dim3);

}  // namespace flashlane::kernels::cuda
