// `flashlane bench`: how fast a model runs here, and how close that is to the memory's speed. The
// model's own tokens are checked in every round; no number is printed for work that went wrong.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <memory>
#include <utility>

#include "base/keyed_random.h"
#include "base/process_memory.h"
#include "cli/bench_forwards.h"
#include "cli/bench_replies.h"
#include "cli/bench_streams.h"
#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/json_line.h"
#include "cli/machine.h"
#include "cli/read_probe.h"
#include "cli/serving.h"
#include "cli/signals.h"
#include "runner/calibration.h"
#include "text/utf8.h"

namespace flashlane::cli {

namespace {

constexpr int64_t kMostTokens = 1 << 24;
constexpr int64_t kMostRounds = 1000;
constexpr int64_t kDefaultRounds = 5;
constexpr int64_t kDefaultProbeMib = 1024;
constexpr int64_t kMostProbeMib = 1 << 20;

struct BenchOptions {
  ModelOptions model;
  std::optional<std::string> prompt_tokens;
  std::optional<std::string> decode_tokens;
  std::optional<std::string> rows;
  std::optional<std::string> streams;
  std::optional<std::string> prompt_file;
  std::optional<std::string> drafts;
  std::optional<int64_t> rounds;
  std::optional<int64_t> prefill_chunk;
  std::optional<int64_t> probe_mib;
  bool unpriced = false;
  LoneOptions lone;
  bool json = false;
};

// The options, parsed and checked against the model.
struct BenchPlan {
  std::vector<int> prompts;  // lengths
  std::vector<int> decodes;
  std::vector<int> rows;
  std::vector<int> streams;  // replies at once
  bool drafts = false;
  int rounds = 0;
  std::vector<int32_t> ids;  // of the longest prompt; shorter ones are its beginning
  ServingSizes sizes;
  // The same sizes, for as many sequences as forwards take at once.
  runner::RunnerOptions lanes;
};

// Prints what is being done once that has lasted two seconds, at most one line a second.
class Progress {
 public:
  void operator()(const std::string& words) {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    next_ = now + std::chrono::seconds(1);
    fmt::print(stderr, "bench: {}\n", words);
  }

