#include "kernels/cpu/panel_format.h"

#include "base/check.h"

namespace flashlane::kernels::cpu {
namespace {

struct ColumnPlace {
  int line = 0;   // of the chunk
  int place = 0;  // in the word, counted in values from the lowest bits
};

constexpr ColumnPlace place_of(int bits, int column) {
  if (bits == 32) return {column, 0};
  const int half = 16 / bits;  // columns in half a word
  const int pair = column / 2;
  return {pair / half, pair % half + (column % 2) * half};
}

constexpr InputOrder order_of(int bits) {
  InputOrder result = {};
  const int per_word = 32 / bits;
  for (int column = 0; column < kChunk; ++column) {
    const ColumnPlace at = place_of(bits, column);
    const int i = at.line * per_word + at.place;
    const bool codes = bits < 16 && at.place != per_word - 1;
    const int shift = codes ? bits * at.place : 0;
    result.order[i] = static_cast<uint8_t>(column);
    result.factor[i] = 1.0F / static_cast<float>(uint64_t{1} << shift);
  }
  return result;
}

}  // namespace

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

const InputOrder& input_order(const PanelFormat& format) {
  static constexpr InputOrder kTwo = order_of(2);
  static constexpr InputOrder kFour = order_of(4);
  static constexpr InputOrder kEight = order_of(8);
  static constexpr InputOrder kSixteen = order_of(16);
  static constexpr InputOrder kThirtyTwo = order_of(32);
  switch (format.bits) {
    case 2:
      return kTwo;
    case 4:
      return kFour;
    case 8:
      return kEight;
    case 16:
      return kSixteen;
    default:
      CHECK_EQ(format.bits, 32);
      return kThirtyTwo;
  }
}

}  // namespace flashlane::kernels::cpu
