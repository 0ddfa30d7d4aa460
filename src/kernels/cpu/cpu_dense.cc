// Matrix products over packed panels, and the ops that are products of one row alone: projections,
// hyper-connection reads, the MTP head's input.
#include <algorithm>

#include "base/int_math.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/elementary.h"

namespace flashlane::kernels::cpu {
namespace {

// Nanoseconds of one row's products, at about 16 multiply-adds each.
int64_t product_work(int64_t rows, int64_t cols) {
  return rows * cols / 16;
}

}  // namespace

const InputRow* CpuOps::shaped(RowInputs& inputs, const PackedMatrix& matrix) {
  CHECK_EQ(inputs.cols, matrix.cols);
  int at = 0;
  while (at < inputs.formats && inputs.format[at] != matrix.format) ++at;
  if (at < inputs.formats) return inputs.rows[at];
  CHECK_LT(at, RowInputs::kMostFormats);
  const PanelFormat& format = inputs.format[at] = matrix.format;
  const int64_t width = matrix.groups * format.group;
  const int64_t pairs = kernels_.pairs ? width / 2 : 0;  // in floats
  const int64_t sums = format.scaled ? round_up<int64_t>(matrix.groups, kLanes) : 0;
  const int64_t pitch = width + pairs + sums;
  auto* rows = scratch_.take<InputRow>(inputs.count);
  auto* values = scratch_.take<float>(inputs.count * pitch);
  for_rows(inputs.count, inputs.cols / 8, [&](int row) {
    const int64_t from = inputs.source_rows == nullptr ? row : inputs.source_rows[row];
    float* x = values + row * pitch;
    auto* halves = kernels_.pairs ? reinterpret_cast<uint16_t*>(x + width) : nullptr;
    kernels_.shape_row(x, halves, x + width + pairs, inputs.source + from * inputs.cols,
                       inputs.cols, format);
    rows[row] = {x, halves, x + width + pairs, nullptr};
  });
  inputs.rows[at] = rows;
  ++inputs.formats;
  return rows;
}

void CpuOps::multiply(std::span<const Projection> projections, RowInputs& inputs) {
  constexpr size_t kMost = 4;
  CHECK_LE(projections.size(), kMost);
  const int count = inputs.count;
  const PackedMatrix* matrices[kMost];
  const InputRow* rows[kMost];
  int tiles = 0;
  int64_t work = 0;
  for (size_t i = 0; i < projections.size(); ++i) {
    matrices[i] = &packed(*projections[i].weight);
    rows[i] = shaped(inputs, *matrices[i]);
    tiles += matrices[i]->tiles();
    work += count * product_work(matrices[i]->rows, matrices[i]->cols);
  }
  const auto run_tile = [&](int task) {
    size_t i = 0;
    while (task >= matrices[i]->tiles()) task -= matrices[i++]->tiles();
    const PackedMatrix& matrix = *matrices[i];
    const PanelTile panels = matrix.tile(0, task);
    float* out = projections[i].out + matrix.first_output(task);
    // Rows by blocks, so that a tile's weights stay in the nearest cache between them.
    InputRow block[kMostRowBlock];
    for (int begin = 0; begin < count; begin += kernels_.row_block) {
      const int end = std::min(count, begin + kernels_.row_block);
      for (int row = begin; row < end; ++row) {
        block[row - begin] = rows[i][row];
        block[row - begin].out = out + row * matrix.rows;
      }
      kernels_.project(panels, block, end - begin);
    }
  };
  if (work <= kStageNanoseconds) {
    for (int task = 0; task < tiles; ++task) run_tile(task);
    return;
  }
  pool_.run(tiles, [&](int task, int) { run_tile(task); });
}

void CpuOps::project(std::span<const Projection> projections, const float* x, int row_count) {
  begin(row_count);
  if (row_count == 0 || projections.empty()) return;
  RowInputs inputs;
  inputs.source = x;
  inputs.count = row_count;
  inputs.cols = projections[0].weight->cols;
  multiply(projections, inputs);
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
  for_rows(row_count, wide / 4, [&](int row) {
    float* n = normed + row * wide;
    for (int c = 0; c < count; ++c) {
      kernels_.rms_norm(n + c * hidden, streams + row * wide + c * hidden,
                        weights.gain + c * hidden, hidden, weights.eps);
    }
  });
  auto* low = scratch_.take<float>(row_count * low_rank);
  RowInputs wide_inputs = {normed, row_count, wide};
  const Projection reads[] = {{low, &weights.down}, {inject, &weights.inject}};
  multiply(std::span(reads, weights.inject.empty() ? 1 : 2), wide_inputs);
  for_rows(row_count, low_rank,
           [&](int row) { kernels_.silu(low + row * low_rank, low_rank, share); });
  RowInputs low_inputs = {low, row_count, low_rank};
  auto* gates = scratch_.take<float>(row_count * wide);
  multiply(gates, low_inputs, weights.up);
  for_rows(row_count, wide, [&](int row) {
    kernels_.hyper_mix(mixed + row * hidden, gates + row * wide, normed + row * wide, count,
                       hidden);
  });
  if (weights.inject.empty()) return;
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
  auto* embedded = scratch_.take<float>(row_count * hidden);
  auto* projected = scratch_.take<float>(row_count * hidden);
  for_rows(row_count, width / 2, [&](int row) {
    kernels_.rms_norm(embedded + row * hidden, embedding + row * hidden, weights.embedding_gain,
                      hidden, weights.eps);
    kernels_.rms_norm(normed + row * width, wide + row * width, weights.hidden_gain, width,
                      weights.eps);
  });
  RowInputs embedding_inputs = {embedded, row_count, hidden};
  multiply(projected, embedding_inputs, weights.embedding_projection);
  RowInputs hidden_inputs = {normed, row_count * count, hidden};
  multiply(out, hidden_inputs, weights.hidden_projection);
  for_rows(row_count, width / 8, [&](int row) {
    for (int c = 0; c < count; ++c) {
      kernels_.add_scaled(out + row * width + c * hidden, projected + row * hidden, 1.0F, hidden);
    }
  });
}

}  // namespace flashlane::kernels::cpu
