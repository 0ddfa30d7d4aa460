// Log probabilities as JSON.
#include "server/reply_logprobs.h"

#include <algorithm>
#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <utility>

#include "base/check.h"

namespace flashlane::server {

namespace json = boost::json;

namespace {

// JSON has no infinities; this stands for "never", as clients know it. So it does for what a model
// that computes no numbers gives.
constexpr double kLeastLogprob = -9999;

double written(float logprob) {
  const auto value = static_cast<double>(logprob);
  return value > kLeastLogprob ? value : kLeastLogprob;
}

int64_t code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

}  // namespace

ReplyLogprobs::ReplyLogprobs(const text::Tokenizer* tokenizer, const ReplyPlan& plan)
    : tokenizer_(tokenizer), chat_(plan.chat), wanted_(plan.request.logprobs >= 0) {}

void ReplyLogprobs::push(std::span<const int32_t> ids,
                         std::span<const engine::TokenLogprobs> logprobs) {
  if (!wanted_) return;
  CHECK_EQ(ids.size(), logprobs.size());
  for (size_t i = 0; i < ids.size(); ++i) waiting_.push_back({ids[i], logprobs[i]});
}

json::value ReplyLogprobs::take() {
  if (waiting_.empty()) return nullptr;
  json::value taken = chat_ ? take_chat() : take_completion();
  waiting_.clear();
  return taken;
}

// A model's vocabulary may be wider than its tokenizer's.
std::string ReplyLogprobs::text_of(int32_t id) const {
  if (tokenizer_ == nullptr) return fmt::format("token_id:{}", id);
  const int32_t ids[] = {id};
  const Result<std::string> text = tokenizer_->decode(ids, /*skip_special=*/false);
  return text ? text.value() : std::string();
}

json::object ReplyLogprobs::described(int32_t id, float logprob) const {
  json::object out;
  out["token"] = text_of(id);
  out["logprob"] = written(logprob);
  out["bytes"] = nullptr;
  if (tokenizer_ != nullptr && id < tokenizer_->vocabulary()) {
    json::array bytes;
    for (const char byte : tokenizer_->token_bytes(id)) {
      bytes.push_back(static_cast<unsigned char>(byte));
    }
    out["bytes"] = std::move(bytes);
  }
  return out;
}

json::value ReplyLogprobs::take_chat() const {
  json::array content;
  for (const Entry& entry : waiting_) {
    json::object token = described(entry.id, entry.logprobs.logprob);
    json::array best;
    for (const auto& [id, logprob] : entry.logprobs.best) best.push_back(described(id, logprob));
    token["top_logprobs"] = std::move(best);
    content.push_back(std::move(token));
  }
  return json::object{{"content", std::move(content)}, {"refusal", nullptr}};
}

json::value ReplyLogprobs::take_completion() {
  json::array tokens;
  json::array own;
  json::array best;
  json::array offsets;
  for (const Entry& entry : waiting_) {
    const std::string text = text_of(entry.id);
    offsets.push_back(text_offset_);
    text_offset_ += code_points(text);
    own.push_back(written(entry.logprobs.logprob));
    json::object texts;
    // Tokens of one text, such as parts of a character: the most probable one stands.
    for (const auto& [id, logprob] : entry.logprobs.best) {
      texts.emplace(text_of(id), written(logprob));
    }
    if (texts.empty()) {
      best.push_back(nullptr);
    } else {
      texts.emplace(text, written(entry.logprobs.logprob));
      best.push_back(std::move(texts));
    }
    tokens.push_back(json::string(text));
  }
  return json::object{{"tokens", std::move(tokens)},
                      {"token_logprobs", std::move(own)},
                      {"top_logprobs", std::move(best)},
                      {"text_offset", std::move(offsets)}};
}

}  // namespace flashlane::server
