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

// The columns of a line as they stand in its words, and what the kernels of floats multiply them
// by: value i of 16 is column column[i] times factor[i]. Codes are used where they stand in their
// word, 2^(bits * place) too large but in the last place, which is shifted down; the factors undo
// that. Powers of two, so products are exactly what they would be. A word holds at most 16 columns,
// so 16 of them are whole words.
struct WordOrder {
  int32_t column[kLanes] = {};
  float factor[kLanes] = {};
};
constexpr WordOrder word_order(int bits) {
  WordOrder result = {};
  const int per_word = 32 / bits;
  for (int i = 0; i < kLanes; ++i) {
    const int place = i % per_word;
    const int half = per_word / 2;
    const bool odd = half > 0 && place >= half;
    const int within = half == 0 ? 0 : 2 * (place - (odd ? half : 0)) + (odd ? 1 : 0);
    result.column[i] = i - place + within;
    const bool shifted = bits < 16 && place != per_word - 1;
    result.factor[i] = 1.0F / static_cast<float>(uint64_t{1} << (shifted ? bits * place : 0));
  }
  return result;
}

}  // namespace flashlane::kernels::cpu
