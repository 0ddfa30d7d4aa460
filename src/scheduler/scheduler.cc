// The first scheduler: a queue and one running sequence. Commit goes token by token, so that a
// reply is cut at the same token whether a round brings one or five (E1).
#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

enum class Phase : uint8_t { kWaiting, kPrefilling, kDecoding, kRetiring };

struct Sequence {
  Sequence(SequenceId sequence_id, SequenceSpec sequence_spec, int max_draft)
      : id(sequence_id),
        spec(std::move(sequence_spec)),
        stops(spec.stop_strings),
        policy(spec.drafts ? max_draft : 0),
        uses_mtp(spec.drafts && max_draft > 0) {}

  SequenceId id;
  SequenceSpec spec;
  StopMatcher stops;
  DraftPolicy policy;
  bool uses_mtp;
  Phase phase = Phase::kWaiting;
  int prefilled = 0;            // prompt tokens committed
  int emitted = 0;              // reply tokens committed, the pending one included
  int32_t pending = -1;         // last committed reply token, not yet fed
  std::vector<int32_t> drafts;  // for the positions after `pending`
  DraftStats stats;

  int prompt_size() const { return static_cast<int>(spec.prompt.size()); }
  int remaining() const { return spec.max_tokens - emitted; }
};

Error refuse(const char* field, Error refusal) {
  refusal.field = field;
  return refusal;
}

Status check_sampling(const Sampling& sampling) {
  const auto out_of = [](const char* field, double value, const char* range) {
    return refuse(field, invalid("{} is {}; it must be {}", field, value, range));
  };
  if (!(std::isfinite(sampling.temperature) && sampling.temperature >= 0)) {
    return out_of("temperature", sampling.temperature, "0 or more");
  }
  if (sampling.top_k < 0) return out_of("top_k", sampling.top_k, "0 or more");
  if (!(sampling.top_p >= 0 && sampling.top_p <= 1)) {
    return out_of("top_p", sampling.top_p, "from 0 to 1");
  }
  if (!(sampling.min_p >= 0 && sampling.min_p <= 1)) {
    return out_of("min_p", sampling.min_p, "from 0 to 1");
  }
  return {};
}

}  // namespace

Status check_spec(const SequenceSpec& spec, const SchedulerOptions& options) {
  if (spec.prompt.empty()) return refuse("prompt", invalid("the prompt has no tokens"));
  if (spec.max_tokens < 1) {
    return refuse("max_tokens", invalid("max_tokens is {}; it must be 1 or more", spec.max_tokens));
  }
  const auto context = static_cast<uint64_t>(options.context);
  if (uint64_t{spec.prompt.size()} + static_cast<uint64_t>(spec.max_tokens) > context) {
    return refuse("max_tokens", invalid("prompt {} + {} new tokens exceeds the context of {}",
                                        spec.prompt.size(), spec.max_tokens, options.context));
  }
  for (size_t i = 0; i < spec.prompt.size(); ++i) {
    const int32_t token = spec.prompt[i];
    if (token < 0 || (options.vocabulary > 0 && token >= options.vocabulary)) {
      return refuse("prompt", invalid("prompt token {} is {}; the vocabulary has ids 0 to {}", i,
                                      token, options.vocabulary - 1));
    }
  }
  const bool stops = std::any_of(spec.stop_strings.begin(), spec.stop_strings.end(),
                                 [](const std::string& stop) { return !stop.empty(); });
  if (stops && options.token_bytes == nullptr) {
    return refuse("stop", invalid("stop strings need a tokenizer, and this model has none"));
  }
  return check_sampling(spec.sampling);
}

struct Scheduler::State {
  SchedulerOptions options;
  uint64_t next_id = 1;
  std::deque<std::unique_ptr<Sequence>> waiting;
  std::unique_ptr<Sequence> active;  // in slot 0
  bool in_flight = false;            // a planned step has not come back
  std::vector<Event> events;

  void retire(Sequence& sequence, FinishReason reason, Error error = {});
  Segment prefill_segment(const Sequence& sequence) const;
  Segment verify_segment(const Sequence& sequence) const;
  void commit_prefill(Sequence& sequence, const Segment& segment, const SegmentResult& result);
  void commit_verify(Sequence& sequence, const Segment& segment, const SegmentResult& result);
  void commit_tokens(Sequence& sequence, const SegmentResult& result);
  bool landed(const Segment& segment);
};

