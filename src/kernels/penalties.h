// Penalties on tokens that came before, as a pure function of a row's logits and of the sequence's
// own tokens before the drawn one (E6): no other sequence and no earlier step matters. The
// repetition penalty looks at prompt and reply, the other two at the reply, as clients know them
// from other servers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/ops.h"

namespace flashlane::kernels {

// Room for one row's logits; kept between draws so that a step allocates nothing.
struct PenaltyScratch {
  void reserve(int vocabulary);
  static size_t bytes(int vocabulary) {
    return static_cast<size_t>(vocabulary) * (sizeof(float) + sizeof(int32_t));
  }
  std::vector<float> logits;
  std::vector<int32_t> counts;  // by id; all zero between calls
};

// `logits` itself where no penalty is set; else the penalised copy in `scratch`: of every token
// seen before, logit / repetition_penalty if it is above 0 and logit · repetition_penalty if not;
// of every token of the reply, minus its count · frequency_penalty, minus presence_penalty. Ids in
// the row's tokens are below `vocabulary`.
const float* penalise(const float* logits, int vocabulary, const SampleRow& row,
                      PenaltyScratch& scratch);

}  // namespace flashlane::kernels
