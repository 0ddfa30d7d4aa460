// The bodies of /v1/chat/completions and /v1/completions as typed requests. Parsing checks kinds
// and ranges that hold for any model, and refuses by name what is not built; what depends on the
// served model (its name, vocabulary, context) is checked by plan.h. No JSON goes further than
// this.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/result.h"

namespace flashlane::server {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 4096;  // of all stop strings of a request

// What both APIs share. An absent field is nullopt; its default comes from the model.
struct ReplyOptions {
  std::string model;                            // empty = the served one
  std::optional<int64_t> max_tokens;            // ≥ 1
  std::string max_tokens_field = "max_tokens";  // the spelling that the client used
  std::optional<double> temperature;            // 0..2, 0 = greedy
  std::optional<double> top_p;                  // (0, 1]
  std::optional<double> min_p;                  // 0..1
  std::optional<int64_t> top_k;                 // ≤ 0 = off
  std::optional<uint64_t> seed;
  std::optional<double> presence_penalty;  // their ranges: scheduler/step_plan.h
  std::optional<double> frequency_penalty;
  std::optional<double> repetition_penalty;
  // Log probabilities with so many alternatives; absent = none.
  std::optional<int64_t> logprobs;  // 0..engine::kMostLogprobs
  std::vector<std::string> stop;
  bool stream = false;
  bool include_usage = false;
  bool draft = true;
  bool return_token_ids = false;
  bool ignore_eos = false;
};

enum class Role : uint8_t { kSystem, kUser, kAssistant, kTool };  // "developer" is kSystem

struct ChatMessage {
  Role role = Role::kUser;
  std::string content;                   // text parts joined
  std::optional<std::string> reasoning;  // assistant messages
};

struct ChatRequest {
  ReplyOptions options;
  std::vector<ChatMessage> messages;
  // From enable_thinking, chat_template_kwargs, or reasoning_effort "none".
  std::optional<bool> enable_thinking;
  std::optional<bool> preserve_thinking;
  // Tokens after which an open think block is closed; 0 = what the server is set to.
  std::optional<int64_t> thinking_budget;
  std::string reasoning_effort;  // the template's own levels: "low", "medium", "xhigh"; or empty
};

struct CompletionRequest {
  ReplyOptions options;
  // Text, in which special tokens are parsed, or token ids as sent.
  std::variant<std::string, std::vector<int64_t>> prompt;
};

// Errors carry the field at fault (Error::field).
Result<ChatRequest> parse_chat_request(std::string_view body);
Result<CompletionRequest> parse_completion_request(std::string_view body);

}  // namespace flashlane::server
