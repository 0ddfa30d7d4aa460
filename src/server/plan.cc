// Typed request → engine request.
#include "server/plan.h"

#include <algorithm>
#include <utility>

#include "base/sha256.h"
#include "server/prompt_marks.h"
#include "server/template_variables.h"
#include "text/chat_prompt.h"

namespace flashlane::server {

namespace {

// Below this a temperature only divides logits out of range; it means greedy.
constexpr double kLeastTemperature = 1e-5;

// A think block is open at the prompt's end when its last think marker opens one. Text that spells
// the markers has other ids, so only the template's own count.
bool ends_in_reasoning(const text::Tokenizer& tokenizer, const std::vector<int32_t>& prompt) {
  const auto open = tokenizer.added_token("<think>");
  const auto close = tokenizer.added_token("</think>");
  if (!open || !close) return false;
  const auto last = std::find_if(prompt.rbegin(), prompt.rend(),
                                 [&](int32_t id) { return id == *open || id == *close; });
  return last != prompt.rend() && *last == *open;
}

scheduler::Sampling make_sampling(const Services& services, const ReplyOptions& options,
                                  const std::vector<int32_t>& prompt) {
  const text::GenerationConfig& defaults = services.generation;
  const double temperature =
      options.temperature.value_or(defaults.do_sample ? defaults.temperature : 0.0);
  scheduler::Sampling sampling;
  sampling.temperature = temperature < kLeastTemperature ? 0.0f : static_cast<float>(temperature);
  const int64_t top_k = options.top_k.value_or(defaults.top_k);
  // A cut at the whole vocabulary is none.
  sampling.top_k = top_k <= 0 || top_k >= services.model.vocabulary ? 0 : static_cast<int>(top_k);
  const auto or_default = [](const std::optional<double>& wanted, float otherwise) {
    return wanted ? static_cast<float>(*wanted) : otherwise;
  };
  sampling.top_p = or_default(options.top_p, defaults.top_p);
  sampling.min_p = or_default(options.min_p, defaults.min_p);
  sampling.presence_penalty = or_default(options.presence_penalty, 0);
  sampling.frequency_penalty = or_default(options.frequency_penalty, 0);
  sampling.repetition_penalty = or_default(options.repetition_penalty, defaults.repetition_penalty);
  sampling.seed = options.seed.value_or(default_seed(prompt, services.seed_salt));
  return sampling;
}

ApiError context_exceeded(int context, size_t prompt, std::optional<int64_t> reply,
                          std::string_view reply_field, std::string_view prompt_field) {
  const int64_t room = static_cast<int64_t>(context) - static_cast<int64_t>(prompt);
  std::string message =
      fmt::format("This model's maximum context length is {} tokens; the prompt has {} tokens",
                  context, prompt);
  if (reply) message += fmt::format(" and {} asks for {}", reply_field, *reply);
  message += room > 0 ? fmt::format(". Shorten the prompt, or ask for at most {} tokens.", room)
                      : std::string(", which leaves no room for a reply. Shorten the prompt.");
  return invalid_request(std::move(message), std::string(prompt_field), "context_length_exceeded");
}

// The part that chat and completions share, once the prompt is known.
std::optional<ApiError> finish_plan(const Services& services, const ServerOptions& server,
                                    const ReplyOptions& options, std::string_view prompt_field,
                                    ReplyPlan& plan) {
  const std::vector<int32_t>& prompt = plan.request.prompt;
  if (prompt.empty()) {
    return invalid_request(fmt::format("{}: has no tokens", prompt_field),
                           std::string(prompt_field));
  }
  const int64_t room = services.model.context - static_cast<int64_t>(prompt.size());
  if (room < 1 || options.max_tokens.value_or(1) > room) {
    return context_exceeded(services.model.context, prompt.size(), options.max_tokens,
                            options.max_tokens_field, prompt_field);
  }
  if (!options.stop.empty() && services.tokenizer == nullptr) {
    return invalid_request("stop: this model has no tokenizer, so there is no text to stop at",
                           "stop");
  }
  plan.request.max_tokens = static_cast<int>(
      options.max_tokens.value_or(std::min<int64_t>(room, server.default_max_tokens)));
  plan.request.sampling = make_sampling(services, options, prompt);
  if (!options.ignore_eos) plan.request.end_ids = services.generation.eos_ids;
  plan.request.stop_strings = options.stop;
  plan.request.drafts = options.draft;
  plan.request.logprobs = static_cast<int>(options.logprobs.value_or(-1));
  plan.model = options.model.empty() ? services.model.name : options.model;
  return std::nullopt;
}

std::optional<ApiError> check_model(const Services& services, const ReplyOptions& options) {
  if (options.model.empty() || is_served(services.model, options.model)) return std::nullopt;
  return unknown_model(services.model, options.model);
}

// Where a think block is open at the prompt's end: when it is closed, and with which tokens. A
// newline, the closing marker, a blank line, as the model itself does it.
Result<scheduler::ThinkingRules> thinking_rules(const Services& services,
                                                const ServerOptions& server,
                                                const std::optional<int64_t>& wanted) {
  scheduler::ThinkingRules rules;
  const auto end = services.tokenizer->added_token("</think>");
  CHECK(end.has_value());  // a block that is open was opened by its twin
  const int64_t own = wanted.value_or(0);
  rules.budget = own > 0 ? static_cast<int>(own) : server.thinking_budget;
  rules.end_token = *end;
  rules.repetition_guard = server.repetition_guard;
  rules.starts_open = true;
  ASSIGN_OR_RETURN(rules.close_tokens, services.tokenizer->encode("\n", {}));
  rules.close_tokens.push_back(*end);
  ASSIGN_OR_RETURN(const std::vector<int32_t> blank, services.tokenizer->encode("\n\n", {}));
  rules.close_tokens.insert(rules.close_tokens.end(), blank.begin(), blank.end());
  return rules;
}

ApiError prompt_error(Error error, std::string_view field) {
  if (error.field.empty()) error.field = std::string(field);
  return to_api_error(error);
}

std::optional<ApiError> take_ids(const Services& services, const std::vector<int64_t>& ids,
                                 std::vector<int32_t>& prompt) {
  // Counted before it is copied: a list far beyond the context is refused cheaply.
  if (ids.size() >= static_cast<size_t>(services.model.context)) {
    return context_exceeded(services.model.context, ids.size(), std::nullopt, "", "prompt");
  }
  prompt.reserve(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= services.model.vocabulary) {
      const std::string field = fmt::format("prompt[{}]", i);
      return invalid_request(fmt::format("{}: token id {} is out of range; this model's ids are "
                                         "0 to {}",
                                         field, ids[i], services.model.vocabulary - 1),
                             field);
    }
    prompt.push_back(static_cast<int32_t>(ids[i]));
  }
  return std::nullopt;
}

}  // namespace

