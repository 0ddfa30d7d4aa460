// What one rendering may use: steps, and bytes of values built (in all, not at once). A hostile
// template runs into these, never into the machine's limits.
#pragma once

#include <cstddef>

#include "base/result.h"
#include "text/template_value.h"

namespace flashlane::text {

class Budget {
 public:
  static constexpr size_t kMaxSteps = 4'000'000;
  static constexpr size_t kMaxBytes = size_t{512} << 20;
  static constexpr size_t kMaxTextBytes = size_t{64} << 20;  // one text, or the output

  // Reading or walking `count` things.
  Status spend_steps(size_t count) {
    if (count > kMaxSteps - steps_) {
      return invalid("the chat template takes more than {} steps", kMaxSteps);
    }
    steps_ += count;
    return {};
  }
  // Building a text (or other value) of `count` bytes.
  Status spend_bytes(size_t count) {
    if (count > kMaxTextBytes) {
      return invalid("the chat template builds a text of more than {} bytes", kMaxTextBytes);
    }
    if (count > kMaxBytes - bytes_) {
      return invalid("the chat template builds more than {} bytes in all", kMaxBytes);
    }
    bytes_ += count;
    return spend_steps(count / 64 + 1);
  }
  // Building a text with its ranges.
  Status spend_text(const Text& text) {
    return spend_bytes(text.size() + text.data().size() * sizeof(ByteRange));
  }
  // Walking through values, or through a text.
  Status spend_walk(const Value& value) { return spend_steps(extent_of(value).weight); }
  // A list or dict of `count` items.
  Status spend_items(size_t count) {
    RETURN_IF_ERROR(spend_steps(count));
    return spend_bytes(count * 80);
  }

 private:
  size_t steps_ = 0;
  size_t bytes_ = 0;
};

}  // namespace flashlane::text
