// What the scheduler holds and how its parts hang together: admission and the way out
// (scheduler.cc), plans (step_planning.cc), what comes back (step_commit.cc). Private to those
// three.
#pragma once

#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "scheduler/decode_policy.h"
#include "scheduler/lone_driver.h"
#include "scheduler/prompt_states.h"
#include "scheduler/scheduler.h"
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
                .least_gap = options.kept_gap},
               options.prefill_chunk),
        trace(options.trace_entries),
        share(options.decode_share),
        policy({options.costs, options.lone_priced, options.max_draft}),
        driver(options.lone, options.steps_in_flight, options.lone_handoffs) {}

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
  LoneDriver driver;
  bool arrived = false;  // somebody came since the last admission
  uint64_t decode_steps = 0;
  int in_flight = 0;  // planned steps that have not come back
  std::vector<Event> events = {};

  void retire(Sequence& sequence, FinishReason reason, Error error = {});
  void cancel(Sequence& sequence);
  void vacate(Sequence& sequence);
  void admit();
  void admit(std::unique_ptr<Sequence> sequence, size_t slot);
  std::vector<Sequence*> in_phase(Phase phase) const;
  StepPlan plan();
  StepPlan plan_ahead();
  StepPlan plan_moves();
  StepPlan plan_restores();
  StepPlan plan_rows();
  StepPlan plan_prompts(const std::vector<Sequence*>& prompts, bool replies_run);
  StepPlan plan_decode(const std::vector<Sequence*>& replies);
  Sequence* lone_reply() const;
  void hand_over();
  void drive(Sequence& sequence, Segment& segment);
  void send_off(StepPlan& plan);
  void commit_rows(const StepPlan& plan, const StepResult& result);
  bool fill(Segment& segment, const SegmentResult& result);
  void observe(const StepPlan& plan, double elapsed_ms);
  void commit_prefill(Sequence& sequence, const Segment& segment, const SegmentResult& result);
  void deliver(Sequence& sequence, size_t drawn, Landed landed);
  void ask_for_drafts(StepPlan& plan, const std::vector<Sequence*>& sequences, size_t others);
  static bool any_sampled(const std::vector<Sequence*>& sequences);
  void commit_move(const Move& move, bool worked, const Error& error);
  void commit_restore(const Restore& restore, bool worked);
  Sequence* landed(int slot, SequenceId id, int rows = 0);
};

}  // namespace flashlane::scheduler
