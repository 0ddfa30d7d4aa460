// TrafficCounter: a Probe that counts the bytes a model's forwards have to move, from what they
// chose. A forward counts every matrix once, as its format stores it, a bank of experts by the
// distinct experts of all rows, recurrent state as read and written, keys and values once for each
// position that any row of a segment attends to. Norm gains, convolution taps (under a hundredth at
// the true shape) and activations are left out. So it is a floor: what a kernel reads twice counts
// once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "model/forward.h"
#include "model/weights.h"

namespace flashlane::model {

struct Traffic {
  size_t weight_bytes = 0;  // all matrices but the routed experts, and looked-up rows
  size_t expert_bytes = 0;  // routed experts
  size_t state_bytes = 0;   // recurrent states, records, convolution histories
  size_t kv_bytes = 0;      // keys, values and index keys
  // Expert layers passed, and the distinct experts of each, summed: the trunk's and the MTP head's.
  int64_t trunk_layers = 0, trunk_experts = 0;
  int64_t mtp_layers = 0, mtp_experts = 0;

  size_t bytes() const { return weight_bytes + expert_bytes + state_bytes + kv_bytes; }
  // Of the trunk; of the MTP head if nothing else ran.
  double experts_per_layer() const;
  Traffic& operator+=(const Traffic& other);
};

class TrafficCounter final : public Probe {
 public:
  // The weights must outlive the counter.
  TrafficCounter(const Weights& weights, DType kv_dtype);

  // What was counted since the last call.
  Traffic take();

  void begin(const kernels::Batch& batch) override;
  void floats(std::string_view name, const float* values, int rows, int width) override;
  void ints(std::string_view name, const int32_t* values, int rows, int width) override;

 private:
  void count_layer(const LayerWeights& layer, const int32_t* experts, int rows, int width);
  void count_delta_state();
  void count_ngram(const PleLayer& ple, int rows);
  void count_attention(const int32_t* blocks, int stride);
  int64_t tail_positions(const kernels::Segment& segment, int64_t selected) const;
  size_t distinct(const int32_t* ids, size_t count);

  const Weights& weights_;
  const size_t kv_element_;
  Traffic traffic_;
  kernels::Batch batch_;
  std::vector<int32_t> block_counts_;
  std::vector<int32_t> sorted_;
};

}  // namespace flashlane::model
