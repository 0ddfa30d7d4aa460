// Kernels for many rows.
#include "kernels/cuda/product_many.cuh"

namespace flashlane::kernels::cuda {

void launch_many_rows(cudaStream_t stream, const Product& product) {
  with_bits(product.weight.bits, [&](auto bits) { launch_many<bits.value>(stream, product); });
}

}  // namespace flashlane::kernels::cuda
