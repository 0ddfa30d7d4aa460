// The account and its checks, in the order in which things happen to a sequence.
#include "tests/sim/ledger.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashlane::sim {

using scheduler::Event;
using scheduler::FinishReason;
using scheduler::Segment;
using scheduler::SegmentKind;
using scheduler::SequenceId;
using scheduler::StepPlan;

namespace {

// The promise of the scheduler, in the simulator's own words: a prompt goes first once eight prompt
// steps in a row went to others.
constexpr int kPassedOver = 8;
constexpr size_t kRows = 16;  // of a decode step
constexpr double kLeastCounted = 0.5;

}  // namespace

void Ledger::breach(std::string problem) {
  if (problem_.empty()) problem_ = std::move(problem);
}

void Ledger::hear(std::string problem) {
  if (!problem.empty()) breach(std::move(problem));
}

void Ledger::waits(bool slot_is_free) {
  hear(pages_.waiting(slot_is_free));
}

void Ledger::submitted(SequenceId id, const scheduler::SequenceSpec& spec) {
  if (id.value <= newest_) breach(fmt::format("id {} was given before", id.value));
  newest_ = std::max(newest_, id.value);
  live_[id.value] = {.spec = spec, .solo = testing::solo_reply(spec, vocabulary_, texts_, memory_)};
  pages_.submitted(id.value, static_cast<int>(spec.prompt.size()) + spec.max_tokens);
  tally_.add(Seen::kRequest);
}

void Ledger::cancelled(SequenceId id) {
  const auto found = live_.find(id.value);
  if (found == live_.end()) {
    tally_.add(id.value > newest_ || id.value == 0 ? Seen::kCancelUnknown : Seen::kCancelEnded);
    return;
  }
  Record& record = found->second;
  if (record.cancelled) {
    tally_.add(Seen::kCancelTwice);
  } else if (record.in_flight) {
    tally_.add(Seen::kCancelInFlight);
  } else {
    constexpr Seen kByStage[] = {Seen::kCancelWaiting, Seen::kCancelFilling, Seen::kCancelDecoding};
    tally_.add(kByStage[static_cast<size_t>(record.stage)]);
  }
  record.cancelled = true;
}

void Ledger::mapped(const StepPlan& plan) {
  for (const Segment& segment : plan.segments) {
    if (live_.contains(segment.sequence.value)) hear(pages_.planned(segment));
  }
  for (const scheduler::Restore& restore : plan.restores) {
    if (live_.contains(restore.sequence.value)) hear(pages_.planned(restore));
  }
  for (const scheduler::Move& move : plan.moves) {
    if (live_.contains(move.sequence.value)) hear(pages_.planned(move));
  }
}

void Ledger::plan_moves(const StepPlan& plan) {
  tally_.add(Seen::kMoveStep);
  if (!plan.segments.empty() || !plan.restores.empty()) return breach("a step moves and does more");
  for (const scheduler::Move& move : plan.moves) {
    mark(move.sequence.value << 32 | move.pages.size());
    const auto found = live_.find(move.sequence.value);
    if (found == live_.end() || found->second.stage != Stage::kDecoding ||
        found->second.in_flight || found->second.slot != move.slot) {
      return breach(fmt::format("sequence {} moves at the wrong time", move.sequence.value));
    }
    found->second.in_flight = true;
  }
}

// A move that fails ends its reply: only want of a session keeps one waiting.
void Ledger::landed_moves(const StepPlan& plan, const std::vector<bool>& moved,
                          const Error& error) {
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    const bool worked = i < moved.size() && moved[i];
    pages_.moved(plan.moves[i], worked);
    const auto found = live_.find(plan.moves[i].sequence.value);
    if (found == live_.end()) continue;
    Record& record = found->second;
    record.in_flight = false;
    if (worked) continue;
    tally_.add(Seen::kFailedMove);
    record.failed = true;
    record.failure = error;
    record.must_end = true;
  }
}

