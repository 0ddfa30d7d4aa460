// A tensor's values wherever they lie: safetensors files need not align their tensors, so a test
// that read them through a typed pointer would be undefined.
#pragma once

#include <cstring>
#include <vector>

#include "tensor/view.h"

namespace flashlane {

template <typename T>
std::vector<T> values_of(const TensorView& view) {
  CHECK_EQ(sizeof(T), dtype_bytes(view.dtype));
  std::vector<T> copy(static_cast<size_t>(view.elements()));
  if (!copy.empty()) std::memcpy(copy.data(), view.data, view.bytes());
  return copy;
}

}  // namespace flashlane
