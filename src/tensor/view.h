// TensorView: where a tensor's bytes are, what they hold and its shape. A value: it owns nothing,
// and whoever hands one out says how long the bytes live.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "tensor/dtype.h"

namespace flashlane {

inline constexpr int kMaxRank = 6;

struct TensorView {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape = {};  // dimensions beyond rank are 0

  int64_t elements() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[static_cast<size_t>(i)];
    return count;
  }
  size_t bytes() const { return static_cast<size_t>(elements()) * dtype_bytes(dtype); }
  int64_t dim(int index) const {
    CHECK(index >= -rank && index < rank);
    return shape[static_cast<size_t>(index < 0 ? rank + index : index)];
  }
  template <typename T>
  const T* as() const {
    return reinterpret_cast<const T*>(data);
  }
};

// "[2, 3]"
std::string shape_string(const TensorView& view);

}  // namespace flashlane
