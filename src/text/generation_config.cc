// Every value is checked against its bounds before it is kept.
#include "text/generation_config.h"

#include <simdjson.h>

#include <limits>

namespace flashlane::text {
namespace {

namespace dom = simdjson::dom;

constexpr size_t kMaxEndTokens = 64;
constexpr double kLeastPenalty = 0.01;  // it divides
constexpr int64_t kMaxId = std::numeric_limits<int32_t>::max();

// Null counts as absent: files written by the usual tools carry nulls for unset values.
bool find(const dom::object& object, std::string_view key, dom::element& value) {
  return object[key].get(value) == simdjson::SUCCESS && !value.is_null();
}

Status read_float(const dom::object& object, std::string_view key, double lowest, double highest,
                  float& out) {
  dom::element element;
  if (!find(object, key, element)) return {};
  double value = 0;
  if (element.get(value) != simdjson::SUCCESS) {
    return invalid("generation_config.json: {} is not a number", key);
  }
  if (!(value >= lowest && value <= highest)) {
    return invalid("generation_config.json: {} is {}, not within {} to {}", key, value, lowest,
                   highest);
  }
  out = static_cast<float>(value);
  return {};
}

Status read_integer(std::string_view key, const dom::element& element, int64_t highest,
                    int32_t& out) {
  int64_t value = 0;
  if (element.get(value) != simdjson::SUCCESS) {
    return invalid("generation_config.json: {} is not an integer", key);
  }
  if (value < 0 || value > highest) {
    return invalid("generation_config.json: {} is {}, not within 0 to {}", key, value, highest);
  }
  out = static_cast<int32_t>(value);
  return {};
}

Status read_end_tokens(const dom::object& object, std::vector<int32_t>& out) {
  constexpr std::string_view kKey = "eos_token_id";
  dom::element element;
  if (!find(object, kKey, element)) return {};
  dom::array list;
  if (element.get(list) != simdjson::SUCCESS) {
    int32_t id = 0;
    RETURN_IF_ERROR(read_integer(kKey, element, kMaxId, id));
    out.push_back(id);
    return {};
  }
  for (const dom::element item : list) {
    if (out.size() == kMaxEndTokens) {
      return invalid("generation_config.json: {} lists more than {} ids", kKey, kMaxEndTokens);
    }
    int32_t id = 0;
    RETURN_IF_ERROR(read_integer(kKey, item, kMaxId, id));
    out.push_back(id);
  }
  return {};
}

}  // namespace

Result<GenerationConfig> parse_generation_config(std::string_view json) {
  dom::parser parser;
  dom::element root;
  if (const auto code = parser.parse(json.data(), json.size()).get(root)) {
    return invalid("generation_config.json is not valid JSON: {}", simdjson::error_message(code));
  }
  dom::object object;
  if (root.get(object) != simdjson::SUCCESS) {
    return invalid("generation_config.json is not an object");
  }
  GenerationConfig config;
  RETURN_IF_ERROR(read_end_tokens(object, config.eos_ids));
  RETURN_IF_ERROR(read_float(object, "temperature", 0, 100, config.temperature));
  RETURN_IF_ERROR(read_float(object, "top_p", 0, 1, config.top_p));
  RETURN_IF_ERROR(read_float(object, "min_p", 0, 1, config.min_p));
  RETURN_IF_ERROR(
      read_float(object, "repetition_penalty", kLeastPenalty, 100, config.repetition_penalty));
  dom::element element;
  if (find(object, "top_k", element)) {
    RETURN_IF_ERROR(read_integer("top_k", element, kMaxId, config.top_k));
  }
  if (find(object, "do_sample", element) && element.get(config.do_sample) != simdjson::SUCCESS) {
    return invalid("generation_config.json: do_sample is not true or false");
  }
  return config;
}

}  // namespace flashlane::text
