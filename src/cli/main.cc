// The program: parses the command line, resolves options, runs one command, turns its result into
// an exit code. The only place that reads the environment and that catches CLI11's exceptions.
#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <cstring>
#include <vector>

#include "cli/command.h"

extern char** environ;

namespace flashlane::cli {

namespace {

Environment read_environment() {
  Environment variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals == nullptr) continue;
    variables.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), equals + 1);
  }
  return variables;
}

void describe(CLI::App& root) {
  root.set_help_flag("--help,-h", "print this help and exit");
  root.footer(
      "Examples:\n"
      "  flashlane serve --port 8080\n"
      "  flashlane generate --chat 'Count to five.' --max-tokens 40\n"
      "  flashlane info --plan\n"
      "\n`flashlane COMMAND --help` explains a command, its defaults and its exit codes:\n"
      "0 done, 1 failed while running, 2 bad input, 130 interrupted.");
}

// Runs the chosen command once its options are known.
Result<Exit> run_command(std::vector<Command>& commands) {
  std::vector<OptionTable*> tables;
  Command* chosen = nullptr;
  for (Command& command : commands) {
    tables.push_back(command.table.get());
    if (command.app->parsed()) chosen = &command;
  }
  if (chosen == nullptr) return invalid("no command given; `flashlane --help` lists them");
  RETURN_IF_ERROR(
      resolve_options(tables, *chosen->table, *chosen->config_path, read_environment()));
  return chosen->run();
}

int finish(const Result<Exit>& result) {
  if (!result.ok()) {
    print_error(result.error().message);
    return static_cast<int>(exit_for(result.error()));
  }
  if (std::fflush(stdout) != 0) {
    print_error("can't write to standard output");
    return static_cast<int>(Exit::kFailed);
  }
  return static_cast<int>(*result);
}

int run(int argc, char** argv) {
  CLI::App root("Flashlane serves Qwen3.8-Flash-Next checkpoints: many clients, one forward.",
                "flashlane");
  describe(root);
  bool version = false;
  bool json = false;
  root.add_flag("--version", version, "print version, build and instruction levels");
  root.add_flag("--json", json, "with --version: one JSON object");
  root.require_subcommand(0, 1);
  std::vector<Command> commands;
  commands.push_back(serve_command(root));
  commands.push_back(generate_command(root));
  commands.push_back(score_command(root));
  commands.push_back(tokenize_command(root));
  commands.push_back(template_command(root));
  commands.push_back(info_command(root));
  commands.push_back(convert_command(root));
  commands.push_back(bench_command(root));
  try {
    root.parse(argc, argv);
  } catch (const CLI::CallForHelp& call) {
    return root.exit(call);
  } catch (const CLI::ParseError& failure) {
    print_error(failure.what());
    return static_cast<int>(Exit::kBadInput);
  }
  if (version) return finish(print_version(json));
  return finish(run_command(commands));
}

}  // namespace

}  // namespace flashlane::cli

int main(int argc, char** argv) {
  return flashlane::cli::run(argc, argv);
}
