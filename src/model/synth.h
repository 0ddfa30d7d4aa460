// Synthetic models: weights as pure functions of (seed, tensor name, element), spec 8.1, so that
// any shape exists anywhere without a file.
// synth:SHAPE[,layers=N][,format=F][,ngram=stored][,seed=S]
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "format/tensor_source.h"
#include "model/shape.h"

namespace flashlane::model {

struct SynthSpec {
  std::string shape;  // "tiny", "nano", "true"
  int layers = 0;     // 0 = all
  int bits = 0;       // 0 = bf16
  int group = 0;
  bool store_ngram = false;
  uint64_t seed = 0;
};

// Parses the text after "synth:"; errors name the key and what it may be.
Result<SynthSpec> parse_synth(std::string_view text);

// Bytes that the weights take, the n-gram table excluded unless stored: asked before making them.
Result<size_t> synth_bytes(const SynthSpec& spec);

// Makes all tensors under their official names (quantised ones as weight, scales, biases); refused
// when they need more bytes than the machine has available. `threads` share the work. `progress`,
// if any, is told the bytes done and the bytes in all, from any of those threads.
Result<std::shared_ptr<const format::TensorSource>> make_synthetic(
    const SynthSpec& spec, const ModelShape& shape, int threads,
    const std::function<void(size_t, size_t)>& progress = {});

// The value of element `index` of the tensor with this official name, before quantisation.
float synthetic_value(std::string_view name, uint64_t seed, int64_t last_dim, uint64_t index);

}  // namespace flashlane::model
