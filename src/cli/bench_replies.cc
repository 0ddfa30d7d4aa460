// Times are the engine's own, as `flashlane generate --json` reports them.
#include "cli/bench_replies.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "base/sha256.h"

namespace flashlane::cli {

namespace {

// What a request has to move, prompt and decode steps apart.
struct CountedReply {
  TimedReply reply;
  model::Traffic prompt, decode;
};

Result<TimedReply> reply_to(engine::Engine& engine, const ReplyCase& wanted, bool drafts) {
  engine::Request request;
  request.prompt.assign(wanted.prompt.begin(), wanted.prompt.end());
  request.max_tokens = wanted.tokens + 1;
  request.drafts = drafts;
  ASSIGN_OR_RETURN(engine::Reply reply, engine.submit(std::move(request)));
  return finish_reply(reply);
}

// The same request on an engine whose runner reports what it reads.
Result<CountedReply> count_reply(model::Model& model, const ServingSizes& sizes,
                                 const ReplyCase& wanted, bool drafts) {
  CountingEngine counting(model, sizes);
  RETURN_IF_ERROR(counting.start());
  CountedReply counted;
  ASSIGN_OR_RETURN(counted.reply, reply_to(counting.engine(), wanted, drafts));
  counting.stop();
  counted.prompt = counting.prompt();
  counted.decode = counting.decode();
  return counted;
}

Status check_same(const std::vector<int32_t>& ids, const std::vector<int32_t>& plain,
                  std::string_view what) {
  if (ids == plain) return {};
  const auto at = std::mismatch(ids.begin(), ids.end(), plain.begin(), plain.end()).first;
  return error(ErrorCode::kInternal, "{} differs from the plain reply from token {} on", what,
               at - ids.begin());
}

struct ReplyRounds {
  std::vector<TimedReply> plain, drafted;
};

Result<ReplyRounds> time_rounds(model::Model& model, const ServingSizes& sizes,
                                const ReplyCase& wanted, const std::vector<int32_t>& expected,
                                const BenchProgress& progress) {
  ASSIGN_OR_RETURN(const auto engine, make_engine(model, sizes, nullptr));
  ReplyRounds rounds;
  for (int round = 0; round < wanted.rounds; ++round) {
    progress(fmt::format("replies of {} after {}, round {} of {}", wanted.tokens,
                         wanted.prompt.size(), round + 1, wanted.rounds));
    ASSIGN_OR_RETURN(TimedReply plain, reply_to(*engine, wanted, false));
    RETURN_IF_ERROR(check_same(plain.ids, expected, "a repeated reply"));
    rounds.plain.push_back(std::move(plain));
    if (!wanted.drafts) continue;
    ASSIGN_OR_RETURN(TimedReply drafted, reply_to(*engine, wanted, true));
    RETURN_IF_ERROR(check_same(drafted.ids, expected, "a drafted reply"));
    rounds.drafted.push_back(std::move(drafted));
  }
  return rounds;
}

template <typename Time>
std::vector<double> each_ms(const std::vector<TimedReply>& replies, Time time) {
  std::vector<double> ms;
  ms.reserve(replies.size());
  for (const TimedReply& reply : replies) ms.push_back(time(reply.timings));
  return ms;
}

}  // namespace

Result<TimedReply> finish_reply(engine::Reply& reply) {
  constexpr auto kPatience = std::chrono::milliseconds(1000);
  TimedReply timed;
  while (true) {
    std::optional<engine::ReplyEvent> event = reply.next(kPatience);
    if (!event.has_value()) continue;
    timed.ids.insert(timed.ids.end(), event->tokens.begin(), event->tokens.end());
    if (event->kind != engine::ReplyEvent::Kind::kFinished) continue;
    if (event->reason != scheduler::FinishReason::kLength) {
      return event->reason == scheduler::FinishReason::kError
                 ? event->error
                 : error(ErrorCode::kInternal, "the reply ended early");
    }
    timed.timings = event->timings;
    timed.drafts = event->drafts;
    return timed;
  }
}

CountingEngine::CountingEngine(model::Model& model, const ServingSizes& sizes)
    : model_(model), sizes_(sizes), counter_(model.weights(), sizes.runner.kv_dtype) {}

Status CountingEngine::start() {
  sizes_.runner.probe = &counter_;
  ASSIGN_OR_RETURN(runner_, runner::Runner::create(model_, sizes_.runner));
  const auto run = [this](const scheduler::StepPlan& plan) {
    Result<scheduler::StepResult> result = runner_->run(plan);
    const bool is_prompt = plan.segments.front().kind == scheduler::SegmentKind::kPrefill;
    (is_prompt ? prompt_ : decode_) += counter_.take();
    return result;
  };
  engine::EngineOptions options = engine_options(model_, sizes_);
  price_drafts(options, *runner_, sizes_.pricing);
  counter_.take();
  engine_ = std::make_unique<engine::Engine>(run, engine::with_pool_of(*runner_, options));
  return {};
}

Result<ReplyCells> bench_replies(model::Model& model, const ServingSizes& sizes,
                                 const ReplyCase& wanted, const BenchProgress& progress) {
  progress(
      fmt::format("counting bytes of {} tokens after {}", wanted.tokens, wanted.prompt.size()));
  ASSIGN_OR_RETURN(const CountedReply plain, count_reply(model, sizes, wanted, false));
  std::optional<CountedReply> drafted;
  if (wanted.drafts) {
    ASSIGN_OR_RETURN(drafted, count_reply(model, sizes, wanted, true));
    RETURN_IF_ERROR(check_same(drafted->reply.ids, plain.reply.ids, "a drafted reply"));
  }
  ASSIGN_OR_RETURN(const ReplyRounds rounds,
                   time_rounds(model, sizes, wanted, plain.reply.ids, progress));

  ReplyCells out;
  out.ids = plain.reply.ids;
  Cell cell;
  cell.context = static_cast<int>(wanted.prompt.size());
  if (wanted.prompt_cell) {
    Cell prompt = cell;
    prompt.kind = CellKind::kPrompt;
    prompt.rows = std::min(sizes.prefill_chunk, cell.context);
    prompt.ms = each_ms(rounds.plain, [](const engine::Timings& t) { return t.prefill_ms; });
    prompt.tokens_per_unit = cell.context;
    prompt.traffic = plain.prompt;
    out.cells.push_back(std::move(prompt));
  }
  cell.token_sha = token_sha(out.ids);
  const auto per_token = [&](const engine::Timings& t) { return t.decode_ms / wanted.tokens; };
  Cell decode = cell;
  decode.kind = CellKind::kDecode;
  decode.ms = each_ms(rounds.plain, per_token);
  decode.timed_units = decode.traffic_units = wanted.tokens;
  decode.traffic = plain.decode;
  out.cells.push_back(std::move(decode));
  if (drafted.has_value()) {
    Cell chain = cell;
    chain.kind = CellKind::kDrafted;
    chain.rows = 1 + sizes.runner.max_draft;
    chain.ms = each_ms(rounds.drafted, per_token);
    chain.timed_units = chain.traffic_units = wanted.tokens;
    chain.traffic = drafted->decode;
    chain.drafts = rounds.drafted.back().drafts;
    out.cells.push_back(std::move(chain));
  }
  return out;
}

}  // namespace flashlane::cli
