// Buffer: move-only owner of zeroed, 64-byte aligned host memory, made at load and not while
// serving.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.h"
#include "base/int_math.h"

namespace flashlane {

class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    const size_t padded = round_up(bytes, size_t{64});
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, padded)));
    CHECK(data_ != nullptr);
    std::memset(data_.get(), 0, padded);
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
  struct Free {
    void operator()(std::byte* pointer) const noexcept { std::free(pointer); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace flashlane
