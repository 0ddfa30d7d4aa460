// Admission and the way out.
#include "scheduler/scheduler.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/scheduler_state.h"

namespace flashlane::scheduler {

// The only way out: nothing is planned for the sequence from here on, and this is its last event.
// It keeps its slot as long as a step in flight may still write there.
void Scheduler::State::retire(Sequence& sequence, FinishReason reason, Error error) {
  CHECK(sequence.phase != Phase::kRetiring);
  trace.add(TraceKind::kRetire, sequence.id,
            {static_cast<int32_t>(reason), sequence.prefilled, sequence.rules.emitted()});
  const bool waits = sequence.phase == Phase::kWaiting;
  sequence.phase = Phase::kRetiring;
  driver.ended(sequence.id);
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
  } else if (sequence.in_flight == 0) {
    vacate(sequence);
  }
}

void Scheduler::State::cancel(Sequence& sequence) {
  trace.add(TraceKind::kCancel, sequence.id, {static_cast<int32_t>(sequence.phase)});
  retire(sequence, FinishReason::kCancelled);
}

// Frees pages, slot and the sequence with them.
void Scheduler::State::vacate(Sequence& sequence) {
  CHECK(sequence.phase == Phase::kRetiring && sequence.in_flight == 0);
  std::erase(running, &sequence);
  states.let_go(sequence.states);
  pages.release(sequence.pages);
  slots[static_cast<size_t>(sequence.slot)].reset();
}

// Free slots go to those that wait, in order, the lowest slot first. One whose pages are not there
// waits on, and those behind it that fit may go before it, but not for ever.
void Scheduler::State::admit() {
  arrived = false;
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

Scheduler::Scheduler(SchedulerOptions options) {
  CHECK_GE(options.context, 1);
  CHECK(options.slots >= 1 && options.slots <= kMostSlots);
  CHECK_GE(options.prefill_chunk, 1);
  CHECK_GE(options.steps_in_flight, 1);
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
  state_->arrived = true;
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

const memory::PromptCache& Scheduler::kept_states() const {
  return state_->states.cache();
}

std::optional<memory::PromptCache::Kept> Scheduler::adopt_state(std::span<const int32_t> tokens) {
  memory::PromptCache& cache = state_->states.cache();
  const auto size = static_cast<int>(tokens.size());
  const bool usable = !cache.off() && size < state_->options.context;
  return usable ? cache.keep(tokens, size) : std::nullopt;
}

void Scheduler::settle_state(memory::EntryId id, bool worked) {
  memory::PromptCache& cache = state_->states.cache();
  if (worked) {
    cache.settle(id);
  } else {
    cache.failed(id);
  }
}

void Scheduler::hold_state(memory::EntryId id) {
  state_->states.cache().pin(id);
}

void Scheduler::release_state(memory::EntryId id) noexcept {
  state_->states.cache().unpin(id);
}

LoneUsage Scheduler::lone() const {
  return state_->driver.usage();
}

memory::PoolUsage Scheduler::pages() const {
  return state_->pages.usage();
}

int Scheduler::waiting() const {
  return static_cast<int>(state_->waiting.size());
}

}  // namespace flashlane::scheduler
