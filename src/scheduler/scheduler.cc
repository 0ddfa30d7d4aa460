// Admission, the two kinds of step, and the way out.
#include "scheduler/scheduler.h"

#include <algorithm>
#include <deque>
#include <optional>
#include <utility>

#include "base/check.h"
#include "scheduler/decode_policy.h"
#include "scheduler/decode_turns.h"
#include "scheduler/prompt_states.h"
#include "scheduler/prompt_turns.h"
#include "scheduler/sequence.h"
#include "scheduler/sequence_pages.h"
#include "scheduler/step_share.h"

namespace flashlane::scheduler {

struct Scheduler::State {
  explicit State(SchedulerOptions chosen)
      : options(std::move(chosen)),
        slots(static_cast<size_t>(options.slots)),
        pages(options.pool, pool_pages(options), options.slots, options.sessions,
              options.session_grow),
        states({.pages = options.kept_pages,
                .page_rows = options.pool.page_rows(),
                .state_pages = options.pool.state_pages(),
                .least_gap = options.kept_gap}),
        trace(options.trace_entries),
        share(options.decode_share),
        policy({options.costs, options.lone_priced, options.max_draft}) {}

  SchedulerOptions options;
  uint64_t next_id = 1;
  std::deque<std::unique_ptr<Sequence>> waiting;
  std::vector<std::unique_ptr<Sequence>> slots;  // null: free
  SequencePages pages;
  PromptStates states;
  std::vector<Sequence*> running = {};  // those in slots, in order of admission
  Trace trace;
  StepShare share;
  DecodePolicy policy;
  uint64_t decode_steps = 0;
  bool in_flight = false;  // a planned step has not come back
  std::vector<Event> events = {};

