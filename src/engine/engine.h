// Engine: one thread that owns scheduler and runner. Requests come in through a bounded inbox, events
// go out through one bounded queue per request; a full event queue cancels that request, so that a
// slow client never stalls the others. The loop is: drain, plan, run, commit, deliver.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/bounded_queue.h"
#include "base/result.h"
#include "runner/runner.h"
#include "scheduler/scheduler.h"

namespace flashlane::engine {

using scheduler::DraftStats;
using scheduler::FinishReason;
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
  std::vector<int32_t> tokens;  // kTokens
  int prefilled = 0;            // kPrefill: prompt tokens done so far
  // kFinished; nothing follows it:
  FinishReason reason = FinishReason::kStop;
  Error error;
  DraftStats drafts;
  Timings timings;
};

// The client's end of one request. Dropping it cancels the request.
class Reply {
 public:
  Reply() = default;
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
  size_t inbox = 128;           // requests waiting to be taken in; full = kNoCapacity
  size_t events = 4096;         // per request
};

struct Status {
  int running = 0;
  int waiting = 0;
  int64_t requests_total = 0;
  int64_t prompt_tokens_total = 0;
  int64_t reply_tokens_total = 0;
  DraftStats drafts;
  bool failed = false;          // the device was lost: nothing will run again
};

class Engine {
 public:
  Engine(std::unique_ptr<runner::Runner> runner, EngineOptions options);
  // Cancels what is left and joins the thread.
  ~Engine();

  // kInvalidArgument for what can never run; kNoCapacity when the inbox is full or stopping.
  Result<Reply> submit(Request request);
  // A snapshot published after each step.
  Status status() const;
  // Stops taking requests, cancels running ones, waits for the thread.
  void stop();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace flashlane::engine
