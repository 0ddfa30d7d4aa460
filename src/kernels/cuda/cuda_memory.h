// The GPU's memory and the one stream that everything on it goes through, for the process's life.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>

#include "base/check.h"
#include "tensor/memory.h"

namespace flashlane::kernels::cuda {

// Errors of calls that can only fail by our fault, or with the device.
#define CHECK_CUDA(call)                                                       \
  do {                                                                         \
    const cudaError_t cuda_error = (call);                                     \
    if (cuda_error != cudaSuccess) {                                           \
      check_failed(__FILE__, __LINE__, #call, cudaGetErrorString(cuda_error)); \
    }                                                                          \
  } while (false)

class CudaMemory final : public Memory {
 public:
  CudaMemory();

  std::byte* allocate(size_t bytes) override;
  void release(std::byte* pointer) noexcept override;
  void copy(void* to, const void* from, size_t bytes) override;
  void zero(void* to, size_t bytes) override;

  cudaStream_t stream() const { return stream_; }
  void wait() override { CHECK_CUDA(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

// Made at the first call, which there must be a device for.
CudaMemory& cuda_memory();

// Host memory that small inputs of steps travel through, without waiting for the stream but when it
// comes round.
class Staging {
 public:
  explicit Staging(CudaMemory& memory) : memory_(memory) {}
  ~Staging();
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  // Room for so many bytes, the device's copy of it with them: fill it, then send.
  struct Place {
    std::byte* host;
    std::byte* device;
    size_t bytes;
  };
  // So that no place up to that size makes it grow.
  void reserve(size_t bytes);
  Place take(size_t bytes);
  void send(const Place& place) const;

 private:
  void make(size_t bytes);

  CudaMemory& memory_;
  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  size_t capacity_ = 0;
  size_t used_ = 0;
};

}  // namespace flashlane::kernels::cuda
