// The launch that makes a synthetic tensor's rows on the GPU, to the same bits as its source would
// (model/synth_source.cc).
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "kernels/matrix.h"

namespace flashlane::kernels::cuda {

// Rows [first_row, first_row + rows) of the tensor, as they are stored: of 0 bits, as bf16; else
// codes as one bit stream per row, and scales and biases, as bf16, [rows, cols / group]. `values`
// lies on 4 bytes.
void launch_draw_rows(cudaStream_t stream, const DrawRule& rule, int64_t first_row, int64_t rows,
                      int64_t cols, int bits, int group, std::byte* values, uint16_t* scales,
                      uint16_t* biases);

}  // namespace flashlane::kernels::cuda
