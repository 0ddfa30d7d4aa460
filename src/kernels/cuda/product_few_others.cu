// Kernels for few rows: bf16 values, and affine codes of 2, 3 and 5 bits.
#include "kernels/cuda/product_few_launch.cuh"

namespace flashlane::kernels::cuda {

template void launch_few<kPlainBits>(cudaStream_t, const FewLaunch&);
template void launch_few<2>(cudaStream_t, const FewLaunch&);
template void launch_few<3>(cudaStream_t, const FewLaunch&);
template void launch_few<5>(cudaStream_t, const FewLaunch&);

}  // namespace flashlane::kernels::cuda
