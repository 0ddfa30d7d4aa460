// Where option values come from: environment, configuration file (TOML), command line, in rising
// order of precedence. Unknown names are refused in each, with the names that exist.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <toml++/toml.h>

#include <algorithm>
#include <set>
#include <utility>

#include "cli/inputs.h"
#include "cli/option_table.h"

namespace flashlane::cli {

namespace {

constexpr std::string_view kPrefix = "FLASHLANE_";
constexpr std::string_view kConfigVariable = "FLASHLANE_CONFIG";

Status apply_environment(const std::vector<OptionTable*>& tables, const Environment& environment) {
  std::set<std::string> known = {std::string(kConfigVariable)};
  for (const OptionTable* table : tables) {
    for (const auto& setting : table->settings()) {
      known.insert(setting->environment.begin(), setting->environment.end());
    }
  }
  for (const auto& [name, value] : environment) {
    if (name.starts_with(kPrefix) && !known.contains(name)) {
      return invalid("{} is not a variable of this program; it knows {}", name,
                     fmt::join(known, ", "));
    }
  }
  for (OptionTable* table : tables) {
    for (const auto& setting : table->settings()) {
      // Our own name comes first in the list and wins over the aliases, so it is applied last.
      for (auto name = setting->environment.rbegin(); name != setting->environment.rend(); ++name) {
        const auto found = environment.find(*name);
        if (found == environment.end() || found->second.empty()) continue;
        RETURN_IF_ERROR(setting->set(found->second, *name));
        table->note(*setting, found->second, *name);
      }
    }
  }
  return {};
}

std::string_view kind_words(OptionKind kind) {
  switch (kind) {
    case OptionKind::kFlag:
      return "true or false";
    case OptionKind::kInteger:
      return "a whole number";
    case OptionKind::kNumber:
      return "a number";
    case OptionKind::kText:
      return "a string";
  }
  UNREACHABLE();
}

// The value as the exact parsers want it, or an error when the file holds another type.
Result<std::string> node_text(const toml::node& node, OptionKind kind, const std::string& place) {
  if (kind == OptionKind::kFlag && node.is_boolean()) {
    return std::string(node.as_boolean()->get() ? "1" : "0");
  }
  if (kind != OptionKind::kFlag && node.is_integer()) {
    return fmt::format("{}", node.as_integer()->get());
  }
  if (kind == OptionKind::kNumber && node.is_floating_point()) {
    return fmt::format("{:.12f}", node.as_floating_point()->get());
  }
  if (kind == OptionKind::kText && node.is_string()) return std::string(node.as_string()->get());
  return invalid("{} must be {}", place, kind_words(kind));
}

Status apply_node(OptionTable& table, Setting& setting, const toml::node& node,
                  const std::string& place) {
  ASSIGN_OR_RETURN(const std::string text, node_text(node, setting.kind, place));
  RETURN_IF_ERROR(setting.set(text, place));
  table.note(setting, text, place);
  return {};
}

std::string configurable_names(const OptionTable& table) {
  std::vector<std::string> names;
  for (const auto& setting : table.settings()) {
    if (setting->reach == Reach::kEverywhere) names.push_back(setting->name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

Status apply_table(OptionTable& table, const toml::table& values, const std::string& path) {
  for (const auto& [key, node] : values) {
    const std::string name(key.str());
    Setting* setting = table.find(name);
    const std::string place = fmt::format("{}: {}.{}", path, table.command(), name);
    if (setting == nullptr || setting->reach != Reach::kEverywhere) {
      return invalid("{} is not an option; '{}' has {}", place, table.command(),
                     configurable_names(table));
    }
    RETURN_IF_ERROR(apply_node(table, *setting, node, place));
  }
  return {};
}

// A top-level option goes to every command that has it. Model options come before [command] tables.
Status apply_top_level(const std::vector<OptionTable*>& tables, const std::string& name,
                       const toml::node& node, const std::string& path) {
  bool known = false;
  std::set<std::string> names;
  for (OptionTable* table : tables) {
    for (const auto& setting : table->settings()) {
      if (setting->reach != Reach::kEverywhere) continue;
      names.insert(setting->name);
      if (setting->name != name) continue;
      known = true;
      RETURN_IF_ERROR(apply_node(*table, *setting, node, fmt::format("{}: {}", path, name)));
    }
  }
  if (!known) {
    return invalid("{}: '{}' is neither an option nor a command; options are {}", path, name,
                   fmt::join(names, ", "));
  }
  return {};
}

Result<toml::table> parse_config(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_input(path));
  try {
    return toml::parse(text, path);
  } catch (const toml::parse_error& failure) {
    return invalid("{}: line {}: {}", path, failure.source().begin.line, failure.description());
  }
}

Status apply_config(const std::vector<OptionTable*>& tables, const std::string& path) {
  ASSIGN_OR_RETURN(const toml::table config, parse_config(path));
  for (const auto& [key, node] : config) {
    if (node.is_table()) continue;
    RETURN_IF_ERROR(apply_top_level(tables, std::string(key.str()), node, path));
  }
  for (const auto& [key, node] : config) {
    if (!node.is_table()) continue;
    const std::string_view command = key.str();
    const auto table =
        std::find_if(tables.begin(), tables.end(),
                     [&](const OptionTable* candidate) { return candidate->command() == command; });
    if (table == tables.end()) return invalid("{}: [{}] is not a command", path, command);
    RETURN_IF_ERROR(apply_table(**table, *node.as_table(), path));
  }
  return {};
}

}  // namespace

Status resolve_options(const std::vector<OptionTable*>& tables, const OptionTable& running,
                       const std::string& config_path, const Environment& environment) {
  RETURN_IF_ERROR(apply_environment(tables, environment));
  std::string path = config_path;
  if (path.empty()) {
    const auto variable = environment.find(std::string(kConfigVariable));
    if (variable != environment.end()) path = variable->second;
  }
  if (!path.empty()) RETURN_IF_ERROR(apply_config(tables, path));
  for (OptionTable* table : tables) {
    if (table != &running) continue;
    for (const auto& setting : table->settings()) {
      if (!setting->flag_text.has_value()) continue;
      const std::string place = "--" + setting->name;
      RETURN_IF_ERROR(setting->set(*setting->flag_text, place));
      table->note(*setting, *setting->flag_text, place);
    }
  }
  return {};
}

}  // namespace flashlane::cli
