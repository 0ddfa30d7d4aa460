// Messages name the function and the parameter; the caller adds the line.
#include "text/template_arguments.h"

#include <algorithm>
#include <limits>

namespace flashlane::text {

Result<std::vector<std::optional<Value>>> bind_arguments(
    std::string_view what, const Arguments& arguments,
    std::initializer_list<std::string_view> names) {
  std::vector<std::optional<Value>> slots(names.size());
  if (arguments.positional.size() > names.size()) {
    return invalid("{} takes at most {} arguments, {} given", what, names.size(),
                   arguments.positional.size());
  }
  for (size_t i = 0; i < arguments.positional.size(); ++i) slots[i] = arguments.positional[i];
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) return invalid("{} has no argument '{}'", what, name);
    auto& slot = slots[static_cast<size_t>(found - names.begin())];
    if (slot) return invalid("{} got two values for '{}'", what, name);
    slot = value;
  }
  return slots;
}

Result<Value> required(std::string_view what, std::string_view name,
                       const std::optional<Value>& slot) {
  if (!slot) return invalid("{} needs the argument '{}'", what, name);
  return *slot;
}

Result<int64_t> integer_or(std::string_view what, std::string_view name,
                           const std::optional<Value>& slot, int64_t absent) {
  if (!slot || slot->is_none()) return absent;
  if (!slot->is_whole()) {
    return invalid("{}: '{}' is of type {}, not an integer", what, name, type_name(*slot));
  }
  const Integer value = slot->as_integer();
  if (value > std::numeric_limits<int64_t>::max() || value < std::numeric_limits<int64_t>::min()) {
    return invalid("{}: '{}' is out of range", what, name);
  }
  return static_cast<int64_t>(value);
}

Result<Text> text_or(std::string_view what, std::string_view name, const std::optional<Value>& slot,
                     std::string_view absent) {
  if (!slot) return Text::borrowed(absent, false);
  if (!slot->is_text()) {
    return invalid("{}: '{}' is of type {}, not a text", what, name, type_name(*slot));
  }
  return slot->as_text();
}

bool true_or(const std::optional<Value>& slot, bool absent) {
  return slot ? is_true(*slot) : absent;
}

}  // namespace flashlane::text
