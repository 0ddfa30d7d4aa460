// Matrix products over packed panels, and the ops that are products of one row alone: projections,
// hyper-connection reads, the MTP head's input.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/elementary.h"

namespace flashlane::kernels::cpu {
namespace {

// Nanoseconds of one row's products, at about 8 multiply-adds each.
int64_t product_work(int64_t rows, int64_t cols) {
  return rows * cols / 8;
}

}  // namespace

InputRow* CpuOps::take_inputs(int count, int64_t cols) {
  const int64_t padded = round_up<int64_t>(cols, kLanes);
  const int64_t sums = round_up<int64_t>(sums_count(cols), kLanes);
  auto* inputs = scratch_.take<InputRow>(count);
  auto* values = scratch_.take<float>(count * (padded + sums));
  for (int row = 0; row < count; ++row, values += padded + sums) {
    inputs[row] = {values, values + padded, nullptr};
  }
  return inputs;
}

void CpuOps::round_input(const InputRow& input, const float* x, int64_t cols) {
  kernels_.round_row(const_cast<float*>(input.x), const_cast<float*>(input.sums), x, cols,
                     round_up<int64_t>(cols, kLanes));
}

void CpuOps::multiply(float* out, InputRow* inputs, int count, const Matrix& weight) {
  const PackedMatrix& matrix = packed(weight);
  for (int row = 0; row < count; ++row) inputs[row].out = out + row * matrix.rows;
  const auto run_tile = [&](int tile) {
    const int64_t first = matrix.first_output(tile);
    const PanelTile panels = matrix.tile(0, tile);
    // Rows by blocks, so that a tile's weights stay in the nearest cache between them.
    InputRow block[kRowBlock];
    const int blocks = div_ceil(count, kRowBlock);
    for (int b = 0; b < blocks; ++b) {
      const int begin = static_cast<int>(static_cast<int64_t>(count) * b / blocks);
      const int end = static_cast<int>(static_cast<int64_t>(count) * (b + 1) / blocks);
      for (int row = begin; row < end; ++row) {
        block[row - begin] = inputs[row];
        block[row - begin].out += first;
      }
      kernels_.project(panels, block, end - begin);
    }
  };
  const int tiles = matrix.tiles();
  if (count * product_work(matrix.rows, matrix.cols) <= kStageNanoseconds) {
    for (int tile = 0; tile < tiles; ++tile) run_tile(tile);
    return;
  }
  pool_.run(tiles, [&](int tile, int) { run_tile(tile); });
}

void CpuOps::project(float* out, const float* x, int row_count, const Matrix& weight) {
  begin(row_count);
  if (row_count == 0) return;
  const int64_t cols = packed(weight).cols;
  CHECK_EQ(cols, weight.cols);
  InputRow* inputs = take_inputs(row_count, cols);
  for_rows(row_count, cols / 8, [&](int row) { round_input(inputs[row], x + row * cols, cols); });
  multiply(out, inputs, row_count, weight);
}

void CpuOps::hyper_read(float* mixed, float* inject, const float* streams, int row_count,
                        const HyperWeights& weights) {
  begin(row_count);
  if (row_count == 0) return;
  const int count = weights.streams;
  const int64_t hidden = weights.hidden;
  const int64_t wide = count * hidden;
  const int64_t low_rank = weights.low_rank;
  const float share = 1.0F / static_cast<float>(count);

  auto* normed = scratch_.take<float>(row_count * wide);
  InputRow* wide_inputs = take_inputs(row_count, wide);
  for_rows(row_count, wide / 4, [&](int row) {
    float* n = normed + row * wide;
    for (int c = 0; c < count; ++c) {
      kernels_.rms_norm(n + c * hidden, streams + row * wide + c * hidden,
                        weights.gain + c * hidden, hidden, weights.eps);
    }
    round_input(wide_inputs[row], n, wide);
  });
  auto* low = scratch_.take<float>(row_count * low_rank);
  multiply(low, wide_inputs, row_count, weights.down);
  InputRow* low_inputs = take_inputs(row_count, low_rank);
  for_rows(row_count, low_rank, [&](int row) {
    kernels_.silu(low + row * low_rank, low_rank, share);
    round_input(low_inputs[row], low + row * low_rank, low_rank);
  });
  auto* gates = scratch_.take<float>(row_count * wide);
  multiply(gates, low_inputs, row_count, weights.up);
  for_rows(row_count, wide, [&](int row) {
    kernels_.hyper_mix(mixed + row * hidden, gates + row * wide, normed + row * wide, count,
                       hidden);
  });
  if (weights.inject.empty()) return;
  multiply(inject, wide_inputs, row_count, weights.inject);
  for (int64_t i = 0; i < static_cast<int64_t>(row_count) * count; ++i) {
    inject[i] = 2.0F * sigmoid_f32(inject[i] * share);
  }
}

void CpuOps::mtp_fuse(float* out, const float* wide, const float* embedding, int row_count,
                      const MtpWeights& weights) {
  begin(row_count);
  if (row_count == 0) return;
  const int count = weights.streams;
  const int64_t hidden = weights.hidden;
  const int64_t width = count * hidden;
  auto* normed = scratch_.take<float>(row_count * width);
  auto* projected = scratch_.take<float>(row_count * hidden);
  InputRow* embedding_inputs = take_inputs(row_count, hidden);
  InputRow* hidden_inputs = take_inputs(row_count * count, hidden);
  for_rows(row_count, width / 2, [&](int row) {
    float* n = normed + row * width;
    kernels_.rms_norm(n, embedding + row * hidden, weights.embedding_gain, hidden, weights.eps);
    round_input(embedding_inputs[row], n, hidden);
    kernels_.rms_norm(n, wide + row * width, weights.hidden_gain, width, weights.eps);
    for (int c = 0; c < count; ++c) {
      round_input(hidden_inputs[row * count + c], n + c * hidden, hidden);
    }
  });
  multiply(projected, embedding_inputs, row_count, weights.embedding_projection);
  multiply(out, hidden_inputs, row_count * count, weights.hidden_projection);
  for_rows(row_count, width / 8, [&](int row) {
    for (int c = 0; c < count; ++c) {
      kernels_.add_scaled(out + row * width + c * hidden, projected + row * hidden, 1.0F, hidden);
    }
  });
}

}  // namespace flashlane::kernels::cpu
