// Synthetic models: weights as pure functions of (seed, tensor name, element), spec 8.1, so that
// any shape exists anywhere without a file.
// synth:SHAPE[,layers=N][,format=F][,ngram=stored][,seed=S]
#pragma once

#include <cstdint>
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

// Bytes of all the tensors, the n-gram table excluded unless stored.
Result<size_t> synth_bytes(const SynthSpec& spec);

// The specification as text, "synth:tiny,layers=4".
std::string describe_synth(const SynthSpec& spec);

// All tensors under their official names (quantised ones as weight, scales, biases). A tensor's
// rows are made when they are wanted, by `threads` threads, and hold memory until they are dropped;
// a backend that makes rows itself is told their rule instead (model/synthetic_source.h).
Result<std::shared_ptr<const format::TensorSource>> make_synthetic(const SynthSpec& spec,
                                                                   const ModelShape& shape,
                                                                   int threads);

// The value of element `index` of the tensor with this official name, before quantisation.
float synthetic_value(std::string_view name, uint64_t seed, int64_t last_dim, uint64_t index);

}  // namespace flashlane::model
