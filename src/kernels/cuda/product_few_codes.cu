// Kernels for few rows: affine codes of 4, 6 and 8 bits.
#include "kernels/cuda/product_few_launch.cuh"

namespace flashlane::kernels::cuda {

template void launch_few<4>(cudaStream_t, const FewLaunch&);
template void launch_few<6>(cudaStream_t, const FewLaunch&);
template void launch_few<8>(cudaStream_t, const FewLaunch&);

}  // namespace flashlane::kernels::cuda
