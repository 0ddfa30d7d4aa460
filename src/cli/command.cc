// What all commands have in common: help layout, exit codes, the error line.
#include "cli/command.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>

namespace flashlane::cli {

Exit exit_for(const Error& failure) {
  switch (failure.code) {
    case ErrorCode::kInvalidArgument:
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
    case ErrorCode::kIo:
      return Exit::kBadInput;
    case ErrorCode::kCancelled:
      return Exit::kInterrupted;
    case ErrorCode::kNoCapacity:
    case ErrorCode::kDeviceLost:
    case ErrorCode::kInternal:
      return Exit::kFailed;
  }
  UNREACHABLE();
}

void print_error(std::string_view message) {
  std::string line(message);
  while (!line.empty() && line.back() == '\n') line.pop_back();
  for (char& c : line) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  fmt::print(stderr, "flashlane: {}\n", line);
}

Command make_command(CLI::App& root, const std::string& name, const std::string& description,
                     const std::string& examples) {
  Command command;
  command.app = root.add_subcommand(name, description);
  command.table = std::make_unique<OptionTable>(*command.app, name);
  command.config_path = std::make_shared<std::string>();
  command.app->set_help_flag("--help,-h", "print this help and exit");
  command.app
      ->add_option("--config", *command.config_path,
                   "TOML file with options by their long names; a [table] holds one command's")
      ->type_name("FILE");
  command.app->footer(
      "Examples:\n" + examples +
      "\nOptions about the model and serving may also stand in the file of --config and, as\n"
      "FLASHLANE_NAME, in the environment (dashes become underscores; switches are 0 or 1).\n"
      "Flags win over the file, the file over the environment.\n\n"
      "Exit codes: 0 done, 1 failed while running, 2 bad input (one line on stderr says which),\n"
      "130 interrupted.");
  return command;
}

}  // namespace flashlane::cli
