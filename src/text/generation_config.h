// generation_config.json: end tokens and the sampling that a model's authors advise. Absent or null
// keys keep the defaults below; a wrong type or a value out of bounds is refused by key.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flashlane::text {

struct GenerationConfig {
  std::vector<int32_t> eos_ids;
  float temperature = 1;
  int top_k = 0;  // 0: no limit
  float top_p = 1;
  float min_p = 0;
  float repetition_penalty = 1;
  bool do_sample = false;
};

Result<GenerationConfig> parse_generation_config(std::string_view json);

}  // namespace flashlane::text
