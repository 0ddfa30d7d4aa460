// The kinds of step, in the order in which they are asked for: moves, restores, then rows of
// prompts or windows of replies; and the step that follows a lone reply's while that is still under
// way.
#include <algorithm>
#include <span>
#include <utility>

#include "base/check.h"
#include "scheduler/decode_turns.h"
#include "scheduler/prompt_turns.h"
#include "scheduler/scheduler_state.h"

namespace flashlane::scheduler {

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
      ++sequence->in_flight;
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
    ++sequence->in_flight;
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
         .draft_room = sequence->draft_room() - 1,
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

// The only reply that there is, if its steps may follow one another by themselves.
Sequence* Scheduler::State::lone_reply() const {
  if (arrived || running.size() != 1) return nullptr;
  Sequence* only = running.front();
  return only->phase == Phase::kDecoding && driver.takes(*only) ? only : nullptr;
}

// Between two steps: the reply that was driven goes on in shared ones, unless it is alone still.
void Scheduler::State::hand_over() {
  const Sequence* lone = lone_reply();
  const SequenceId driven = driver.driven();
  if (driver.hands_over(lone == nullptr ? SequenceId{} : lone->id)) {
    trace.add(TraceKind::kHandoff, driven);
  }
}

// Its next step, as it was planned, is its own. A window that was copied from its context, and one
// behind a token that a rule put there, come from here, as in company.
void Scheduler::State::drive(Sequence& sequence, Segment& segment) {
  driver.drove(sequence.id, false);
  trace.add(TraceKind::kLone, sequence.id, {segment.most_rows(), 0});
  const bool own = sequence.source == DraftSource::kHead || sequence.source == DraftSource::kNone;
  if (!own || !sequence.as_drawn) return;
  segment.verdict_rows = segment.most_rows();
  segment.start_position = -1;
  segment.tokens.clear();
}

// What the sequences of a plan get with it; it is under way from here on.
void Scheduler::State::send_off(StepPlan& plan) {
  for (Segment& segment : plan.segments) {
    Sequence& sequence = *slots[static_cast<size_t>(segment.slot)];
    const int start = segment.verdict_rows > 0 ? sequence.reply_position() + sequence.rows_in_flight
                                               : segment.start_position;
    ++sequence.in_flight;
    sequence.rows_in_flight += segment.most_rows();
    sequence.drafts_asked = segment.draft_depth;
    pages.map(sequence.pages, start + segment.most_rows(), segment);
  }
  ++in_flight;
}

// While a lone reply's step is under way: the one that follows it. None where that one may end the
// reply by its length, or bring it to the end of its session; none either where a copy of the
// context is at hand, which is worth more than the time between two steps.
StepPlan Scheduler::State::plan_ahead() {
  Sequence* sequence = lone_reply();
  if (sequence == nullptr || in_flight >= driver.steps_in_flight()) return {};
  const int ahead = sequence->rows_in_flight;
  if (ahead == 0 || sequence->source == DraftSource::kLookup) return {};  // a move, or a copy
  const int room = sequence->draft_room();
  if (room < 1 || !sequence->lookup.proposal(true, room).empty()) return {};
  if (!options.sessions.empty() && pages.room(sequence->pages, sequence->reply_position() + ahead,
                                              kMostDecodeRows + options.max_draft,
                                              sequence->most_rows()) != memory::Room::kEnough) {
    return {};
  }
  const int drafts = std::min({sequence->drafts_asked, room - 1, kMostDecodeRows - 1});
  const VerifyClaim claim{.chances = sequence->acceptance.landing(drafts)};
  const bool sampled = any_sampled({sequence});
  const int rows = 1 + policy.verify_rows(std::span(&claim, 1), sampled).front();
  StepPlan plan;
  plan.segments.push_back(sequence->verdict_segment(rows));
  sequence->served = ++decode_steps;
  driver.drove(sequence->id, true);
  trace.add(TraceKind::kLone, sequence->id, {rows, in_flight});
  ask_for_drafts(plan, {sequence}, 0);
  send_off(plan);
  return plan;
}

StepPlan Scheduler::State::plan_rows() {
  const std::vector<Sequence*> prompts = in_phase(Phase::kPrefilling);
  const std::vector<Sequence*> replies = in_phase(Phase::kDecoding);
  if (prompts.empty() && replies.empty()) return {};
  if (replies.empty() || (!prompts.empty() && share.prompt_is_due())) {
    return plan_prompts(prompts, !replies.empty());
  }
  for (Sequence* sequence : replies) {
    sequence->next_handoff = driver.next_handoff(sequence->rules.emitted());
  }
  StepPlan plan = plan_decode(replies);
  if (Sequence* lone = lone_reply()) drive(*lone, plan.segments.front());
  return plan;
}

// What was freed goes to those that wait for it in the middle before it goes to new ones.
StepPlan Scheduler::State::plan() {
  if (in_flight > 0) return plan_ahead();
  StepPlan plan = plan_moves();
  if (plan.empty()) {
    admit();
    hand_over();
    plan = plan_restores();
  }
  if (plan.empty()) plan = plan_rows();
  if (!plan.empty()) send_off(plan);
  return plan;
}

StepPlan Scheduler::plan() {
  return state_->plan();
}

}  // namespace flashlane::scheduler
