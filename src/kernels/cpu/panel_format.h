// How packed weights lie in memory: panels of 16 or 32 output rows, and in them, one after another,
// the groups of columns with their scales behind them, so that a product reads one stream. The unit
// is a line of 64 bytes: one 32-bit word for each of 16 output rows. Exact: codes stay codes (of 2,
// 4 or 8 bits), plain values stay what they are.
//
// A word of codes or bf16 holds even columns in its lower half and the odd columns after them in
// its upper half, each ascending from the lowest bits: what instructions that multiply pairs of
// bf16 want, and what the others can use as well. One order for every level.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/matrix.h"

namespace flashlane::kernels::cpu {

inline constexpr int kLanes = 16;
inline constexpr int kLineBytes = 64;
inline constexpr int kChunk = 32;       // columns of one step of a sum
inline constexpr int kPlainGroup = 64;  // columns of a group in plain matrices

enum class PanelKind : uint8_t { kF32, kBf16, kCodes };

struct PanelFormat {
  PanelKind kind = PanelKind::kF32;
  int bits = 32;  // of one value: 2, 4 or 8 of codes, 16, 32
  int group = kPlainGroup;
  bool scaled = false;       // w = scale * code + bias
  bool bf16_scales = false;  // scale and bias share a word, the scale in the lower half

  bool operator==(const PanelFormat&) const = default;

  int per_word() const { return 32 / bits; }
  int lines() const { return group * bits / 32; }  // of a group and 16 output rows, without scales
  int scale_lines() const { return scaled ? (bf16_scales ? 1 : 2) : 0; }
  // Bytes of a group of `subs` * 16 output rows.
  size_t group_bytes(int subs) const {
    return static_cast<size_t>(lines() + scale_lines()) * kLineBytes * static_cast<size_t>(subs);
  }
};

// The format of a matrix whose shape has been checked.
PanelFormat panel_format(const Matrix& matrix);

// The columns of a chunk in the order in which they stand in its words, places within a line, then
// lines; and what the kernels of floats multiply an input column by: value i of a chunk is column
// order[i] times factor[i]. Codes are used where they stand in their word, 2^(bits * place) too
// large but in the last place, which is shifted down; the factors undo that. Powers of two, so
// products are exactly what they would be.
struct InputOrder {
  uint8_t order[kChunk];
  float factor[kChunk];
};
const InputOrder& input_order(const PanelFormat& format);

}  // namespace flashlane::kernels::cpu
