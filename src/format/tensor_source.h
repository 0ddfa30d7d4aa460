// TensorSource: named tensors from anywhere: a checkpoint directory, one file, or weights made by a
// counter. Views stay valid as long as the source lives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/view.h"

namespace flashlane::format {

// Whether the view's bytes may be read through a pointer to its element type. Files whose header is
// not padded (MLX writes such) hold tensors at any address: bytes-wise readers
// (kernels::dequantize_row, memcpy) take them as they are, anyone else asks here and copies first.
inline bool is_aligned(const TensorView& view) {
  return reinterpret_cast<uintptr_t>(view.data) % dtype_bytes(view.dtype) == 0;
}

class TensorSource {
 public:
  virtual ~TensorSource() = default;
  // Null when there is no such tensor.
  virtual const TensorView* find(std::string_view name) const = 0;
  virtual std::vector<std::string> names() const = 0;  // sorted
  // What to call the source in an error: a path, or "synth:tiny".
  virtual std::string description() const = 0;
};

}  // namespace flashlane::format