  void retire(Sequence& sequence, FinishReason reason, Error error = {});
  void cancel(Sequence& sequence);
  void vacate(Sequence& sequence);
  void admit();
  void admit(std::unique_ptr<Sequence> sequence, size_t slot);
  std::vector<Sequence*> in_phase(Phase phase) const;
  StepPlan plan_moves();
  StepPlan plan_restores();
  StepPlan plan_prompts(const std::vector<Sequence*>& prompts, bool replies_run);
  StepPlan plan_decode(const std::vector<Sequence*>& replies);
  void observe(const StepPlan& plan, double elapsed_ms);
  void commit_prefill(Sequence& sequence, const Segment& segment, const SegmentResult& result);
  void deliver(Sequence& sequence, size_t drawn, Landed landed);
  void ask_for_drafts(StepPlan& plan, const std::vector<Sequence*>& sequences, size_t others);
  static bool any_sampled(const std::vector<Sequence*>& sequences);
  void commit_move(const Move& move, bool worked, const Error& error);
  void commit_restore(const Restore& restore, bool worked);
  Sequence* landed(int slot, SequenceId id);
};

// The only way out: nothing is planned for the sequence from here on, and this is its last event.
// It keeps its slot as long as a step in flight may still write there.
void Scheduler::State::retire(Sequence& sequence, FinishReason reason, Error error) {
  CHECK(sequence.phase != Phase::kRetiring);
  trace.add(TraceKind::kRetire, sequence.id,
            {static_cast<int32_t>(reason), sequence.prefilled, sequence.rules.emitted()});
  const bool waits = sequence.phase == Phase::kWaiting;
  sequence.phase = Phase::kRetiring;
  events.push_back({.kind = Event::Kind::kFinished,
                    .sequence = sequence.id,
                    .prefilled = sequence.prefilled,
                    .reason = reason,
                    .error = std::move(error),
                    // Not what a restore that never came back would have brought.
                    .reuse = {.cached = sequence.states.resumes ? 0 : sequence.states.cached,
                              .miss = sequence.states.miss,
                              .first_difference = sequence.states.first_difference},
                    .drafts = sequence.stats,
                    .repetition_period = sequence.rules.repetition_period()});
  if (waits) {
    std::erase_if(waiting, [&](const auto& other) { return other.get() == &sequence; });
  } else if (!sequence.in_flight) {
    vacate(sequence);
  }
}

void Scheduler::State::cancel(Sequence& sequence) {
  trace.add(TraceKind::kCancel, sequence.id, {static_cast<int32_t>(sequence.phase)});
  retire(sequence, FinishReason::kCancelled);
}

// Frees pages, slot and the sequence with them.
void Scheduler::State::vacate(Sequence& sequence) {
  CHECK(sequence.phase == Phase::kRetiring && !sequence.in_flight);
  std::erase(running, &sequence);
  states.let_go(sequence.states);
  pages.release(sequence.pages);
  slots[static_cast<size_t>(sequence.slot)].reset();
}

// Free slots go to those that wait, in order, the lowest slot first. One whose pages are not there
// waits on, and those behind it that fit may go before it, but not for ever.
void Scheduler::State::admit() {
  const auto free_slot = [&] { return std::find(slots.begin(), slots.end(), nullptr); };
  size_t next = 0;
  for (auto slot = free_slot(); slot != slots.end() && next < waiting.size(); slot = free_slot()) {
    Sequence& sequence = *waiting[next];
    if (!pages.admit(sequence.prompt_size(), sequence.spec.max_tokens, sequence.pages)) {
      if (sequence.overtaken >= kMostOvertaken) return;
      ++next;
      continue;
    }
    std::unique_ptr<Sequence> admitted = std::move(waiting[next]);
    waiting.erase(waiting.begin() + static_cast<std::ptrdiff_t>(next));
    admit(std::move(admitted), static_cast<size_t>(slot - slots.begin()));
    bool enough = false;
    for (size_t i = 0; i < next; ++i) enough |= ++waiting[i]->overtaken >= kMostOvertaken;
    if (enough) return;
  }
}

void Scheduler::State::admit(std::unique_ptr<Sequence> sequence, size_t slot) {
  sequence->slot = static_cast<int>(slot);
  sequence->phase = Phase::kPrefilling;
  sequence->acceptance.start_from(policy.usual_acceptance());
  trace.add(TraceKind::kAdmit, sequence->id, {sequence->slot});
  events.push_back({.kind = Event::Kind::kStarted, .sequence = sequence->id});
  states.admit(sequence->spec.prompt, sequence->spec.marks, sequence->states);
  running.push_back(sequence.get());
  slots[slot] = std::move(sequence);
}

// Replies that outgrow their sessions, those that wait already first: each moves to a larger
// session or waits, on a step that would still fit. It waits only for a session that exists, and
// whoever has the largest never waits.
StepPlan Scheduler::State::plan_moves() {
  StepPlan plan;
  if (options.sessions.empty()) return plan;  // nothing is outgrown in the pool
  std::vector<Sequence*> replies = in_phase(Phase::kPaused);
  const std::vector<Sequence*> others = in_phase(Phase::kDecoding);
  replies.insert(replies.end(), others.begin(), others.end());
  for (Sequence* sequence : replies) {
    const int position = sequence->reply_position();
    const memory::Room room = pages.room(
        sequence->pages, position, kMostDecodeRows + options.max_draft, sequence->most_rows());
    if (room == memory::Room::kEnough) continue;
    CHECK(room != memory::Room::kFull);  // check_spec asked for the largest
    const int capacity = pages.capacity(sequence->pages.session);
    if (room == memory::Room::kMove) {
      Move move{.sequence = sequence->id, .slot = sequence->slot};
      pages.begin_move(sequence->pages, sequence->most_rows(), move);
      sequence->in_flight = true;
      plan.moves.push_back(std::move(move));
    } else if (sequence->phase == Phase::kDecoding) {
      sequence->phase = Phase::kPaused;
      trace.add(TraceKind::kPause, sequence->id, {position, capacity});
      events.push_back({.kind = Event::Kind::kPaused,
                        .sequence = sequence->id,
                        .position = position,
                        .capacity = capacity});
    }
  }
  return plan;
}

// Sequences that go on from a kept state, before anything else of them runs: copies, no forward.
StepPlan Scheduler::State::plan_restores() {
  StepPlan plan;
  for (Sequence* sequence : running) {
    if (sequence->phase == Phase::kRetiring || !sequence->states.resumes) continue;
    Restore restore = states.restore(sequence->spec.prompt, sequence->states);
    restore.sequence = sequence->id;
    restore.slot = sequence->slot;
    pages.map(sequence->pages, restore);
    sequence->in_flight = true;
    trace.add(TraceKind::kRestore, sequence->id, {static_cast<int32_t>(restore.tokens.size())});
    plan.restores.push_back(std::move(restore));
  }
  return plan;
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
                     .most = PromptStates::most_rows(sequence->states, sequence->prefilled,
                                                     sequence->prompt_left()),
                     .passed_over = sequence->passed_over,
                     .alone = sequence->prompt_alone});
    CHECK_GE(turns.back().left, 1);
  }
  for (Sequence* sequence : prompts) ++sequence->passed_over;
  StepPlan plan;
  std::vector<Sequence*> ending;
  const int rows = share.prompt_rows(replies_run, options.prefill_chunk);
  for (const PromptShare& part : share_prompt_rows(turns, rows, kMostDecodeRows)) {
    Sequence& sequence = *prompts[part.index];
    sequence.passed_over = 0;
    plan.segments.push_back(sequence.prefill_segment(part.rows, 0));
    states.keep(sequence.spec.prompt, sequence.states, plan.segments.back());
    trace.add(TraceKind::kPromptRows, sequence.id,
              {sequence.prefilled, part.rows, sequence.prompt_left() - part.rows});
    if (part.rows == sequence.prompt_left()) ending.push_back(&sequence);
  }
  ask_for_drafts(plan, ending, running.size() - ending.size());
  return plan;
}

