#include "kernels/cuda/cuda_memory.h"

#include <algorithm>

#include "base/int_math.h"

namespace flashlane::kernels::cuda {
namespace {

constexpr size_t kLine = 256;
constexpr size_t kLeastStaging = size_t{1} << 22;

bool on_device(const void* pointer) {
  cudaPointerAttributes attributes = {};
  if (cudaPointerGetAttributes(&attributes, pointer) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return attributes.type == cudaMemoryTypeDevice;
}

}  // namespace

CudaMemory::CudaMemory() {
  CHECK_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
}

std::byte* CudaMemory::allocate(size_t bytes) {
  void* pointer = nullptr;
  if (cudaMalloc(&pointer, bytes) != cudaSuccess) {
    (void)cudaGetLastError();  // it would be taken for a later launch's
    return nullptr;
  }
  zero(pointer, bytes);
  return static_cast<std::byte*>(pointer);
}

// Nothing is left to be done about an error here.
void CudaMemory::release(std::byte* pointer) noexcept {
  (void)cudaStreamSynchronize(stream_);
  (void)cudaFree(pointer);
}

void CudaMemory::copy(void* to, const void* from, size_t bytes) {
  CHECK_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_));
  if (!on_device(to) || !on_device(from)) wait();
}

void CudaMemory::zero(void* to, size_t bytes) {
  CHECK_CUDA(cudaMemsetAsync(to, 0, bytes, stream_));
}

CudaMemory& cuda_memory() {
  static auto* memory = new CudaMemory;  // whoever is freed at exit may still give back
  return *memory;
}

Staging::~Staging() {
  if (capacity_ == 0) return;
  memory_.release(device_);
  (void)cudaFreeHost(host_);
}

void Staging::make(size_t bytes) {
  if (capacity_ > 0) {
    memory_.release(device_);
    CHECK_CUDA(cudaFreeHost(host_));
  }
  capacity_ = bytes;
  CHECK_CUDA(cudaMallocHost(reinterpret_cast<void**>(&host_), capacity_));
  device_ = memory_.allocate(capacity_);
  CHECK(device_ != nullptr);
  used_ = 0;
}

void Staging::reserve(size_t bytes) {
  memory_.wait();
  make(round_up(std::max(bytes, kLeastStaging), kLine));
}

// When it is full, what was sent has to arrive before it is filled again.
Staging::Place Staging::take(size_t bytes) {
  const size_t padded = round_up(std::max(bytes, size_t{1}), kLine);
  if (padded > capacity_) {
    memory_.wait();
    make(std::max(2 * padded, kLeastStaging));
  }
  if (used_ + padded > capacity_) {
    memory_.wait();
    used_ = 0;
  }
  const Place place{host_ + used_, device_ + used_, bytes};
  used_ += padded;
  return place;
}

void Staging::send(const Place& place) const {
  CHECK_CUDA(cudaMemcpyAsync(place.device, place.host, place.bytes, cudaMemcpyHostToDevice,
                             memory_.stream()));
}

}  // namespace flashlane::kernels::cuda
