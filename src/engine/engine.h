// Engine: one thread that owns scheduler and runner. Requests come in through a bounded inbox,
// events go out through one bounded queue per request; a full event queue cancels that request, so
// that a slow client never stalls the others. The loop is: drain, plan, run, commit, deliver; while
// a reply is alone, as many steps as the device can have under way are planned before one is
// committed.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "engine/counters.h"
#include "engine/step_device.h"
#include "runner/runner.h"
#include "runner/snapshots.h"
#include "scheduler/scheduler.h"

namespace flashlane::engine {

using memory::Miss;
using scheduler::DraftCounts;
using scheduler::DraftStats;
using scheduler::FinishReason;
using scheduler::kLeastRepetitionPenalty;
using scheduler::kMostLogprobs;
using scheduler::kMostPenalty;
using scheduler::kMostRepetitionPenalty;
using scheduler::LoneUsage;
using scheduler::PromptReuse;
using scheduler::TokenLogprobs;
using Request = scheduler::SequenceSpec;

struct Timings {
  double queue_ms = 0;        // submitted → first prompt chunk
  double prefill_ms = 0;      // → first token
  double first_token_ms = 0;  // submitted → first token
  double decode_ms = 0;       // first token → last
};

struct ReplyEvent {
  enum class Kind : uint8_t { kPrefill, kTokens, kFinished };
  Kind kind = Kind::kTokens;
  std::vector<int32_t> tokens = {};          // kTokens
  std::vector<TokenLogprobs> logprobs = {};  // kTokens: one for each, if asked for
  int prefilled = 0;                         // kPrefill: prompt tokens done so far
  // kFinished; nothing follows it:
  FinishReason reason = FinishReason::kStop;
  Error error = {};
  PromptReuse reuse = {};
  DraftStats drafts = {};
  int repetition_period = 0;  // not 0 when the repetition guard closed the think block
  Timings timings = {};
};

// The client's end of one request. Dropping it cancels the request.
class Reply {
 public:
  Reply();
  Reply(Reply&&) noexcept;
  Reply& operator=(Reply&&) noexcept;
  ~Reply();

  // The next event; nullopt after `timeout`. After kFinished there is none.
  std::optional<ReplyEvent> next(std::chrono::milliseconds timeout);
  // The engine stops the request within one step; kFinished with kCancelled follows.
  void cancel();

 private:
  friend class Engine;
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

struct EngineOptions {
  scheduler::SchedulerOptions scheduler;
  size_t inbox = 128;    // requests that may wait for their turn; full = kNoCapacity
  size_t events = 4096;  // per request, the last one not counted
  std::shared_ptr<const Clock> clock = {};  // null = SteadyClock
  // Where kept states of prompts go that memory has no room for, and outlive the process; null:
  // they don't.
  std::shared_ptr<runner::Snapshots> snapshots = {};
  // Lines for people about what the engine does; called on its thread, and once before it starts.
  // May be null.
  std::function<void(const std::string&)> report = {};
};

// The options, with pages handed out of this runner's pool.
EngineOptions with_pool_of(const runner::Runner& runner, EngineOptions options);

// What is taken of what there is. Whenever nobody waits for a reply it is what it was at load; a
// difference is a leak.
struct Usage {
  int slots = 0;
  int slots_in_use = 0;
  int sequences = 0;  // requests that the engine's thread holds
  memory::PoolUsage pool = {};
  scheduler::SessionUsage sessions = {};
  friend bool operator==(const Usage&, const Usage&) = default;
};

struct EngineStatus {
  int running = 0;
  int waiting = 0;
  int64_t requests_total = 0;
  int64_t refused_total = 0;        // because too many waited; not among requests_total
  int64_t prompt_tokens_total = 0;  // prefilled, each once
  int64_t cached_tokens_total = 0;  // prompt tokens restored instead
  int64_t reply_tokens_total = 0;   // committed
  DraftStats drafts = {};           // of finished requests
  Counters counters = {};
  Usage usage = {};
  Usage usage_at_load = {};
  memory::PromptCacheUsage prompt_cache = {};
  LoneUsage lone = {};
  int64_t snapshots_restored = 0;   // at load
  int64_t snapshots_read_back = 0;  // for a prompt that came
  int64_t snapshots_saved = 0;
  int64_t moves_total = 0;   // of replies to larger sessions
  int64_t pauses_total = 0;  // of replies that waited for one
  bool failed = false;       // the device was lost: nothing will run again
};

class Engine {
 public:
  // The scheduler's limits must lie within the runner's; the pool is the runner's.
  Engine(std::unique_ptr<runner::Runner> runner, EngineOptions options);
  Engine(StepFunction run, EngineOptions options);
  Engine(std::unique_ptr<StepDevice> device, EngineOptions options);
  // Cancels what is left and joins the thread.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // kInvalidArgument for what can never run; kNoCapacity when too many wait or the engine is
  // stopping; kDeviceLost when nothing will run again. Any thread.
  Result<Reply> submit(Request request);
  // A snapshot published before each event is delivered. Any thread.
  EngineStatus status() const;
  // Stops taking requests, cancels what is left, waits for the thread. Any thread, any number of
  // times.
  void stop();

 private:
  struct State;
  void start(std::unique_ptr<StepDevice> device, EngineOptions options);
  std::unique_ptr<State> state_;
};

}  // namespace flashlane::engine