// A reply waits only where a larger session exists, and moves to a larger one.
void Ledger::take_room(const Event& event, Record& record) {
  const uint64_t id = event.sequence.value;
  const bool moves = event.kind == Event::Kind::kMoved;
  const std::vector<int>& sessions = options_.sessions;
  const bool larger = std::any_of(sessions.begin(), sessions.end(),
                                  [&](int rows) { return rows > event.capacity; });
  const int rows = static_cast<int>(record.spec.prompt.size() + record.tokens.size()) - 1;
  if (record.stage != Stage::kDecoding || event.position != rows || !larger ||
      (moves && event.new_capacity <= event.capacity) || (!moves && record.paused)) {
    return breach(fmt::format("{} at {} of {}: out of place", id, event.position, event.capacity));
  }
  if (moves && record.paused) record.turn = decode_turns_;
  record.paused = !moves;
  record.steps_over = 0;
  record.decode_steps_over = 0;
  tally_.add(moves ? Seen::kMoved : Seen::kPaused);
}

// Restores come before any row of their sequences and are beginnings of their prompts.
void Ledger::plan_restores(const StepPlan& plan) {
  tally_.add(Seen::kRestoreStep);
  if (!plan.segments.empty()) return breach("a step restores and runs rows");
  for (const scheduler::Restore& restore : plan.restores) {
    const uint64_t id = restore.sequence.value;
    mark(id << 32 | restore.tokens.size());
    const auto found = live_.find(id);
    if (found == live_.end()) return breach(fmt::format("ended sequence {} is restored", id));
    Record& record = found->second;
    const std::vector<int32_t>& prompt = record.spec.prompt;
    if (record.in_flight || record.stage != Stage::kFilling || record.prefilled > 0 ||
        record.restored || !take_slot(record, id, restore.slot)) {
      return breach(fmt::format("sequence {} is restored at the wrong time", id));
    }
    if (restore.tokens.empty() || restore.tokens.size() >= prompt.size() ||
        !std::equal(restore.tokens.begin(), restore.tokens.end(), prompt.begin())) {
      return breach(fmt::format("sequence {} is restored from another prompt", id));
    }
    record.in_flight = true;
    record.restored = true;
  }
}

void Ledger::planned(const StepPlan& plan) {
  if (!plan.moves.empty()) return plan_moves(plan);
  if (!plan.restores.empty()) return plan_restores(plan);
  const bool prompts = plan.segments.front().kind == SegmentKind::kPrefill;
  size_t rows = 0;
  for (const Segment& segment : plan.segments) {
    rows += segment.tokens.size();
    if ((segment.kind == SegmentKind::kPrefill) != prompts) breach("a step has two roles");
    plan_segment(segment, plan.segments.size() > 1);
    if (!ok()) return;
  }
  const size_t limit = prompts ? static_cast<size_t>(options_.prefill_chunk) : kRows;
  if (rows > limit) breach(fmt::format("{} rows in a step, limit {}", rows, limit));
  tally_.add(Seen::kStep);
  if (plan.segments.size() > 1) {
    tally_.add(prompts ? Seen::kSharedPromptStep : Seen::kSharedDecodeStep);
  }
  if (!prompts && plan.segments.size() == kRows) tally_.add(Seen::kFullDecodeStep);
  if (prompts) {
    prompt_turn();
  } else {
    decode_turn();
  }
}

// Whether the sequence may be in the slot; from its first step on it is its own.
bool Ledger::take_slot(Record& record, uint64_t id, int slot) {
  if (slot < 0 || slot >= options_.slots) return false;
  uint64_t& owner = owners_[static_cast<size_t>(slot)];
  if (record.slot < 0) {
    if (live_.contains(owner)) return false;
    owner = id;
    record.slot = slot;
  }
  return record.slot == slot && owner == id;
}

