// Instead of the CUDA backend, where a build has none.
#include "kernels/gpu.h"
#include "kernels/ops.h"

namespace flashlane::kernels {

Result<std::unique_ptr<Ops>> make_cuda_ops(int /*threads*/, bool /*patient*/) {
  return error(ErrorCode::kUnsupported, "backend cuda: this build has no CUDA backend");
}

std::optional<Gpu> first_gpu() {
  return std::nullopt;
}

std::optional<size_t> free_gpu_memory() {
  return std::nullopt;
}

}  // namespace flashlane::kernels
