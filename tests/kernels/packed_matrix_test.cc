// What a packed matrix holds, read back word by word without any kernel: every code, value, scale
// and bias of the source at its place, for both kinds of levels.
#include "kernels/cpu/packed_matrix.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "tensor/dtype.h"
#include "tests/kernels/test_cases.h"

namespace flashlane::kernels::test {
namespace {

using cpu::PackedMatrix;
using cpu::PanelFormat;

uint32_t word_of(const PackedMatrix& packed, int64_t index, int64_t row, int64_t group,
                 int64_t word) {
  const int64_t panel_rows = static_cast<int64_t>(cpu::kLanes) * packed.subs;
  const int64_t panel = index * packed.panels + row / panel_rows;
  const int64_t lane = row % panel_rows;
  const std::byte* at = packed.data.data() + static_cast<size_t>(panel) * packed.panel_bytes +
                        static_cast<size_t>(group) * packed.format.group_bytes(packed.subs) +
                        (word * packed.subs + lane / cpu::kLanes) * cpu::kLineBytes +
                        lane % cpu::kLanes * 4;
  uint32_t value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

// The bits of column `col` of a group: pairs of columns, the even one in the lower half.
uint32_t bits_of(const PackedMatrix& packed, int64_t index, int64_t row, int64_t group,
                 int64_t col) {
  const int bits = packed.format.bits;
  if (bits == 32) return word_of(packed, index, row, group, col);
  const int64_t half = 16 / bits;
  const int64_t shift = col / 2 % half * bits + col % 2 * 16;
  return word_of(packed, index, row, group, col / 2 / half) >> shift & ((1U << bits) - 1);
}

// The weight that the packed bits stand for, as dequantize_row computes it.
float weight_of(const PackedMatrix& packed, int64_t index, int64_t row, int64_t col) {
  const PanelFormat& f = packed.format;
  const int64_t group = col / f.group;
  const uint32_t bits = bits_of(packed, index, row, group, col % f.group);
  if (f.kind == cpu::PanelKind::kF32) return std::bit_cast<float>(bits);
  if (f.kind == cpu::PanelKind::kBf16) return bf16_to_float(static_cast<uint16_t>(bits));
  const uint32_t first = word_of(packed, index, row, group, f.lines());
  float scale = std::bit_cast<float>(first);
  float bias = 0;
  if (f.bf16_scales) {
    scale = bf16_to_float(static_cast<uint16_t>(first & 0xffff));
    bias = bf16_to_float(static_cast<uint16_t>(first >> 16));
  } else {
    bias = std::bit_cast<float>(word_of(packed, index, row, group, f.lines() + 1));
  }
  const float product = scale * static_cast<float>(bits);
  return product + bias;
}

TEST(PackedMatrix, HoldsEveryWeightOfEveryFormat) {
  cpu::ThreadPool pool(2);
  for (const Format& format : all_formats()) {
    for (const int64_t rows : {5, 150}) {
      Store store;
      Random random(9);
      const Matrix matrix = store.matrix(random, format, 2, rows, 256, rows + 3);
      auto packed = cpu::shape_packed(matrix);
      ASSERT_TRUE(packed.ok());
      packed->allocate();
      cpu::pack_part(*packed, matrix, {0, 2, 0, rows}, pool);
      std::vector<float> expected(256);
      for (int64_t index = 0; index < 2; ++index) {
        for (int64_t row = 0; row < rows; ++row) {
          dequantize_row(matrix, index, row, expected.data());
          for (int64_t col = 0; col < 256; ++col) {
            ASSERT_EQ(weight_of(*packed, index, row, col), expected[static_cast<size_t>(col)])
                << format.name << " matrix " << index << " row " << row << " column " << col;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashlane::kernels::test
