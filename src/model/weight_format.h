// Names of weight formats, as people write them: bf16, f16, f32, and q<bits>g<group> for MLX
// affine. The same names everywhere: in `synth:`, in `convert`, in what is printed.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/shape.h"
#include "tensor/dtype.h"

namespace flashlane::model {

struct WeightFormat {
  DType dtype = DType::kBf16;       // of plain values
  QuantizationDefault affine = {};  // bits 0: plain

  bool is_affine() const { return affine.bits != 0; }
  std::string name() const;
};

// "q4g32" with bits and groups that exist; nullopt for anything else.
std::optional<QuantizationDefault> parse_affine_name(std::string_view name);

// Formats that the CPU serves; others are refused, by name where they exist elsewhere.
Result<WeightFormat> parse_weight_format(std::string_view name);

}  // namespace flashlane::model
