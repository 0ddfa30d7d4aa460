// Reading a synthetic model's specification.
#include "model/synth.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "base/keyed_random.h"
#include "model/synth_plan.h"
#include "model/synth_values.h"
#include "model/weight_format.h"
#include "tensor/affine.h"

namespace flashlane::model {
namespace {

constexpr int kMostLayers = 1024;

template <typename T>
bool parse_number(std::string_view text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc{} && stop == end && !text.empty();
}

Status parse_format(std::string_view value, SynthSpec& spec) {
  if (value == "fp8" || value == "nvfp4") {
    return error(ErrorCode::kUnsupported, "synth format={}: this format is served on CUDA only",
                 value);
  }
  if (value == "bf16") return {};
  const auto affine = parse_affine_name(value);
  if (!affine) {
    return invalid(
        "synth format={}: it may be bf16, q4g32, q4g64, q6g64, q8g64 or another q<bits>g<group> of "
        "2, 3, 4, 5, 6, 8 bits and groups of 32, 64, 128; fp8 and nvfp4 on CUDA",
        value);
  }
  spec.bits = affine->bits;
  spec.group = affine->group;
  return {};
}

Status parse_entry(std::string_view key, std::string_view value, SynthSpec& spec) {
  if (key == "layers") {
    if (!parse_number(value, spec.layers) || spec.layers < 1 || spec.layers > kMostLayers) {
      return invalid("synth layers={}: it may be 1 to {}", value, kMostLayers);
    }
    return {};
  }
  if (key == "format") return parse_format(value, spec);
  if (key == "ngram") {
    if (value != "stored") return invalid("synth ngram={}: it may be stored, or absent", value);
    spec.store_ngram = true;
    return {};
  }
  if (key == "seed") {
    if (!parse_number(value, spec.seed)) {
      return invalid("synth seed={}: it may be a decimal number of at most 64 bits", value);
    }
    return {};
  }
  return invalid("synth key \"{}\" is unknown: keys are layers, format, ngram, seed", key);
}

}  // namespace

Result<SynthSpec> parse_synth(std::string_view text) {
  constexpr std::array<std::string_view, 3> kShapes = {"tiny", "nano", "true"};
  SynthSpec spec;
  std::vector<std::string_view> seen;
  size_t start = 0;
  for (bool first = true; start <= text.size(); first = false) {
    const size_t comma = std::min(text.find(',', start), text.size());
    const std::string_view entry = text.substr(start, comma - start);
    start = comma + 1;
    if (first) {
      if (std::find(kShapes.begin(), kShapes.end(), entry) == kShapes.end()) {
        return invalid("synth shape \"{}\" is unknown: it may be tiny, nano or true", entry);
      }
      spec.shape = entry;
      continue;
    }
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string_view key = entry.substr(0, equals);
    if (std::find(seen.begin(), seen.end(), key) != seen.end()) {
      return invalid("synth key \"{}\" is given twice", key);
    }
    seen.push_back(key);
    RETURN_IF_ERROR(parse_entry(key, entry.substr(std::min(equals + 1, entry.size())), spec));
  }
  return spec;
}

Result<size_t> synth_bytes(const SynthSpec& spec) {
  ASSIGN_OR_RETURN(const ModelShape shape, synthetic_shape(spec.shape, spec.layers));
  return make_synth_plan(spec, shape).bytes;
}

std::string describe_synth(const SynthSpec& spec) {
  std::string text = "synth:" + spec.shape;
  if (spec.layers != 0) text += fmt::format(",layers={}", spec.layers);
  if (spec.bits != 0) text += fmt::format(",format=q{}g{}", spec.bits, spec.group);
  if (spec.store_ngram) text += ",ngram=stored";
  if (spec.seed != 0) text += fmt::format(",seed={}", spec.seed);
  return text;
}

float synthetic_value(std::string_view name, uint64_t seed, int64_t last_dim, uint64_t index) {
  float value = 0;
  draw_values(fnv1a64(name) ^ seed, value_rule(name, last_dim), index, {&value, 1});
  return value;
}

}  // namespace flashlane::model