void Ledger::plan_segment(const Segment& segment, bool shared) {
  const uint64_t id = segment.sequence.value;
  mark(id);
  mark(static_cast<uint64_t>(segment.start_position) << 32 | segment.tokens.size());
  mark(static_cast<uint64_t>(segment.slot) << 32 | static_cast<uint64_t>(segment.draft_depth));
  const auto found = live_.find(id);
  if (found == live_.end()) return breach(fmt::format("ended sequence {} is planned", id));
  Record& record = found->second;
  if (record.in_flight) return breach(fmt::format("sequence {} twice in a step", id));
  record.in_flight = true;
  if (!take_slot(record, id, segment.slot)) {
    return breach(fmt::format("sequence {} in slot {}, which is not its own", id, segment.slot));
  }
  const int most_drafts = record.spec.drafts ? options_.max_draft : 0;
  if (segment.draft_depth < 0 || segment.draft_depth > most_drafts) {
    return breach(fmt::format("{} drafts asked of {}", segment.draft_depth, most_drafts));
  }
  if (segment.tokens.empty()) return breach("a segment without rows");
  if (segment.kind == SegmentKind::kPrefill) {
    plan_prompt(record, segment, shared);
  } else {
    plan_window(record, segment);
  }
}

void Ledger::plan_prompt(const Record& record, const Segment& segment, bool shared) {
  const std::vector<int32_t>& prompt = record.spec.prompt;
  const size_t start = static_cast<size_t>(segment.start_position);
  const size_t end = start + segment.tokens.size();
  if (record.stage != Stage::kFilling) return breach("prompt rows of a sequence that replies");
  if (segment.start_position != record.prefilled || end > prompt.size() ||
      !std::equal(segment.tokens.begin(), segment.tokens.end(),
                  prompt.begin() + record.prefilled)) {
    return breach(fmt::format("prompt rows {} to {}, {} done", start, end, record.prefilled));
  }
  if (segment.next_token != (end == prompt.size() ? -1 : prompt[end])) {
    return breach("the token after a chunk of the prompt is wrong");
  }
  if (record.alone && shared) breach("a prompt that broke a shared step shares one again");
}

void Ledger::plan_window(const Record& record, const Segment& segment) {
  const int prompt = static_cast<int>(record.spec.prompt.size());
  const int rows = static_cast<int>(segment.tokens.size());
  if (record.stage != Stage::kDecoding) return breach("a window of a prompt that isn't in yet");
  if (record.paused) return breach("a window of a reply that waits for a session");
  if (segment.start_position != prompt + static_cast<int>(record.tokens.size()) - 1 ||
      segment.tokens.front() != record.tokens.back()) {
    return breach("a window does not begin with the last token");
  }
  // Each row brings at most one token.
  if (segment.start_position + rows >= prompt + record.spec.max_tokens) {
    return breach("a window is wider than the tokens left");
  }
  if (segment.forced_rows > 0) {
    // They are in the reply whatever is drawn; drafts behind them would be of another text.
    // The reply may end among them.
    const auto ahead = std::span(record.solo.tokens).subspan(record.tokens.size());
    const size_t common = std::min(ahead.size(), segment.tokens.size() - 1);
    if (segment.forced_rows != rows - 1 ||
        !std::equal(ahead.begin(), ahead.begin() + static_cast<std::ptrdiff_t>(common),
                    segment.tokens.begin() + 1)) {
      breach("forced rows that are not the reply's");
    }
    tally_.add(Seen::kForcedRow, segment.forced_rows);
    return;
  }
  const bool copies = record.spec.drafts && options_.prompt_lookup;
  const int of_head = record.spec.drafts ? options_.max_draft : 0;
  const int most_drafts = copies ? scheduler::kMostDecodeRows - 1 : of_head;
  if (rows - 1 > most_drafts) breach(fmt::format("{} drafts in a window", rows - 1));
  if (rows - 1 > of_head) tally_.add(Seen::kCopiedRow, rows - 1);
}

// No prompt waits for ever: one that is overdue is passed over only for one that waited at least as
// long, and so at most once for each of the others.
void Ledger::prompt_turn() {
  const int bound = kPassedOver + options_.slots - 1;
  int longest = 0;  // of those served
  for (const auto& [id, record] : live_) {
    if (record.in_flight) longest = std::max(longest, record.prompt_steps_over);
  }
  for (auto& [id, record] : live_) {
    if (record.stage != Stage::kFilling) continue;
    if (record.in_flight) {
      if (record.prompt_steps_over >= kPassedOver) tally_.add(Seen::kOverduePrompt);
      record.prompt_steps_over = 0;
      continue;
    }
    const int before = record.prompt_steps_over++;
    if (before >= bound || (before >= kPassedOver && before > longest)) {
      breach(fmt::format("prompt {} was passed over {} times, lastly for one that was {} times", id,
                         before + 1, longest));
    }
  }
}

