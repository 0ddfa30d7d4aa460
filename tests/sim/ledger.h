// What must hold of every step and every event, whatever the world does: the ledger is told what
// happens to the scheduler and what it says, keeps its own account, and names the first breach. It
// knows nothing of seeds or faults, and it shares no rule with the code under test.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/sim/page_account.h"
#include "tests/sim/seen.h"
#include "tests/support/fake_runner.h"

namespace flashlane::sim {

enum class Stage : uint8_t { kWaiting, kFilling, kDecoding, kEnded };

struct Record {
  scheduler::SequenceSpec spec = {};
  testing::SoloReply solo = {};
  Stage stage = Stage::kWaiting;
  int slot = -1;
  int prefilled = 0;
  std::vector<int32_t> tokens = {};
  bool restored = false;  // or tried to
  bool paused = false;
  int cached = 0;  // rows that it was restored with
  bool in_flight = false;
  bool cancelled = false;
  bool must_end = false;          // a failure must have ended it by the next look
  bool alone = false;             // a shared prompt step of it failed
  Error failure = {};             // of a step that it was in
  bool failed = false;            // whether there was one
  int steps_over = 0;             // prompt steps since it was served last: of others, committed
  int prompt_steps_over = 0;      // prompt steps in a row that went to other prompts
  int decode_steps_over = 0;      // decode steps in a row without it
  int most_steps_over = 0;        // as many as may be
  int64_t turn = 0;               // number of the last decode step with it, or before it began
  int64_t rows_to_come() const {  // steps that it may still need: each brings a row or a token
    return static_cast<int64_t>(spec.prompt.size()) - prefilled + spec.max_tokens -
           static_cast<int64_t>(tokens.size());
  }
};

class Ledger {
 public:
  // The fake's vocabulary and memory, and the text of each token.
  Ledger(const scheduler::SchedulerOptions& options, int vocabulary, int memory,
         std::span<const std::string> texts)
      : options_(options),
        vocabulary_(vocabulary),
        memory_(memory),
        texts_(texts),
        pages_(options),
        owners_(static_cast<size_t>(options.slots), 0) {}

  void submitted(scheduler::SequenceId id, const scheduler::SequenceSpec& spec);
  void cancelled(scheduler::SequenceId id);
  // After the events of plan() were taken: the pages of a plan, then what it runs.
  void mapped(const scheduler::StepPlan& plan);
  void planned(const scheduler::StepPlan& plan);
  // Before the events of commit() resp. fail() are taken.
  void landed(const scheduler::StepPlan& plan, double elapsed_ms);
  void landed_moves(const scheduler::StepPlan& plan, const std::vector<bool>& moved,
                    const Error& error);
  void failed(const scheduler::StepPlan& plan, const Error& error);
  void take(const std::vector<scheduler::Event>& events);
  // What the scheduler says of itself, after all events were taken.
  void counted(int running, int waiting);
  // Of what waits after a plan.
  void waits(bool slot_is_free);
  void at_end(const memory::PoolUsage& usage, const scheduler::SessionUsage& sessions);

  bool ok() const { return problem_.empty(); }
  const std::string& problem() const { return problem_; }  // the first
  void breach(std::string problem);
  void count(Seen what) { tally_.add(what); }
  int64_t rows_to_come() const;
  const std::map<uint64_t, Record>& live() const { return live_; }
  uint64_t newest() const { return newest_; }
  const Tally& tally() const { return tally_; }
  uint64_t trace() const { return trace_; }  // hash of all plans and events so far

 private:
  void plan_moves(const scheduler::StepPlan& plan);
  void take_room(const scheduler::Event& event, Record& record);
  void plan_restores(const scheduler::StepPlan& plan);
  void landed_restores(const scheduler::StepPlan& plan, const Error* error);
  bool take_slot(Record& record, uint64_t id, int slot);
  void plan_segment(const scheduler::Segment& segment, bool shared);
  void plan_prompt(const Record& record, const scheduler::Segment& segment, bool shared);
  void plan_window(const Record& record, const scheduler::Segment& segment);
  void prompt_turn();
  void decode_turn();
  void take_event(const scheduler::Event& event);
  void take_tokens(const scheduler::Event& event, Record& record);
  void take_logprobs(const scheduler::Event& event, const Record& record);
  void hear(std::string problem);
  void take_end(const scheduler::Event& event, Record& record);
  void mark(uint64_t value) { trace_ = splitmix64(trace_ ^ value); }

  scheduler::SchedulerOptions options_;
  int vocabulary_;
  int memory_;
  std::span<const std::string> texts_;
  PageAccount pages_;
  std::map<uint64_t, Record> live_ = {};
  std::vector<uint64_t> owners_;  // by slot: the last sequence that had it
  uint64_t newest_ = 0;
  int64_t decode_turns_ = 0;
  // Time of decode steps since the last prompt step, and what that step took.
  double decode_ms_ = 0;
  double prompt_ms_ = 0;
  bool after_prompt_step_ = false;
  Tally tally_ = {};
  uint64_t trace_ = 0;
  std::string problem_ = {};
};

}  // namespace flashlane::sim
