// CLI11 only splits the command line and prints help: every value is kept as text and parsed here,
// so that a flag, a file and a variable obey the same rules.
#include "cli/option_table.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <limits>
#include <utility>

namespace flashlane::cli {

namespace {

bool is_digits(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

Result<bool> parse_flag(std::string_view text, std::string_view place) {
  if (text == "1") return true;
  if (text == "0") return false;
  return invalid("{} is '{}'; a switch is 0 or 1", place, text);
}

Result<uint64_t> parse_unsigned(std::string_view text, std::string_view place) {
  uint64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!is_digits(text) || code != std::errc() || end != text.data() + text.size()) {
    return invalid("{} is '{}'; it must be a whole number from 0 to {}", place, text,
                   std::numeric_limits<uint64_t>::max());
  }
  return value;
}

}  // namespace

Result<int64_t> parse_integer(std::string_view text, std::string_view place, int64_t low,
                              int64_t high) {
  const std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  int64_t value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (!is_digits(digits) || code == std::errc::invalid_argument) {
    return invalid("{} is '{}'; it must be a whole number", place, text);
  }
  if (code != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return invalid("{} is {}; allowed are {} to {}", place, text, low, high);
  }
  return value;
}

Result<std::vector<int64_t>> parse_integers(std::string_view text, std::string_view place,
                                            int64_t low, int64_t high) {
  std::vector<int64_t> values;
  for (size_t start = 0; start <= text.size();) {
    const size_t end = std::min(text.find(',', start), text.size());
    ASSIGN_OR_RETURN(const int64_t value,
                     parse_integer(text.substr(start, end - start), place, low, high));
    values.push_back(value);
    start = end + 1;
  }
  return values;
}

Result<double> parse_number(std::string_view text, std::string_view place, double low,
                            double high) {
  std::string_view digits = text.substr(text.starts_with('-') ? 1 : 0);
  const size_t point = digits.find('.');
  const bool plain = point == std::string_view::npos ? is_digits(digits)
                                                     : is_digits(digits.substr(0, point)) &&
                                                           is_digits(digits.substr(point + 1));
  double value = 0;
  const auto [end, code] =
      std::from_chars(text.data(), text.data() + text.size(), value, std::chars_format::fixed);
  if (!plain || code != std::errc() || end != text.data() + text.size()) {
    return invalid("{} is '{}'; it must be a plain decimal number", place, text);
  }
  if (value < low || value > high) {
    return invalid("{} is {}; allowed are {} to {}", place, text, low, high);
  }
  return value;
}

std::string environment_name(std::string_view option) {
  std::string name = "FLASHLANE_";
  for (const char c : option) {
    name.push_back(c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c))));
  }
  return name;
}

OptionTable::OptionTable(CLI::App& app, std::string command)
    : app_(app), command_(std::move(command)) {}

Setting* OptionTable::find(std::string_view name) const {
  for (const auto& setting : settings_) {
    if (setting->name == name) return setting.get();
  }
  return nullptr;
}

Setting& OptionTable::add(const std::string& name, OptionKind kind, Reach reach,
                          std::vector<std::string> also) {
  CHECK(find(name) == nullptr);
  auto setting = std::make_unique<Setting>();
  setting->name = name;
  setting->kind = kind;
  setting->reach = reach;
  if (reach == Reach::kEverywhere) {
    setting->environment.push_back(environment_name(name));
    setting->environment.insert(setting->environment.end(), also.begin(), also.end());
  }
  settings_.push_back(std::move(setting));
  return *settings_.back();
}

void OptionTable::flag(const std::string& name, bool& target, const std::string& help, Reach reach,
                       std::vector<std::string> also) {
  Setting& setting = add(name, OptionKind::kFlag, reach, std::move(also));
  setting.set = [&target](std::string_view text, std::string_view place) -> Status {
    ASSIGN_OR_RETURN(target, parse_flag(text, place));
    return {};
  };
  app_.add_flag_callback(
          "--" + name, [&setting] { setting.flag_text = "1"; }, help)
      ->disable_flag_override();
}

void OptionTable::integer(const std::string& name, std::optional<int64_t>& target, int64_t low,
                          int64_t high, const std::string& help, Reach reach,
                          std::vector<std::string> also) {
  Setting& setting = add(name, OptionKind::kInteger, reach, std::move(also));
  setting.set = [&target, low, high](std::string_view text, std::string_view place) -> Status {
    ASSIGN_OR_RETURN(target, parse_integer(text, place, low, high));
    return {};
  };
  app_.add_option_function<std::string>(
          "--" + name, [&setting](const std::string& value) { setting.flag_text = value; }, help)
      ->type_name("N");
}

void OptionTable::unsigned_integer(const std::string& name, std::optional<uint64_t>& target,
                                   const std::string& help, Reach reach) {
  Setting& setting = add(name, OptionKind::kInteger, reach, {});
  setting.set = [&target](std::string_view text, std::string_view place) -> Status {
    ASSIGN_OR_RETURN(target, parse_unsigned(text, place));
    return {};
  };
  app_.add_option_function<std::string>(
          "--" + name, [&setting](const std::string& value) { setting.flag_text = value; }, help)
      ->type_name("N");
}

void OptionTable::number(const std::string& name, std::optional<double>& target, double low,
                         double high, const std::string& help, Reach reach,
                         std::vector<std::string> also) {
  Setting& setting = add(name, OptionKind::kNumber, reach, std::move(also));
  setting.set = [&target, low, high](std::string_view text, std::string_view place) -> Status {
    ASSIGN_OR_RETURN(target, parse_number(text, place, low, high));
    return {};
  };
  app_.add_option_function<std::string>(
          "--" + name, [&setting](const std::string& value) { setting.flag_text = value; }, help)
      ->type_name("X");
}

void OptionTable::text(const std::string& name, std::optional<std::string>& target,
                       std::vector<std::string> choices, const std::string& help, Reach reach,
                       std::vector<std::string> also) {
  Setting& setting = add(name, OptionKind::kText, reach, std::move(also));
  const std::string type = choices.empty() ? "TEXT" : fmt::format("{}", fmt::join(choices, "|"));
  setting.set = [&target, choices = std::move(choices)](std::string_view value,
                                                        std::string_view place) -> Status {
    if (!choices.empty() && std::find(choices.begin(), choices.end(), value) == choices.end()) {
      return invalid("{} is '{}'; it must be one of {}", place, value, fmt::join(choices, ", "));
    }
    target = std::string(value);
    return {};
  };
  app_.add_option_function<std::string>(
          "--" + name, [&setting](const std::string& value) { setting.flag_text = value; }, help)
      ->type_name(type);
}

void OptionTable::positional(const std::string& name, const std::string& label) {
  Setting* setting = find(name);
  CHECK(setting != nullptr);
  app_.add_option_function<std::string>(
          label,
          [setting, name, label](const std::string& value) {
            if (setting->flag_text.has_value() && *setting->flag_text != value) {
              throw CLI::ValidationError(label, fmt::format("'{}' and --{} '{}' contradict", value,
                                                            name, *setting->flag_text));
            }
            setting->flag_text = value;
          },
          fmt::format("the same as --{}", name))
      ->type_name("");
}

void OptionTable::note(const Setting& setting, std::string_view text, std::string_view place) {
  given_[setting.name] = fmt::format("{} = {} ({})", setting.name, text, place);
}

std::vector<std::string> OptionTable::given() const {
  std::vector<std::string> lines;
  for (const auto& [name, line] : given_) lines.push_back(line);
  return lines;
}

}  // namespace flashlane::cli