// No reply waits for ever, and while prompts wait the replies take no more than their share. Nobody
// goes before one who was served longer ago, or began longer ago and was not served since; so those
// who may go before a reply that was passed over are the ones that there were then, once each.
void Ledger::decode_turn() {
  size_t replies = 0;
  size_t forcing = 0;  // may have three forced rows, which are never cut
  bool prompts_wait = false;
  int64_t latest = 0;  // turn of those in the step
  for (const auto& [id, record] : live_) {
    prompts_wait = prompts_wait || record.stage == Stage::kFilling;
    if (record.stage != Stage::kDecoding || record.paused) continue;
    ++replies;
    forcing += record.spec.thinking.budget > 0 ? 1 : 0;
    if (record.in_flight) latest = std::max(latest, record.turn);
  }
  // A step that leaves somebody out has at most three rows left.
  const size_t filled = forcing == 0 ? kRows : kRows - 3;
  const int bound = static_cast<int>((replies + 3 * forcing + filled - 1) / filled) - 1;
  ++decode_turns_;
  for (auto& [id, record] : live_) {
    if (record.stage != Stage::kDecoding || record.paused) continue;
    if (record.in_flight) {
      record.steps_over = 0;
      record.decode_steps_over = 0;
      record.turn = decode_turns_;
      continue;
    }
    if (record.decode_steps_over++ == 0) record.most_steps_over = bound;
    if (record.turn < latest) {
      breach(fmt::format("reply {} was passed over for one whose turn was later", id));
    }
    if (record.decode_steps_over > record.most_steps_over) {
      breach(fmt::format("reply {} was passed over {} times", id, record.decode_steps_over));
    }
  }
  if (!prompts_wait || after_prompt_step_) return;
  const double part = options_.decode_share / (1 - options_.decode_share);
  // Of a decode step's time half counts, at least.
  if (decode_ms_ * kLeastCounted >= prompt_ms_ * part + 1e-6) {
    breach(fmt::format("prompts wait though replies had {} ms for {} ms of prompts", decode_ms_,
                       prompt_ms_));
  }
  tally_.add(Seen::kDebt);
}

// A restore that fails is no end: the prompt goes in from its beginning, and nothing was there
// before. Once the device is lost everything ends.
void Ledger::landed_restores(const StepPlan& plan, const Error* error) {
  for (const scheduler::Restore& restore : plan.restores) {
    const auto found = live_.find(restore.sequence.value);
    if (found == live_.end()) continue;
    Record& record = found->second;
    record.in_flight = false;
    if (error == nullptr || error->code != ErrorCode::kDeviceLost) continue;
    record.failed = true;
    record.failure = *error;
    record.must_end = true;
  }
}

void Ledger::landed(const StepPlan& plan, double elapsed_ms) {
  if (!plan.restores.empty()) return landed_restores(plan, nullptr);
  const bool prompts = plan.segments.front().kind == SegmentKind::kPrefill;
  after_prompt_step_ = prompts && options_.decode_share > 0;
  prompt_ms_ = prompts ? elapsed_ms : prompt_ms_;
  decode_ms_ = prompts ? 0 : decode_ms_ + elapsed_ms;
  for (const Segment& segment : plan.segments) {
    const auto found = live_.find(segment.sequence.value);
    if (found != live_.end()) found->second.in_flight = false;
  }
  if (!prompts || options_.decode_share == 0) return;
  for (auto& [id, record] : live_) {
    // One between any two decode steps, of which some may have had no room for it.
    if (record.stage != Stage::kDecoding || record.paused) continue;
    if (++record.steps_over <= 1 + record.decode_steps_over) continue;
    breach(fmt::format("reply {} waits for {} prompt steps", id, record.steps_over));
  }
}

