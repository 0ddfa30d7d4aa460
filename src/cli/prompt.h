// Where `generate` gets its prompt: raw text, ids, or one user message through the chat template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "cli/loading.h"
#include "cli/option_table.h"
#include "cli/serving.h"

namespace flashlane::cli {

struct PromptOptions {
  std::optional<std::string> prompt;
  std::optional<std::string> prompt_ids;
  std::optional<std::string> chat;
  bool thinking = false;
  bool no_thinking = false;
};

void add_prompt_options(OptionTable& table, PromptOptions& options);

// Exactly one source, and thinking switches only with --chat.
Status check_prompt(const PromptOptions& options);

Result<std::vector<int32_t>> read_prompt(const PromptOptions& options, const ModelOutline& outline,
                                         const ModelTexts& texts);

}  // namespace flashlane::cli
