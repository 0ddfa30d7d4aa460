// The blocks of the forward pass: one layer's n-gram injection, mixer and experts, each a few calls
// of kernels::Ops in the order of the model card. Internal to model; forward.h is the way in.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/forward.h"

namespace flashlane::model {

// Values of a backend as the host can read them: themselves, or copied out of its memory.
template <typename T>
class HostCopy {
 public:
  HostCopy(kernels::Ops& ops, const T* values, int rows, int width) : values_(values) {
    if (&ops.memory() == &host_memory()) return;
    copy_.resize(static_cast<size_t>(rows) * static_cast<size_t>(width));
    ops.memory().copy(copy_.data(), values, copy_.size() * sizeof(T));
    values_ = copy_.data();
  }
  const T* values() const { return values_; }

 private:
  const T* values_;
  std::vector<T> copy_;
};

// One forward's arguments and what its blocks share.
struct Step {
  kernels::Ops& ops;
  Activations& act;
  const kernels::Batch& batch;
  std::span<const SegmentInput> inputs;
  const StateLayout& layout;
  std::byte* kv_base;
  Probe* probe;
  std::string name = {};  // prefix of what is reported now: "layer3_"

  int rows() const { return batch.row_count; }
  void report(std::string_view what, const float* values, int width) const {
    if (probe == nullptr) return;
    const HostCopy<float> copy(ops, values, rows(), width);
    probe->floats(name + std::string(what), copy.values(), rows(), width);
  }
  void report(std::string_view what, const int32_t* values, int width) const {
    if (probe == nullptr) return;
    const HostCopy<int32_t> copy(ops, values, rows(), width);
    probe->ints(name + std::string(what), copy.values(), rows(), width);
  }
};

// Asks for the table rows that ngram_block will read, when they may have to come from a file.
void ask_for_ngram_rows(Step& step, const PleLayer& ple, const format::TensorSource& source);

// Adds the n-gram layer to the streams. `index` of the sequence's n-gram states.
void ngram_block(Step& step, const PleLayer& ple, int index);

// read → mixer → write → read → experts → write. `state_index` counts layers of the layer's kind.
void run_layer(Step& step, const LayerWeights& layer, int state_index);

}  // namespace flashlane::model
