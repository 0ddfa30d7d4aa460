// `flashlane info`: what a model is and what it would take to serve, from its configuration,
// file headers and norms; no matrix is read.
#include <fmt/format.h>

#include <algorithm>

#include "cli/command.h"
#include "cli/json_line.h"
#include "cli/loading.h"
#include "cli/serving.h"
#include "format/checkpoint.h"
#include "model/synth.h"

namespace flashlane::cli {

namespace {

struct InfoOptions {
  ModelOptions model;
  ServingOptions serving;
  bool plan = false;
  bool json = false;
};

std::string format_words(int bits, int group) {
  return bits == 0 ? "bf16" : fmt::format("affine {}-bit group {}", bits, group);
}

// A checkpoint that names no quantisation has the type of its embedding.
Result<std::string> plain_format(const std::string& directory) {
  ASSIGN_OR_RETURN(const auto checkpoint, format::Checkpoint::open(directory));
  for (const std::string& name : checkpoint->names()) {
    if (!name.ends_with("embed_tokens.weight")) continue;
    const DType dtype = checkpoint->find(name)->dtype;
    return std::string(dtype == DType::kF32 ? "f32" : dtype == DType::kF16 ? "f16" : "bf16");
  }
  return std::string("bf16");
}

// The default of the configuration; single tensors may differ.
Result<std::string> model_format(const ModelOutline& outline) {
  if (!outline.location.synth.empty()) {
    ASSIGN_OR_RETURN(const model::SynthSpec spec, model::parse_synth(outline.location.synth));
    return format_words(spec.bits, spec.group);
  }
  const model::QuantizationDefault& quantization = outline.shape.quantization;
  if (quantization.bits == 0) return plain_format(outline.location.directory);
  return format_words(quantization.bits, quantization.group);
}

void write_shape(JsonLine& json, const model::ModelShape& shape) {
  json.begin_object();
  json.key("hidden").integer(shape.hidden).key("layers").integer(shape.layers);
  json.key("delta_layers").integer(shape.delta_layers());
  json.key("sparse_layers").integer(shape.sparse_layers());
  json.key("vocabulary").integer(shape.vocabulary);
  json.key("max_position").integer(shape.max_position);
  json.key("streams").integer(shape.streams);
  json.key("heads").integer(shape.heads).key("kv_heads").integer(shape.kv_heads);
  json.key("head_dim").integer(shape.head_dim);
  json.key("index_budget").integer(shape.index_budget);
  json.key("index_block").integer(shape.index_block);
  json.key("experts").integer(shape.experts).key("top_experts").integer(shape.top_experts);
  json.key("expert_width").integer(shape.expert_width);
  json.key("ngram_size").integer(shape.ngram_size);
  json.key("mtp_layers").integer(shape.mtp_layers);
  json.key("eos_token").integer(shape.eos_token);
  json.end_object();
}

void print_shape(const ModelOutline& outline, const std::string& format) {
  const model::ModelShape& shape = outline.shape;
  fmt::print("{}: {} layers ({} DeltaNet, {} sparse attention), hidden {}, {} streams\n",
             outline.location.name, shape.layers, shape.delta_layers(), shape.sparse_layers(),
             shape.hidden, shape.streams);
  fmt::print("vocabulary {}, context {} positions, {} of {} experts a token, MTP head: {}\n",
             shape.vocabulary, shape.max_position, shape.top_experts, shape.experts,
             shape.mtp_layers > 0 ? "yes" : "no");
  fmt::print("format {}, {} bytes of weights\n", format, outline.stored_bytes);
  fmt::print("backend {} ({}), {} activations, {} threads\n", outline.backend.name,
             outline.backend.isa, outline.backend.activations, outline.backend.threads);
}

Result<Exit> run_info(const InfoOptions& options) {
  ASSIGN_OR_RETURN(const ModelOutline outline, outline_model(options.model));
  ASSIGN_OR_RETURN(ServingSizes sizes, serving_sizes(options.serving, outline));
  const Status fitted = fit_pool(options.serving.pool, outline, options.model, sizes.runner);
  if (!fitted.ok() && fitted.error().code != ErrorCode::kUnsupported) return fitted.error();
  const runner::RunnerOptions& runner = sizes.runner;
  ASSIGN_OR_RETURN(const std::string format, model_format(outline));
  // A format that this backend can't serve has a shape all the same, and no plan.
  const Result<MemoryPlan> plan = plan_memory(outline, runner);
  if (!plan.ok() && plan.error().code != ErrorCode::kUnsupported) return plan.error();
  // Only a limit that was asked for: a plan may be for another machine.
  if (plan.ok() && options.model.memory_limit_gib) {
    RETURN_IF_ERROR(check_memory_limit(*plan, options.model));
  }
  ASSIGN_OR_RETURN(const std::vector<int> sessions,
                   session_rows(options.serving.pool, runner.context));
  if (options.json) {
    JsonLine json;
    json.begin_object().key("model").text(outline.location.name);
    json.key("directory").text(outline.location.directory);
    json.key("shape");
    write_shape(json, outline.shape);
    json.key("format").text(format);
    json.key("bytes").unsigned_integer(outline.stored_bytes);
    json.key("backend").text(outline.backend.name).key("isa").text(outline.backend.isa);
    json.key("activations").text(outline.backend.activations);
    json.key("plan");
    if (plan.ok()) {
      write_memory(json, *plan, runner, sessions);
    } else {
      json.null();
      json.key("refused").text(plan.error().message);
    }
    json.end_object();
    fmt::print("{}\n", json.str());
    return Exit::kOk;
  }
  print_shape(outline, format);
  if (!plan.ok()) {
    fmt::print("the {} backend can't serve it: {}\n", outline.backend.name, plan.error().message);
  } else if (options.plan) {
    fmt::print("{}{}", memory_table(*plan, runner), pool_report(outline, runner, sessions));
  } else {
    fmt::print("serving it takes {:.1f} MiB (--plan shows the parts)\n",
               static_cast<double>(plan->total_bytes()) / (1024.0 * 1024.0));
  }
  return Exit::kOk;
}

}  // namespace

Command info_command(CLI::App& root) {
  Command command =
      make_command(root, "info", "Describe a model and the memory it takes, without loading it.",
                   "  flashlane info\n"
                   "  flashlane info --model synth:true,format=q4g32 --plan --context 8192\n"
                   "  flashlane info --model DIR --json\n");
  auto options = std::make_shared<InfoOptions>();
  OptionTable& table = *command.table;
  add_model_options(table, options->model);
  add_serving_sizes(table, options->serving);
  table.flag("plan", options->plan, "print the memory plan part by part", Reach::kFlagOnly);
  add_json(table, options->json, "one JSON object: shape, format, bytes, plan");
  command.run = [options] { return run_info(*options); };
  return command;
}

}  // namespace flashlane::cli
