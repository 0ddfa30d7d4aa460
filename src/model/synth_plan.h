// The list of a synthetic model's tensors: official names, official shapes, how values are drawn
// and whether the format quantises them. Internal to model's synthetic weights.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/shape.h"
#include "model/synth.h"
#include "model/synthetic_source.h"

namespace flashlane::model {

// value = bf16(scale * r + offset), r uniform in [-1, 1).
struct ValueRule {
  float scale = 1;
  float offset = 0;
};
ValueRule value_rule(std::string_view name, int64_t last_dim);

struct PlannedTensor {
  std::string name;            // official; its hash draws the values
  std::vector<int64_t> shape;  // official
  int bits = 0;                // 0: stored as bf16
  int group = 0;

  int64_t cols() const { return shape.back(); }
  int64_t rows() const;  // of all dimensions but the last
  // Bytes of the values or codes, and of scales (as many again are biases).
  size_t data_bytes() const;
  size_t scale_bytes() const;
  size_t bytes() const { return data_bytes() + 2 * scale_bytes(); }
};

struct PlannedTable {
  int layer = 0;
  ComputedTable table;
};

struct SynthPlan {
  std::vector<PlannedTensor> tensors;
  std::vector<PlannedTable> tables;  // of the n-gram layers whose table is not stored
  size_t bytes = 0;
};

SynthPlan make_synth_plan(const SynthSpec& spec, const ModelShape& shape);

}  // namespace flashlane::model
