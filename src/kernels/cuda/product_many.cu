// Kernels for many rows.
#include "kernels/cuda/product_many.cuh"

namespace flashlane::kernels::cuda {

void launch_many_rows(cudaStream_t stream, const Product& product) {
  switch (product.weight.bits) {
    case 2:
      return launch_many<2>(stream, product);
    case 3:
      return launch_many<3>(stream, product);
    case 4:
      return launch_many<4>(stream, product);
    case 5:
      return launch_many<5>(stream, product);
    case 6:
      return launch_many<6>(stream, product);
    case 8:
      return launch_many<8>(stream, product);
    default:
      return launch_many<kPlainBits>(stream, product);
  }
}

}  // namespace flashlane::kernels::cuda
