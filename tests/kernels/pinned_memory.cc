// Where a GPU is used, all memory that this program asks `new` for is host memory that the GPU can
// read and write, so that the tests give every backend the same plain vectors. Slow, and only for
// tests. Blocks are powers of two, of one region; what does not fit comes from elsewhere.
#ifdef FLASHLANE_CUDA
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdlib>
#include <mutex>
#include <new>

namespace {

constexpr size_t kRegion = size_t{1} << 30;
constexpr size_t kLeastBlock = 64;
constexpr size_t kClasses = 31;

class PinnedRegion {
 public:
  void* allocate(size_t bytes) {
    const size_t block = std::bit_ceil(std::max(bytes, kLeastBlock));
    if (block > kRegion / 4 || !start()) return aside(block);
    const auto size_class = static_cast<size_t>(std::countr_zero(block));
    std::lock_guard lock(mutex_);
    if (Free* first = free_[size_class]) {
      free_[size_class] = first->next;
      return first;
    }
    const size_t place = (used_ + block - 1) / block * block;
    if (place + block > kRegion) return aside(block);
    used_ = place + block;
    return base_ + place;
  }

  // The size comes with the call where the compiler knows it, which is nearly always; else the
  // block is not used again.
  void release(void* pointer, size_t bytes) {
    auto* block = static_cast<std::byte*>(pointer);
    if (base_ == nullptr || block < base_ || block >= base_ + kRegion) return std::free(pointer);
    if (bytes == 0) return;
    const size_t size = std::bit_ceil(std::max(bytes, kLeastBlock));
    std::lock_guard lock(mutex_);
    Free*& first = free_[static_cast<size_t>(std::countr_zero(size))];
    first = new (pointer) Free{first};
  }

 private:
  struct Free {
    Free* next;
  };

  // As aligned as a block of the region would be, up to a page.
  static void* aside(size_t block) {
    return std::aligned_alloc(std::min(block, size_t{4096}), block);
  }

  // CUDA's own start may ask for memory, which then is not from here.
  bool start() {
    if (state_ == State::kNew) {
      state_ = State::kStarting;
      void* region = nullptr;
      if (cudaHostAlloc(&region, kRegion, cudaHostAllocPortable) == cudaSuccess) {
        base_ = static_cast<std::byte*>(region);
      }
      state_ = State::kStarted;
    }
    return state_ == State::kStarted && base_ != nullptr;
  }

  enum class State { kNew, kStarting, kStarted };
  State state_ = State::kNew;
  std::mutex mutex_;
  std::byte* base_ = nullptr;
  size_t used_ = 0;
  std::array<Free*, kClasses> free_ = {};
};

PinnedRegion& region() {
  alignas(PinnedRegion) static std::byte place[sizeof(PinnedRegion)];
  static auto* made = new (place) PinnedRegion;  // never gone: others outlive it
  return *made;
}

}  // namespace

void* operator new(size_t bytes) {
  void* pointer = region().allocate(bytes);
  if (pointer == nullptr) std::abort();
  return pointer;
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return operator new(std::max(bytes, static_cast<size_t>(alignment)));  // blocks lie at multiples
}
void operator delete(void* pointer) noexcept {
  region().release(pointer, 0);
}
void operator delete(void* pointer, size_t bytes) noexcept {
  region().release(pointer, bytes);
}
void operator delete(void* pointer, size_t bytes, std::align_val_t alignment) noexcept {
  region().release(pointer, std::max(bytes, static_cast<size_t>(alignment)));
}
void operator delete(void* pointer, std::align_val_t /*alignment*/) noexcept {
  region().release(pointer, 0);
}
#endif