StepPlan Scheduler::State::plan_decode(const std::vector<Sequence*>& replies) {
  const bool alone = replies.size() == 1;
  std::vector<Sequence::Window> windows;
  std::vector<DecodeTurn> turns;
  windows.reserve(replies.size());
  turns.reserve(replies.size());
  for (const Sequence* sequence : replies) {
    windows.push_back(sequence->next_window(alone));
    const bool forced = windows.back().source == DraftSource::kForced;
    const auto rows = static_cast<int>(windows.back().tokens.size());
    turns.push_back({.served = sequence->served, .fixed_rows = 1 + (forced ? rows : 0)});
  }
  const std::vector<size_t> chosen = choose_decode_turns(turns, kMostDecodeRows);
  std::vector<VerifyClaim> claims;
  std::vector<Sequence*> deciding;
  claims.reserve(chosen.size());
  deciding.reserve(chosen.size());
  for (const size_t i : chosen) {
    claims.push_back({.fixed_rows = turns[i].fixed_rows, .chances = windows[i].chances});
    deciding.push_back(replies[i]);
  }
  const std::vector<int> draft_rows = policy.verify_rows(claims, any_sampled(deciding));
  ++decode_steps;
  StepPlan plan;
  for (size_t n = 0; n < chosen.size(); ++n) {
    Sequence& sequence = *deciding[n];
    const Sequence::Window& window = windows[chosen[n]];
    const int rows = draft_rows[n] + turns[chosen[n]].fixed_rows - 1;
    sequence.served = decode_steps;
    sequence.source = rows == 0 ? DraftSource::kNone : window.source;
    sequence.was_alone = alone;
    plan.segments.push_back(sequence.verify_segment(window, rows, 0));
    trace.add(TraceKind::kWindow, sequence.id,
              {plan.segments.back().start_position, static_cast<int32_t>(window.source),
               static_cast<int32_t>(window.tokens.size()), rows});
  }
  ask_for_drafts(plan, deciding, replies.size() - deciding.size());
  return plan;
}

bool Scheduler::State::any_sampled(const std::vector<Sequence*>& sequences) {
  return std::any_of(sequences.begin(), sequences.end(), [](const Sequence* sequence) {
    return sequence->spec.sampling.temperature > 0;
  });
}

