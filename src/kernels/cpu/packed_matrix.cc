// Packing at load. Source bytes may lie at any address, so they are read with memcpy.
#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "base/int_math.h"
#include "kernels/matrix_check.h"
#include "tensor/affine.h"
#include "tensor/dtype.h"

namespace flashlane::kernels::cpu {
namespace {

float load_scalar(const std::byte* data, DType dtype, int64_t index) {
  const std::byte* at = data + static_cast<size_t>(index) * dtype_bytes(dtype);
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof(value));
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, sizeof(bits));
  return dtype == DType::kBf16 ? bf16_to_float(bits) : f16_to_float(bits);
}

// Where line `line` of row `lane` of the panel stands in a group.
uint32_t* word_at(const PackedMatrix& packed, std::byte* group, int64_t line, int64_t lane) {
  return reinterpret_cast<uint32_t*>(group + (line * packed.subs + lane / kLanes) * kLineBytes) +
         lane % kLanes;
}

// The bits of one plain value as its word holds them.
uint32_t plain_bits(const Matrix& matrix, const std::byte* row, int64_t col) {
  if (matrix.layout == Layout::kBf16) {
    uint16_t half;
    std::memcpy(&half, row + static_cast<size_t>(col) * 2, 2);
    return half;
  }
  return std::bit_cast<uint32_t>(
      load_scalar(row, matrix.layout == Layout::kF32 ? DType::kF32 : DType::kF16, col));
}

void pack_group_scales(const PackedMatrix& packed, const Matrix& matrix, size_t stored_row,
                       int64_t group, int64_t lane, std::byte* to) {
  const size_t row_at = stored_row * matrix.scale_row_bytes();
  const int lines = packed.format.lines();
  uint32_t* first = word_at(packed, to, lines, lane);
  if (packed.format.bf16_scales) {
    uint16_t scale, bias;
    std::memcpy(&scale, matrix.scales + row_at + group * 2, 2);
    std::memcpy(&bias, matrix.biases + row_at + group * 2, 2);
    *first = scale | static_cast<uint32_t>(bias) << 16;
    return;
  }
  *first = std::bit_cast<uint32_t>(load_scalar(matrix.scales + row_at, matrix.scale_dtype, group));
  *word_at(packed, to, lines + 1, lane) =
      std::bit_cast<uint32_t>(load_scalar(matrix.biases + row_at, matrix.scale_dtype, group));
}

void pack_panel(PackedMatrix& packed, const Matrix& matrix, int64_t index, int64_t panel,
                std::span<uint8_t> codes) {
  const PanelFormat& format = packed.format;
  const WordOrder order = word_order(format.bits);
  const int per_word = format.per_word();
  std::byte* data =
      packed.data.data() + static_cast<size_t>(index * packed.panels + panel) * packed.panel_bytes;
  const int64_t panel_rows = static_cast<int64_t>(kLanes) * packed.subs;
  const int64_t first = panel * panel_rows;
  const int64_t lanes = std::min<int64_t>(panel_rows, matrix.rows - first);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const auto stored_row = static_cast<size_t>(index * matrix.stride_rows + first + lane);
    const std::byte* source = matrix.data + stored_row * matrix.row_bytes();
    if (format.scaled) affine_unpack({source, matrix.row_bytes()}, matrix.bits, codes);
    for (int64_t group = 0; group < packed.groups; ++group) {
      std::byte* to = data + static_cast<size_t>(group) * format.group_bytes(packed.subs);
      for (int i = 0; i < format.group; ++i) {
        const int64_t col = group * format.group + i - i % kLanes + order.column[i % kLanes];
        if (col >= matrix.cols) continue;
        const uint32_t bits =
            format.scaled ? codes[static_cast<size_t>(col)] : plain_bits(matrix, source, col);
        *word_at(packed, to, i / per_word, lane) |= bits << (i % per_word * format.bits);
      }
      if (format.scaled) pack_group_scales(packed, matrix, stored_row, group, lane, to);
    }
  }
}

}  // namespace

PanelTile PackedMatrix::tile(int64_t index, int tile) const {
  const int64_t first_panel = static_cast<int64_t>(tile) * tile_panels();
  const auto at = static_cast<size_t>(index * panels + first_panel);
  PanelTile result;
  result.format = &format;
  result.subs = subs;
  result.lines = subs * static_cast<int>(std::min<int64_t>(tile_panels(), panels - first_panel));
  result.groups = groups;
  result.data = data.data() + at * panel_bytes;
  result.panel_bytes = panel_bytes;
  result.outputs =
      std::min<int64_t>(static_cast<int64_t>(result.lines) * kLanes, rows - first_output(tile));
  return result;
}

Result<PackedMatrix> shape_packed(const Matrix& matrix) {
  RETURN_IF_ERROR(check_matrix(matrix));
  PackedMatrix packed;
  packed.format = panel_format(matrix);
  packed.subs = matrix.rows > kLanes ? 2 : 1;
  packed.rows = matrix.rows;
  packed.cols = matrix.cols;
  packed.count = matrix.count;
  packed.groups = div_ceil<int64_t>(matrix.cols, packed.format.group);
  packed.panels = div_ceil<int64_t>(matrix.rows, packed.panel_rows());
  packed.panel_bytes = static_cast<size_t>(packed.groups) * packed.format.group_bytes(packed.subs);
  return packed;
}

void PackedMatrix::allocate() {
  const auto all = static_cast<size_t>(count * panels);
  data = Buffer(all * panel_bytes);
}

void pack_part(PackedMatrix& packed, const Matrix& matrix, const MatrixPart& part,
               ThreadPool& pool) {
  const int64_t panel_rows = packed.panel_rows();
  const int64_t end_row = part.first_row + part.row_count;
  CHECK(part.first_row % panel_rows == 0);
  CHECK(end_row == matrix.rows || end_row % panel_rows == 0);
  const int64_t first_panel = part.first_row / panel_rows;
  const int64_t panels = div_ceil<int64_t>(end_row, panel_rows) - first_panel;
  // A task packs a run of panels with one buffer of codes.
  constexpr int64_t kRun = 8;
  const int64_t all = part.count * panels;
  const int tasks = static_cast<int>(div_ceil<int64_t>(all, kRun));
  pool.run(tasks, [&](int task, int) {
    std::vector<uint8_t> codes(matrix.layout == Layout::kAffine ? static_cast<size_t>(matrix.cols)
                                                                : 0);
    const int64_t end = std::min<int64_t>((task + 1) * kRun, all);
    for (int64_t i = task * kRun; i < end; ++i) {
      pack_panel(packed, matrix, part.first + i / panels, first_panel + i % panels, codes);
    }
  });
}

}  // namespace flashlane::kernels::cpu
