// Buffer: move-only owner of zeroed, 64-byte aligned memory, the host's or a backend's, made at
// load and not while serving. Only the host's may be looked at through its pointers.
#pragma once

#include <cstddef>
#include <memory>
#include <utility>

#include "base/check.h"
#include "tensor/memory.h"

namespace flashlane {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes, Memory& memory = host_memory()) : bytes_(bytes) {
    if (bytes == 0) return;
    data_ = {memory.allocate(bytes), Release{&memory}};
    CHECK(data_ != nullptr);
  }
  // Takes over what `memory` gave.
  static Buffer adopt(std::byte* data, size_t bytes, Memory& memory) {
    Buffer buffer;
    buffer.data_ = {data, Release{&memory}};
    buffer.bytes_ = bytes;
    return buffer;
  }
  Buffer(Buffer&& other) noexcept
      : data_(std::move(other.data_)), bytes_(std::exchange(other.bytes_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    data_ = std::move(other.data_);
    bytes_ = std::exchange(other.bytes_, 0);
    return *this;
  }

  std::byte* data() { return data_.get(); }
  const std::byte* data() const { return data_.get(); }
  size_t bytes() const { return bytes_; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data_.get());
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data_.get());
  }

 private:
  struct Release {
    Release() : memory(nullptr) {}
    explicit Release(Memory* of) : memory(of) {}
    Memory* memory;
    void operator()(std::byte* pointer) const noexcept { memory->release(pointer); }
  };
  std::unique_ptr<std::byte, Release> data_;
  size_t bytes_ = 0;
};

}  // namespace flashlane
