// Runner: runs a plan. Stages the rows, one forward, sampling, acceptance, roll back, drafts,
// result; decides how, never what. It owns the page pool, in which all rows and states lie, and the
// step buffers, all made at load; which page is whose the plan says. It validates the whole plan
// before it touches any state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/result.h"
#include "model/forward.h"
#include "runner/kept_arena.h"
#include "runner/plan_check.h"
#include "runner/storage.h"
#include "scheduler/step_plan.h"
#include "scheduler/step_result.h"

namespace flashlane::runner {

struct RunnerOptions {
  int slots = 1;
  int context = 0;     // most positions of a sequence
  int pages = 0;       // of the pool; 0: a whole context for each slot
  int kept_pages = 0;  // of the arena where states of prompts are kept; 0: none are
  int max_rows = 512;  // of a forward; the model was loaded with the same limit
  int page_rows = 256;
  StateForm state_form = StateForm::kPieces;
  int max_draft = 3;
  bool serial_drafts = false;  // sequences draft one after the other; the tokens are the same
  DType kv_dtype = DType::kF32;
  model::Probe* probe = nullptr;  // sees every forward; for counting, as it costs time
};

struct RunnerMemory {
  int pages = 0;
  size_t pool_bytes = 0;   // rows and states of all sequences, and the null page
  size_t slots_bytes = 0;  // tokens and page tables
  size_t kept_bytes = 0;   // the arena of kept states
  size_t step_bytes = 0;   // activations and logits
};
// What create would allocate, from the shape alone; refuses what create would.
Result<RunnerMemory> runner_memory(const model::ModelShape& shape, const RunnerOptions& options);

// What a sequence of a runner with these options takes.
Result<Storage> sequence_storage(const model::ModelShape& shape, const RunnerOptions& options);
// What each slot takes beside the pool, busy or not.
size_t slot_bytes(const Storage& storage, int context);

class Runner {
 public:
  static Result<std::unique_ptr<Runner>> create(model::Model& model, const RunnerOptions& options);
  ~Runner();

  Result<scheduler::StepResult> run(const scheduler::StepPlan& plan);

  // For calibration: `rows` rows of a slot that has run that many through the MTP head, with the
  // draws that follow, as one step of so many chains does. The slot must start afresh after it.
  Status run_head_rows(int slot, int rows);

  KeptArena& kept_arena();

  const RunnerOptions& options() const;
  const PlanLimits& limits() const;
  const Storage& storage() const;

 private:
  struct State;
  explicit Runner(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace flashlane::runner
