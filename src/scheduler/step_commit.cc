// What a step brought, or that it failed: rows, tokens and times go to whoever asked for them.
#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler_state.h"

namespace flashlane::scheduler {

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

// The sequence of a segment of so many rows that came back; null when it has ended meanwhile, and
// its slot let go if nothing of it is under way any more.
Sequence* Scheduler::State::landed(int slot, SequenceId id, int rows) {
  Sequence* sequence = slots[static_cast<size_t>(slot)].get();
  CHECK(sequence != nullptr && sequence->id == id && sequence->in_flight > 0);
  --sequence->in_flight;
  sequence->rows_in_flight -= rows;
  if (sequence->phase != Phase::kRetiring) return sequence;
  if (sequence->in_flight == 0) vacate(*sequence);
  return nullptr;
}

// A verdict's segment as it was run: what the step before it left is what the sequence has now.
// False where the sequence has ended: what ran behind its end is of no account.
bool Scheduler::State::fill(Segment& segment, const SegmentResult& result) {
  Sequence& sequence = *slots[static_cast<size_t>(segment.slot)];
  if (sequence.phase == Phase::kRetiring) {
    landed(segment.slot, segment.sequence, segment.most_rows());
    return false;
  }
  CHECK(sequence.as_drawn);
  fill_from_verdict(segment, sequence.reply_position(), sequence.pending, sequence.drafts);
  CHECK_EQ(result.rows, static_cast<int>(segment.tokens.size()));
  sequence.source = result.rows > 1 ? DraftSource::kHead : DraftSource::kNone;
  sequence.was_alone = true;
  return true;
}

void Scheduler::State::commit_rows(const StepPlan& plan, const StepResult& result) {
  observe(plan, result.elapsed_ms);
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    const SegmentResult& back = result.segments[i];
    CHECK_LE(back.drafts.size(), static_cast<size_t>(segment.draft_depth));
    states.kept(slots[static_cast<size_t>(segment.slot)]->states, back.kept);
    Sequence* sequence = landed(segment.slot, segment.sequence, segment.most_rows());
    if (sequence == nullptr) continue;
    if (segment.kind == SegmentKind::kPrefill) {
      commit_prefill(*sequence, segment, back);
    } else {
      if (sequence->source == DraftSource::kHead) {
        policy.observe_drafts(static_cast<int>(segment.tokens.size()) - 1,
                              static_cast<int>(back.tokens.size()) - 1);
      }
      deliver(*sequence, back.tokens.size(), sequence->commit_window(segment, back));
    }
  }
}

void Scheduler::commit(const StepPlan& plan, const StepResult& result) {
  State& state = *state_;
  CHECK_GT(state.in_flight, 0);
  CHECK_EQ(plan.segments.size(), result.segments.size());
  CHECK_EQ(plan.restores.size(), result.restored.size());
  CHECK_EQ(plan.moves.size(), result.moved.size());
  --state.in_flight;
  for (size_t i = 0; i < plan.restores.size(); ++i) {
    state.commit_restore(plan.restores[i], result.restored[i]);
  }
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    state.commit_move(plan.moves[i], result.moved[i],
                      error(ErrorCode::kInternal, "could not move to a larger session"));
  }
  if (plan.segments.empty()) return;
  if (plan.segments.front().verdict_rows == 0) return state.commit_rows(plan, result);
  StepPlan filled = plan;
  if (state.fill(filled.segments.front(), result.segments.front())) {
    state.commit_rows(filled, result);
  }
}

// A reply's step fails all that were in it: their states are unknown. Prompts that shared a step
// start again, each on its own, so that the failure is only that one's that brings it.
void Scheduler::fail(const StepPlan& plan, const Error& error) {
  State& state = *state_;
  CHECK_GT(state.in_flight, 0);
  --state.in_flight;
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
    Sequence* sequence = state.landed(segment.slot, segment.sequence, segment.most_rows());
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

}  // namespace flashlane::scheduler
