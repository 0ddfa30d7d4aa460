// Typed requests out of JSON bodies.
#include "server/openai_types.h"

#include <array>
#include <boost/json/array.hpp>
#include <numeric>
#include <utility>

#include "engine/engine.h"
#include "server/api_error.h"
#include "server/json_reader.h"

namespace flashlane::server {

namespace json = boost::json;

namespace {

// Fields of the two APIs whose features are not built, with the values that ask for nothing.
const std::vector<NeutralField>& shared_neutral_fields() {
  static const std::vector<NeutralField> fields = {
      {"n", {"1"}},
      {"logit_bias", {"{}"}},
  };
  return fields;
}

const std::vector<NeutralField>& chat_neutral_fields() {
  static const std::vector<NeutralField> fields = {
      {"tools", {"[]"}},
      {"tool_choice", {R"("none")"}},
      {"parallel_tool_calls", {"true"}},
      {"functions", {"[]"}},
      {"function_call", {R"("none")"}},
      {"response_format", {R"({"type":"text"})"}},
      {"modalities", {R"(["text"])"}},
      {"audio", {}},
      {"prediction", {}},
      {"web_search_options", {}},
      {"verbosity", {R"("medium")"}},
      {"store", {"false"}},
      {"service_tier", {R"("auto")", R"("default")"}},
  };
  return fields;
}

const std::vector<NeutralField>& completion_neutral_fields() {
  static const std::vector<NeutralField> fields = {
      {"suffix", {R"("")"}},
      {"echo", {"false"}},
      {"best_of", {"1"}},
  };
  return fields;
}

void read_stream_options(ObjectReader& body, ReplyOptions& out, std::optional<Error>& failure) {
  const json::object* object = body.object("stream_options");
  if (object == nullptr) return;
  if (!out.stream) {
    body.fail("stream_options", ErrorCode::kInvalidArgument, "is only allowed with stream true");
    return;
  }
  ObjectReader reader(*object, "stream_options", failure);
  out.include_usage = reader.boolean("include_usage").value_or(false);
  reader.neutral({"include_obfuscation", {"false"}});
  reader.refuse_rest();
}

void read_options(ObjectReader& body, ReplyOptions& out, std::optional<Error>& failure) {
  out.model = body.text("model").value_or("");
  // 0 asks for the default, as clients that fill in every field expect; max_tokens goes first.
  for (const char* name : {"max_completion_tokens", "max_tokens"}) {
    const std::optional<int64_t> value = body.integer(name, 0, INT64_MAX);
    if (value.value_or(0) == 0) continue;
    out.max_tokens = value;
    out.max_tokens_field = name;
  }
  out.temperature = body.number("temperature", 0, 2);
  out.top_p = body.number("top_p", 0, 1, /*above=*/true);
  out.min_p = body.number("min_p", 0, 1);
  out.top_k = body.integer("top_k", INT32_MIN, INT32_MAX);
  out.seed = body.bits64("seed");
  constexpr double kMost = engine::kMostPenalty;
  out.presence_penalty = body.number("presence_penalty", -kMost, kMost);
  out.frequency_penalty = body.number("frequency_penalty", -kMost, kMost);
  out.repetition_penalty = body.number("repetition_penalty", engine::kLeastRepetitionPenalty,
                                       engine::kMostRepetitionPenalty);
  out.stop = body.texts("stop", kMaxStopStrings);
  const size_t stop_bytes =
      std::accumulate(out.stop.begin(), out.stop.end(), size_t{0},
                      [](size_t sum, const std::string& text) { return sum + text.size(); });
  if (stop_bytes > kMaxStopBytes) {
    body.fail(
        "stop", ErrorCode::kInvalidArgument,
        fmt::format("has {} bytes in all; at most {} are allowed", stop_bytes, kMaxStopBytes));
  }
  out.stream = body.boolean("stream").value_or(false);
  read_stream_options(body, out, failure);
  out.draft = body.boolean("draft").value_or(true);
  out.return_token_ids = body.boolean("return_token_ids").value_or(false);
  out.ignore_eos = body.boolean("ignore_eos").value_or(false);
  // Labels for the client's own use: they never change a reply.
  (void)body.text("user");
  (void)body.object("metadata");
  (void)body.text("safety_identifier");
  (void)body.text("prompt_cache_key");
  for (const NeutralField& field : shared_neutral_fields()) body.neutral(field);
}

// Chat says whether it wants log probabilities, and how many alternatives, in two fields.
void read_chat_logprobs(ObjectReader& body, ReplyOptions& out) {
  const bool wanted = body.boolean("logprobs").value_or(false);
  const std::optional<int64_t> best = body.integer("top_logprobs", 0, engine::kMostLogprobs);
  if (wanted) {
    out.logprobs = best.value_or(0);
  } else if (best.value_or(0) > 0) {
    body.fail("top_logprobs", ErrorCode::kInvalidArgument, "is only allowed with logprobs true");
  }
}

std::optional<Role> to_role(std::string_view name) {
  if (name == "system" || name == "developer") return Role::kSystem;
  if (name == "user") return Role::kUser;
  if (name == "assistant") return Role::kAssistant;
  if (name == "tool") return Role::kTool;
  return std::nullopt;
}

// Content: a string, or text parts, which are joined.
void read_content(ObjectReader& message, ChatMessage& out, std::optional<Error>& failure) {
  const json::value* content = message.find("content");
  if (content == nullptr) {
    if (out.role != Role::kAssistant) {
      message.fail("content", ErrorCode::kInvalidArgument, "is missing");
    }
    return;
  }
  if (content->is_string()) {
    out.content = std::string(content->get_string());
    return;
  }
  if (!content->is_array()) {
    message.fail("content", ErrorCode::kInvalidArgument,
                 fmt::format("must be a string or a list of parts, not {}", kind_name(*content)));
    return;
  }
  const json::array& parts = content->get_array();
  for (size_t i = 0; i < parts.size() && !failure; ++i) {
    const std::string name = fmt::format("content[{}]", i);
    if (!parts[i].is_object()) {
      message.fail(name, ErrorCode::kInvalidArgument,
                   fmt::format("must be an object, not {}", kind_name(parts[i])));
      return;
    }
    ObjectReader part(parts[i].get_object(), message.path_of(name), failure);
    const std::optional<std::string> type = part.text("type");
    if (type && *type != "text") {
      part.fail(
          "type", ErrorCode::kUnsupported,
          fmt::format("parts of type {} are not supported yet, only 'text'", in_quotes(*type)));
      return;
    }
    if (!type) part.fail("type", ErrorCode::kInvalidArgument, "is missing");
    const std::optional<std::string> text = part.text("text");
    if (!text) part.fail("text", ErrorCode::kInvalidArgument, "is missing");
    part.refuse_rest();
    out.content += text.value_or("");
  }
}

ChatMessage read_message(const json::object& object, std::string path,
                         std::optional<Error>& failure) {
  ObjectReader reader(object, std::move(path), failure);
  ChatMessage out;
  const std::optional<std::string> role = reader.text("role");
  if (!role) {
    reader.fail("role", ErrorCode::kInvalidArgument, "is missing");
    return out;
  }
  const std::optional<Role> known = to_role(*role);
  if (!known) {
    reader.fail("role", ErrorCode::kInvalidArgument,
                fmt::format("is {}; it must be system, developer, user, assistant or tool",
                            in_quotes(*role)));
    return out;
  }
  out.role = *known;
  read_content(reader, out, failure);
  if (out.role == Role::kAssistant) {
    // Servers differ in the name; what a client kept from either comes back here.
    const std::optional<std::string> other = reader.text("reasoning");
    out.reasoning = reader.text("reasoning_content");
    if (!out.reasoning) out.reasoning = other;
    reader.neutral({"tool_calls", {"[]"}});
    reader.neutral({"annotations", {"[]"}});
  }
  if (out.role == Role::kTool) {
    // They say which call this answers; no template prints them.
    (void)reader.text("tool_call_id");
    (void)reader.text("name");
  }
  reader.refuse_rest();
  return out;
}

void read_messages(ObjectReader& body, ChatRequest& out, std::optional<Error>& failure) {
  const json::value* messages = body.find("messages");
  if (messages == nullptr) {
    body.fail("messages", ErrorCode::kInvalidArgument, "is missing");
    return;
  }
  if (!messages->is_array()) {
    body.fail("messages", ErrorCode::kInvalidArgument,
              fmt::format("must be a list, not {}", kind_name(*messages)));
    return;
  }
  const json::array& list = messages->get_array();
  if (list.empty()) body.fail("messages", ErrorCode::kInvalidArgument, "is empty");
  for (size_t i = 0; i < list.size() && !failure; ++i) {
    const std::string name = fmt::format("messages[{}]", i);
    if (!list[i].is_object()) {
      body.fail(name, ErrorCode::kInvalidArgument,
                fmt::format("must be an object, not {}", kind_name(list[i])));
      return;
    }
    out.messages.push_back(read_message(list[i].get_object(), name, failure));
  }
}

// The seven names that clients send → the template's three; "none" turns thinking off.
struct Effort {
  std::string_view name;
  std::string_view level;  // empty = no thinking
};
constexpr std::array<Effort, 7> kEfforts = {{{"none", ""},
                                             {"minimal", "low"},
                                             {"low", "low"},
                                             {"medium", "medium"},
                                             {"high", "xhigh"},
                                             {"xhigh", "xhigh"},
                                             {"max", "xhigh"}}};

void read_effort(ObjectReader& reader, std::optional<std::string>& effort) {
  const std::optional<std::string> name = reader.text("reasoning_effort");
  if (!name) return;
  for (const Effort& known : kEfforts) {
    if (known.name != *name) continue;
    if (effort && *effort != known.level) {
      reader.fail("reasoning_effort", ErrorCode::kInvalidArgument,
                  "differs from the top-level reasoning_effort");
    }
    effort = std::string(known.level);
    return;
  }
  reader.fail("reasoning_effort", ErrorCode::kInvalidArgument,
              fmt::format("is {}; it must be none, minimal, low, medium, high, xhigh or max",
                          in_quotes(*name)));
}

void read_thinking(ObjectReader& body, ChatRequest& out, std::optional<Error>& failure) {
  out.enable_thinking = body.boolean("enable_thinking");
  out.thinking_budget = body.integer("thinking_budget", 0, INT32_MAX);
  std::optional<std::string> effort;
  read_effort(body, effort);
  if (const json::object* object = body.object("chat_template_kwargs")) {
    ObjectReader kwargs(*object, "chat_template_kwargs", failure);
    const std::optional<bool> thinking = kwargs.boolean("enable_thinking");
    if (thinking && out.enable_thinking && *thinking != *out.enable_thinking) {
      kwargs.fail("enable_thinking", ErrorCode::kInvalidArgument,
                  "differs from the top-level enable_thinking");
    }
    if (thinking) out.enable_thinking = thinking;
    out.preserve_thinking = kwargs.boolean("preserve_thinking");
    read_effort(kwargs, effort);
    kwargs.refuse_rest();
  }
  if (!effort) return;
  const bool wants_thinking = !effort->empty();
  // An effort of "none" with thinking asked for can't both be meant; a level with thinking off is
  // what clients send that set a level once and for all, and off wins.
  if (!wants_thinking && out.enable_thinking.value_or(false)) {
    body.fail("reasoning_effort", ErrorCode::kInvalidArgument,
              "is 'none', but enable_thinking is true");
  }
  if (!out.enable_thinking) out.enable_thinking = wants_thinking;
  if (*out.enable_thinking) out.reasoning_effort = *effort;
}

std::optional<std::vector<int64_t>> read_ids(ObjectReader& body, const json::array& list) {
  std::vector<int64_t> ids;
  ids.reserve(list.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_int64()) {
      body.fail(fmt::format("prompt[{}]", i), ErrorCode::kInvalidArgument,
                list[i].is_number()
                    ? "must be an integer"
                    : fmt::format("must be a token id, not {}", kind_name(list[i])));
      return std::nullopt;
    }
    ids.push_back(list[i].get_int64());
  }
  return ids;
}

// A string, a list of ids, or a list that holds one of either.
void read_prompt(ObjectReader& body, CompletionRequest& out) {
  const json::value* prompt = body.find("prompt");
  if (prompt == nullptr) {
    body.fail("prompt", ErrorCode::kInvalidArgument, "is missing");
    return;
  }
  if (prompt->is_array() && !prompt->get_array().empty()) {
    const json::array& list = prompt->get_array();
    if (list[0].is_string() || list[0].is_array()) {
      if (list.size() > 1) {
        body.fail("prompt", ErrorCode::kUnsupported,
                  fmt::format("has {} prompts; only one per request is supported", list.size()));
        return;
      }
      prompt = &list[0];
    }
  }
  if (prompt->is_string()) {
    out.prompt = std::string(prompt->get_string());
    if (prompt->get_string().empty()) body.fail("prompt", ErrorCode::kInvalidArgument, "is empty");
  } else if (prompt->is_array()) {
    const json::array& list = prompt->get_array();
    if (list.empty()) body.fail("prompt", ErrorCode::kInvalidArgument, "is empty");
    if (auto ids = read_ids(body, list)) out.prompt = std::move(*ids);
  } else {
    body.fail("prompt", ErrorCode::kInvalidArgument,
              fmt::format("must be a string or a list of token ids, not {}", kind_name(*prompt)));
  }
}

template <typename Request, typename Read>
Result<Request> parse_request(std::string_view text, const std::vector<NeutralField>& neutral,
                              Read read) {
  ASSIGN_OR_RETURN(const json::value body, parse_json(text));
  std::optional<Error> failure;
  ObjectReader reader(body.get_object(), "", failure);
  Request out;
  read(reader, out, failure);
  read_options(reader, out.options, failure);
  for (const NeutralField& field : neutral) reader.neutral(field);
  reader.refuse_rest();
  if (failure) return *failure;
  return out;
}

}  // namespace

Result<ChatRequest> parse_chat_request(std::string_view body) {
  return parse_request<ChatRequest>(
      body, chat_neutral_fields(),
      [](ObjectReader& reader, ChatRequest& out, std::optional<Error>& failure) {
        read_messages(reader, out, failure);
        read_chat_logprobs(reader, out.options);
        read_thinking(reader, out, failure);
      });
}

Result<CompletionRequest> parse_completion_request(std::string_view body) {
  return parse_request<CompletionRequest>(
      body, completion_neutral_fields(),
      [](ObjectReader& reader, CompletionRequest& out, std::optional<Error>&) {
        read_prompt(reader, out);
        out.options.logprobs = reader.integer("logprobs", 0, engine::kMostLogprobs);
      });
}

}  // namespace flashlane::server
