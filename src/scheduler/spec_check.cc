// What can never run, said before it waits.
#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "scheduler/scheduler.h"

namespace flashlane::scheduler {
namespace {

Error refuse(const char* field, Error refusal) {
  refusal.field = field;
  return refusal;
}

Status check_sampling(const Sampling& sampling) {
  const auto out_of = [](const char* field, double value, std::string_view range) {
    return refuse(field, invalid("{} is {}; it must be {}", field, value, range));
  };
  if (!(std::isfinite(sampling.temperature) && sampling.temperature >= 0)) {
    return out_of("temperature", sampling.temperature, "0 or more");
  }
  if (sampling.top_k < 0) return out_of("top_k", sampling.top_k, "0 or more");
  if (!(sampling.top_p >= 0 && sampling.top_p <= 1)) {
    return out_of("top_p", sampling.top_p, "from 0 to 1");
  }
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    return out_of("min_p", sampling.min_p, "from 0 to 1");
  }
  const std::pair<const char*, float> penalties[] = {
      {"presence_penalty", sampling.presence_penalty},
      {"frequency_penalty", sampling.frequency_penalty}};
  for (const auto& [field, penalty] : penalties) {
    if (std::fabs(static_cast<double>(penalty)) <= kMostPenalty) continue;
    return out_of(field, penalty, fmt::format("from {} to {}", -kMostPenalty, kMostPenalty));
  }
  const float repetition = sampling.repetition_penalty;
  if (!(repetition >= static_cast<float>(kLeastRepetitionPenalty) &&
        repetition <= static_cast<float>(kMostRepetitionPenalty))) {
    return out_of("repetition_penalty", repetition,
                  fmt::format("from {} to {}", kLeastRepetitionPenalty, kMostRepetitionPenalty));
  }
  return {};
}

// Whether it fits when nobody else is there.
Status check_room(const SequenceSpec& spec, const SchedulerOptions& options) {
  const int rows = static_cast<int>(spec.prompt.size()) + spec.max_tokens;
  if (!options.sessions.empty()) {
    const int largest = *std::max_element(options.sessions.begin(), options.sessions.end());
    if (rows + options.pool.window_rows() > largest) {
      return refuse("max_tokens",
                    invalid("prompt {} + {} new tokens exceed the largest session, of {} rows",
                            spec.prompt.size(), spec.max_tokens, largest));
    }
    return {};
  }
  const int need = options.pool.need(rows);
  if (need > pool_pages(options)) {
    return refuse("max_tokens",
                  invalid("prompt {} + {} new tokens need {} pages; the pool has {}",
                          spec.prompt.size(), spec.max_tokens, need, pool_pages(options)));
  }
  return {};
}

}  // namespace

Status check_spec(const SequenceSpec& spec, const SchedulerOptions& options) {
  if (spec.prompt.empty()) return refuse("prompt", invalid("the prompt has no tokens"));
  if (spec.max_tokens < 1) {
    return refuse("max_tokens", invalid("max_tokens is {}; it must be 1 or more", spec.max_tokens));
  }
  const auto context = static_cast<uint64_t>(options.context);
  if (uint64_t{spec.prompt.size()} + static_cast<uint64_t>(spec.max_tokens) > context) {
    return refuse("max_tokens", invalid("prompt {} + {} new tokens exceeds the context of {}",
                                        spec.prompt.size(), spec.max_tokens, options.context));
  }
  RETURN_IF_ERROR(check_room(spec, options));
  for (size_t i = 0; i < spec.prompt.size(); ++i) {
    const int32_t token = spec.prompt[i];
    if (token < 0 || (options.vocabulary > 0 && token >= options.vocabulary)) {
      return refuse("prompt", invalid("prompt token {} is {}; the vocabulary has ids 0 to {}", i,
                                      token, options.vocabulary - 1));
    }
  }
  const bool stops = std::any_of(spec.stop_strings.begin(), spec.stop_strings.end(),
                                 [](const std::string& stop) { return !stop.empty(); });
  if (stops && options.token_bytes == nullptr) {
    return refuse("stop", invalid("stop strings need a tokenizer, and this model has none"));
  }
  if (spec.logprobs < -1 || spec.logprobs > kMostLogprobs) {
    return refuse("logprobs", invalid("logprobs is {}; it must be -1 (none) to {}", spec.logprobs,
                                      kMostLogprobs));
  }
  return check_sampling(spec.sampling);
}

int pool_pages(const SchedulerOptions& options) {
  if (!options.sessions.empty()) {
    int pages = 0;
    for (const int rows : options.sessions) pages += options.pool.session_pages(rows);
    return pages;
  }
  return options.pages > 0 ? options.pages : options.slots * options.pool.need(options.context);
}

}  // namespace flashlane::scheduler
