// Sizes come from headers and shapes: a model that would not fit is refused before its weights are
// touched, with both numbers.
#include "cli/loading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>

#include "base/process_memory.h"
#include "format/checkpoint.h"
#include "model/synth.h"

namespace flashlane::cli {

namespace {

constexpr double kMib = 1024.0 * 1024.0;

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

// An allowance, from what a server without weights was seen to hold: about 1 MiB, 2 with the
// bundled tokenizer of half a MiB.
size_t process_size(const model::ModelLocation& location) {
  constexpr size_t kAlways = size_t{3} << 20;
  constexpr size_t kTokenizerShare = 4;
  if (location.directory.empty()) return kAlways;
  std::error_code missing;
  const auto bytes = std::filesystem::file_size(
      std::filesystem::path(location.directory) / "tokenizer.json", missing);
  return missing ? kAlways : kAlways + kTokenizerShare * bytes;
}

}  // namespace

Result<ModelOutline> outline_model(const ModelOptions& options) {
  ModelOutline outline;
  ASSIGN_OR_RETURN(outline.location, model::locate_model(options.model_name()));
  ASSIGN_OR_RETURN(outline.shape, model::read_shape(outline.location));
  ASSIGN_OR_RETURN(const auto ops, model::make_ops(options.backend_options()));
  outline.backend_options = options.backend_options();
  outline.backend = ops->info();
  outline.kv_dtype = options.kv(outline.backend.default_kv_dtype);
  ASSIGN_OR_RETURN(outline.stored_bytes, weights_size(outline.location));
  return outline;
}

Result<MemoryPlan> plan_memory(const ModelOutline& outline, const runner::RunnerOptions& options) {
  ASSIGN_OR_RETURN(const model::ModelMemory memory,
                   model::model_memory(outline.location, outline.backend_options, options.max_rows,
                                       options.context));
  MemoryPlan plan;
  plan.weights_bytes = memory.weights.anonymous_bytes();
  plan.scratch_bytes = memory.scratch_bytes;
  ASSIGN_OR_RETURN(plan.runner, runner::runner_memory(outline.shape, options));
  plan.process_bytes = process_size(outline.location);
  plan.file_bytes = memory.weights.file_bytes();
  plan.host_bytes = memory.weights.host_bytes();
  plan.available_bytes = model::available_memory_of(outline.backend_options);
  return plan;
}

MemoryLimit memory_limit(const ModelOptions& options) {
  if (options.memory_limit_gib) {
    return {.bytes = static_cast<size_t>(std::min(*options.memory_limit_gib * kGib, 0x1p62)),
            .asked = true};
  }
  const std::optional<size_t> total = model::total_memory_of(options.backend_options());
  if (!total) return {};
  return {.bytes = static_cast<size_t>(static_cast<double>(*total) * kDefaultMemoryShare)};
}

Status check_memory_limit(const MemoryPlan& plan, const ModelOptions& options) {
  const MemoryLimit limit = memory_limit(options);
  if (!limit.bytes || plan.total_bytes() <= *limit.bytes) return {};
  if (!limit.asked) {
    return invalid(
        "the memory plan needs {} bytes; {:.0f} % of this {}'s memory are {}, and "
        "--memory-limit-gib can allow more",
        plan.total_bytes(), kDefaultMemoryShare * 100,
        options.backend_options().backend == "cuda" ? "GPU" : "machine", *limit.bytes);
  }
  return invalid("the memory plan needs {} bytes, --memory-limit-gib {} allows {}",
                 plan.total_bytes(), *options.memory_limit_gib, *limit.bytes);
}

std::string memory_table(const MemoryPlan& plan, const runner::RunnerOptions& options) {
  std::string out = "memory plan                               MiB\n";
  const auto line = [&](const std::string& name, size_t bytes) {
    fmt::format_to(std::back_inserter(out), "  {:<33}{:>10.1f}\n", name,
                   static_cast<double>(bytes) / kMib);
  };
  line("weights, as the backend has them", plan.weights_bytes);
  line("backend scratch", plan.scratch_bytes);
  line(fmt::format("pool of {} pages, {} K/V", plan.runner.pages,
                   options.kv_dtype == DType::kF32 ? "f32" : "bf16"),
       plan.runner.pool_bytes);
  line(fmt::format("{} slot(s) of {} positions", options.slots, options.context),
       plan.runner.slots_bytes);
  if (options.kept_pages > 0) {
    line(fmt::format("prompt cache of {} pages", options.kept_pages), plan.runner.kept_bytes);
  }
  line(fmt::format("step buffers, {} rows", options.max_rows), plan.runner.step_bytes);
  line("the process itself, about", plan.process_bytes);
  line("total", plan.total_bytes());
  line("besides, in files, looked up", plan.file_bytes);
  if (plan.host_bytes > 0) line("besides, in the machine's memory", plan.host_bytes);
  if (plan.available_bytes.has_value()) line("available now", *plan.available_bytes);
  return out;
}

void write_memory(JsonLine& json, const MemoryPlan& plan, const runner::RunnerOptions& options,
                  const std::vector<int>& sessions) {
  json.begin_object();
  json.key("sequences").integer(options.slots).key("context").integer(options.context);
  json.key("page_rows").integer(options.page_rows).key("step_rows").integer(options.max_rows);
  json.key("state_pages").integer(options.state_form == runner::StateForm::kPieces ? 1 : 0);
  json.key("session_rows").begin_array();
  for (const int rows : sessions) json.integer(rows);
  json.end_array();
  json.key("kv_dtype").text(options.kv_dtype == DType::kF32 ? "f32" : "bf16");
  json.key("weights_bytes").unsigned_integer(plan.weights_bytes);
  json.key("scratch_bytes").unsigned_integer(plan.scratch_bytes);
  json.key("pages").integer(plan.runner.pages);
  json.key("pool_bytes").unsigned_integer(plan.runner.pool_bytes);
  json.key("kept_pages").integer(options.kept_pages);
  json.key("kept_bytes").unsigned_integer(plan.runner.kept_bytes);
  json.key("slots_bytes").unsigned_integer(plan.runner.slots_bytes);
  json.key("step_bytes").unsigned_integer(plan.runner.step_bytes);
  json.key("process_bytes").unsigned_integer(plan.process_bytes);
  json.key("total_bytes").unsigned_integer(plan.total_bytes());
  json.key("file_bytes").unsigned_integer(plan.file_bytes);
  json.key("host_bytes").unsigned_integer(plan.host_bytes);
  json.key("available_bytes");
  plan.available_bytes.has_value() ? json.unsigned_integer(*plan.available_bytes) : json.null();
  json.end_object();
}

std::string measured_memory(const MemoryPlan& plan) {
  const ResidentMemory now = resident_memory();
  const auto mib = [](size_t bytes) { return static_cast<double>(bytes) / kMib; };
  return fmt::format("resident: {:.1f} MiB of {:.1f} planned, and {:.1f} MiB of files' pages\n",
                     mib(now.anonymous_bytes), mib(plan.total_bytes()), mib(now.file_bytes));
}

void write_measured(JsonLine& json, const MemoryPlan& plan, size_t loading_peak_bytes) {
  const ResidentMemory now = resident_memory();
  json.begin_object();
  json.key("planned_bytes").unsigned_integer(plan.total_bytes());
  json.key("anonymous_bytes").unsigned_integer(now.anonymous_bytes);
  json.key("loading_peak_bytes").unsigned_integer(loading_peak_bytes);
  json.key("file_bytes").unsigned_integer(now.file_bytes);
  json.end_object();
}

Result<std::unique_ptr<model::Model>> load_model(const ModelOutline& outline,
                                                 const MemoryPlan& plan,
                                                 const ModelOptions& model_options,
                                                 const runner::RunnerOptions& options,
                                                 size_t* peak_bytes) {
  RETURN_IF_ERROR(check_memory_limit(plan, model_options));
  model::LoadOptions load;
  load.backend = outline.backend_options;
  load.more_bytes = plan.total_bytes() - plan.weights_bytes - plan.scratch_bytes;
  load.peak_bytes = peak_bytes;
  load.max_rows = options.max_rows;
  load.context = options.context;
  load.progress = Progress();
  return model::load_model(outline.location, load);
}

}  // namespace flashlane::cli
