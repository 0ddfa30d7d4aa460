// The cpu backend's own copy of a matrix or bank, in panels as panel_format.h says. Rows and
// columns beyond the matrix hold zeros.
#pragma once

#include <cstdint>

#include "base/result.h"
#include "kernels/cpu/level.h"
#include "kernels/cpu/panel_format.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/matrix.h"
#include "tensor/buffer.h"

namespace flashlane::kernels::cpu {

struct PackedMatrix {
  PanelFormat format;
  int subs = 1;      // lines side by side in a panel: 16 output rows each
  int64_t rows = 0;  // of one matrix of the bank
  int64_t cols = 0;
  int64_t count = 0;   // matrices in the bank
  int64_t groups = 0;  // of columns
  int64_t panels = 0;  // of one matrix
  size_t panel_bytes = 0;
  Buffer data;  // [count, panels, panel_bytes]

  size_t bytes() const { return static_cast<size_t>(count * panels) * panel_bytes; }
  int64_t panel_rows() const { return static_cast<int64_t>(kLanes) * subs; }
  void allocate();

  // Panels that one task takes: fewer in narrow matrices, so that there is work for more threads.
  int tile_panels() const { return panels >= 8 ? kTileRows / (kLanes * subs) : 1; }
  int tiles() const { return static_cast<int>((panels + tile_panels() - 1) / tile_panels()); }
  // Tile `tile` of matrix `index` of the bank.
  PanelTile tile(int64_t index, int tile) const;
  int64_t first_output(int tile) const {
    return static_cast<int64_t>(tile) * tile_panels() * kLanes * subs;
  }
};

// The sizes of a matrix's copy, without its memory. Refuses shapes that a matrix of this layout
// can't have, naming the value.
Result<PackedMatrix> shape_packed(const Matrix& matrix);

// Packs a part of the matrix into a copy that has its memory; the part may end between panels only
// at the matrix's end.
void pack_part(PackedMatrix& packed, const Matrix& matrix, const MatrixPart& part,
               ThreadPool& pool);

}  // namespace flashlane::kernels::cpu
