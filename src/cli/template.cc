// `flashlane template`: the chat template rendered with given variables.
#include <fmt/format.h>
#include <boost/json.hpp>

#include <utility>

#include "cli/command.h"
#include "cli/inputs.h"
#include "cli/json_line.h"
#include "cli/serving.h"
#include "text/chat_prompt.h"
#include "text/chat_template.h"

namespace flashlane::cli {

namespace {

struct TemplateOptions {
  ModelOptions model;
  std::optional<std::string> input;
  bool json = false;
};

Result<boost::json::object> read_variables(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_input(path));
  boost::json::error_code code;
  boost::json::value value = boost::json::parse(text, code);
  if (code) return invalid("{} is not JSON: {}", path, code.message());
  if (!value.is_object()) return invalid("{} must be a JSON object of template variables", path);
  return std::move(value.get_object());
}

Result<Exit> run_template(const TemplateOptions& options) {
  if (!options.input.has_value()) return invalid("template needs --input FILE with the variables");
  ASSIGN_OR_RETURN(const auto location, model::locate_model(options.model.model_name()));
  ASSIGN_OR_RETURN(const ModelTexts texts, read_texts(location));
  if (texts.tokenizer == nullptr) return invalid("{} has no tokenizer", location.name);
  if (!texts.chat_template.has_value()) return invalid("{} has no chat template", location.name);
  ASSIGN_OR_RETURN(const auto chat_template, text::ChatTemplate::parse(*texts.chat_template));
  ASSIGN_OR_RETURN(const boost::json::object variables, read_variables(*options.input));
  ASSIGN_OR_RETURN(const std::string text, chat_template->render(variables));
  if (!options.json) {
    fmt::print("{}", text);
    return Exit::kOk;
  }
  ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                   text::encode_chat(*texts.tokenizer, *chat_template, variables));
  JsonLine json;
  json.begin_object().key("text").text(text).key("ids").ids(ids).end_object();
  fmt::print("{}\n", json.str());
  return Exit::kOk;
}

}  // namespace

Command template_command(CLI::App& root) {
  Command command = make_command(
      root, "template", "Render the chat template of a model.",
      "  echo "
      "'{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"add_generation_prompt\":true}' "
      "\\\n"
      "    | flashlane template --input - --json\n"
      "\nThe input is a JSON object with the template's variables. What the template refuses is "
      "bad\n"
      "input: exit code 2 with its message. Markers that a message spells stay plain text.\n");
  auto options = std::make_shared<TemplateOptions>();
  OptionTable& table = *command.table;
  add_model_name(table, options->model);
  table.text("input", options->input, {}, "JSON object of variables; - reads standard input",
             Reach::kFlagOnly);
  add_json(table, options->json, "one JSON object: {\"text\":\"...\",\"ids\":[...]}");
  command.run = [options] { return run_template(*options); };
  return command;
}

}  // namespace flashlane::cli
