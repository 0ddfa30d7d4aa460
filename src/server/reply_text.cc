// Reply tokens → text for the client.
#include "server/reply_text.h"

#include <algorithm>
#include <utility>

namespace flashlane::server {

ReplyText::ReplyText(const text::Tokenizer* tokenizer, const ReplyPlan& plan)
    : end_ids_(plan.request.end_ids),
      reasoning_stops_(plan.request.stop_strings),
      content_stops_(plan.request.stop_strings) {
  if (tokenizer == nullptr) return;
  if (plan.chat) {
    splitter_.emplace(*tokenizer, plan.starts_in_reasoning);
  } else {
    detokenizer_.emplace(*tokenizer, /*skip_special=*/true);
  }
}

void ReplyText::add(std::string_view reasoning, std::string_view content, TextDelta& delta) {
  if (!reasoning.empty() && !stopped()) delta.reasoning += reasoning_stops_.push(reasoning);
  if (content.empty() || stopped()) return;
  // What the reasoning held back as a possible stop string goes out before the content begins.
  if (!std::exchange(reasoning_ended_, true)) delta.reasoning += reasoning_stops_.finish();
  delta.content += content_stops_.push(content);
}

TextDelta ReplyText::push(std::span<const int32_t> ids) {
  TextDelta delta;
  for (const int32_t id : ids) {
    ids_.push_back(id);
    if (std::find(end_ids_.begin(), end_ids_.end(), id) != end_ids_.end()) continue;
    if (splitter_) {
      const bool before = splitter_->in_reasoning();
      const text::ReasoningSplitter::Delta piece = splitter_->push(id);
      if (before || splitter_->in_reasoning()) ++reasoning_tokens_;
      add(piece.reasoning, piece.content, delta);
    } else if (detokenizer_) {
      add({}, detokenizer_->push(id), delta);
    }
  }
  return delta;
}

TextDelta ReplyText::finish() {
  TextDelta delta;
  if (splitter_) {
    const text::ReasoningSplitter::Delta piece = splitter_->finish();
    add(piece.reasoning, piece.content, delta);
  } else if (detokenizer_) {
    add({}, detokenizer_->finish(), delta);
  }
  if (!stopped()) {
    if (!reasoning_ended_) delta.reasoning += reasoning_stops_.finish();
    delta.content += content_stops_.finish();
  }
  return delta;
}

}  // namespace flashlane::server