// The only way out: nothing is planned for the sequence from here on, and this is its last event.
// It keeps its slot as long as a step in flight may still write there.
void Scheduler::State::retire(Sequence& sequence, FinishReason reason, Error error) {
  CHECK(sequence.phase != Phase::kRetiring);
  sequence.phase = Phase::kRetiring;
  events.push_back({.kind = Event::Kind::kFinished,
                    .sequence = sequence.id,
                    .prefilled = sequence.prefilled,
                    .reason = reason,
                    .error = std::move(error),
                    .drafts = sequence.stats});
  if (&sequence == active.get()) {
    if (!in_flight) active.reset();
    return;
  }
  std::erase_if(waiting, [&](const auto& other) { return other.get() == &sequence; });
}

Segment Scheduler::State::prefill_segment(const Sequence& sequence) const {
  const std::vector<int32_t>& prompt = sequence.spec.prompt;
  const int end = std::min(sequence.prompt_size() - sequence.prefilled, options.prefill_chunk) +
                  sequence.prefilled;
  const bool last = end == sequence.prompt_size();
  // After the first token, max_tokens - 1 are left; a window takes one row for its pending token.
  const int depth = last ? sequence.policy.depth(sequence.spec.max_tokens - 2) : 0;
  return {.sequence = sequence.id,
          .slot = 0,
          .kind = SegmentKind::kPrefill,
          .start_position = sequence.prefilled,
          .tokens = {prompt.begin() + sequence.prefilled, prompt.begin() + end},
          .next_token = last ? -1 : prompt[static_cast<size_t>(end)],
          .sampling = sequence.spec.sampling,
          .draft_depth = depth,
          .uses_mtp = sequence.uses_mtp};
}

Segment Scheduler::State::verify_segment(const Sequence& sequence) const {
  // Each row brings at most one token, so a window never has more rows than tokens are left.
  const int drafts = std::min(static_cast<int>(sequence.drafts.size()), sequence.remaining() - 1);
  std::vector<int32_t> tokens = {sequence.pending};
  tokens.insert(tokens.end(), sequence.drafts.begin(), sequence.drafts.begin() + drafts);
  return {.sequence = sequence.id,
          .slot = 0,
          .kind = SegmentKind::kVerify,
          .start_position = sequence.prompt_size() + sequence.emitted - 1,
          .tokens = std::move(tokens),
          .next_token = -1,
          .sampling = sequence.spec.sampling,
          // This round brings one token at least, and the next window has a pending row.
          .draft_depth = sequence.policy.depth(sequence.remaining() - 2),
          .uses_mtp = sequence.uses_mtp};
}

// Appends tokens one by one until one of them ends the reply. The sequence may be gone afterwards.
void Scheduler::State::commit_tokens(Sequence& sequence, const SegmentResult& result) {
  Event event{.kind = Event::Kind::kTokens, .sequence = sequence.id};
  std::optional<FinishReason> reason;
  for (const int32_t token : result.tokens) {
    event.tokens.push_back(token);
    sequence.pending = token;
    ++sequence.emitted;
    const std::vector<int32_t>& end_ids = sequence.spec.end_ids;
    const bool ends = std::find(end_ids.begin(), end_ids.end(), token) != end_ids.end();
    const bool stops =
        options.token_bytes != nullptr && sequence.stops.push(options.token_bytes->bytes(token));
    if (ends || stops) {
      reason = FinishReason::kStop;
    } else if (sequence.remaining() == 0) {
      reason = FinishReason::kLength;
    }
    if (reason) break;
  }
  sequence.drafts = result.drafts;
  const int kept = static_cast<int>(event.tokens.size());
  events.push_back(std::move(event));
  // The last of the result's tokens was no draft; of the others, those that were committed stood.
  sequence.stats.accepted += std::min(kept, static_cast<int>(result.tokens.size()) - 1);
  if (reason) retire(sequence, *reason);
}

void Scheduler::State::commit_prefill(Sequence& sequence, const Segment& segment,
                                      const SegmentResult& result) {
  CHECK_EQ(segment.start_position, sequence.prefilled);
  sequence.prefilled += static_cast<int>(segment.tokens.size());
  events.push_back(
      {.kind = Event::Kind::kPrefilled, .sequence = sequence.id, .prefilled = sequence.prefilled});
  const bool last = sequence.prefilled == sequence.prompt_size();
  CHECK_EQ(result.tokens.size(), size_t{last ? 1U : 0U});
  if (!last) return;
  sequence.phase = Phase::kDecoding;
  commit_tokens(sequence, result);
}