// Sets how many drafts the head is to make for the next segments of these sequences of the plan;
// `others` run beside them.
void Scheduler::State::ask_for_drafts(StepPlan& plan, const std::vector<Sequence*>& sequences,
                                      size_t others) {
  if (sequences.empty()) return;
  std::vector<DepthClaim> claims;
  claims.reserve(sequences.size());
  for (Sequence* sequence : sequences) {
    const bool copying = sequence->source == DraftSource::kLookup;
    claims.push_back(
        {.acceptance = sequence->uses_mtp ? &sequence->acceptance : nullptr,
         .lone = &sequence->lone,
         // This step commits one token at least.
         .draft_room = sequence->rules.draft_room() - 1,
         .waiting_rows = sequence->waiting_rows + sequence->prompt_left(),
         .next = {.forced_due = !sequence->rules.forced().empty(), .copy_ahead = copying}});
  }
  const std::vector<int> depths =
      policy.depths(claims, static_cast<int>(others), any_sampled(sequences));
  for (size_t i = 0; i < sequences.size(); ++i) {
    const auto own =
        std::find_if(plan.segments.begin(), plan.segments.end(),
                     [&](const Segment& segment) { return segment.sequence == sequences[i]->id; });
    CHECK(own != plan.segments.end());
    own->draft_depth = depths[i];
    trace.add(TraceKind::kDepth, sequences[i]->id, {depths[i]});
  }
}

void Scheduler::State::observe(const StepPlan& plan, double elapsed_ms) {
  const auto has = [&](Phase phase) {
    return std::any_of(running.begin(), running.end(),
                       [&](const Sequence* sequence) { return sequence->phase == phase; });
  };
  size_t rows = 0;
  for (const Segment& segment : plan.segments) rows += segment.tokens.size();
  if (plan.segments.front().kind == SegmentKind::kPrefill) {
    share.observe_prompt(static_cast<int>(rows), elapsed_ms, has(Phase::kDecoding));
    return;
  }
  share.observe_decode(elapsed_ms, static_cast<int>(plan.segments.size()), has(Phase::kPrefilling));
  std::vector<int> depths;
  int waiting_rows = 0;
  bool sampled = false;
  for (const Segment& segment : plan.segments) {
    depths.push_back(segment.draft_depth);
    waiting_rows += slots[static_cast<size_t>(segment.slot)]->rows_taken_in(segment);
    sampled = sampled || segment.sampling.temperature > 0;
  }
  std::optional<int> lone_drafts;
  const Sequence& first = *slots[static_cast<size_t>(plan.segments.front().slot)];
  const bool own_drafts = first.source == DraftSource::kHead || first.source == DraftSource::kNone;
  const bool first_step = first.stats.rounds == 0;  // it still carries the switch from the prompt
  if (plan.segments.size() == 1 && first.was_alone && own_drafts && !first_step) {
    lone_drafts = static_cast<int>(rows) - 1;
  }
  policy.observe(static_cast<int>(rows), sampled, elapsed_ms, depths, waiting_rows, lone_drafts);
}

void Scheduler::State::commit_prefill(Sequence& sequence, const Segment& segment,
                                      const SegmentResult& result) {
  if (!segment.keep_pages.empty()) trace.add(TraceKind::kKeep, sequence.id, {result.kept});
  sequence.commit_prompt(segment);
  events.push_back(
      {.kind = Event::Kind::kPrefilled, .sequence = sequence.id, .prefilled = sequence.prefilled});
  if (sequence.prompt_left() > 0) {
    CHECK(result.tokens.empty());
    return;
  }
  sequence.phase = Phase::kDecoding;
  // Its turn counts from here: as one that was never served it would go before all others, and
  // replies that come and go fast enough could keep an old one waiting for ever.
  sequence.served = decode_steps;
  deliver(sequence, result.tokens.size(), sequence.commit_first(result));
}

