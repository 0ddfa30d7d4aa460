// OptionTable: a command's options, each declared once: its flag, its key in the configuration
// file, its environment name, its target, its bounds. Parsing is exact everywhere: booleans are 0
// or 1, numbers plain decimals, and every error names the place, the value and the limit.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace CLI {
class App;
}

namespace flashlane::cli {

enum class OptionKind : uint8_t { kFlag, kInteger, kNumber, kText };

// kEverywhere: flag, configuration file and environment. kFlagOnly: what one run works on.
enum class Reach : uint8_t { kEverywhere, kFlagOnly };

struct Setting {
  std::string name;  // without dashes: "prefill-chunk"
  OptionKind kind = OptionKind::kText;
  Reach reach = Reach::kEverywhere;
  std::vector<std::string> environment;  // names that set it, our own first
  // Parses and stores; `place` is how a person would find it: "--threads", "FLASHLANE_THREADS".
  std::function<Status(std::string_view text, std::string_view place)> set;
  std::optional<std::string> flag_text;  // what the command line said
};

class OptionTable {
 public:
  OptionTable(CLI::App& app, std::string command);

  const std::string& command() const { return command_; }
  const std::vector<std::unique_ptr<Setting>>& settings() const { return settings_; }
  Setting* find(std::string_view name) const;

  void flag(const std::string& name, bool& target, const std::string& help,
            Reach reach = Reach::kEverywhere, std::vector<std::string> also = {});
  void integer(const std::string& name, std::optional<int64_t>& target, int64_t low, int64_t high,
               const std::string& help, Reach reach = Reach::kEverywhere,
               std::vector<std::string> also = {});
  void unsigned_integer(const std::string& name, std::optional<uint64_t>& target,
                        const std::string& help, Reach reach = Reach::kEverywhere);
  void number(const std::string& name, std::optional<double>& target, double low, double high,
              const std::string& help, Reach reach = Reach::kEverywhere,
              std::vector<std::string> also = {});
  // `choices` empty: any text.
  void text(const std::string& name, std::optional<std::string>& target,
            std::vector<std::string> choices, const std::string& help,
            Reach reach = Reach::kEverywhere, std::vector<std::string> also = {});
  // The one positional argument, another way to say --`name`.
  void positional(const std::string& name, const std::string& label);

  // What was set to what, and where: "threads = 2 (FLASHLANE_THREADS)".
  void note(const Setting& setting, std::string_view text, std::string_view place);
  std::vector<std::string> given() const;

 private:
  Setting& add(const std::string& name, OptionKind kind, Reach reach,
               std::vector<std::string> also);

  CLI::App& app_;
  std::string command_;
  std::vector<std::unique_ptr<Setting>> settings_;
  std::map<std::string, std::string> given_;
};

// "prefill-chunk" → "FLASHLANE_PREFILL_CHUNK".
std::string environment_name(std::string_view option);

using Environment = std::map<std::string, std::string>;

// Fills every target: environment first, then the configuration file, then flags, so that the later
// one wins; each place is checked whole. Variables are applied to all commands' tables, so that a
// wrong one is refused whichever command runs; the file's top level holds options that any command
// has, and a [table] those of the command it names. `config_path` empty: none.
Status resolve_options(const std::vector<OptionTable*>& tables, const OptionTable& running,
                       const std::string& config_path, const Environment& environment);

// Exact parsers; `place` opens the message.
Result<int64_t> parse_integer(std::string_view text, std::string_view place, int64_t low,
                              int64_t high);
// "1,2,4": whole numbers between commas, at least one.
Result<std::vector<int64_t>> parse_integers(std::string_view text, std::string_view place,
                                            int64_t low, int64_t high);
Result<double> parse_number(std::string_view text, std::string_view place, double low, double high);

}  // namespace flashlane::cli
