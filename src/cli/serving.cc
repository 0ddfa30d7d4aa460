// Texts are read before weights, so that a broken tokenizer or template is refused at once.
#include "cli/serving.h"

#include <algorithm>
#include <utility>

#include "format/checkpoint.h"
#include "runner/calibration.h"

namespace flashlane::cli {

namespace {

constexpr int64_t kMostPositions = int64_t{1} << 30;
constexpr int64_t kMostChunk = 1 << 16;
constexpr int64_t kMostStepsInFlight = 4;

scheduler::StepCosts costs_of(const runner::Calibration& measured) {
  const auto table = [](const std::vector<scheduler::MeasuredCost>& costs) {
    return scheduler::CostTable(costs, scheduler::kMostDecodeRows,
                                scheduler::CostShape::kNonDecreasing);
  };
  return {table(measured.forward), table(measured.head_step)};
}

std::string calibration_line(const runner::Calibration& measured,
                             const scheduler::StepCosts& costs) {
  if (!measured.skipped.empty()) return "drafts are not priced: " + measured.skipped;
  std::string line = "measured: a step of 1, 2, 4, 8, 16 rows takes";
  const auto append = [&](const scheduler::CostTable& table) {
    const char* separator = " ";
    for (const int rows : {1, 2, 4, 8, 16}) {
      line += fmt::format("{}{:.2f}", separator, table.ms(rows));
      separator = ", ";
    }
    line += " ms";
  };
  append(costs.forward);
  if (!costs.head_step.empty()) {
    line += "; a draft step of as many replies";
    append(costs.head_step);
  }
  return line + fmt::format("; in {:.1f} s", measured.took_ms / 1000);
}

}  // namespace

void add_serving_sizes(OptionTable& table, ServingOptions& options) {
  table.integer("context", options.context, 1, kMostPositions,
                "most positions of a sequence, prompt and reply; default: the model's own");
  add_prefill_chunk(table, options.prefill_chunk);
  add_pool_options(table, options.pool);
}

void add_prefill_chunk(OptionTable& table, std::optional<int64_t>& rows) {
  table.integer("prefill-chunk", rows, 1, kMostChunk,
                "prompt rows of a step; default 512, or 4096 on a GPU; changes no bit of a reply");
}

void add_lone_options(OptionTable& table, LoneOptions& options) {
  table.flag("no-lone", options.no_lone,
             "decode in shared steps, also where a reply runs alone; changes no token",
             Reach::kEverywhere, {"FLASHNEXT_NO_LONE"});
  table.integer("steps-in-flight", options.steps_in_flight, 1, kMostStepsInFlight,
                "steps of a reply that runs alone which may be under way at once; default 1, as "
                "the CPU computes them one by one");
  table.text("lone-handoffs", options.handoffs, {},
             "lengths of a reply, 1,77,3041, at which one that runs alone is handed over to shared "
             "steps, for one step; to check that it changes no token");
}

Result<LoneSizes> lone_sizes(const LoneOptions& options) {
  LoneSizes sizes;
  sizes.on = !options.no_lone;
  sizes.steps_in_flight = static_cast<int>(options.steps_in_flight.value_or(1));
  if (!options.handoffs.has_value()) return sizes;
  ASSIGN_OR_RETURN(const std::vector<int64_t> lengths,
                   parse_integers(*options.handoffs, "--lone-handoffs", 1, kMostPositions));
  sizes.handoffs.assign(lengths.begin(), lengths.end());
  std::sort(sizes.handoffs.begin(), sizes.handoffs.end());
  return sizes;
}

Result<ServingSizes> serving_sizes(const ServingOptions& options, const ModelOutline& outline) {
  const int64_t context = options.context.value_or(outline.shape.max_position);
  if (context > outline.shape.max_position) {
    return invalid("--context {} is beyond the model's {} positions", context,
                   outline.shape.max_position);
  }
  const int64_t chunk =
      std::min(options.prefill_chunk.value_or(outline.backend.prompt_rows), context);
  ServingSizes sizes;
  sizes.prefill_chunk = static_cast<int>(chunk);
  runner::RunnerOptions& runner = sizes.runner;
  runner.slots = 1;
  runner.context = static_cast<int>(context);
  // A decode window must fit as well.
  runner.max_rows = std::max(static_cast<int>(chunk), kernels::kMaxWindow);
  runner.max_draft = outline.shape.mtp_layers > 0 ? kMaxDraft : 0;
  runner.kv_dtype = outline.kv_dtype;
  RETURN_IF_ERROR(choose_pages(options.pool, outline, runner));
  return sizes;
}

Result<std::unique_ptr<text::Tokenizer>> read_tokenizer(const model::ModelLocation& location) {
  if (location.directory.empty()) {
    return invalid("{} has no tokenizer: synthetic models take ids only", location.name);
  }
  ASSIGN_OR_RETURN(const format::CheckpointTexts files,
                   format::read_checkpoint_texts(location.directory));
  if (!files.tokenizer_json.has_value()) {
    return invalid("{} has no tokenizer.json", location.directory);
  }
  return text::Tokenizer::parse(*files.tokenizer_json);
}

Result<ModelTexts> read_texts(const model::ModelLocation& location) {
  ModelTexts texts;
  if (location.directory.empty()) return texts;
  ASSIGN_OR_RETURN(format::CheckpointTexts files,
                   format::read_checkpoint_texts(location.directory));
  if (files.tokenizer_json.has_value()) {
    ASSIGN_OR_RETURN(texts.tokenizer, text::Tokenizer::parse(*files.tokenizer_json));
  }
  texts.chat_template = std::move(files.chat_template);
  if (files.generation_config_json.has_value()) {
    ASSIGN_OR_RETURN(texts.generation,
                     text::parse_generation_config(*files.generation_config_json));
  }
  return texts;
}

std::vector<int32_t> end_ids(const ModelTexts& texts, const model::ModelShape& shape) {
  if (!texts.generation.eos_ids.empty()) return texts.generation.eos_ids;
  if (shape.eos_token >= 0) return {shape.eos_token};
  return {};
}

std::shared_ptr<const scheduler::TokenBytes> reply_bytes(const text::Tokenizer& tokenizer) {
  std::vector<std::string> bytes(static_cast<size_t>(tokenizer.vocabulary()));
  for (int32_t id = 0; id < tokenizer.vocabulary(); ++id) {
    if (!tokenizer.is_special(id)) bytes[static_cast<size_t>(id)] = tokenizer.token_bytes(id);
  }
  return std::make_shared<const scheduler::TokenBytes>(bytes);
}

engine::EngineOptions engine_options(const model::Model& model, const ServingSizes& sizes) {
  engine::EngineOptions engine;
  engine.scheduler.context = sizes.runner.context;
  engine.scheduler.slots = sizes.runner.slots;
  engine.scheduler.sessions = sizes.sessions;
  engine.scheduler.session_grow = sizes.session_grow;
  engine.report = sizes.report;
  engine.snapshots = sizes.snapshots;
  engine.scheduler.decode_share = sizes.decode_share;
  engine.scheduler.lone_priced = sizes.pricing.lone_priced;
  engine.scheduler.prefill_chunk = sizes.prefill_chunk;
  engine.scheduler.max_draft = model.weights().has_mtp ? sizes.runner.max_draft : 0;
  engine.scheduler.prompt_lookup = sizes.prompt_lookup;
  engine.scheduler.lone = sizes.lone.on;
  engine.scheduler.steps_in_flight = sizes.lone.steps_in_flight;
  engine.scheduler.lone_handoffs = sizes.lone.handoffs;
  return engine;
}

void fit_sizes(ServingSizes& sizes, const model::Model& model) {
  if (!model.weights().has_mtp) sizes.runner.max_draft = 0;
}

void price_drafts(engine::EngineOptions& engine, runner::Runner& runner,
                  const PricingOptions& pricing) {
  if (!pricing.calibrate) return;
  const runner::Calibration measured = runner::calibrate(runner, SteadyClock());
  engine.scheduler.costs = costs_of(measured);
  if (pricing.report) pricing.report(calibration_line(measured, engine.scheduler.costs));
}

Result<std::unique_ptr<engine::Engine>> make_engine(
    model::Model& model, ServingSizes sizes,
    std::shared_ptr<const scheduler::TokenBytes> token_bytes) {
  fit_sizes(sizes, model);
  ASSIGN_OR_RETURN(auto runner, runner::Runner::create(model, sizes.runner));
  engine::EngineOptions engine = engine_options(model, sizes);
  price_drafts(engine, *runner, sizes.pricing);
  engine.scheduler.token_bytes = std::move(token_bytes);
  return std::make_unique<engine::Engine>(std::move(runner), std::move(engine));
}

}  // namespace flashlane::cli
