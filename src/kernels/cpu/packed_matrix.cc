// Packing at load. Source bytes may lie at any address, so they are read with memcpy.
#include "kernels/cpu/packed_matrix.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/int_math.h"
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

Status check_shape(const Matrix& matrix) {
  if (matrix.rows < 1 || matrix.cols < 1 || matrix.count < 1 || matrix.data == nullptr) {
    return invalid("a matrix of {} x [{}, {}] can't be prepared", matrix.count, matrix.rows,
                   matrix.cols);
  }
  if (matrix.count > 1 && matrix.stride_rows < matrix.rows) {
    return invalid("matrices of a bank overlap: {} rows, but {} from one to the next", matrix.rows,
                   matrix.stride_rows);
  }
  if (matrix.layout != Layout::kAffine) return {};
  if (!affine_bits_supported(matrix.bits)) {
    return invalid("affine matrices have 2, 3, 4, 5, 6 or 8 bits, not {}", matrix.bits);
  }
  if (!affine_group_supported(matrix.group) || matrix.cols % matrix.group != 0) {
    return invalid("{} columns can't be in affine groups of {} (32, 64 or 128 that divide them)",
                   matrix.cols, matrix.group);
  }
  if (matrix.scale_dtype != DType::kF32 && matrix.scale_dtype != DType::kF16 &&
      matrix.scale_dtype != DType::kBf16) {
    return invalid("affine scales are BF16, F16 or F32, not {}", dtype_name(matrix.scale_dtype));
  }
  if (matrix.scales == nullptr || matrix.biases == nullptr) {
    return invalid("an affine matrix of [{}, {}] lacks scales or biases", matrix.rows, matrix.cols);
  }
  return {};
}

void pack_plain_row(const PackedMatrix& packed, const Matrix& matrix, const std::byte* source,
                    int64_t lane, std::byte* panel) {
  for (int64_t col = 0; col < matrix.cols; ++col) {
    const auto at = static_cast<size_t>(col * kPanelRows + lane);
    if (packed.kind == PanelKind::kBf16) {
      std::memcpy(panel + at * 2, source + static_cast<size_t>(col) * 2, 2);
      continue;
    }
    const DType dtype = matrix.layout == Layout::kF16 ? DType::kF16 : DType::kF32;
    const float value = load_scalar(source, dtype, col);
    std::memcpy(panel + at * 4, &value, 4);
  }
}

void pack_codes(const PackedMatrix& packed, std::span<const uint8_t> codes, int64_t lane,
                std::byte* panel) {
  for (size_t col = 0; col < codes.size(); ++col) {
    if (packed.kind == PanelKind::kByte) {
      panel[col * kPanelRows + static_cast<size_t>(lane)] = std::byte{codes[col]};
      continue;
    }
    std::byte& pair = panel[col / 2 * kPanelRows + static_cast<size_t>(lane)];
    pair |= std::byte{codes[col]} << (col % 2 * 4);
  }
}

void pack_scales(const PackedMatrix& packed, const Matrix& matrix, size_t stored_row, int64_t lane,
                 std::byte* panel) {
  const size_t offset = stored_row * matrix.scale_row_bytes();
  const std::byte* sources[2] = {matrix.scales + offset, matrix.biases + offset};
  for (int64_t group = 0; group < matrix.cols / matrix.group; ++group) {
    for (int64_t which = 0; which < 2; ++which) {
      const auto at = static_cast<size_t>((group * 2 + which) * kPanelRows + lane);
      if (packed.bf16_scales) {
        std::memcpy(panel + at * 2, sources[which] + static_cast<size_t>(group) * 2, 2);
      } else {
        const float value = load_scalar(sources[which], matrix.scale_dtype, group);
        std::memcpy(panel + at * 4, &value, 4);
      }
    }
  }
}