 private:
  std::chrono::steady_clock::time_point next_ =
      std::chrono::steady_clock::now() + std::chrono::seconds(2);
};

Result<std::vector<int>> counts(const std::optional<std::string>& text, std::string_view place,
                                std::vector<int> otherwise, int64_t most) {
  if (!text.has_value()) return otherwise;
  ASSIGN_OR_RETURN(const std::vector<int64_t> values, parse_integers(*text, place, 1, most));
  return std::vector<int>(values.begin(), values.end());
}

// Ids from a counter: the same on every machine, spread over the vocabulary, never the end token,
// which would cut the n-grams.
std::vector<int32_t> counted_ids(int count, const model::ModelShape& shape) {
  std::vector<int32_t> ids;
  const auto vocabulary = static_cast<uint64_t>(shape.vocabulary);
  for (uint64_t i = 0; ids.size() < static_cast<size_t>(count); ++i) {
    const auto id = static_cast<int32_t>(splitmix64(i) % vocabulary);
    if (id != shape.eos_token || vocabulary == 1) ids.push_back(id);
  }
  return ids;
}

Result<std::vector<int32_t>> file_ids(const std::string& path, const ModelOutline& outline) {
  ASSIGN_OR_RETURN(const auto tokenizer, read_tokenizer(outline.location));
  ASSIGN_OR_RETURN(const std::string text, read_input(path));
  if (const auto at = text::find_invalid_utf8(text)) {
    return invalid("{} is not valid UTF-8 at byte {}", path, *at);
  }
  ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer->encode(text, {.parse_special = true}));
  if (ids.empty()) return invalid("{} holds no text; a prompt needs at least one token", path);
  return ids;
}

Status plan_prompts(const BenchOptions& options, const ModelOutline& outline, BenchPlan& plan) {
  constexpr int kDefaultPrompt = 512;
  if (!options.prompt_file.has_value()) {
    ASSIGN_OR_RETURN(plan.prompts, counts(options.prompt_tokens, "--prompt-tokens",
                                          {kDefaultPrompt}, kMostTokens));
    plan.ids =
        counted_ids(*std::max_element(plan.prompts.begin(), plan.prompts.end()), outline.shape);
    return {};
  }
  ASSIGN_OR_RETURN(plan.ids, file_ids(*options.prompt_file, outline));
  const int given = static_cast<int>(plan.ids.size());
  ASSIGN_OR_RETURN(plan.prompts,
                   counts(options.prompt_tokens, "--prompt-tokens", {given}, kMostTokens));
  for (const int length : plan.prompts) {
    if (length > given) {
      return invalid("--prompt-tokens {} is more than the {} tokens of {}", length, given,
                     *options.prompt_file);
    }
  }
  return {};
}

// Everything must fit the context: each prompt, the reply after it, and the rows of forwards.
Status plan_sizes(const BenchOptions& options, const ModelOutline& outline, BenchPlan& plan) {
  const int prompt = *std::max_element(plan.prompts.begin(), plan.prompts.end());
  const int decode = *std::max_element(plan.decodes.begin(), plan.decodes.end());
  const int rows = *std::max_element(plan.rows.begin(), plan.rows.end());
  const int64_t after = std::max<int64_t>(decode + 1, forward_positions(decode + 1, rows));
  if (prompt + after > outline.shape.max_position) {
    return invalid("--prompt-tokens {} and {} positions after it exceed the model's context of {}",
                   prompt, after, outline.shape.max_position);
  }
  ServingOptions wanted;
  // Room for the costs to be measured in: without them drafts would go unpriced, as in no server.
  wanted.context = std::min<int64_t>(outline.shape.max_position,
                                     std::max<int64_t>(prompt + after, runner::kCalibrationRows));
  wanted.prefill_chunk = options.prefill_chunk;
  ASSIGN_OR_RETURN(plan.sizes, serving_sizes(wanted, outline));
  plan.sizes.pricing.calibrate = !options.unpriced;
  ASSIGN_OR_RETURN(plan.sizes.lone, lone_sizes(options.lone));
  if (!plan.streams.empty()) {
    plan.sizes.runner.slots = *std::max_element(plan.streams.begin(), plan.streams.end());
  }
  plan.lanes = plan.sizes.runner;
  plan.lanes.slots = std::max(rows, plan.sizes.runner.slots);
  return {};
}

Result<BenchPlan> make_plan(const BenchOptions& options, const ModelOutline& outline) {
  BenchPlan plan;
  ASSIGN_OR_RETURN(plan.decodes,
                   counts(options.decode_tokens, "--decode-tokens", {128}, kMostTokens));
  ASSIGN_OR_RETURN(plan.rows,
                   counts(options.rows, "--rows", {1, 2, 4, 8, 16}, kernels::kMaxWindow));
  ASSIGN_OR_RETURN(plan.streams, counts(options.streams, "--streams", {}, scheduler::kMostSlots));
  const bool has_head = outline.shape.mtp_layers > 0;
  if (options.drafts == "on" && !has_head) {
    return invalid("--drafts on: {} has no MTP head to draft with", outline.location.name);
  }
  plan.drafts = has_head && options.drafts != "off";
  plan.rounds = static_cast<int>(options.rounds.value_or(kDefaultRounds));
  RETURN_IF_ERROR(plan_prompts(options, outline, plan));
  RETURN_IF_ERROR(plan_sizes(options, outline, plan));
  return plan;
}

Status probe(Probes& probes, int threads, bool before) {
  ASSIGN_OR_RETURN(const ReadBandwidth one, measure_read_bandwidth(probes.bytes, 1));
  ReadBandwidth all = one;
  if (threads > 1) {
    ASSIGN_OR_RETURN(all, measure_read_bandwidth(probes.bytes, threads));
  }
  (before ? probes.one_thread.before : probes.one_thread.after) = one;
  (before ? probes.all_threads.before : probes.all_threads.after) = all;
  return {};
}

Result<std::vector<Cell>> measure(model::Model& model, const BenchPlan& plan,
                                  const BenchProgress& progress) {
  std::vector<Cell> cells;
  std::vector<std::vector<int32_t>> replies;  // the longest after each prompt
  for (const int length : plan.prompts) {
    std::vector<int32_t>& longest = replies.emplace_back();
    ReplyCase wanted;
    wanted.prompt = std::span(plan.ids).first(static_cast<size_t>(length));
    wanted.drafts = plan.drafts;
    wanted.rounds = plan.rounds;
    for (const int tokens : plan.decodes) {
      wanted.tokens = tokens;
      wanted.prompt_cell = longest.empty();
      ASSIGN_OR_RETURN(ReplyCells reply, bench_replies(model, plan.sizes, wanted, progress));
      std::move(reply.cells.begin(), reply.cells.end(), std::back_inserter(cells));
      if (reply.ids.size() > longest.size()) longest = std::move(reply.ids);
      if (plan.streams.empty()) continue;
      const StreamsCase together = {wanted.prompt, tokens, plan.streams, plan.drafts, plan.rounds};
      ASSIGN_OR_RETURN(std::vector<Cell> shared,
                       bench_streams(model, plan.sizes, together, progress));
      std::move(shared.begin(), shared.end(), std::back_inserter(cells));
    }
  }
  ForwardBench forwards(model, plan.lanes);
  for (size_t i = 0; i < plan.prompts.size(); ++i) {
    progress(fmt::format("forwards after {}: the prompt", plan.prompts[i]));
    forwards.start(std::span(plan.ids).first(static_cast<size_t>(plan.prompts[i])), replies[i]);
    std::vector<Cell> timed = forwards.run(plan.rows, plan.rounds, progress);
    std::move(timed.begin(), timed.end(), std::back_inserter(cells));
  }
  return cells;
}

void print_report(const model::Model& model, const ModelOutline& outline, const Machine& machine,
                  const std::vector<Cell>& cells, const Probes& probes, bool json_wanted) {
  const int threads = model.backend().threads;
  const model::Weights& weights = model.weights();
  if (!json_wanted) {
    fmt::print("{}{}: {}, {} bytes of weights\n{}", machine_text(machine, model.backend()),
               outline.location.name, weights.format, weights.stored_bytes,
               cells_table(cells, threads, probes));
    return;
  }
  JsonLine json;
  json.begin_object().key("machine");
  write_machine(json, machine, model.backend());
  json.key("model").begin_object().key("name").text(outline.location.name);
  json.key("format").text(weights.format);
  json.key("weights_bytes").unsigned_integer(weights.stored_bytes).end_object();
  write_probes(json, probes);
  write_cells(json, cells, threads, probes);
  json.end_object();
  fmt::print("{}\n", json.str());
}

Result<Exit> run_bench(const BenchOptions& options) {
  install_signals(static_cast<int>(Exit::kInterrupted));
  const Machine machine = read_machine();
  ASSIGN_OR_RETURN(const ModelOutline outline, outline_model(options.model));
  ASSIGN_OR_RETURN(BenchPlan plan, make_plan(options, outline));
  ASSIGN_OR_RETURN(const MemoryPlan memory, plan_memory(outline, plan.lanes));
  ASSIGN_OR_RETURN(const auto model, load_model(outline, memory, options.model, plan.lanes));
  if (!model->weights().has_mtp) {
    if (options.drafts == "on") {
      return invalid("--drafts on: the weights of {} hold no MTP head", outline.location.name);
    }
    plan.drafts = false;
    fit_sizes(plan.sizes, *model);
  }
  // Once, though every engine of the run measures.
  plan.sizes.pricing.report = [told = std::make_shared<bool>(false)](const std::string& line) {
    if (!std::exchange(*told, true)) fmt::print(stderr, "bench: {}\n", line);
  };
  const auto progress = std::make_shared<Progress>();
  const BenchProgress report = [progress](const std::string& words) { (*progress)(words); };
  const int threads = model->backend().threads;
  const auto mib = static_cast<size_t>(options.probe_mib.value_or(kDefaultProbeMib));
  Probes probes;
  probes.bytes = probe_bytes(mib << 20, available_memory().value_or(0));
  report("read bandwidth");
  RETURN_IF_ERROR(probe(probes, threads, true));
  ASSIGN_OR_RETURN(const std::vector<Cell> cells, measure(*model, plan, report));
  report("read bandwidth");
  RETURN_IF_ERROR(probe(probes, threads, false));
  print_report(*model, outline, machine, cells, probes, options.json);
  return Exit::kOk;
}

void add_cases(OptionTable& table, BenchOptions& options) {
  constexpr Reach kHere = Reach::kFlagOnly;
  table.text("prompt-tokens", options.prompt_tokens, {},
             "prompt lengths, e.g. 512,2048; default 512, or all of --prompt-file", kHere);
  table.text("decode-tokens", options.decode_tokens, {},
             "tokens to decode after each prompt, e.g. 128; default 128", kHere);
  table.text("rows", options.rows, {},
             "rows of single forwards, 1 to 16, as one chain and as so many streams; default "
             "1,2,4,8,16",
             kHere);
  table.text("streams", options.streams, {},
             "whole replies at once, 1 to 16, e.g. 1,4,16; each must be the one that its prompt "
             "gives alone; default: none",
             kHere);
  table.text("prompt-file", options.prompt_file, {},
             "text of the prompt, cut to --prompt-tokens; needs a tokenizer; default: ids from a "
             "counter",
             kHere);
  table.text("drafts", options.drafts, {"on", "off"},
             "also decode with drafts; default on where the model has an MTP head", kHere);
  table.flag("unpriced", options.unpriced,
             "don't measure steps first; drafts go by how often they stand", Reach::kEverywhere,
             {"FZ_BATCH_UNPRICED"});
  table.integer("rounds", options.rounds, 1, kMostRounds,
                "times that each case is timed, in turns with the others; default 5", kHere);
  table.integer("probe-mib", options.probe_mib, 1, kMostProbeMib,
                "MiB that the bandwidth probe reads, at most a quarter of the free memory; default "
                "1024; less fits a cache and flatters it",
                kHere);
}

}  // namespace

