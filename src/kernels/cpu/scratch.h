// Scratch: one block of floats made at load, handed out piece by piece within an op and taken back
// whole when the op ends. Asking for more than was reserved is a bug and says so.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "base/int_math.h"
#include "tensor/buffer.h"

namespace flashlane::kernels::cpu {

class Scratch {
 public:
  void reserve(size_t bytes) { block_ = Buffer(bytes); }
  void clear() { used_ = 0; }

  // `count` values of T, 64-byte aligned, valid until clear().
  template <typename T>
  T* take(int64_t count) {
    CHECK_GE(count, 0);
    const size_t bytes = round_up(static_cast<size_t>(count) * sizeof(T), size_t{64});
    CHECK_LE(bytes, block_.bytes() - used_);
    T* piece = reinterpret_cast<T*>(block_.data() + used_);
    used_ += bytes;
    return piece;
  }

 private:
  Buffer block_;
  size_t used_ = 0;
};

}  // namespace flashlane::kernels::cpu
