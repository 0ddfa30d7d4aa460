// `flashlane tokenize`: text to ids and back, bytes as they are.
#include <fmt/format.h>

#include <cstdio>

#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/json_line.h"
#include "cli/serving.h"

namespace flashlane::cli {

namespace {

struct TokenizeOptions {
  ModelOptions model;
  std::optional<std::string> text;
  std::optional<std::string> ids;
  bool decode = false;
  bool skip_special = false;
  bool no_special = false;
  bool json = false;
};

Status check_options(const TokenizeOptions& options) {
  if (options.decode) {
    if (!options.ids.has_value()) return invalid("--decode needs --ids FILE");
    if (options.text.has_value()) return invalid("--decode takes --ids, not --text");
    if (options.no_special) return invalid("--no-special is for encoding; see --skip-special");
    return {};
  }
  if (options.ids.has_value()) return invalid("--ids belongs to --decode");
  if (options.skip_special) return invalid("--skip-special belongs to --decode");
  return {};
}

Result<Exit> run_tokenize(const TokenizeOptions& options) {
  RETURN_IF_ERROR(check_options(options));
  ASSIGN_OR_RETURN(const auto location, model::locate_model(options.model.model_name()));
  ASSIGN_OR_RETURN(const auto tokenizer, read_tokenizer(location));
  JsonLine json;
  if (options.decode) {
    ASSIGN_OR_RETURN(const auto ids, read_ids(*options.ids, tokenizer->vocabulary()));
    ASSIGN_OR_RETURN(const std::string text, tokenizer->decode(ids, options.skip_special));
    if (!options.json) {
      std::fwrite(text.data(), 1, text.size(), stdout);
      return Exit::kOk;
    }
    json.begin_object().key("text").text(text).end_object();
  } else {
    ASSIGN_OR_RETURN(const std::string text, read_input(options.text.value_or("-")));
    ASSIGN_OR_RETURN(const auto ids, tokenizer->encode(text, {!options.no_special}));
    if (!options.json) {
      for (size_t i = 0; i < ids.size(); ++i) fmt::print("{}{}", i == 0 ? "" : " ", ids[i]);
      fmt::print("\n");
      return Exit::kOk;
    }
    json.begin_object().key("ids").ids(ids).end_object();
  }
  fmt::print("{}\n", json.str());
  return Exit::kOk;
}

}  // namespace

Command tokenize_command(CLI::App& root) {
  Command command =
      make_command(root, "tokenize", "Turn text into token ids, or ids into text.",
                   "  flashlane tokenize --text prompt.txt --json\n"
                   "  printf 'hello' | flashlane tokenize --json\n"
                   "  echo '[72,101]' | flashlane tokenize --decode --ids -\n"
                   "\nBytes are taken as they are, no newline is stripped; bytes that are not "
                   "UTF-8 are refused.\n"
                   "Special tokens spelled in the text become their ids unless --no-special.\n");
  auto options = std::make_shared<TokenizeOptions>();
  OptionTable& table = *command.table;
  constexpr Reach kHere = Reach::kFlagOnly;
  add_model_name(table, options->model);
  table.text("text", options->text, {}, "file to encode; - (default) reads standard input", kHere);
  table.flag("no-special", options->no_special, "special tokens in the text are plain text", kHere);
  table.flag("decode", options->decode, "turn ids into text", kHere);
  table.text("ids", options->ids, {}, "JSON array of ids to decode; - reads standard input", kHere);
  table.flag("skip-special", options->skip_special, "leave special tokens out of the text", kHere);
  add_json(table, options->json, "one JSON object: {\"ids\":[...]} or {\"text\":\"...\"}");
  command.run = [options] { return run_tokenize(*options); };
  return command;
}

}  // namespace flashlane::cli
