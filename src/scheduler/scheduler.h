// Scheduler: a value that decides what runs next. submit, cancel, plan, commit, fail; no threads,
// no clock, no device, no callbacks. Up to `slots` sequences run, as far as the pool holds them,
// and the others wait in order; a step is either rows of prompts or one decode window for each of
// several replies. Each sequence gets exactly one terminal event, through one way out (retire); a
// sequence that ends while a step of it is in flight keeps its slot until that step is back.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"
#include "memory/page_pool.h"
#include "memory/pool_layout.h"
#include "memory/prompt_cache.h"
#include "scheduler/cost_table.h"
#include "scheduler/draft_stats.h"
#include "scheduler/lone_driver.h"
#include "scheduler/reply_rules.h"
#include "scheduler/sequence_pages.h"
#include "scheduler/step_plan.h"
#include "scheduler/step_result.h"
#include "scheduler/stop.h"
#include "scheduler/trace.h"

namespace flashlane::scheduler {

struct SequenceSpec {
  std::vector<int32_t> prompt;  // not empty
  int max_tokens = 0;           // ≥ 1; prompt + max_tokens ≤ context
  Sampling sampling = {};
  std::vector<int32_t> end_ids = {};  // any of them ends the reply, itself included in it
  std::vector<std::string> stop_strings =
      {};  // raw bytes; the token that completes one ends the reply
  ThinkingRules thinking = {};
  bool drafts = true;
  // Places in the prompt whose states are worth keeping; the one before the last user message last.
  std::vector<int> marks = {};
  int logprobs = -1;  // so many of the best tokens with each token's; 0 = its own only, -1 = none
};

// How much of a prompt was there already.
struct PromptReuse {
  int cached = 0;  // tokens whose rows were restored
  memory::Miss miss = memory::Miss::kOff;
  int first_difference = 0;  // tokens that it shares with the closest kept prompt
};

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kError };

struct Event {
  enum class Kind : uint8_t { kStarted, kPrefilled, kTokens, kPaused, kMoved, kFinished };
  Kind kind = Kind::kTokens;
  SequenceId sequence = {};
  std::vector<int32_t> tokens = {};          // kTokens: newly committed reply tokens
  std::vector<TokenLogprobs> logprobs = {};  // kTokens: one for each, if asked for
  int prefilled = 0;                         // kPrefilled: prompt tokens done so far
  int cached = 0;  // kPrefilled: of them, those that were restored just now
  // kPaused, kMoved: where it stands, the rows of its session and of the one that it moved to.
  int position = 0;
  int capacity = 0;
  int new_capacity = 0;
  // kFinished:
  FinishReason reason = FinishReason::kStop;
  Error error = {};  // kError
  PromptReuse reuse = {};
  DraftStats drafts = {};
  int repetition_period = 0;  // not 0 when the repetition guard cut the thinking
};

struct SchedulerOptions {
  int context = 0;  // most positions of a sequence
  int slots = 1;    // sequences that run at once, at most kMostSlots
  // What a sequence takes of the runner's pool, and how many pages that has; 0: as many as all
  // slots need for a whole context each.
  memory::PoolLayout pool = {};
  int pages = 0;
  // Sized sessions: how many rows each holds, the first one a whole context with its margin; none:
  // the pool serves. A sequence begins in the smallest that holds its prompt and so many tokens of
  // its reply.
  std::vector<int> sessions = {};
  int session_grow = 8192;
  // Pages of the arena where states of prompts are kept; 0: none are. The wanted ones apart, they
  // lie at least so many tokens from each other.
  int kept_pages = 0;
  int kept_gap = 256;
  int prefill_chunk = 512;  // most prompt rows of a step
  // The part of the time that replies keep while prompts go in, 0 to StepShare::kMostShare.
  double decode_share = 0.5;
  int max_draft = 3;          // of the MTP head; 0 = this model has none
  bool prompt_lookup = true;  // drafts copied from a sequence's own context
  StepCosts costs = {};       // measured at load; empty: unpriced
  bool lone_priced = true;    // false: alone, drafts go by acceptance only
  // A reply alone goes on by itself, so many steps under way at once; `lone_handoffs`: lengths of a
  // reply, rising, at which it is handed over for a step, for tests.
  bool lone = false;
  int steps_in_flight = 1;
  std::vector<int> lone_handoffs = {};
  int vocabulary = 0;        // prompt ids are below it; 0 = not checked
  size_t trace_entries = 0;  // of the last decisions, kept to be looked at
  // Bytes of each token id, for stop strings; read-only, may be null when none are used.
  std::shared_ptr<const TokenBytes> token_bytes = {};
};

// Whether a request could ever run; the error names the field, the value and the limit. Pure, so
// that it can be asked on any thread before the request is handed over.
Status check_spec(const SequenceSpec& spec, const SchedulerOptions& options);

// Of the pool, whatever of the two options says so.
int pool_pages(const SchedulerOptions& options);

// A sequence that doesn't fit the pool now waits; one that came later and fits may go before it,
// this many times.
inline constexpr int kMostOvertaken = 16;

// Every sequence that runs has a row of a decode step.
inline constexpr int kMostSlots = kMostDecodeRows;

class Scheduler {
 public:
  explicit Scheduler(SchedulerOptions options);
  ~Scheduler();
  Scheduler(Scheduler&&) noexcept;
  Scheduler& operator=(Scheduler&&) noexcept;

  // Refuses, with the numbers, what can never run; otherwise the sequence waits its turn.
  Result<SequenceId> submit(SequenceSpec spec);
  // A no-op for unknown and finished ids. The terminal event comes from the next collect().
  void cancel(SequenceId id);

  // The next step; empty when nothing can run. While steps are under way, only one that follows the
  // newest of them by itself: so there is never more than one where the lone driver is off.
  StepPlan plan();
  // Takes a step's result, resp. its failure, in the order of their plans; `plan` is the one that
  // was run.
  void commit(const StepPlan& plan, const StepResult& result);
  void fail(const StepPlan& plan, const Error& error);

  // Events since the last call, in order.
  std::vector<Event> collect();

  // Every decision so far.
  const Trace& trace() const;

  int running() const;  // prefilling, decoding or paused
  int waiting() const;
  memory::PoolUsage pages() const;
  memory::PromptCacheUsage kept() const;
  SessionUsage sessions() const;
  LoneUsage lone() const;

  // Kept states, for those who carry them to another place and back, between steps. What it says is
  // valid until the next call that is not const.
  const memory::PromptCache& kept_states() const;
  // Room for one that comes from there, as for any other; `settle_state` once its pages are
  // written, or can't be. Nothing for one that no prompt here could begin with.
  std::optional<memory::PromptCache::Kept> adopt_state(std::span<const int32_t> tokens);
  void settle_state(memory::EntryId id, bool worked);
  // Between the two nobody else gets its pages; of one that is settled.
  void hold_state(memory::EntryId id);
  void release_state(memory::EntryId id) noexcept;

  // Every invariant of pages, sessions and kept states, by looking at all of them; for tests.
  void check() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace flashlane::scheduler
