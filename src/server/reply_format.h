// Replies as OpenAI clients read them: whole bodies and stream chunks of chat completions and text
// completions, usage, and our own "flashlane" block with the token hash, drafts and timings.
#pragma once

#include <boost/json/object.hpp>
#include <boost/json/value.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/engine.h"
#include "server/reply_text.h"

namespace flashlane::server {

// How a reply ended, with its figures.
struct ReplyEnd {
  std::string_view finish_reason;  // "stop" or "length"
  int64_t prompt_tokens = 0;
  engine::PromptReuse reuse;
  int64_t reasoning_tokens = 0;
  std::vector<int32_t> ids;
  engine::DraftStats drafts;
  int repetition_period = 0;  // not 0 when the repetition guard closed the think block
  engine::Timings timings;
};

// {"rounds","drafted","accepted","head","copied"}: by who made them, and by place behind the
// pending token.
boost::json::object drafts_object(const engine::DraftStats& drafts);

class ReplyFormat {
 public:
  ReplyFormat(const ReplyPlan& plan, const ReplyOptions& options);

  const std::string& id() const { return id_; }

  // `logprobs`: the choice's field, null without any.
  std::string whole_body(const TextDelta& text, const ReplyEnd& end,
                         boost::json::value logprobs) const;

  // Stream events, complete with "data: " and the blank line.
  std::string opening_event() const;  // chat: the role; completions: none (empty)
  std::string delta_events(const TextDelta& delta, boost::json::value logprobs) const;
  // Finish reason, and usage if asked for.
  std::string end_events(const ReplyEnd& end, boost::json::value logprobs) const;
  static std::string error_event(const ApiError& error);
  static std::string_view done_event() { return "data: [DONE]\n\n"; }
  static std::string_view keep_alive_comment() { return ": keep-alive\n\n"; }

 private:
  boost::json::object envelope(bool chunk) const;
  std::string chunk_event(boost::json::object choice, boost::json::value logprobs) const;
  boost::json::object flashlane_block(const ReplyEnd& end) const;

  const bool chat_;
  const bool include_usage_;
  const bool return_token_ids_;
  const std::string model_;
  const std::string id_;
  const int64_t created_;
};

}  // namespace flashlane::server
