#include "kernels/ngram_row.h"

#include <algorithm>

#include "base/check.h"
#include "base/keyed_random.h"
#include "tensor/affine.h"
#include "tensor/dtype.h"

namespace flashlane::kernels {
namespace {

// The widest row that a computed, quantised table may have: its codes stand on the stack.
constexpr int kMaxComputedRow = 1024;

// r in [-1, 1) of element `index` of the tensor with this hash (spec 8.1); exact in f32.
float uniform_value(uint64_t hash, uint64_t index) {
  const uint64_t bits = splitmix64(hash + index) >> 40;
  return 2.0F * (static_cast<float>(bits) * 0x1p-24F) - 1.0F;
}

void requantize(float* row, int width, int bits, int group) {
  CHECK_LE(width, kMaxComputedRow);
  uint8_t codes[kMaxComputedRow];
  uint16_t scales[kMaxComputedRow / 32];
  uint16_t biases[kMaxComputedRow / 32];
  const auto count = static_cast<size_t>(width);
  const auto groups = static_cast<size_t>(width / group);
  affine_quantize_row({row, count}, bits, group, {codes, count}, {scales, groups},
                      {biases, groups});
  for (int i = 0; i < width; ++i) {
    row[i] = bf16_to_float(scales[i / group]) * static_cast<float>(codes[i]) +
             bf16_to_float(biases[i / group]);
  }
}

}  // namespace

void ngram_table_row(const NgramTable& table, int64_t row, float* out) {
  CHECK(row >= 0 && row < table.shard_starts[table.shard_count]);
  const int64_t* end = table.shard_starts + table.shard_count + 1;
  const auto shard = std::upper_bound(table.shard_starts, end, row) - table.shard_starts - 1;
  const int64_t in_shard = row - table.shard_starts[shard];
  if (!table.computed) {
    dequantize_row(table.shards[shard], 0, in_shard, out);
    return;
  }
  const auto first = static_cast<uint64_t>(in_shard) * static_cast<uint64_t>(table.row_width);
  for (int i = 0; i < table.row_width; ++i) {
    out[i] =
        round_to_bf16(uniform_value(table.shard_hashes[shard], first + static_cast<uint64_t>(i)));
  }
  if (table.bits != 0) requantize(out, table.row_width, table.bits, table.group);
}

}  // namespace flashlane::kernels