// Only want of a session keeps a reply waiting: a move that did not work ends it.
void Scheduler::State::commit_move(const Move& move, bool worked, const Error& error) {
  Sequence* sequence = landed(move.slot, move.sequence);
  if (sequence == nullptr) return;
  const int capacity = pages.capacity(sequence->pages.session);
  pages.end_move(sequence->pages, worked);
  if (!worked) return retire(*sequence, FinishReason::kError, error);
  const int position = sequence->reply_position();
  const int larger = pages.capacity(sequence->pages.session);
  trace.add(TraceKind::kMove, sequence->id, {position, capacity, larger});
  events.push_back({.kind = Event::Kind::kMoved,
                    .sequence = sequence->id,
                    .position = position,
                    .capacity = capacity,
                    .new_capacity = larger});
  // As one that begins: behind those that wait for their turn.
  if (std::exchange(sequence->phase, Phase::kDecoding) == Phase::kPaused) {
    sequence->served = decode_steps;
  }
}

// Where it did not work the prompt goes in from its beginning.
void Scheduler::State::commit_restore(const Restore& restore, bool worked) {
  Sequence& own = *slots[static_cast<size_t>(restore.slot)];
  states.restored(own.states, worked);
  Sequence* sequence = landed(restore.slot, restore.sequence);
  if (sequence == nullptr || !worked) return;
  sequence->prefilled = static_cast<int>(restore.tokens.size());
  sequence->waiting_rows = sequence->uses_mtp ? 1 : 0;
  events.push_back({.kind = Event::Kind::kPrefilled,
                    .sequence = sequence->id,
                    .prefilled = sequence->prefilled,
                    .cached = sequence->prefilled});
}

// Sends what landed; the sequence may be gone afterwards.
void Scheduler::State::deliver(Sequence& sequence, size_t drawn, Landed landed) {
  const auto count = static_cast<int32_t>(landed.tokens.size());
  trace.add(TraceKind::kLanded, sequence.id,
            {static_cast<int32_t>(drawn), count, landed.unchanged});
  int32_t place = sequence.rules.emitted() - count;
  for (const int32_t token : landed.tokens) {
    trace.add(TraceKind::kToken, sequence.id, {token, place++});
  }
  events.push_back({.kind = Event::Kind::kTokens,
                    .sequence = sequence.id,
                    .tokens = std::move(landed.tokens),
                    .logprobs = std::move(landed.logprobs)});
  if (!landed.end) return;
  retire(sequence, *landed.end == ReplyEnd::kStop ? FinishReason::kStop : FinishReason::kLength);
}

// The sequence of a segment that came back; null, and its slot let go, when it has ended meanwhile.
Sequence* Scheduler::State::landed(int slot, SequenceId id) {
  Sequence* sequence = slots[static_cast<size_t>(slot)].get();
  CHECK(sequence != nullptr && sequence->id == id && sequence->in_flight);
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
  state_->trace.add(TraceKind::kSubmit, id,
                    {static_cast<int32_t>(spec.prompt.size()), spec.max_tokens, spec.drafts});
  state_->waiting.push_back(std::make_unique<Sequence>(id, std::move(spec), state_->options));
  return id;
}

void Scheduler::cancel(SequenceId id) {
  State& state = *state_;
  const auto is_it = [&](const auto& sequence) { return sequence->id == id; };
  const auto runs = std::find_if(state.running.begin(), state.running.end(), is_it);
  if (runs != state.running.end()) {
    if ((*runs)->phase != Phase::kRetiring) state.cancel(**runs);
    return;
  }
  const auto waits = std::find_if(state.waiting.begin(), state.waiting.end(), is_it);
  if (waits != state.waiting.end()) state.cancel(**waits);
}

StepPlan Scheduler::plan() {
  State& state = *state_;
  CHECK(!state.in_flight);
  // What was freed goes to those that wait for it in the middle before it goes to new ones.
  for (const auto step : {&State::plan_moves, &State::plan_restores}) {
    if (step == &State::plan_restores) state.admit();
    StepPlan plan = (state.*step)();
    if (plan.empty()) continue;
    state.in_flight = true;
    return plan;
  }
  const std::vector<Sequence*> prompts = state.in_phase(Phase::kPrefilling);
  const std::vector<Sequence*> replies = state.in_phase(Phase::kDecoding);
  if (prompts.empty() && replies.empty()) return {};
  const bool prompt_step = replies.empty() || (!prompts.empty() && state.share.prompt_is_due());
  StepPlan plan =
      prompt_step ? state.plan_prompts(prompts, !replies.empty()) : state.plan_decode(replies);
  for (Segment& segment : plan.segments) {
    Sequence& sequence = *state.slots[static_cast<size_t>(segment.slot)];
    sequence.in_flight = true;
    state.pages.map(sequence.pages, segment);
  }
  state.in_flight = true;
  return plan;
}

