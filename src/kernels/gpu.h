// The GPU that the cuda backend would run on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace flashlane::kernels {

struct Gpu {
  std::string name;          // "NVIDIA H200"
  std::string architecture;  // "sm_90"
  int64_t memory_bytes = 0;
};

// None where there is none, or the build has no CUDA.
std::optional<Gpu> first_gpu();
std::optional<size_t> free_gpu_memory();

}  // namespace flashlane::kernels
