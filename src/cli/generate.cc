// `flashlane generate`: one reply on standard output, through the same engine that serves.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <utility>

#include "base/sha256.h"
#include "cli/command.h"
#include "cli/draft_report.h"
#include "cli/inputs.h"
#include "cli/json_line.h"
#include "cli/prompt.h"
#include "cli/serving.h"
#include "cli/signals.h"
#include "text/detokenizer.h"

namespace flashlane::cli {

namespace {

constexpr int64_t kDefaultMaxTokens = 256;
constexpr int64_t kMostTokens = int64_t{1} << 30;
constexpr double kMostTemperature = 100;

struct GenerateOptions {
  ModelOptions model;
  PromptOptions prompt;
  std::optional<int64_t> prefill_chunk;
  std::optional<int64_t> max_tokens;
  std::optional<double> temperature;
  std::optional<int64_t> top_k;
  std::optional<double> top_p;
  std::optional<double> min_p;
  std::optional<uint64_t> seed;
  std::optional<double> presence_penalty;
  std::optional<double> frequency_penalty;
  std::optional<double> repetition_penalty;
  std::optional<int64_t> logprobs;
  bool ignore_eos = false;
  bool no_drafts = false;
  LoneOptions lone;
  bool json = false;
};

struct Outcome {
  std::vector<int32_t> ids;
  std::vector<engine::TokenLogprobs> logprobs;
  std::string text;
  engine::ReplyEvent last;
};

// What can't be, and what would be ignored without a word.
Status check_sampling(const GenerateOptions& options) {
  if (options.logprobs.has_value() && !options.json) return invalid("--logprobs needs --json");
  if (options.top_p == 0.0) return invalid("--top-p is 0; it must be above 0 and at most 1");
  if (options.temperature.has_value()) return {};
  if (options.top_k.has_value()) return invalid("--top-k needs --temperature");
  if (options.top_p.has_value()) return invalid("--top-p needs --temperature");
  if (options.min_p.has_value()) return invalid("--min-p needs --temperature");
  return {};
}

// Greedy without --temperature; with it, what is not said comes from generation_config.json.
scheduler::Sampling sampling_for(const GenerateOptions& options, const ModelTexts& texts,
                                 std::span<const int32_t> prompt) {
  scheduler::Sampling sampling;
  sampling.temperature = static_cast<float>(options.temperature.value_or(0));
  sampling.top_k = static_cast<int>(options.top_k.value_or(texts.generation.top_k));
  const auto or_advised = [](const std::optional<double>& given, float advised) {
    return given.has_value() ? static_cast<float>(*given) : advised;
  };
  sampling.top_p = or_advised(options.top_p, texts.generation.top_p);
  sampling.min_p = or_advised(options.min_p, texts.generation.min_p);
  sampling.presence_penalty = or_advised(options.presence_penalty, 0);
  sampling.frequency_penalty = or_advised(options.frequency_penalty, 0);
  sampling.repetition_penalty =
      or_advised(options.repetition_penalty, texts.generation.repetition_penalty);
  sampling.seed = options.seed.has_value() ? *options.seed : default_seed(prompt, 0);
  return sampling;
}

Result<engine::Request> make_request(const GenerateOptions& options, const ModelOutline& outline,
                                     const ModelTexts& texts, std::vector<int32_t> prompt) {
  const int64_t length = static_cast<int64_t>(prompt.size());
  const int64_t room = outline.shape.max_position - length;
  if (length == 0) return invalid("the prompt is empty; at least one token is needed");
  if (room < 1) {
    return invalid("the prompt has {} tokens and leaves no room for a reply: the context is {}",
                   length, outline.shape.max_position);
  }
  const int64_t max_tokens = options.max_tokens.value_or(std::min(kDefaultMaxTokens, room));
  if (max_tokens > room) {
    return invalid("--max-tokens {} and a prompt of {} tokens exceed the context of {}", max_tokens,
                   length, outline.shape.max_position);
  }
  engine::Request request;
  request.sampling = sampling_for(options, texts, prompt);
  request.prompt = std::move(prompt);
  request.max_tokens = static_cast<int>(max_tokens);
  if (!options.ignore_eos) request.end_ids = end_ids(texts, outline.shape);
  request.drafts = !options.no_drafts;
  request.logprobs = static_cast<int>(options.logprobs.value_or(-1));
  return request;
}

// Takes events until the last; prints text as it comes when `live`. A signal cancels the request.
Outcome follow(engine::Reply& reply, const text::Tokenizer* tokenizer, bool live) {
  constexpr auto kPatience = std::chrono::milliseconds(50);
  Outcome outcome;
  std::optional<text::Detokenizer> detokenizer;
  if (tokenizer != nullptr) detokenizer.emplace(*tokenizer, true);
  const auto deliver = [&](const std::string& piece) {
    outcome.text += piece;
    if (!live || piece.empty()) return;
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  };
  bool cancelled = false;
  while (true) {
    if (stop_requested() && !std::exchange(cancelled, true)) reply.cancel();
    std::optional<engine::ReplyEvent> event = reply.next(kPatience);
    if (!event.has_value()) continue;
    if (event->kind == engine::ReplyEvent::Kind::kFinished) {
      if (detokenizer.has_value()) deliver(detokenizer->finish());
      outcome.last = std::move(*event);
      return outcome;
    }
    std::move(event->logprobs.begin(), event->logprobs.end(), std::back_inserter(outcome.logprobs));
    for (const int32_t id : event->tokens) {
      const std::string separator = outcome.ids.empty() ? "" : " ";
      outcome.ids.push_back(id);
      if (detokenizer.has_value()) {
        deliver(detokenizer->push(id));
      } else if (live) {
        fmt::print("{}{}", separator, id);
      }
    }
  }
}

std::string_view reason_name(scheduler::FinishReason reason) {
  switch (reason) {
    case scheduler::FinishReason::kStop:
      return "stop";
    case scheduler::FinishReason::kLength:
      return "length";
    case scheduler::FinishReason::kCancelled:
      return "cancelled";
    case scheduler::FinishReason::kError:
      return "error";
  }
  UNREACHABLE();
}

// One entry a token, in the order of "ids".
void write_logprobs(JsonLine& json, const std::vector<engine::TokenLogprobs>& logprobs) {
  json.key("logprobs").begin_array();
  for (const engine::TokenLogprobs& token : logprobs) {
    json.begin_object().key("logprob").number(static_cast<double>(token.logprob));
    json.key("best").begin_array();
    for (const auto& [id, logprob] : token.best) {
      json.begin_object().key("id").integer(id);
      json.key("logprob").number(static_cast<double>(logprob)).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

void write_outcome(JsonLine& json, const Outcome& outcome, bool has_text, size_t prompt_tokens) {
  const engine::Timings& timings = outcome.last.timings;
  json.key("ids").ids(outcome.ids).key("text");
  has_text ? json.text(outcome.text) : json.null();
  if (!outcome.logprobs.empty()) write_logprobs(json, outcome.logprobs);
  json.key("finish_reason").text(reason_name(outcome.last.reason));
  json.key("token_sha").text(token_sha(outcome.ids));
  json.key("prompt_tokens").unsigned_integer(prompt_tokens);
  json.key("drafts");
  write_drafts(json, outcome.last.drafts);
  json.key("timings").begin_object();
  json.key("queue_ms").number(timings.queue_ms).key("prefill_ms").number(timings.prefill_ms);
  json.key("first_token_ms").number(timings.first_token_ms);
  json.key("decode_ms").number(timings.decode_ms).end_object();
}

Result<Exit> run_generate(const GenerateOptions& options) {
  RETURN_IF_ERROR(check_prompt(options.prompt));
  RETURN_IF_ERROR(check_sampling(options));
  install_signals(static_cast<int>(Exit::kInterrupted));
  ASSIGN_OR_RETURN(const ModelOutline outline, outline_model(options.model));
  ASSIGN_OR_RETURN(const ModelTexts texts, read_texts(outline.location));
  ASSIGN_OR_RETURN(std::vector<int32_t> prompt, read_prompt(options.prompt, outline, texts));
  const size_t prompt_tokens = prompt.size();
  ASSIGN_OR_RETURN(engine::Request request,
                   make_request(options, outline, texts, std::move(prompt)));
  ServingOptions wanted;
  wanted.context = static_cast<int64_t>(prompt_tokens) + request.max_tokens;
  wanted.prefill_chunk = options.prefill_chunk;
  ASSIGN_OR_RETURN(ServingSizes sizes, serving_sizes(wanted, outline));
  ASSIGN_OR_RETURN(sizes.lone, lone_sizes(options.lone));
  ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(outline, sizes.runner));
  size_t peak_bytes = 0;
  ASSIGN_OR_RETURN(const auto model,
                   load_model(outline, plan, options.model, sizes.runner, &peak_bytes));
  ASSIGN_OR_RETURN(const auto engine, make_engine(*model, sizes, nullptr));
  hold_signals();
  ASSIGN_OR_RETURN(engine::Reply reply, engine->submit(std::move(request)));
  const Outcome outcome = follow(reply, texts.tokenizer.get(), !options.json);
  if (outcome.last.reason == scheduler::FinishReason::kError) return outcome.last.error;
  if (options.json) {
    JsonLine json;
    json.begin_object();
    write_outcome(json, outcome, texts.tokenizer != nullptr, prompt_tokens);
    json.key("memory");
    write_measured(json, plan, peak_bytes);
    json.end_object();
    fmt::print("{}\n", json.str());
  } else {
    fmt::print("\n");
  }
  const bool interrupted = outcome.last.reason == scheduler::FinishReason::kCancelled;
  return interrupted ? Exit::kInterrupted : Exit::kOk;
}

void add_sampling(OptionTable& table, GenerateOptions& options) {
  constexpr Reach kHere = Reach::kFlagOnly;
  constexpr int64_t kMostIds = std::numeric_limits<int32_t>::max();
  table.integer("max-tokens", options.max_tokens, 1, kMostTokens,
                "most reply tokens; default 256 or the room left in the context", kHere);
  table.number("temperature", options.temperature, 0, kMostTemperature,
               "0 (default) = greedy; above it, unset options below come from "
               "generation_config.json",
               kHere);
  table.integer("top-k", options.top_k, 0, kMostIds,
                "draw among the K best; 0 = all; needs --temperature, as the two below", kHere);
  table.number("top-p", options.top_p, 0, 1, "draw from this share of the probability", kHere);
  table.number("min-p", options.min_p, 0, 1,
               "leave out tokens below this share of the best one's probability", kHere);
  table.unsigned_integer("seed", options.seed,
                         "of the draws; default: derived from the prompt's ids, so that the same "
                         "command gives the same reply",
                         kHere);
  table.number("presence-penalty", options.presence_penalty, -engine::kMostPenalty,
               engine::kMostPenalty, "taken off each token that the reply has already", kHere);
  table.number("frequency-penalty", options.frequency_penalty, -engine::kMostPenalty,
               engine::kMostPenalty, "taken off each token for every time that the reply has it",
               kHere);
  table.number("repetition-penalty", options.repetition_penalty, engine::kLeastRepetitionPenalty,
               engine::kMostRepetitionPenalty,
               "above 1, makes less probable what prompt and reply have already; default from "
               "generation_config.json, else 1",
               kHere);
  table.integer("logprobs", options.logprobs, 0, engine::kMostLogprobs,
                "with --json, each token's log probability and those of the K best", kHere);
  table.flag("ignore-eos", options.ignore_eos, "don't stop at an end token", kHere);
}

}  // namespace

Command generate_command(CLI::App& root) {
  Command command = make_command(
      root, "generate", "Write one reply to standard output.",
      "  flashlane generate --chat 'Count to five.'\n"
      "  flashlane generate --prompt 'def add(a, b):' --max-tokens 64 --temperature 0.7 --seed 1\n"
      "  flashlane generate --model synth:tiny,format=bf16 --prompt-ids ids.json --json\n"
      "\n--json prints "
      "{\"ids\",\"text\",\"logprobs\",\"finish_reason\",\"token_sha\",\"prompt_tokens\",\"drafts\","
      "\n"
      "\"timings\",\"memory\"}; token_sha is the sha256 of the reply's decimal ids joined by "
      "commas, end "
      "token\n"
      "included; \"logprobs\" is there with --logprobs; times are in milliseconds. Text leaves "
      "special tokens out. Drafts change the\n"
      "speed and never a token.\n");
  auto options = std::make_shared<GenerateOptions>();
  OptionTable& table = *command.table;
  add_model_options(table, options->model);
  add_prompt_options(table, options->prompt);
  add_sampling(table, *options);
  add_prefill_chunk(table, options->prefill_chunk);
  table.flag("no-drafts", options->no_drafts, "decode one token a step, without the MTP head");
  add_lone_options(table, options->lone);
  add_json(table, options->json, "one JSON object at the end instead of text as it comes");
  command.run = [options] { return run_generate(*options); };
  return command;
}

}  // namespace flashlane::cli
