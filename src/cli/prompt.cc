// Raw text goes through the tokenizer with special tokens parsed; a chat message goes through the
// checkpoint's template, where what the message spells stays plain text.
#include "cli/prompt.h"

#include <boost/json.hpp>
#include <utility>

#include "cli/inputs.h"
#include "text/chat_prompt.h"
#include "text/chat_template.h"
#include "text/utf8.h"

namespace flashlane::cli {

namespace {

Result<std::vector<int32_t>> render_chat(const PromptOptions& options, const ModelOutline& outline,
                                         const ModelTexts& texts) {
  if (!texts.chat_template.has_value()) {
    return invalid("{} has no chat template; use --prompt", outline.location.name);
  }
  ASSIGN_OR_RETURN(const auto chat_template, text::ChatTemplate::parse(*texts.chat_template));
  boost::json::object variables;
  variables["messages"] =
      boost::json::array{boost::json::object{{"role", "user"}, {"content", *options.chat}}};
  variables["add_generation_prompt"] = true;
  if (options.thinking) variables["enable_thinking"] = true;
  if (options.no_thinking) variables["enable_thinking"] = false;
  return text::encode_chat(*texts.tokenizer, *chat_template, variables);
}

}  // namespace

void add_prompt_options(OptionTable& table, PromptOptions& options) {
  constexpr Reach kHere = Reach::kFlagOnly;
  table.text("prompt", options.prompt, {}, "raw text; special tokens in it are parsed", kHere);
  table.text("prompt-ids", options.prompt_ids, {},
             "file with a JSON array of token ids; - reads standard input", kHere);
  table.text("chat", options.chat, {}, "one user message, put through the chat template", kHere);
  table.flag("thinking", options.thinking, "with --chat: think first (the template's default)",
             kHere);
  table.flag("no-thinking", options.no_thinking, "with --chat: answer without thinking", kHere);
}

Status check_prompt(const PromptOptions& options) {
  const int sources = static_cast<int>(options.prompt.has_value()) +
                      static_cast<int>(options.prompt_ids.has_value()) +
                      static_cast<int>(options.chat.has_value());
  if (sources != 1) {
    return invalid("generate needs one of --prompt, --prompt-ids and --chat; {} are given",
                   sources);
  }
  if ((options.thinking || options.no_thinking) && !options.chat.has_value()) {
    return invalid("--thinking and --no-thinking belong to --chat");
  }
  // Checked here, so that the offset is one of the text as it was given.
  for (const auto& [name, given] :
       {std::pair{"--prompt", &options.prompt}, std::pair{"--chat", &options.chat}}) {
    if (!given->has_value()) continue;
    if (const auto at = text::find_invalid_utf8(**given)) {
      return invalid("{} is not valid UTF-8 at byte {}", name, *at);
    }
  }
  if (options.thinking && options.no_thinking) {
    return invalid("--thinking and --no-thinking contradict");
  }
  return {};
}

Result<std::vector<int32_t>> read_prompt(const PromptOptions& options, const ModelOutline& outline,
                                         const ModelTexts& texts) {
  if (options.prompt_ids.has_value()) {
    return read_ids(*options.prompt_ids, outline.shape.vocabulary);
  }
  if (texts.tokenizer == nullptr) {
    return invalid("{} has no tokenizer; use --prompt-ids", outline.location.name);
  }
  if (options.chat.has_value()) return render_chat(options, outline, texts);
  return texts.tokenizer->encode(*options.prompt, {.parse_special = true});
}

}  // namespace flashlane::cli
