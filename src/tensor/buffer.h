// Buffer: move-only owner of zeroed, 64-byte aligned host memory, made at load and not while
// serving. A large one asks for large pages: weights are read from end to end, and looking up small
// pages costs a tenth of that.
#pragma once

#include <sys/mman.h>

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
    const bool large = bytes >= kLarge;
    const size_t alignment = large ? kLargePage : size_t{64};
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, round_up(bytes, alignment))));
    CHECK(data_ != nullptr);
    const size_t padded = round_up(bytes, size_t{64});
    // Refused where there are none; the memory is as good then, only slower.
    if (large) (void)madvise(data_.get(), padded / kLargePage * kLargePage, MADV_HUGEPAGE);
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
  static constexpr size_t kLargePage = size_t{2} << 20;
  static constexpr size_t kLarge = 4 * kLargePage;

  struct Free {
    void operator()(std::byte* pointer) const noexcept { std::free(pointer); }
  };
  std::unique_ptr<std::byte, Free> data_;
  size_t bytes_ = 0;
};

}  // namespace flashlane
