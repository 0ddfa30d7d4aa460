// What a synthetic model's source says beyond its tensors: the n-gram tables that exist as a rule,
// not as bytes, and the rule of every matrix. Internal to model's loading.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "format/tensor_source.h"
#include "kernels/matrix.h"

namespace flashlane::model {

// One n-gram layer's table: element i of shard s follows from shard_hashes[s] and i (spec 8.1).
struct ComputedTable {
  int bits = 0;  // 0: bf16 values
  int group = 0;
  std::vector<int64_t> shard_starts;   // [shards + 1]
  std::vector<uint64_t> shard_hashes;  // [shards]
};

class ComputedTableSource : public format::TensorSource {
 public:
  // Null when the layer has no table, or it is stored as tensors.
  virtual const ComputedTable* computed_table(int layer) const = 0;
  // By what rule to make the rows of a matrix that lies over one of the tensors, so that its bytes
  // need not be wanted; nothing when it lies elsewhere.
  virtual std::optional<kernels::DrawnRows> drawn_rows(const kernels::Matrix& matrix) const = 0;
};

}  // namespace flashlane::model
