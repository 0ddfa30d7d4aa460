#include "kernels/cpu/panel_format.h"

namespace flashlane::kernels::cpu {

PanelFormat panel_format(const Matrix& matrix) {
  PanelFormat format;
  switch (matrix.layout) {
    case Layout::kF32:
    case Layout::kF16:
      return format;
    case Layout::kBf16:
      format.kind = PanelKind::kBf16;
      format.bits = 16;
      return format;
    case Layout::kAffine:
      break;
  }
  format.kind = PanelKind::kCodes;
  format.bits = matrix.bits == 2 ? 2 : (matrix.bits <= 4 ? 4 : 8);
  format.group = matrix.group;
  format.scaled = true;
  format.bf16_scales = matrix.scale_dtype == DType::kBf16;
  return format;
}

}  // namespace flashlane::kernels::cpu
