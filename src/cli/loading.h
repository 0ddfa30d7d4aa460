// From the model options to a loaded model, with the memory plan checked before anything is loaded
// and progress on stderr when loading takes long.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>

#include "base/result.h"
#include "cli/json_line.h"
#include "cli/options.h"
#include "model/load.h"
#include "runner/runner.h"

namespace flashlane::cli {

// What serving or scoring will hold, from sizes alone.
struct MemoryPlan {
  size_t weights_bytes = 0;
  runner::RunnerMemory runner;

  size_t total_bytes() const {
    return weights_bytes + runner.states_bytes + runner.pages_bytes + runner.step_bytes;
  }
};

// What is known of a model before its weights are read.
struct ModelOutline {
  model::ModelLocation location;
  model::ModelShape shape;
  kernels::BackendInfo backend;
  DType kv_dtype = DType::kF32;
  size_t weights_bytes = 0;
};
Result<ModelOutline> outline_model(const ModelOptions& options);

// Rows of a page: about 256, a multiple of the model's block.
int page_rows_for(const model::ModelShape& shape);

MemoryPlan plan_memory(const ModelOutline& outline, const runner::RunnerOptions& options);
Status check_memory_limit(const MemoryPlan& plan, const ModelOptions& options);
// The plan as a table of MiB, for people.
std::string memory_table(const MemoryPlan& plan, const runner::RunnerOptions& options);
void write_memory(JsonLine& json, const MemoryPlan& plan, const runner::RunnerOptions& options);

// Checks the limit, then loads. `options.max_rows` and `.context` size the step buffers.
Result<std::unique_ptr<model::Model>> load_model(const ModelOutline& outline,
                                                 const ModelOptions& model_options,
                                                 const runner::RunnerOptions& options);

}  // namespace flashlane::cli
