// Memory: where a backend has its buffers, and the only way in and out of them for whoever may not
// follow their pointers. Copies come in the order of the backend's steps.
#pragma once

#include <cstddef>

namespace flashlane {

class Memory {
 public:
  Memory() = default;
  virtual ~Memory() = default;
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  // Zeroed, aligned to 64 bytes at least; null if there is none. It outlives the memory it gave.
  virtual std::byte* allocate(size_t bytes) = 0;
  virtual void release(std::byte* pointer) noexcept = 0;
  // Either side may be here or in host memory; what is in host memory is done with on return.
  virtual void copy(void* to, const void* from, size_t bytes) = 0;
  virtual void zero(void* to, size_t bytes) = 0;
  // Until all that was asked for so far is done, steps included.
  virtual void wait() {}
};

// The process's own. It asks for large pages where it is asked for much: weights are read from end
// to end, and looking up small pages costs a tenth of that.
Memory& host_memory();

}  // namespace flashlane
