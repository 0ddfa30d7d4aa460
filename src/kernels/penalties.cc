// One pass counts, a second one applies each token's penalties and takes its count away again, so
// that the cost goes with the tokens and not with the vocabulary.
#include "kernels/penalties.h"

#include <algorithm>

#include "base/check.h"

namespace flashlane::kernels {
namespace {

// The count of a token that the prompt has and the reply has not.
constexpr int32_t kPromptOnly = -1;

bool is_set(const SampleParams& params) {
  return params.presence_penalty != 0 || params.frequency_penalty != 0 ||
         params.repetition_penalty != 1;
}

float penalised(float logit, int32_t count, const SampleParams& params) {
  const auto repetition = static_cast<double>(params.repetition_penalty);
  auto value = static_cast<double>(logit);
  value = value > 0 ? value / repetition : value * repetition;
  if (count != kPromptOnly) {
    value -= static_cast<double>(params.frequency_penalty) * count;
    value -= static_cast<double>(params.presence_penalty);
  }
  return static_cast<float>(value);
}

}  // namespace

void PenaltyScratch::reserve(int vocabulary) {
  logits.reserve(static_cast<size_t>(vocabulary));
  counts.resize(static_cast<size_t>(vocabulary));
}

const float* penalise(const float* logits, int vocabulary, const SampleRow& row,
                      PenaltyScratch& scratch) {
  if (!is_set(row.params)) return logits;
  const auto prompt_size = static_cast<size_t>(row.prompt);
  CHECK_LE(prompt_size, row.context.size());
  const auto prompt = row.context.first(prompt_size);
  const auto reply = row.context.subspan(prompt_size);
  scratch.logits.assign(logits, logits + vocabulary);
  if (scratch.counts.size() < static_cast<size_t>(vocabulary)) scratch.reserve(vocabulary);
  const auto count = [&](int32_t token) -> int32_t& {
    CHECK(token >= 0 && token < vocabulary);
    return scratch.counts[static_cast<size_t>(token)];
  };
  for (const int32_t token : reply) ++count(token);
  for (const int32_t token : row.ahead) ++count(token);
  for (const int32_t token : prompt) {
    if (count(token) == 0) count(token) = kPromptOnly;
  }
  for (const auto tokens : {prompt, reply, row.ahead}) {
    for (const int32_t token : tokens) {
      int32_t& times = count(token);
      if (times == 0) continue;
      float& logit = scratch.logits[static_cast<size_t>(token)];
      logit = penalised(logit, times, row.params);
      times = 0;
    }
  }
  return scratch.logits.data();
}

}  // namespace flashlane::kernels