void Scheduler::commit(const StepPlan& plan, const StepResult& result) {
  State& state = *state_;
  CHECK(state.in_flight);
  CHECK_EQ(plan.segments.size(), result.segments.size());
  CHECK_EQ(plan.restores.size(), result.restored.size());
  CHECK_EQ(plan.moves.size(), result.moved.size());
  state.in_flight = false;
  for (size_t i = 0; i < plan.restores.size(); ++i) {
    state.commit_restore(plan.restores[i], result.restored[i]);
  }
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    state.commit_move(plan.moves[i], result.moved[i],
                      error(ErrorCode::kInternal, "could not move to a larger session"));
  }
  if (plan.segments.empty()) return;
  state.observe(plan, result.elapsed_ms);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    const SegmentResult& back = result.segments[i];
    CHECK_LE(back.drafts.size(), static_cast<size_t>(segment.draft_depth));
    state.states.kept(state.slots[static_cast<size_t>(segment.slot)]->states, back.kept);
    Sequence* sequence = state.landed(segment.slot, segment.sequence);
    if (sequence == nullptr) continue;
    if (segment.kind == SegmentKind::kPrefill) {
      state.commit_prefill(*sequence, segment, back);
    } else {
      if (sequence->source == DraftSource::kHead) {
        state.policy.observe_drafts(static_cast<int>(segment.tokens.size()) - 1,
                                    static_cast<int>(back.tokens.size()) - 1);
      }
      state.deliver(*sequence, back.tokens.size(), sequence->commit_window(segment, back));
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
  for (const Move& move : plan.moves) state.commit_move(move, false, error);
  // What a failed restore would have read can be read no more; its prompt begins anew.
  const bool lost = error.code == ErrorCode::kDeviceLost;
  for (const Restore& restore : plan.restores) {
    state.commit_restore(restore, false);
    Sequence* sequence = state.slots[static_cast<size_t>(restore.slot)].get();
    if (lost && sequence != nullptr) state.retire(*sequence, FinishReason::kError, error);
  }
  for (const Segment& segment : plan.segments) {
    state.states.let_go(state.slots[static_cast<size_t>(segment.slot)]->states);
    Sequence* sequence = state.landed(segment.slot, segment.sequence);
    if (sequence == nullptr) continue;
    state.trace.add(TraceKind::kFailed, sequence->id, {static_cast<int32_t>(error.code)});
    if (shared_prompts && !lost) {
      state.trace.add(TraceKind::kRestart, sequence->id);
      sequence->prefilled = 0;
      sequence->states.cached = 0;
      sequence->waiting_rows = 0;
      sequence->prompt_alone = true;
    } else {
      state.retire(*sequence, FinishReason::kError, error);
    }
  }
}

std::vector<Event> Scheduler::collect() {
  return std::exchange(state_->events, {});
}

const Trace& Scheduler::trace() const {
  return state_->trace;
}

int Scheduler::running() const {
  return static_cast<int>(
      std::count_if(state_->running.begin(), state_->running.end(),
                    [](const Sequence* sequence) { return sequence->phase != Phase::kRetiring; }));
}

void Scheduler::check() const {
  state_->pages.check();
  state_->states.check();
}

memory::PromptCacheUsage Scheduler::kept() const {
  return state_->states.usage();
}

SessionUsage Scheduler::sessions() const {
  return state_->pages.sessions();
}

memory::PoolUsage Scheduler::pages() const {
  return state_->pages.usage();
}

int Scheduler::waiting() const {
  return static_cast<int>(state_->waiting.size());
}

}  // namespace flashlane::scheduler