Command bench_command(CLI::App& root) {
  Command command = make_command(
      root, "bench", "Measure how fast a model runs here, beside the memory's own speed.",
      "  flashlane bench --threads 1\n"
      "  flashlane bench --prompt-file bench/prompts/code.txt --prompt-tokens 512 --json\n"
      "  flashlane bench --streams 1,2,4,8,16 --prompt-tokens 64 --decode-tokens 96 --rows 1\n"
      "  flashlane bench --model synth:true,layers=4,format=q4g32 --prompt-tokens 64 \\\n"
      "    --decode-tokens 64 --rows 1,16 --drafts off\n"
      "\nMedians over --rounds with the lowest and highest. Bytes are counted: weights as stored,\n"
      "the distinct experts that were chosen, state, K/V; their rate is set against a plain sum\n"
      "over memory, read before and after in this process. Drafted and plain replies must be\n"
      "equal, or the command fails. Random ids choose experts as no text does and drafts for them\n"
      "are rarely accepted: give --prompt-file where that matters. --json prints {\"machine\",\n"
      "\"model\",\"probe_gbps\":[before,after],\"cells\":[...]}; docs/performance.md explains.\n");
  auto options = std::make_shared<BenchOptions>();
  OptionTable& table = *command.table;
  add_model_options(table, options->model);
  add_cases(table, *options);
  add_prefill_chunk(table, options->prefill_chunk);
  add_lone_options(table, options->lone);
  add_json(table, options->json, "one JSON object instead of a table");
  command.run = [options] { return run_bench(*options); };
  return command;
}

}  // namespace flashlane::cli
