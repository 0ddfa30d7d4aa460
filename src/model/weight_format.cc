// One table of plain names and one parser of affine ones; whatever they do not know is refused with
// the list of what there is.
#include "model/weight_format.h"

#include <array>
#include <charconv>
#include <utility>

#include "tensor/affine.h"

namespace flashlane::model {
namespace {

constexpr std::array<std::pair<std::string_view, DType>, 3> kPlain = {{
    {"bf16", DType::kBf16},
    {"f16", DType::kF16},
    {"f32", DType::kF32},
}};

bool parse_number(std::string_view text, int& value) {
  const char* end = text.data() + text.size();
  const auto [stop, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc{} && stop == end && !text.empty();
}

}  // namespace

std::string WeightFormat::name() const {
  if (is_affine()) return fmt::format("q{}g{}", affine.bits, affine.group);
  for (const auto& [name, value] : kPlain) {
    if (value == dtype) return std::string(name);
  }
  UNREACHABLE();
}

std::optional<QuantizationDefault> parse_affine_name(std::string_view name) {
  const size_t g = name.find('g');
  QuantizationDefault affine;
  if (!name.starts_with('q') || g == std::string_view::npos ||
      !parse_number(name.substr(1, g - 1), affine.bits) ||
      !parse_number(name.substr(g + 1), affine.group) || !affine_bits_supported(affine.bits) ||
      !affine_group_supported(affine.group)) {
    return std::nullopt;
  }
  return affine;
}

Result<WeightFormat> parse_weight_format(std::string_view name) {
  for (const auto& [plain, dtype] : kPlain) {
    if (name == plain) return WeightFormat{dtype, {}};
  }
  if (const auto affine = parse_affine_name(name)) return WeightFormat{DType::kBf16, *affine};
  if (name == "fp8" || name == "nvfp4") {
    return error(ErrorCode::kUnsupported, "format {} is served on CUDA only and not written here",
                 name);
  }
  return invalid(
      "format \"{}\" is unknown: it may be bf16, f16, f32 or q<bits>g<group> (q4g32, q8g64) of 2, "
      "3, 4, 5, 6, 8 bits and groups of 32, 64, 128",
      name);
}

}  // namespace flashlane::model
