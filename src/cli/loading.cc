// Sizes come from headers and shapes: a model that would not fit is refused before its weights are
// touched, with both numbers.
#include "cli/loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "format/checkpoint.h"
#include "model/synth.h"

namespace flashlane::cli {

namespace {

constexpr double kMib = 1024.0 * 1024.0;
constexpr double kGib = kMib * 1024.0;

// Prints loading lines once loading has lasted two seconds, at most one a second.
class Progress {
 public:
  void operator()(const std::string& line) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::seconds(1);
    fmt::print(stderr, "loading: {}\n", line);
  }

 private:
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(2);
};

Result<size_t> weights_size(const model::ModelLocation& location) {
  if (!location.synth.empty()) {
    ASSIGN_OR_RETURN(const model::SynthSpec spec, model::parse_synth(location.synth));
    return model::synth_bytes(spec);
  }
  ASSIGN_OR_RETURN(const auto checkpoint, format::Checkpoint::open(location.directory));
  return checkpoint->weight_bytes();
}

}  // namespace

Result<ModelOutline> outline_model(const ModelOptions& options) {
  ModelOutline outline;
  ASSIGN_OR_RETURN(outline.location, model::locate_model(options.model_name()));
  ASSIGN_OR_RETURN(outline.shape, model::read_shape(outline.location));
  ASSIGN_OR_RETURN(const auto ops, model::make_ops(options.backend_options()));
  outline.backend = ops->info();
  outline.kv_dtype = options.kv(outline.backend.default_kv_dtype);
  ASSIGN_OR_RETURN(outline.weights_bytes, weights_size(outline.location));
  return outline;
}

int page_rows_for(const model::ModelShape& shape) {
  constexpr int kAbout = 256;
  return round_up(kAbout, std::max(1, shape.index_block));
}

MemoryPlan plan_memory(const ModelOutline& outline, const runner::RunnerOptions& options) {
  return {outline.weights_bytes, runner::runner_memory(outline.shape, options)};
}

Status check_memory_limit(const MemoryPlan& plan, const ModelOptions& options) {
  if (!options.memory_limit_gib.has_value()) return {};
  const double limit = *options.memory_limit_gib * kGib;
  if (static_cast<double>(plan.total_bytes()) <= limit) return {};
  return invalid("the memory plan needs {} bytes, --memory-limit-gib {} allows {:.0f}",
                 plan.total_bytes(), *options.memory_limit_gib, limit);
}

std::string memory_table(const MemoryPlan& plan, const runner::RunnerOptions& options) {
  std::string out = "memory plan                            MiB\n";
  const auto line = [&](const std::string& name, size_t bytes) {
    fmt::format_to(std::back_inserter(out), "  {:<30}{:>10.1f}\n", name,
                   static_cast<double>(bytes) / kMib);
  };
  line("weights, as stored", plan.weights_bytes);
  line(fmt::format("states of {} sequence(s)", options.slots), plan.runner.states_bytes);
  line(fmt::format("{} K/V, {} positions", options.kv_dtype == DType::kF32 ? "f32" : "bf16",
                   options.context),
       plan.runner.pages_bytes);
  line(fmt::format("step buffers, {} rows", options.max_rows), plan.runner.step_bytes);
  line("total", plan.total_bytes());
  return out;
}

void write_memory(JsonLine& json, const MemoryPlan& plan, const runner::RunnerOptions& options) {
  json.begin_object();
  json.key("sequences").integer(options.slots).key("context").integer(options.context);
  json.key("page_rows").integer(options.page_rows).key("step_rows").integer(options.max_rows);
  json.key("kv_dtype").text(options.kv_dtype == DType::kF32 ? "f32" : "bf16");
  json.key("weights_bytes").unsigned_integer(plan.weights_bytes);
  json.key("states_bytes").unsigned_integer(plan.runner.states_bytes);
  json.key("pages_bytes").unsigned_integer(plan.runner.pages_bytes);
  json.key("step_bytes").unsigned_integer(plan.runner.step_bytes);
  json.key("total_bytes").unsigned_integer(plan.total_bytes());
  json.end_object();
}

Result<std::unique_ptr<model::Model>> load_model(const ModelOutline& outline,
                                                 const ModelOptions& model_options,
                                                 const runner::RunnerOptions& options) {
  RETURN_IF_ERROR(check_memory_limit(plan_memory(outline, options), model_options));
  model::LoadOptions load;
  load.backend = model_options.backend_options();
  load.max_rows = options.max_rows;
  load.context = options.context;
  load.progress = Progress();
  return model::load_model(outline.location, load);
}

}  // namespace flashlane::cli
