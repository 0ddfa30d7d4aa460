// A small state machine over ids; text comes from the detokenizer, so a character is never split.
#include "text/reasoning.h"

#include <utility>

namespace flashlane::text {
namespace {

constexpr std::string_view kSpace = " \t\n\r\v\f";

}  // namespace

ReasoningSplitter::ReasoningSplitter(const Tokenizer& tokenizer, bool starts_in_reasoning)
    : detokenizer_(tokenizer, true),
      open_(tokenizer.added_token("<think>")),
      close_(tokenizer.added_token("</think>")),
      place_(starts_in_reasoning ? Place::kReasoning : Place::kContent) {}

void ReasoningSplitter::add(std::string text, Delta& delta) {
  if (text.empty()) return;
  if (at_start_) {
    if (text.find_first_not_of(kSpace) == std::string::npos) {
      held_space_ += text;
      return;
    }
    at_start_ = false;
    text = std::exchange(held_space_, {}) + text;
  }
  if (place_ == Place::kOpened || place_ == Place::kClosed) {
    const size_t first = text.find_first_not_of(kSpace);
    if (first == std::string::npos) return;
    text.erase(0, first);
    place_ = place_ == Place::kOpened ? Place::kReasoning : Place::kContent;
  }
  (place_ == Place::kReasoning ? delta.reasoning : delta.content) += text;
}

ReasoningSplitter::Delta ReasoningSplitter::push(int32_t id) {
  Delta delta;
  if (id == open_ && at_start_) {
    add(detokenizer_.finish(), delta);
    // Half a character before the marker is text already; then the marker is text as well.
    if (at_start_) {
      held_space_.clear();
      at_start_ = false;
      place_ = Place::kOpened;
      return delta;
    }
  }
  if (id == close_ && in_reasoning()) {
    add(detokenizer_.finish(), delta);
    delta.reasoning += std::exchange(held_space_, {});
    at_start_ = false;
    place_ = Place::kClosed;
    return delta;
  }
  add(detokenizer_.push(id), delta);
  return delta;
}

ReasoningSplitter::Delta ReasoningSplitter::finish() {
  Delta delta;
  add(detokenizer_.finish(), delta);
  if (!held_space_.empty()) {
    at_start_ = false;
    add(std::exchange(held_space_, {}), delta);
  }
  return delta;
}

}  // namespace flashlane::text
