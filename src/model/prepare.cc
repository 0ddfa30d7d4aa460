// Parts are cut so that their stored bytes are few beside any model's, yet enough for all threads,
// or for all of a GPU where that makes them.
#include "model/prepare.h"

#include <algorithm>
#include <map>
#include <vector>

#include "base/check.h"
#include "base/int_math.h"
#include "model/synthetic_source.h"

namespace flashlane::model {
namespace {

using format::ByteRange;
using kernels::Matrix;
using kernels::MatrixPart;

constexpr size_t kPartBytes = size_t{16} << 20;
constexpr size_t kDrawnPartBytes = size_t{256} << 20;
constexpr size_t kLine = 256;  // where each vector begins
// A table up to this size is read whole at load; rows of a larger one are read where they are.
constexpr size_t kSmallTable = size_t{256} << 20;

size_t row_stored_bytes(const Matrix& matrix) {
  return matrix.row_bytes() + 2 * matrix.scale_row_bytes();
}

size_t part_bytes(const Matrix& matrix, const MatrixPart& part) {
  return static_cast<size_t>(part.count * part.row_count) * row_stored_bytes(matrix);
}

// Whole matrices of a bank, or a run of rows of one matrix, about so many bytes each.
std::vector<MatrixPart> parts_of(const Matrix& matrix, size_t bytes = kPartBytes) {
  std::vector<MatrixPart> parts;
  const auto wanted = static_cast<int64_t>(bytes / row_stored_bytes(matrix));
  if (wanted >= matrix.rows) {
    const int64_t step = std::max<int64_t>(1, wanted / matrix.rows);
    for (int64_t first = 0; first < matrix.count; first += step) {
      parts.push_back({first, std::min(step, matrix.count - first), 0, matrix.rows});
    }
    return parts;
  }
  const int64_t step = std::max<int64_t>(1, wanted / kernels::kPartRows) * kernels::kPartRows;
  for (int64_t index = 0; index < matrix.count; ++index) {
    for (int64_t row = 0; row < matrix.rows; row += step) {
      parts.push_back({index, 1, row, std::min(step, matrix.rows - row)});
    }
  }
  return parts;
}

enum class Arrays { kValues, kAll };

// The bytes of a part: one range a matrix, or one of all where they follow each other.
void add_ranges(const Matrix& matrix, const MatrixPart& part, Arrays arrays,
                std::vector<ByteRange>& ranges) {
  struct Array {
    const std::byte* data;
    size_t row_bytes;
  };
  std::vector<Array> all = {{matrix.data, matrix.row_bytes()}};
  if (arrays == Arrays::kAll && matrix.layout == kernels::Layout::kAffine) {
    all.push_back({matrix.scales, matrix.scale_row_bytes()});
    all.push_back({matrix.biases, matrix.scale_row_bytes()});
  }
  const bool together = matrix.stride_rows == matrix.rows && part.row_count == matrix.rows;
  const int64_t runs = together ? 1 : part.count;
  const int64_t rows = together ? part.count * matrix.rows : part.row_count;
  for (const Array& array : all) {
    for (int64_t run = 0; run < runs; ++run) {
      const int64_t first = (part.first + run) * matrix.stride_rows + part.first_row;
      ranges.push_back({array.data + static_cast<size_t>(first) * array.row_bytes,
                        static_cast<size_t>(rows) * array.row_bytes});
    }
  }
}

MatrixPart whole(const Matrix& matrix) {
  return {0, matrix.count, 0, matrix.rows};
}

// What is looked up by row for as long as the model lives.
std::vector<const Matrix*> kept_tables(const Weights& weights) {
  std::vector<const Matrix*> kept = {&weights.embedding};
  for (const PleLayer& ple : weights.ple) {
    if (ple.table.computed) continue;
    for (int i = 0; i < ple.table.shard_count; ++i) kept.push_back(&ple.table.shards[i]);
  }
  return kept;
}

void want_tables(Weights& weights, const std::function<void(size_t)>& progress) {
  std::vector<ByteRange> ranges;
  for (const Matrix* table : kept_tables(weights)) {
    for (const MatrixPart& part : parts_of(*table)) {
      ranges.clear();
      add_ranges(*table, part, Arrays::kValues, ranges);
      weights.source->want(ranges);
      // A tied head counts these bytes.
      const bool tied = table == &weights.embedding && weights.head.data == table->data;
      if (progress && !tied) progress(part_bytes(*table, part));
    }
  }
  if (!weights.source->file_backed()) return;
  for (PleLayer& ple : weights.ple) {
    if (ple.table.computed) continue;
    ranges.clear();
    size_t bytes = 0;
    for (int i = 0; i < ple.table.shard_count; ++i) {
      add_ranges(ple.table.shards[i], whole(ple.table.shards[i]), Arrays::kAll, ranges);
      bytes += ple.table.shards[i].stored_bytes();
    }
    ple.rows_ahead = bytes > kSmallTable;
    weights.source->advise(ranges,
                           ple.rows_ahead ? format::Advice::kRandom : format::Advice::kSoon);
  }
}

// Whoever looks for the bytes of a prepared matrix is wrong, and shall find nothing.
void forget_bytes(Matrix& matrix) {
  matrix.data = nullptr;
  matrix.scales = nullptr;
  matrix.biases = nullptr;
}

Status prepare_matrix(Matrix& matrix, bool shared, const format::TensorSource& source,
                      kernels::Ops& ops, const std::function<void(size_t)>& progress) {
  RETURN_IF_ERROR(ops.begin_prepare(matrix));
  std::vector<ByteRange> ranges;
  for (const MatrixPart& part : parts_of(matrix)) {
    ranges.clear();
    add_ranges(matrix, part, Arrays::kValues, ranges);
    if (!shared) source.want(ranges);
    ops.prepare_part(matrix, part);
    if (progress) progress(part_bytes(matrix, part));
    ranges.clear();
    add_ranges(matrix, part, Arrays::kAll, ranges);
    if (!shared) source.drop(ranges);
  }
  forget_bytes(matrix);
  return {};
}

// The source's bytes are addresses alone here, and never made.
Status draw_matrix(Matrix& matrix, const kernels::DrawnRows& drawn, Buffer& room, kernels::Ops& ops,
                   const std::function<void(size_t)>& progress) {
  RETURN_IF_ERROR(ops.begin_prepare(matrix));
  for (const MatrixPart& part : parts_of(matrix, kDrawnPartBytes)) {
    RETURN_IF_ERROR(ops.draw_part(matrix, part, drawn, room));
    if (progress) progress(part_bytes(matrix, part));
  }
  forget_bytes(matrix);
  return {};
}

// Null where rows are not drawn, or not by this backend.
const ComputedTableSource* drawing_source(const Weights& weights, const kernels::Ops& ops) {
  return ops.draws_rows() ? dynamic_cast<const ComputedTableSource*>(weights.source.get())
                          : nullptr;
}

}  // namespace

WeightMemory weight_memory(Weights& weights, kernels::Ops& ops) {
  WeightMemory memory;
  const size_t most = drawing_source(weights, ops) != nullptr ? kDrawnPartBytes : kPartBytes;
  for (const Matrix* matrix : kernel_matrices(weights)) {
    memory.copies_bytes += ops.prepared_bytes(*matrix);
    memory.part_bytes = std::max(memory.part_bytes, std::min(matrix->stored_bytes(), most));
  }
  for (const std::vector<float>& values : weights.floats) {
    memory.vectors_bytes += values.size() * sizeof(float);
  }
  for (const Matrix* table : kept_tables(weights)) memory.tables_bytes += table->stored_bytes();
  memory.tables_in_files = weights.source->file_backed();
  memory.tables_apart = &ops.memory() != &host_memory();
  return memory;
}

namespace {

void add_vectors(kernels::HyperWeights& w, std::vector<const float**>& all) {
  all.push_back(&w.gain);
}

void add_vectors(LayerWeights& layer, std::vector<const float**>& all) {
  add_vectors(layer.attention_hyper, all);
  add_vectors(layer.mlp_hyper, all);
  kernels::GdnWeights& gdn = layer.delta.step;
  kernels::AttentionWeights& attention = layer.sparse.attention;
  for (const float** vector :
       {&gdn.conv, &gdn.a_log, &gdn.dt_bias, &gdn.norm_gain, &attention.query_gain,
        &attention.key_gain, &attention.index_query_gain, &attention.index_key_gain,
        &attention.inverse_frequency}) {
    all.push_back(vector);
  }
}

// Every vector that kernels are given, where the weights name it.
std::vector<const float**> kernel_vectors(Weights& weights) {
  std::vector<const float**> all;
  for (LayerWeights& layer : weights.layers) add_vectors(layer, all);
  for (PleLayer& ple : weights.ple) {
    kernels::PleWeights& w = ple.inject;
    for (const float** vector : {&w.key_gain, &w.query_gain, &w.conv_gain, &w.conv}) {
      all.push_back(vector);
    }
  }
  add_vectors(weights.mixer, all);
  if (weights.has_mtp) {
    add_vectors(weights.mtp.layer, all);
    add_vectors(weights.mtp.mixer, all);
    all.push_back(&weights.mtp.fuse.embedding_gain);
    all.push_back(&weights.mtp.fuse.hidden_gain);
  }
  return all;
}

// A backend with memory of its own gets its copy of all vectors, and the weights name that.
void prepare_vectors(Weights& weights, Memory& memory) {
  if (&memory == &host_memory()) return;
  size_t bytes = 0;
  for (const auto& values : weights.floats) bytes += round_up(values.size() * sizeof(float), kLine);
  weights.device_floats = Buffer(bytes, memory);
  std::map<const float*, const float*> moved = {{nullptr, nullptr}};
  size_t at = 0;
  for (const auto& values : weights.floats) {
    std::byte* to = weights.device_floats.data() + at;
    memory.copy(to, values.data(), values.size() * sizeof(float));
    moved[values.data()] = reinterpret_cast<const float*>(to);
    at += round_up(values.size() * sizeof(float), kLine);
  }
  for (const float** vector : kernel_vectors(weights)) {
    const auto found = moved.find(*vector);
    CHECK(found != moved.end());
    *vector = found->second;
  }
}

}  // namespace

Status prepare_weights(Weights& weights, kernels::Ops& ops,
                       const std::function<void(size_t)>& progress) {
  want_tables(weights, progress);
  prepare_vectors(weights, ops.memory());
  const ComputedTableSource* drawing = drawing_source(weights, ops);
  Buffer room;
  for (Matrix* matrix : kernel_matrices(weights)) {
    // The bytes of a tied head are the embedding's: they are there, and stay.
    const bool shared = matrix->data == weights.embedding.data;
    const auto drawn = drawing == nullptr || shared ? std::nullopt : drawing->drawn_rows(*matrix);
    RETURN_IF_ERROR(drawn ? draw_matrix(*matrix, *drawn, room, ops, progress)
                          : prepare_matrix(*matrix, shared, *weights.source, ops, progress));
  }
  return {};
}

}  // namespace flashlane::model
