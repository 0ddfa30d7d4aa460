// A command: its options and what runs when it is chosen. One thin file per command makes one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/option_table.h"

namespace CLI {
class App;
}

namespace flashlane::cli {

enum class Exit : int { kOk = 0, kFailed = 1, kBadInput = 2, kInterrupted = 130 };

// 2 for what the caller got wrong, 1 for what went wrong here.
Exit exit_for(const Error& failure);

// Prints `flashlane: message` as one line on stderr.
void print_error(std::string_view message);

struct Command {
  CLI::App* app = nullptr;
  std::unique_ptr<OptionTable> table;
  std::shared_ptr<std::string> config_path;
  std::function<Result<Exit>()> run;
};

// Makes the subcommand with its description, table, --config and the footer: examples, exit codes.
Command make_command(CLI::App& root, const std::string& name, const std::string& description,
                     const std::string& examples);

Command score_command(CLI::App& root);
Command tokenize_command(CLI::App& root);
Command template_command(CLI::App& root);
Command generate_command(CLI::App& root);
Command info_command(CLI::App& root);
Command convert_command(CLI::App& root);
Command serve_command(CLI::App& root);
Command bench_command(CLI::App& root);

// What this binary is: "0.1.0", and the commit it was configured at.
std::string_view version_number();
std::string_view build_id();

// `flashlane --version [--json]`.
Result<Exit> print_version(bool json);

}  // namespace flashlane::cli
