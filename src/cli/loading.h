// From the model options to a loaded model, with the memory plan checked before anything is loaded
// and progress on stderr when loading takes long.
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "cli/json_line.h"
#include "cli/options.h"
#include "model/load.h"
#include "runner/runner.h"

namespace flashlane::cli {

inline constexpr double kGib = 1024.0 * 1024.0 * 1024.0;

// What serving or scoring will hold of the memory that computes, from sizes alone, and besides. All
// but file_bytes is anonymous memory, which is what "resident" means: file-backed pages the system
// takes back when it needs them.
struct MemoryPlan {
  size_t weights_bytes =
      0;  // as the backend keeps them, vectors and tables made in memory included
  size_t scratch_bytes = 0;  // the backend's own
  runner::RunnerMemory runner;
  size_t process_bytes = 0;  // program and libraries, texts, threads, small objects
  size_t file_bytes = 0;     // embedding and n-gram tables, looked up in the files
  size_t host_bytes = 0;     // those made in memory, where a GPU computes: not part of the total
  std::optional<size_t> available_bytes;

  size_t total_bytes() const {
    return weights_bytes + scratch_bytes + runner.pool_bytes + runner.slots_bytes +
           runner.kept_bytes + runner.step_bytes + process_bytes;
  }
};

// What is known of a model before its weights are read.
struct ModelOutline {
  model::ModelLocation location;
  model::ModelShape shape;
  model::BackendOptions backend_options;
  kernels::BackendInfo backend;
  DType kv_dtype = DType::kF32;
  size_t stored_bytes = 0;  // of the weights: the files' sizes
};
Result<ModelOutline> outline_model(const ModelOptions& options);

// Finds all tensors, so a model that this backend can't serve is refused here.
Result<MemoryPlan> plan_memory(const ModelOutline& outline, const runner::RunnerOptions& options);

// What a plan may need: --memory-limit-gib, else 70 % of this machine's memory (or of its
// cgroup's), as far as the system says how much that is (Z6).
inline constexpr double kDefaultMemoryShare = 0.7;
struct MemoryLimit {
  std::optional<size_t> bytes;
  bool asked = false;
};
MemoryLimit memory_limit(const ModelOptions& options);
Status check_memory_limit(const MemoryPlan& plan, const ModelOptions& options);
// The plan as a table of MiB, for people.
std::string memory_table(const MemoryPlan& plan, const runner::RunnerOptions& options);
// What the process holds now beside the plan, as one line.
std::string measured_memory(const MemoryPlan& plan);
void write_measured(JsonLine& json, const MemoryPlan& plan, size_t loading_peak_bytes);
// `sessions`: rows of each; none: all replies share the pool.
void write_memory(JsonLine& json, const MemoryPlan& plan, const runner::RunnerOptions& options,
                  const std::vector<int>& sessions);

// Checks the plan against the limit and the memory that is available, then loads.
// `options.max_rows` and `.context` size the step buffers. `peak_bytes`, if any, receives the most
// anonymous memory seen while weights were prepared.
Result<std::unique_ptr<model::Model>> load_model(const ModelOutline& outline,
                                                 const MemoryPlan& plan,
                                                 const ModelOptions& model_options,
                                                 const runner::RunnerOptions& options,
                                                 size_t* peak_bytes = nullptr);

}  // namespace flashlane::cli