void Ledger::failed(const StepPlan& plan, const Error& error) {
  if (!plan.restores.empty()) return landed_restores(plan, &error);
  const bool prompts = plan.segments.front().kind == SegmentKind::kPrefill;
  const bool spared = prompts && plan.segments.size() > 1 && error.code != ErrorCode::kDeviceLost;
  tally_.add(spared ? Seen::kFailedSharedPrompt
                    : (prompts ? Seen::kFailedPrompt : Seen::kFailedDecode));
  for (const Segment& segment : plan.segments) {
    const auto found = live_.find(segment.sequence.value);
    if (found == live_.end()) continue;
    Record& record = found->second;
    record.in_flight = false;
    if (spared) {
      record.alone = true;
      record.prefilled = 0;
      record.cached = 0;
    } else {
      record.failed = true;
      record.failure = error;
    }
    record.must_end = !spared;
  }
}

void Ledger::take(const std::vector<Event>& events) {
  for (const Event& event : events) {
    mark(event.sequence.value << 8 | static_cast<uint64_t>(event.kind));
    for (const int32_t token : event.tokens) mark(static_cast<uint64_t>(token));
    take_event(event);
    if (!ok()) return;
  }
  for (const auto& [id, record] : live_) {
    if (record.cancelled || record.must_end) {
      return breach(fmt::format("sequence {} has no end though it was {}", id,
                                record.cancelled ? "cancelled" : "in a failed step"));
    }
  }
}

void Ledger::take_event(const Event& event) {
  const uint64_t id = event.sequence.value;
  const auto found = live_.find(id);
  if (found == live_.end()) {
    return breach(fmt::format("an event of {}, which {}", id,
                              id > newest_ ? "nobody asked for" : "has ended"));
  }
  Record& record = found->second;
  const auto prompt = static_cast<int>(record.spec.prompt.size());
  switch (event.kind) {
    case Event::Kind::kStarted:
      if (record.stage != Stage::kWaiting) breach(fmt::format("{} starts twice", id));
      hear(pages_.started(id));
      if (pages_.overtook()) tally_.add(Seen::kOvertaken);
      record.stage = Stage::kFilling;
      break;
    case Event::Kind::kPrefilled:
      if (record.stage != Stage::kFilling || event.prefilled <= record.prefilled ||
          event.prefilled > prompt) {
        breach(fmt::format("{}: {} prompt rows after {}", id, event.prefilled, record.prefilled));
      }
      if (event.cached > 0) {
        if (!record.restored || event.cached != event.prefilled || record.prefilled > 0) {
          breach(fmt::format("{}: {} of {} rows restored", id, event.cached, event.prefilled));
        }
        record.cached = event.cached;
        tally_.add(Seen::kResumed);
      }
      record.prefilled = event.prefilled;
      break;
    case Event::Kind::kTokens:
      take_tokens(event, record);
      break;
    case Event::Kind::kPaused:
    case Event::Kind::kMoved:
      take_room(event, record);
      break;
    case Event::Kind::kFinished:
      take_end(event, record);
      pages_.ended(id);
      live_.erase(found);
      break;
  }
}

void Ledger::take_tokens(const Event& event, Record& record) {
  const uint64_t id = event.sequence.value;
  if (record.prefilled != static_cast<int>(record.spec.prompt.size()) ||
      record.stage == Stage::kWaiting || event.tokens.empty()) {
    breach(fmt::format("{}: tokens out of place", id));
  }
  if (record.stage != Stage::kDecoding) record.turn = decode_turns_;
  record.stage = Stage::kDecoding;
  take_logprobs(event, record);
  record.tokens.insert(record.tokens.end(), event.tokens.begin(), event.tokens.end());
  const std::vector<int32_t>& solo = record.solo.tokens;
  if (record.tokens.size() > solo.size() ||
      !std::equal(record.tokens.begin(), record.tokens.end(), solo.begin())) {
    breach(fmt::format("reply {} is no beginning of its solo run", id));
  }
}

