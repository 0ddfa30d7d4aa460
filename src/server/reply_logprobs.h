// Log probabilities of a reply's tokens as OpenAI clients read them: lists with bytes and
// alternatives for chat, parallel lists with text offsets for completions. They cover every token
// of the reply, reasoning and end token included. However the reply was cut into takes, the joined
// lists are those of the whole.
#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "server/plan.h"

namespace flashlane::server {

class ReplyLogprobs {
 public:
  // Without a tokenizer a token's text is "token_id:" and its id.
  ReplyLogprobs(const text::Tokenizer* tokenizer, const ReplyPlan& plan);

  // One entry of `logprobs` for each id, where the request asks for them.
  void push(std::span<const int32_t> ids, std::span<const engine::TokenLogprobs> logprobs);
  // What was pushed since the last call; null when there is none, or none was asked for.
  boost::json::value take();

 private:
  struct Entry {
    int32_t id;
    engine::TokenLogprobs logprobs;
  };
  std::string text_of(int32_t id) const;
  boost::json::object described(int32_t id, float logprob) const;
  boost::json::value take_chat() const;
  boost::json::value take_completion();

  const text::Tokenizer* tokenizer_;
  const bool chat_;
  const bool wanted_;
  std::vector<Entry> waiting_;
  int64_t text_offset_ = 0;  // code points of the tokens' own texts so far
};

}  // namespace flashlane::server
