// `flashlane score`: logits of a given sequence, one JSON line per position. It needs config and
// weights only; ids come as they are.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/json_line.h"
#include "cli/loading.h"
#include "cli/scorer.h"

namespace flashlane::cli {

namespace {

constexpr int kDefaultTop = 20;
constexpr int kDefaultChunk = 512;
constexpr int64_t kMostChunk = 1 << 16;
constexpr int64_t kMostDepth = 16;
constexpr int64_t kMostTop = 1 << 24;

struct ScoreOptions {
  ModelOptions model;
  std::optional<std::string> ids;
  std::optional<int64_t> top;
  std::optional<int64_t> chunk;
  std::optional<std::string> role;
  std::optional<int64_t> rows;
  bool mtp = false;
  std::optional<int64_t> mtp_depth;
  std::optional<std::string> positions;
  bool json = false;
};

void write_top(JsonLine& json, const Distribution& distribution) {
  json.begin_array();
  for (const TopEntry& entry : distribution.top) {
    json.begin_array().integer(entry.id).number(static_cast<double>(entry.logit)).end_array();
  }
  json.end_array();
}

void write_score(JsonLine& json, const PositionScore& score) {
  json.begin_object();
  json.key("position").integer(score.position).key("token").integer(score.token);
  json.key("logsumexp").number(score.next.logsumexp);
  json.key("top");
  write_top(json, score.next);
  if (!score.mtp.empty()) {
    json.key("mtp_top");
    write_top(json, score.mtp.front());
  }
  if (score.mtp.size() > 1) {
    json.key("mtp").begin_array();
    for (const Distribution& depth : score.mtp) {
      json.begin_object().key("logsumexp").number(depth.logsumexp).key("top");
      write_top(json, depth);
      json.end_object();
    }
    json.end_array();
  }
  json.end_object();
}

Result<std::vector<int>> parse_positions(const std::string& list, int limit) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> given,
                   parse_integers(list, "--positions", 0, limit - 1));
  std::vector<int> positions(given.begin(), given.end());
  std::sort(positions.begin(), positions.end());
  return positions;
}

Status check_options(const ScoreOptions& options) {
  if (!options.ids.has_value()) return invalid("score needs --ids FILE, a JSON array of token ids");
  if (options.rows.has_value() && options.role.value_or("prompt") != "decode") {
    return invalid("--rows belongs to --role decode; prompt rows are cut by --chunk");
  }
  if (options.mtp_depth.has_value() && !options.mtp) {
    return invalid("--mtp-depth {} needs --mtp", *options.mtp_depth);
  }
  return {};
}

Result<ScorerOptions> scorer_options(const ScoreOptions& options, const ModelOutline& outline,
                                     int tokens) {
  const model::ModelShape& shape = outline.shape;
  if (tokens == 0) return invalid("--ids holds no token ids");
  if (tokens > shape.max_position) {
    return invalid("{} token ids are longer than the model's context of {} positions", tokens,
                   shape.max_position);
  }
  if (options.mtp && shape.mtp_layers == 0) return invalid("--mtp: this model has no MTP head");
  ScorerOptions scorer;
  scorer.top =
      static_cast<int>(std::min<int64_t>(options.top.value_or(kDefaultTop), shape.vocabulary));
  const bool decode = options.role.value_or("prompt") == "decode";
  scorer.role = decode ? kernels::Role::kDecode : kernels::Role::kPrompt;
  const int64_t rows = decode ? options.rows.value_or(1) : options.chunk.value_or(kDefaultChunk);
  scorer.rows = static_cast<int>(std::min<int64_t>(rows, tokens));
  scorer.mtp_depth = options.mtp ? static_cast<int>(options.mtp_depth.value_or(1)) : 0;
  // Deeper drafts sit behind the last token.
  scorer.context = std::min(tokens + scorer.mtp_depth, shape.max_position);
  scorer.page_rows = runner::default_page_rows(shape, outline.kv_dtype);
  scorer.kv_dtype = outline.kv_dtype;
  if (options.positions.has_value()) {
    ASSIGN_OR_RETURN(scorer.positions, parse_positions(*options.positions, tokens));
  }
  return scorer;
}

Result<Exit> run_score(const ScoreOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(const ModelOutline outline, outline_model(options.model));
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                   read_ids(*options.ids, outline.shape.vocabulary));
  ASSIGN_OR_RETURN(const ScorerOptions scorer_options_value,
                   scorer_options(options, outline, static_cast<int>(ids.size())));
  runner::RunnerOptions memory;
  memory.context = scorer_options_value.context;
  memory.max_rows = scorer_options_value.rows;
  memory.page_rows = scorer_options_value.page_rows;
  memory.kv_dtype = outline.kv_dtype;
  ASSIGN_OR_RETURN(const MemoryPlan plan, plan_memory(outline, memory));
  ASSIGN_OR_RETURN(const auto model, load_model(outline, plan, options.model, memory));
  Scorer scorer(*model, scorer_options_value);
  JsonLine json;
  RETURN_IF_ERROR(scorer.run(ids, [&](const PositionScore& score) -> Status {
    json.clear();
    write_score(json, score);
    fmt::print("{}\n", json.str());
    return {};
  }));
  if (std::fflush(stdout) != 0) return error(ErrorCode::kInternal, "can't write to stdout");
  return Exit::kOk;
}

}  // namespace

Command score_command(CLI::App& root) {
  Command command = make_command(
      root, "score", "Print the logits after every token of a sequence, one JSON line a position.",
      "  flashlane score --ids ids.json --json\n"
      "  flashlane score --model DIR --ids - --top 5 --chunk 64 --json < ids.json\n"
      "  flashlane score --ids ids.json --role decode --rows 4 --mtp --mtp-depth 3 --json\n"
      "\nA line is {\"position\",\"token\",\"logsumexp\",\"top\":[[id,logit],...]}: the logits for "
      "the\n"
      "token after `position`, descending, ties by lower id. Lines are equal to the bit for every\n"
      "--chunk. With --mtp a line but the last also has \"mtp_top\", the head's drafts for the "
      "token\n"
      "after next, and with --mtp-depth above 1 \"mtp\", one entry a depth.\n");
  auto options = std::make_shared<ScoreOptions>();
  OptionTable& table = *command.table;
  constexpr Reach kHere = Reach::kFlagOnly;
  add_model_options(table, options->model);
  table.text("ids", options->ids, {}, "JSON array of token ids; - reads standard input", kHere);
  table.integer("top", options->top, 1, kMostTop,
                "logits to print; default 20, at most the vocabulary", kHere);
  table.integer("chunk", options->chunk, 1, kMostChunk,
                "prompt rows of a forward; default 512; changes no bit", kHere);
  table.text("role", options->role, {"prompt", "decode"},
             "arithmetic of the rows; default prompt; decode ignores --chunk", kHere);
  table.integer("rows", options->rows, 1, kernels::kMaxWindow,
                "rows of a decode forward; default 1", kHere);
  table.flag("mtp", options->mtp, "also run the MTP head", kHere);
  table.integer("mtp-depth", options->mtp_depth, 1, kMostDepth,
                "drafts to chain at each position; default 1", kHere);
  table.text("positions", options->positions, {},
             "print only these positions, e.g. 0,17,63; default all", kHere);
  add_json(table, options->json, "accepted for symmetry: the output is always JSON lines");
  command.run = [options] { return run_score(*options); };
  return command;
}

}  // namespace flashlane::cli