// Each token's own value at its own place in the reply, whatever window it came in.
void Ledger::take_logprobs(const Event& event, const Record& record) {
  const bool wanted = record.spec.logprobs >= 0;
  if (event.logprobs.size() != (wanted ? event.tokens.size() : 0)) {
    return breach(fmt::format("{}: {} log probabilities for {} tokens", event.sequence.value,
                              event.logprobs.size(), event.tokens.size()));
  }
  std::vector<int32_t> history = record.spec.prompt;
  history.insert(history.end(), record.tokens.begin(), record.tokens.end());
  for (size_t i = 0; i < event.logprobs.size(); ++i) {
    const scheduler::TokenLogprobs& own = event.logprobs[i];
    bool right = own.logprob == testing::fake_logprob(history, event.tokens[i]) &&
                 own.best.size() == static_cast<size_t>(record.spec.logprobs);
    for (const auto& [token, logprob] : own.best) {
      right = right && logprob == testing::fake_logprob(history, token);
    }
    if (!right) breach(fmt::format("{}: log probabilities of another row", event.sequence.value));
    const auto drawn = testing::fake_token(history, record.spec.sampling, vocabulary_, memory_);
    tally_.add(drawn == event.tokens[i] ? Seen::kLogprobs : Seen::kReplacedLogprobs);
    history.push_back(event.tokens[i]);
  }
}

void Ledger::take_end(const Event& event, Record& record) {
  const uint64_t id = event.sequence.value;
  switch (event.reason) {
    case FinishReason::kStop:
    case FinishReason::kLength:
      tally_.add(event.reason == FinishReason::kStop ? Seen::kStop : Seen::kLength);
      if (record.tokens != record.solo.tokens || event.reason != record.solo.reason) {
        breach(fmt::format("reply {} is not its solo run: {} tokens of {}", id,
                           record.tokens.size(), record.solo.tokens.size()));
      }
      break;
    case FinishReason::kCancelled:
      if (!record.cancelled) breach(fmt::format("{} ends cancelled by nobody", id));
      break;
    case FinishReason::kError:
      if (!record.failed || event.error.code != record.failure.code ||
          event.error.message != record.failure.message) {
        breach(fmt::format("{} ends by an error that isn't its own", id));
      }
      break;
  }
  if (event.reuse.cached != record.cached && record.stage == Stage::kDecoding) {
    breach(fmt::format("{} says that {} rows were restored, not {}", id, event.reuse.cached,
                       record.cached));
  }
  const scheduler::DraftStats& drafts = event.drafts;
  const auto tokens = static_cast<int64_t>(record.tokens.size());
  if (drafts.accepted > drafts.drafted || drafts.accepted < 0 || drafts.accepted > tokens ||
      drafts.rounds > tokens ||
      (record.spec.thinking.budget == 0 && drafts.rounds + drafts.accepted < tokens - 1)) {
    breach(fmt::format("{}: {} of {} drafts in {} rounds for {} tokens", id, drafts.accepted,
                       drafts.drafted, drafts.rounds, tokens));
  }
  const scheduler::DraftCounts head = scheduler::sum(drafts.head);
  const scheduler::DraftCounts copied = scheduler::sum(drafts.copied);
  if (head.drafted + copied.drafted != drafts.drafted ||
      head.accepted + copied.accepted != drafts.accepted) {
    breach(fmt::format("{}: drafts by source are not all drafts", id));
  }
  tally_.add(Seen::kAcceptedDraft, drafts.accepted);
}

void Ledger::counted(int running, int waiting) {
  const auto waits =
      static_cast<int>(std::count_if(live_.begin(), live_.end(), [](const auto& entry) {
        return entry.second.stage == Stage::kWaiting;
      }));
  const int runs = static_cast<int>(live_.size()) - waits;
  if (running != runs || waiting != waits || running > options_.slots) {
    breach(fmt::format("{} running and {} waiting, but {} and {} by its events", running, waiting,
                       runs, waits));
  }
}

int64_t Ledger::rows_to_come() const {
  int64_t rows = 0;
  for (const auto& [id, record] : live_) rows += record.rows_to_come();
  return rows;
}

void Ledger::at_end(const memory::PoolUsage& usage, const scheduler::SessionUsage& sessions) {
  hear(PageAccount::at_end(usage, sessions));
  if (!live_.empty()) {
    breach(fmt::format("{} sequences have no end, {} first", live_.size(), live_.begin()->first));
  }
}

}  // namespace flashlane::sim
