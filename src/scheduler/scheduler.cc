// Admission, the two kinds of step, and the way out. Slots are handed out in order of arrival; all
// else goes by slot, which is an index into `running`.
#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "scheduler/decode_turns.h"
#include "scheduler/prompt_turns.h"
#include "scheduler/sequence.h"
#include "scheduler/step_share.h"

namespace flashlane::scheduler {
namespace {

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
  explicit State(SchedulerOptions chosen)
      : options(std::move(chosen)),
        slots(static_cast<size_t>(options.slots)),
        share(options.decode_share) {}

  SchedulerOptions options;
  uint64_t next_id = 1;
  std::deque<std::unique_ptr<Sequence>> waiting;
  std::vector<std::unique_ptr<Sequence>> slots;  // null: free
  std::vector<Sequence*> running = {};           // those in slots, in order of admission
  StepShare share;
  uint64_t decode_steps = 0;
  bool in_flight = false;  // a planned step has not come back
  std::vector<Event> events = {};

  void retire(Sequence& sequence, FinishReason reason, Error error = {});
  void vacate(Sequence& sequence);
  void admit();
  std::vector<Sequence*> in_phase(Phase phase) const;
  StepPlan plan_prompts(const std::vector<Sequence*>& prompts, bool replies_run);
  StepPlan plan_decode(const std::vector<Sequence*>& replies);
  void observe(const StepPlan& plan, double elapsed_ms);
  void commit_prefill(Sequence& sequence, const Segment& segment, const SegmentResult& result);
  void commit_verify(Sequence& sequence, const Segment& segment, const SegmentResult& result);
  void commit_reply(Sequence& sequence, const SegmentResult& result);
  Sequence* landed(const Segment& segment);
};

// The only way out: nothing is planned for the sequence from here on, and this is its last event.
// It keeps its slot as long as a step in flight may still write there.
void Scheduler::State::retire(Sequence& sequence, FinishReason reason, Error error) {
  CHECK(sequence.phase != Phase::kRetiring);
  const bool waits = sequence.phase == Phase::kWaiting;
  sequence.phase = Phase::kRetiring;
  events.push_back({.kind = Event::Kind::kFinished,
                    .sequence = sequence.id,
                    .prefilled = sequence.prefilled,
                    .reason = reason,
                    .error = std::move(error),
                    .drafts = sequence.stats});
  if (waits) {
    std::erase_if(waiting, [&](const auto& other) { return other.get() == &sequence; });
  } else if (!sequence.in_flight) {
    vacate(sequence);
  }
}

// Frees the slot and the sequence with it.
void Scheduler::State::vacate(Sequence& sequence) {
  CHECK(sequence.phase == Phase::kRetiring && !sequence.in_flight);
  std::erase(running, &sequence);
  slots[static_cast<size_t>(sequence.slot)].reset();
}

// Free slots go to those that wait, in order, the lowest slot first.
void Scheduler::State::admit() {
  for (size_t slot = 0; slot < slots.size() && !waiting.empty(); ++slot) {
    if (slots[slot] != nullptr) continue;
    slots[slot] = std::move(waiting.front());
    waiting.pop_front();
    Sequence& sequence = *slots[slot];
    sequence.slot = static_cast<int>(slot);
    sequence.phase = Phase::kPrefilling;
    running.push_back(&sequence);
    events.push_back({.kind = Event::Kind::kStarted, .sequence = sequence.id});
  }
}

std::vector<Sequence*> Scheduler::State::in_phase(Phase phase) const {
  std::vector<Sequence*> found;
  std::copy_if(running.begin(), running.end(), std::back_inserter(found),
               [&](const Sequence* sequence) { return sequence->phase == phase; });
  return found;
}

StepPlan Scheduler::State::plan_prompts(const std::vector<Sequence*>& prompts, bool replies_run) {
  std::vector<PromptTurn> turns;
  turns.reserve(prompts.size());
  for (const Sequence* sequence : prompts) {
    turns.push_back({.left = sequence->prompt_left(),
                     .passed_over = sequence->passed_over,
                     .alone = sequence->prompt_alone});
    CHECK_GE(turns.back().left, 1);
  }
  for (Sequence* sequence : prompts) ++sequence->passed_over;
  StepPlan plan;
  const int rows = share.prompt_rows(replies_run, options.prefill_chunk);
  for (const PromptShare& part : share_prompt_rows(turns, rows, kMostDecodeRows)) {
    Sequence& sequence = *prompts[part.index];
    sequence.passed_over = 0;
    plan.segments.push_back(
        sequence.prefill_segment(part.rows, sequence.policy.depth(options.max_draft)));
  }
  return plan;
}

StepPlan Scheduler::State::plan_decode(const std::vector<Sequence*>& replies) {
  std::vector<DecodeTurn> turns;
  turns.reserve(replies.size());
  for (const Sequence* sequence : replies) {
    turns.push_back(
        {.served = sequence->served,
         .drafts = std::min(static_cast<int>(sequence->drafts.size()), sequence->draft_room())});
  }
  StepPlan plan;
  ++decode_steps;
  const std::vector<DecodeShare> shares = share_decode_rows(turns, kMostDecodeRows);
  // What a sequence can have verified in the next step, if these same ones share it.
  const int room = kMostDecodeRows / static_cast<int>(shares.size()) - 1;
  for (const DecodeShare& part : shares) {
    Sequence& sequence = *replies[part.index];
    sequence.served = decode_steps;
    plan.segments.push_back(sequence.verify_segment(part.draft_rows, sequence.policy.depth(room)));
  }
  return plan;
}

void Scheduler::State::observe(const StepPlan& plan, double elapsed_ms) {
  const auto has = [&](Phase phase) {
    return std::any_of(running.begin(), running.end(),
                       [&](const Sequence* sequence) { return sequence->phase == phase; });
  };
  if (plan.segments.front().kind == SegmentKind::kPrefill) {
    size_t rows = 0;
    for (const Segment& segment : plan.segments) rows += segment.tokens.size();
    share.observe_prompt(static_cast<int>(rows), elapsed_ms, has(Phase::kDecoding));
  } else {
    share.observe_decode(elapsed_ms, has(Phase::kPrefilling));
  }
}

void Scheduler::State::commit_prefill(Sequence& sequence, const Segment& segment,
                                      const SegmentResult& result) {
  CHECK_EQ(segment.start_position, sequence.prefilled);
  sequence.prefilled += static_cast<int>(segment.tokens.size());
  events.push_back(
      {.kind = Event::Kind::kPrefilled, .sequence = sequence.id, .prefilled = sequence.prefilled});
  const bool last = sequence.prompt_left() == 0;
  CHECK_EQ(result.tokens.size(), size_t{last ? 1U : 0U});
  if (!last) return;
  sequence.phase = Phase::kDecoding;
  commit_reply(sequence, result);
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
  commit_reply(sequence, result);
}

// The sequence may be gone afterwards.
void Scheduler::State::commit_reply(Sequence& sequence, const SegmentResult& result) {
  Committed committed = commit_tokens(sequence, result, options.token_bytes.get());
  events.push_back({.kind = Event::Kind::kTokens,
                    .sequence = sequence.id,
                    .tokens = std::move(committed.tokens)});
  if (committed.reason) retire(sequence, *committed.reason);
}

// The sequence of a segment that came back; null, and its slot let go, when it has ended meanwhile.
Sequence* Scheduler::State::landed(const Segment& segment) {
  Sequence* sequence = slots[static_cast<size_t>(segment.slot)].get();
  CHECK(sequence != nullptr && sequence->id == segment.sequence && sequence->in_flight);
  sequence->in_flight = false;
  if (sequence->phase != Phase::kRetiring) return sequence;
  vacate(*sequence);
  return nullptr;
}

Scheduler::Scheduler(SchedulerOptions options) {
  CHECK_GE(options.context, 1);
  CHECK(options.slots >= 1 && options.slots <= kMostSlots);
  CHECK_GE(options.prefill_chunk, 1);
  CHECK_GE(options.max_draft, 0);
  CHECK(options.decode_share >= 0 && options.decode_share <= StepShare::kMostShare);
  state_ = std::make_unique<State>(std::move(options));
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
  State& state = *state_;
  const auto is_it = [&](const auto& sequence) { return sequence->id == id; };
  const auto runs = std::find_if(state.running.begin(), state.running.end(), is_it);
  if (runs != state.running.end()) {
    if ((*runs)->phase != Phase::kRetiring) state.retire(**runs, FinishReason::kCancelled);
    return;
  }
  const auto waits = std::find_if(state.waiting.begin(), state.waiting.end(), is_it);
  if (waits != state.waiting.end()) state.retire(**waits, FinishReason::kCancelled);
}

StepPlan Scheduler::plan() {
  State& state = *state_;
  CHECK(!state.in_flight);
  state.admit();
  const std::vector<Sequence*> prompts = state.in_phase(Phase::kPrefilling);
  const std::vector<Sequence*> replies = state.in_phase(Phase::kDecoding);
  if (prompts.empty() && replies.empty()) return {};
  const bool prompt_step = replies.empty() || (!prompts.empty() && state.share.prompt_is_due());
  StepPlan plan =
      prompt_step ? state.plan_prompts(prompts, !replies.empty()) : state.plan_decode(replies);
  for (const Segment& segment : plan.segments) {
    state.slots[static_cast<size_t>(segment.slot)]->in_flight = true;
  }
  state.in_flight = true;
  return plan;
}

void Scheduler::commit(const StepPlan& plan, const StepResult& result) {
  State& state = *state_;
  CHECK(state.in_flight);
  CHECK_EQ(plan.segments.size(), result.segments.size());
  state.in_flight = false;
  state.observe(plan, result.elapsed_ms);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    const SegmentResult& back = result.segments[i];
    CHECK_LE(back.drafts.size(), static_cast<size_t>(segment.draft_depth));
    Sequence* sequence = state.landed(segment);
    if (sequence == nullptr) continue;
    if (segment.kind == SegmentKind::kPrefill) {
      state.commit_prefill(*sequence, segment, back);
    } else {
      state.commit_verify(*sequence, segment, back);
    }
  }
}

// A reply's step fails all that were in it: their states are unknown. Prompts that shared a step
// start again, each on its own, so that the failure is only that one's that brings it.
void Scheduler::fail(const StepPlan& plan, const Error& error) {
  State& state = *state_;
  CHECK(state.in_flight);
  state.in_flight = false;
  const bool shared_prompts =
      plan.segments.size() > 1 && plan.segments.front().kind == SegmentKind::kPrefill;
  for (const Segment& segment : plan.segments) {
    Sequence* sequence = state.landed(segment);
    if (sequence == nullptr) continue;
    if (shared_prompts && error.code != ErrorCode::kDeviceLost) {
      sequence->prefilled = 0;
      sequence->prompt_alone = true;
    } else {
      state.retire(*sequence, FinishReason::kError, error);
    }
  }
}

std::vector<Event> Scheduler::collect() {
  return std::exchange(state_->events, {});
}

int Scheduler::running() const {
  return static_cast<int>(
      std::count_if(state_->running.begin(), state_->running.end(),
                    [](const Sequence* sequence) { return sequence->phase != Phase::kRetiring; }));
}

int Scheduler::waiting() const {
  return static_cast<int>(state_->waiting.size());
}

}  // namespace flashlane::scheduler