void pack_panel(PackedMatrix& packed, const Matrix& matrix, int64_t index, int64_t panel,
                std::span<uint8_t> codes) {
  const auto at = static_cast<size_t>(index * packed.panels + panel);
  std::byte* data = packed.data.data() + at * packed.panel_bytes;
  const int64_t first = panel * kPanelRows;
  const int64_t lanes = std::min<int64_t>(kPanelRows, matrix.rows - first);
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const auto stored_row = static_cast<size_t>(index * matrix.stride_rows + first + lane);
    const std::byte* source = matrix.data + stored_row * matrix.row_bytes();
    if (matrix.layout != Layout::kAffine) {
      pack_plain_row(packed, matrix, source, lane, data);
      continue;
    }
    affine_unpack({source, matrix.row_bytes()}, matrix.bits, codes);
    pack_codes(packed, codes, lane, data);
    pack_scales(packed, matrix, stored_row, lane,
                packed.scales.data() + at * packed.panel_scale_bytes);
  }
}

}  // namespace

PanelTile PackedMatrix::tile(int64_t index, int tile) const {
  const int64_t first_panel = static_cast<int64_t>(tile) * tile_panels();
  const auto at = static_cast<size_t>(index * panels + first_panel);
  PanelTile result;
  result.kind = kind;
  result.bf16_scales = bf16_scales;
  result.panels = static_cast<int>(std::min<int64_t>(tile_panels(), panels - first_panel));
  result.cols = round_up<int64_t>(cols, 2);
  result.group = group;
  result.sum_offset = sums_offset(cols, group);
  result.data = data.data() + at * panel_bytes;
  result.panel_bytes = panel_bytes;
  if (panel_scale_bytes != 0) {
    result.scales = scales.data() + at * panel_scale_bytes;
    result.panel_scale_bytes = panel_scale_bytes;
  }
  result.outputs = std::min<int64_t>(static_cast<int64_t>(result.panels) * kPanelRows,
                                     rows - first_output(tile));
  return result;
}

Result<PackedMatrix> shape_packed(const Matrix& matrix) {
  RETURN_IF_ERROR(check_shape(matrix));
  PackedMatrix packed;
  packed.rows = matrix.rows;
  packed.cols = matrix.cols;
  packed.count = matrix.count;
  packed.panels = div_ceil<int64_t>(matrix.rows, kPanelRows);
  const auto cols = static_cast<size_t>(round_up<int64_t>(matrix.cols, 2));
  if (matrix.layout == Layout::kAffine) {
    packed.kind = matrix.bits <= 4 ? PanelKind::kNibble : PanelKind::kByte;
    packed.group = matrix.group;
    packed.bf16_scales = matrix.scale_dtype == DType::kBf16;
    packed.panel_bytes = cols * (packed.kind == PanelKind::kNibble ? kPanelRows / 2 : kPanelRows);
    packed.panel_scale_bytes = static_cast<size_t>(matrix.cols / matrix.group) * 2 * kPanelRows *
                               (packed.bf16_scales ? 2 : 4);
  } else {
    packed.kind = matrix.layout == Layout::kBf16 ? PanelKind::kBf16 : PanelKind::kF32;
    packed.panel_bytes = cols * kPanelRows * (packed.kind == PanelKind::kBf16 ? 2 : 4);
  }
  return packed;
}

void PackedMatrix::allocate() {
  const auto all = static_cast<size_t>(count * panels);
  data = Buffer(all * panel_bytes);
  scales = Buffer(all * panel_scale_bytes);
}

void pack_part(PackedMatrix& packed, const Matrix& matrix, const MatrixPart& part,
               ThreadPool& pool) {
  const int64_t end_row = part.first_row + part.row_count;
  CHECK(part.first_row % kPanelRows == 0);
  CHECK(end_row == matrix.rows || end_row % kPanelRows == 0);
  const int64_t first_panel = part.first_row / kPanelRows;
  const int64_t panels = div_ceil<int64_t>(end_row, kPanelRows) - first_panel;
  // A task packs a run of panels with one buffer of codes.
  constexpr int64_t kRun = 16;
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
