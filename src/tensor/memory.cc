#include "tensor/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/int_math.h"

namespace flashlane {
namespace {

constexpr size_t kLine = 64;
constexpr size_t kLargePage = size_t{2} << 20;
constexpr size_t kLarge = 4 * kLargePage;

class HostMemory final : public Memory {
 public:
  std::byte* allocate(size_t bytes) override {
    const bool large = bytes >= kLarge;
    const size_t alignment = large ? kLargePage : kLine;
    void* data = std::aligned_alloc(alignment, round_up(bytes, alignment));
    if (data == nullptr) return nullptr;
    const size_t padded = round_up(bytes, kLine);
    // Refused where there are none; the memory is as good then, only slower.
    if (large) (void)madvise(data, padded / kLargePage * kLargePage, MADV_HUGEPAGE);
    std::memset(data, 0, padded);
    return static_cast<std::byte*>(data);
  }
  void release(std::byte* pointer) noexcept override { std::free(pointer); }
  void copy(void* to, const void* from, size_t bytes) override { std::memcpy(to, from, bytes); }
  void zero(void* to, size_t bytes) override { std::memset(to, 0, bytes); }
};

}  // namespace

Memory& host_memory() {
  // Never destroyed: buffers of static objects may go after it.
  static auto* const memory = new HostMemory;
  return *memory;
}

}  // namespace flashlane