bool is_served(const ModelInfo& model, std::string_view name) {
  return name == model.name ||
         std::find(model.aliases.begin(), model.aliases.end(), name) != model.aliases.end();
}

ApiError unknown_model(const ModelInfo& model, std::string_view name) {
  ApiError error = invalid_request(fmt::format("The model {} does not exist; this server has {}.",
                                               in_quotes(name), in_quotes(model.name)),
                                   "model", "model_not_found");
  error.status = 404;
  return error;
}

std::optional<ApiError> plan_chat(const Services& services, const ServerOptions& options,
                                  const ChatRequest& request, ReplyPlan& plan) {
  if (auto refusal = check_model(services, request.options)) return refusal;
  if (services.tokenizer == nullptr || services.chat_template == nullptr) {
    return invalid_request(
        fmt::format("{} has no {}; use /v1/completions{}", in_quotes(services.model.name),
                    services.tokenizer == nullptr ? "tokenizer" : "chat template",
                    services.tokenizer == nullptr ? " with token ids" : ""),
        "messages");
  }
  Result<std::vector<int32_t>> ids =
      text::encode_chat(*services.tokenizer, *services.chat_template, template_variables(request));
  if (!ids) return prompt_error(ids.error(), "messages");
  plan.request.prompt = std::move(ids).value();
  plan.chat = true;
  plan.starts_in_reasoning = ends_in_reasoning(*services.tokenizer, plan.request.prompt);
  if (plan.starts_in_reasoning) {
    Result<scheduler::ThinkingRules> rules =
        thinking_rules(services, options, request.thinking_budget);
    if (!rules) return prompt_error(rules.error(), "thinking_budget");
    plan.request.thinking = std::move(rules).value();
  }
  if (auto refusal = finish_plan(services, options, request.options, "messages", plan)) {
    return refusal;
  }
  plan.request.marks = prompt_marks(services, request, plan.request.prompt);
  return std::nullopt;
}

std::optional<ApiError> plan_completion(const Services& services, const ServerOptions& options,
                                        const CompletionRequest& request, ReplyPlan& plan) {
  if (auto refusal = check_model(services, request.options)) return refusal;
  if (const auto* ids = std::get_if<std::vector<int64_t>>(&request.prompt)) {
    if (auto refusal = take_ids(services, *ids, plan.request.prompt)) return refusal;
  } else {
    if (services.tokenizer == nullptr) {
      return invalid_request(fmt::format("prompt: {} has no tokenizer; send token ids",
                                         in_quotes(services.model.name)),
                             "prompt");
    }
    Result<std::vector<int32_t>> encoded =
        services.tokenizer->encode(std::get<std::string>(request.prompt), {.parse_special = true});
    if (!encoded) return prompt_error(encoded.error(), "prompt");
    plan.request.prompt = std::move(encoded).value();
  }
  return finish_plan(services, options, request.options, "prompt", plan);
}

}  // namespace flashlane::server
