// TensorSource: named tensors from anywhere: a checkpoint directory, one file, or weights made by a
// counter. Views stay valid as long as the source lives.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tensor/view.h"

namespace flashlane::format {

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
