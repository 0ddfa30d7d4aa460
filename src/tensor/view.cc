#include "tensor/view.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <span>

namespace flashlane {

std::string shape_string(const TensorView& view) {
  return fmt::format("[{}]",
                     fmt::join(std::span(view.shape.data(), static_cast<size_t>(view.rank)), ", "));
}

}  // namespace flashlane
