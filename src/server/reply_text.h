// Reply tokens → text for the client: end tokens left out, reasoning split from content, stop
// strings and what follows them held back. How the tokens are cut into pushes changes nothing in
// the joined text, so that a stream and a whole reply are equal.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/plan.h"
#include "text/reasoning.h"
#include "text/stop_strings.h"

namespace flashlane::server {

struct TextDelta {
  std::string reasoning;
  std::string content;
  bool empty() const { return reasoning.empty() && content.empty(); }
};

class ReplyText {
 public:
  // Without a tokenizer there is no text, only ids.
  ReplyText(const text::Tokenizer* tokenizer, const ReplyPlan& plan);

  TextDelta push(std::span<const int32_t> ids);
  TextDelta finish();

  const std::vector<int32_t>& ids() const { return ids_; }  // all, the end token included
  int64_t reasoning_tokens() const { return reasoning_tokens_; }

 private:
  void add(std::string_view reasoning, std::string_view content, TextDelta& delta);
  bool stopped() const { return reasoning_stops_.matched() || content_stops_.matched(); }

  const std::vector<int32_t> end_ids_;
  // Chat replies go through the splitter, raw completions straight through the detokenizer.
  std::optional<text::ReasoningSplitter> splitter_;
  std::optional<text::Detokenizer> detokenizer_;
  text::StopStringFilter reasoning_stops_;
  text::StopStringFilter content_stops_;
  bool reasoning_ended_ = false;
  std::vector<int32_t> ids_;
  int64_t reasoning_tokens_ = 0;
};

}  // namespace flashlane::server
