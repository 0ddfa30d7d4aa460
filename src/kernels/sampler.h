// The one sampler of every backend's CPU side: scalar, in double, a pure function of a row's
// logits, its parameters, the drawn token's absolute position and, with penalties, the tokens
// before it (E6; lane-engine 14.1). Candidates are ordered by value, then lower id; a NaN counts as
// minus infinity.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"
#include "kernels/penalties.h"

namespace flashlane::kernels {

// Room for one draw; kept between draws so that a step allocates nothing.
struct SamplerScratch {
  void reserve(int vocabulary) {
    ids.reserve(static_cast<size_t>(vocabulary));
    values.reserve(static_cast<size_t>(vocabulary));
    masses.reserve(static_cast<size_t>(vocabulary));
    penalised.reserve(vocabulary);
  }
  static size_t bytes(int vocabulary) {
    return static_cast<size_t>(vocabulary) * (sizeof(int32_t) + 2 * sizeof(double)) +
           PenaltyScratch::bytes(vocabulary);
  }
  std::vector<int32_t> ids;
  std::vector<double> values;
  std::vector<double> masses;
  PenaltyScratch penalised;
};

// The index of the largest logit, ties to the lower.
int32_t argmax(const float* logits, int vocabulary);

int32_t sample_token(const float* logits, int vocabulary, const SampleRow& row,
                     SamplerScratch& scratch);

// Ops::log_probabilities. Summed in the order of the ids, in double.
void log_probabilities(std::span<TokenLogprob> best, std::span<TokenLogprob> of_tokens,
                       const float* logits, int vocabulary, SamplerScratch& scratch);

}  // namespace flashlane::kernels
