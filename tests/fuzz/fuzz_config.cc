// Any bytes as config.json: a shape that keeps its constraints, or one line.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "model/shape.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto shape = flashlane::model::parse_shape(text);
  if (!shape.ok()) {
    const std::string& message = shape.error().message;
    if (message.empty() || message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  const bool kept =
      shape->wide() > 0 && shape->gdn_channels() > 0 && shape->block_budget() > 0 &&
      shape->layer_kinds.size() == static_cast<size_t>(shape->layers) &&
      shape->sparse_layers() + shape->delta_layers() == shape->layers &&
      shape->rotary_dims <= shape->index_dim && shape->top_experts <= shape->experts &&
      (shape->ple_layers.empty() || (shape->ngram_row_width() > 0 && shape->eos_token >= 0));
  if (!kept) std::abort();
  return 0;
}
