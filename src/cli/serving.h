// What `generate` and `serve` share: the sizes of an engine, the checkpoint's texts, the engine.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/loading.h"
#include "cli/options.h"
#include "cli/pool_sizes.h"
#include "engine/engine.h"
#include "text/generation_config.h"
#include "text/tokenizer.h"

namespace flashlane::cli {

// Drafts a window may hold, for a model with an MTP head.
inline constexpr int kMaxDraft = 3;

struct ServingOptions {
  std::optional<int64_t> context;
  std::optional<int64_t> prefill_chunk;
  PoolOptions pool;
};
void add_serving_sizes(OptionTable& table, ServingOptions& options);

// The driver of a reply that runs alone.
struct LoneOptions {
  bool no_lone = false;
  std::optional<int64_t> steps_in_flight;
  std::optional<std::string> handoffs;  // "1,77"
};
void add_prefill_chunk(OptionTable& table, std::optional<int64_t>& rows);
void add_lone_options(OptionTable& table, LoneOptions& options);

struct LoneSizes {
  bool on = true;
  int steps_in_flight = 1;
  std::vector<int> handoffs = {};
};
Result<LoneSizes> lone_sizes(const LoneOptions& options);

// What is measured at load to price drafts, and how it is told.
struct PricingOptions {
  bool calibrate = false;  // measure; else drafts go by acceptance only
  bool lone_priced = true;
  std::function<void(const std::string&)> report = {};  // one line on what was measured, or why not
};

struct ServingSizes {
  runner::RunnerOptions runner;
  int prefill_chunk = 0;
  std::vector<int> sessions = {};  // rows of each; none: one pool for all
  int session_grow = kDefaultSessionGrow;
  std::function<void(const std::string&)> report = {};  // of the engine: lines for people
  double decode_share = 0.5;
  bool prompt_lookup = true;
  LoneSizes lone = {};
  std::shared_ptr<runner::Snapshots> snapshots = {};  // null: none
  PricingOptions pricing;
};
// For one sequence; refuses a context beyond the model's.
Result<ServingSizes> serving_sizes(const ServingOptions& options, const ModelOutline& outline);

// The tokenizer of a checkpoint or a line that says what is missing.
Result<std::unique_ptr<text::Tokenizer>> read_tokenizer(const model::ModelLocation& location);

// What a checkpoint says besides its weights. A synthetic model has none of it.
struct ModelTexts {
  std::unique_ptr<text::Tokenizer> tokenizer;  // null: ids only
  std::optional<std::string> chat_template;
  text::GenerationConfig generation;
};
Result<ModelTexts> read_texts(const model::ModelLocation& location);

// The tokens that end a reply: generation_config.json's, else the configuration's.
std::vector<int32_t> end_ids(const ModelTexts& texts, const model::ModelShape& shape);

// The bytes that each token adds to a reply's text, for stop strings; special tokens add none.
std::shared_ptr<const scheduler::TokenBytes> reply_bytes(const text::Tokenizer& tokenizer);

// What an engine over a runner of these sizes needs to know.
engine::EngineOptions engine_options(const model::Model& model, const ServingSizes& sizes);

// Measures what steps take, where that is asked for, and lets the engine price drafts by it.
void price_drafts(engine::EngineOptions& engine, runner::Runner& runner,
                  const PricingOptions& pricing);

// Exports often leave the MTP head out, whatever their config says: then there are no drafts.
void fit_sizes(ServingSizes& sizes, const model::Model& model);

// Makes runner and engine over a loaded model, which must outlive them.
Result<std::unique_ptr<engine::Engine>> make_engine(
    model::Model& model, ServingSizes sizes,
    std::shared_ptr<const scheduler::TokenBytes> token_bytes);

}  // namespace flashlane::cli
