// OpenAI reply bodies and stream chunks.
#include "server/reply_format.h"

#include <atomic>
#include <boost/json/array.hpp>
#include <boost/json/serialize.hpp>
#include <chrono>
#include <cmath>
#include <random>
#include <utility>

#include "base/keyed_random.h"
#include "base/sha256.h"

namespace flashlane::server {

namespace json = boost::json;

namespace {

// Unique within a process by the counter, across processes by the random start.
std::string new_id(std::string_view prefix) {
  static const uint64_t start = (uint64_t{std::random_device{}()} << 32) ^ std::random_device{}();
  static std::atomic<uint64_t> count = 0;
  const uint64_t number = count.fetch_add(1, std::memory_order_relaxed);
  return fmt::format("{}{:016x}{:08x}", prefix, splitmix64(start ^ number),
                     static_cast<uint32_t>(number));
}

int64_t now_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Microseconds are as fine as a reader can use.
double rounded(double ms) {
  return std::round(ms * 1000) / 1000;
}

std::string event(const json::object& object) {
  return fmt::format("data: {}\n\n", json::serialize(object));
}

json::object usage(const ReplyEnd& end) {
  const auto completion = static_cast<int64_t>(end.ids.size());
  json::object out;
  out["prompt_tokens"] = end.prompt_tokens;
  out["completion_tokens"] = completion;
  out["total_tokens"] = end.prompt_tokens + completion;
  out["prompt_tokens_details"] = json::object{{"cached_tokens", end.reuse.cached}};
  out["completion_tokens_details"] = json::object{{"reasoning_tokens", end.reasoning_tokens}};
  return out;
}

// Why nothing of the prompt was there already, and how far it went with the closest kept one; null
// where something was, or where nothing is ever kept. "shorter": the prompt is a beginning of a
// kept one, and no state was kept inside it.
json::value miss_value(const engine::PromptReuse& reuse, int64_t prompt_tokens) {
  switch (reuse.miss) {
    case engine::Miss::kNone:
      // What was found could not be restored.
      return reuse.cached > 0 ? json::value(nullptr)
                              : json::value(json::object{{"reason", "failed"}});
    case engine::Miss::kOff:
      return nullptr;
    case engine::Miss::kEmpty:
      return json::object{{"reason", "empty"}};
    case engine::Miss::kDiffers:
      return json::object{
          {"reason", reuse.first_difference < prompt_tokens ? "differs" : "shorter"},
          {"first_difference", reuse.first_difference}};
  }
  UNREACHABLE();
}

json::object places_object(const std::vector<engine::DraftCounts>& places) {
  json::array drafted;
  json::array accepted;
  for (const engine::DraftCounts& place : places) {
    drafted.push_back(place.drafted);
    accepted.push_back(place.accepted);
  }
  return {{"drafted", std::move(drafted)}, {"accepted", std::move(accepted)}};
}

}  // namespace

json::object drafts_object(const engine::DraftStats& drafts) {
  return {{"rounds", drafts.rounds},
          {"drafted", drafts.drafted},
          {"accepted", drafts.accepted},
          {"head", places_object(drafts.head)},
          {"copied", places_object(drafts.copied)}};
}

ReplyFormat::ReplyFormat(const ReplyPlan& plan, const ReplyOptions& options)
    : chat_(plan.chat),
      include_usage_(options.include_usage),
      return_token_ids_(options.return_token_ids),
      model_(plan.model),
      id_(new_id(plan.chat ? "chatcmpl-" : "cmpl-")),
      created_(now_seconds()) {}

json::object ReplyFormat::envelope(bool chunk) const {
  json::object out;
  out["id"] = id_;
  out["object"] = !chat_ ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion";
  out["created"] = created_;
  out["model"] = model_;
  return out;
}

json::object ReplyFormat::flashlane_block(const ReplyEnd& end) const {
  json::object out;
  out["token_sha"] = token_sha(end.ids);
  if (return_token_ids_) out["token_ids"] = json::array(end.ids.begin(), end.ids.end());
  out["prompt_tokens"] = end.prompt_tokens;
  out["cached_tokens"] = end.reuse.cached;
  out["miss"] = miss_value(end.reuse, end.prompt_tokens);
  if (end.repetition_period > 0) out["repetition_period"] = end.repetition_period;
  out["drafts"] = drafts_object(end.drafts);
  out["timings"] = json::object{{"queue_ms", rounded(end.timings.queue_ms)},
                                {"prefill_ms", rounded(end.timings.prefill_ms)},
                                {"first_token_ms", rounded(end.timings.first_token_ms)},
                                {"decode_ms", rounded(end.timings.decode_ms)}};
  return out;
}

std::string ReplyFormat::whole_body(const TextDelta& text, const ReplyEnd& end,
                                    json::value logprobs) const {
  json::object choice;
  choice["index"] = 0;
  if (chat_) {
    json::object message;
    message["role"] = "assistant";
    message["content"] = text.content;
    if (!text.reasoning.empty()) message["reasoning_content"] = text.reasoning;
    choice["message"] = std::move(message);
  } else {
    choice["text"] = text.content;
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = json::string(end.finish_reason);
  json::object body = envelope(/*chunk=*/false);
  body["choices"] = json::array{std::move(choice)};
  body["usage"] = usage(end);
  body["flashlane"] = flashlane_block(end);
  return json::serialize(body);
}

std::string ReplyFormat::chunk_event(json::object choice, json::value logprobs) const {
  json::object chunk = envelope(/*chunk=*/true);
  choice["index"] = 0;
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = nullptr;
  chunk["choices"] = json::array{std::move(choice)};
  if (include_usage_) chunk["usage"] = nullptr;
  return event(chunk);
}

std::string ReplyFormat::opening_event() const {
  if (!chat_) return {};
  return chunk_event({{"delta", json::object{{"role", "assistant"}, {"content", ""}}}}, nullptr);
}

std::string ReplyFormat::delta_events(const TextDelta& delta, json::value logprobs) const {
  std::string out;
  if (!chat_) {
    if (!delta.content.empty()) out = chunk_event({{"text", delta.content}}, std::move(logprobs));
    return out;
  }
  // One field a chunk, as clients that look for either expect; log probabilities come once.
  if (!delta.reasoning.empty()) {
    out += chunk_event({{"delta", json::object{{"reasoning_content", delta.reasoning}}}},
                       std::exchange(logprobs, nullptr));
  }
  if (!delta.content.empty()) {
    out += chunk_event({{"delta", json::object{{"content", delta.content}}}}, std::move(logprobs));
  }
  return out;
}

std::string ReplyFormat::end_events(const ReplyEnd& end, json::value logprobs) const {
  json::object choice;
  choice["index"] = 0;
  if (chat_) {
    choice["delta"] = json::object();
  } else {
    choice["text"] = "";
  }
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = json::string(end.finish_reason);
  json::object chunk = envelope(/*chunk=*/true);
  chunk["choices"] = json::array{std::move(choice)};
  chunk["usage"] = include_usage_ ? json::value(nullptr) : json::value(usage(end));
  chunk["flashlane"] = flashlane_block(end);
  std::string out = event(chunk);
  if (include_usage_) {
    json::object last = envelope(/*chunk=*/true);
    last["choices"] = json::array();
    last["usage"] = usage(end);
    out += event(last);
  }
  return out;
}

std::string ReplyFormat::error_event(const ApiError& error) {
  return fmt::format("data: {}\n\n", error_body(error));
}

}  // namespace flashlane::server