void Scheduler::State::commit_verify(Sequence& sequence, const Segment& segment,
                                     const SegmentResult& result) {
  CHECK(!result.tokens.empty());
  CHECK_LE(result.tokens.size(), segment.tokens.size());
  const int drafted = static_cast<int>(segment.tokens.size()) - 1;
  const int accepted = static_cast<int>(result.tokens.size()) - 1;
  for (int i = 0; i < accepted; ++i) {
    CHECK_EQ(result.tokens[static_cast<size_t>(i)], segment.tokens[static_cast<size_t>(i) + 1]);
  }
  ++sequence.stats.rounds;
  sequence.stats.drafted += drafted;
  sequence.policy.observe(drafted, accepted);
  commit_tokens(sequence, result);
}

// Whether the segment's sequence still wants its result; a retired one is let go here.
bool Scheduler::State::landed(const Segment& segment) {
  CHECK(active != nullptr && active->id == segment.sequence);
  if (active->phase != Phase::kRetiring) return true;
  active.reset();
  return false;
}

Scheduler::Scheduler(SchedulerOptions options) : state_(std::make_unique<State>()) {
  CHECK_GE(options.context, 1);
  CHECK_GE(options.prefill_chunk, 1);
  CHECK_GE(options.max_draft, 0);
  state_->options = std::move(options);
}
Scheduler::~Scheduler() = default;
Scheduler::Scheduler(Scheduler&&) noexcept = default;
Scheduler& Scheduler::operator=(Scheduler&&) noexcept = default;

Result<SequenceId> Scheduler::submit(SequenceSpec spec) {
  RETURN_IF_ERROR(check_spec(spec, state_->options));
  const SequenceId id{state_->next_id++};
  state_->waiting.push_back(
      std::make_unique<Sequence>(id, std::move(spec), state_->options.max_draft));
  return id;
}

void Scheduler::cancel(SequenceId id) {
  Sequence* active = state_->active.get();
  if (active != nullptr && active->id == id) {
    if (active->phase != Phase::kRetiring) state_->retire(*active, FinishReason::kCancelled);
    return;
  }
  const auto found = std::find_if(state_->waiting.begin(), state_->waiting.end(),
                                  [&](const auto& sequence) { return sequence->id == id; });
  if (found != state_->waiting.end()) state_->retire(**found, FinishReason::kCancelled);
}

StepPlan Scheduler::plan() {
  State& state = *state_;
  CHECK(!state.in_flight);
  if (state.active == nullptr) {
    if (state.waiting.empty()) return {};
    state.active = std::move(state.waiting.front());
    state.waiting.pop_front();
    state.active->phase = Phase::kPrefilling;
    state.events.push_back({.kind = Event::Kind::kStarted, .sequence = state.active->id});
  }
  StepPlan plan;
  plan.segments.push_back(state.active->phase == Phase::kPrefilling
                              ? state.prefill_segment(*state.active)
                              : state.verify_segment(*state.active));
  state.in_flight = true;
  return plan;
}

void Scheduler::commit(const StepPlan& plan, const StepResult& result) {
  State& state = *state_;
  CHECK(state.in_flight);
  CHECK_EQ(plan.segments.size(), result.segments.size());
  state.in_flight = false;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    const SegmentResult& landed = result.segments[i];
    CHECK_LE(landed.drafts.size(), static_cast<size_t>(segment.draft_depth));
    if (!state.landed(segment)) continue;
    if (segment.kind == SegmentKind::kPrefill) {
      state.commit_prefill(*state.active, segment, landed);
    } else {
      state.commit_verify(*state.active, segment, landed);
    }
  }
}

void Scheduler::fail(const StepPlan& plan, const Error& error) {
  State& state = *state_;
  CHECK(state.in_flight);
  state.in_flight = false;
  for (const Segment& segment : plan.segments) {
    if (state.landed(segment)) state.retire(*state.active, FinishReason::kError, error);
  }
}

std::vector<Event> Scheduler::collect() {
  return std::exchange(state_->events, {});
}

int Scheduler::running() const {
  return state_->active != nullptr && state_->active->phase != Phase::kRetiring ? 1 : 0;
}

int Scheduler::waiting() const {
  return static_cast<int>(state_->waiting.size());
}

}  // namespace flashlane::scheduler
