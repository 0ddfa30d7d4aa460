// The clock is read here alone: a template that prints the date is the template author's wish.
#include "text/template_functions.h"

#include <array>
#include <ctime>

namespace flashlane::text {

bool is_function(std::string_view name) {
  for (const std::string_view known :
       {"raise_exception", "namespace", "range", "dict", "strftime_now"}) {
    if (name == known) return true;
  }
  return false;
}

Result<Value> make_range(const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments("range", arguments, {"start", "stop", "step"}));
  RETURN_IF_ERROR([&]() -> Status {
    const auto first = required("range", "stop", slots[0]);
    return first.ok() ? Status() : Status(first.error());
  }());
  std::array<int64_t, 3> bounds{};
  constexpr std::array<int64_t, 3> kAbsent{0, 0, 1};
  for (size_t i = 0; i < 3; ++i) {
    ASSIGN_OR_RETURN(bounds[i], integer_or("range", "argument", slots[i], kAbsent[i]));
  }
  if (!slots[1]) {
    bounds[1] = bounds[0];
    bounds[0] = 0;
  }
  const Integer step = bounds[2];
  if (step == 0) return invalid("range: the step is 0");
  const Integer distance = Integer{bounds[1]} - bounds[0];
  const Integer count = step > 0 ? (distance + step - 1) / step : (distance + step + 1) / step;
  if (count > static_cast<Integer>(Budget::kMaxSteps)) return invalid("range: too many items");
  std::vector<Value> items;
  if (count > 0) RETURN_IF_ERROR(budget.spend_items(static_cast<size_t>(count)));
  for (Integer i = 0; i < count; ++i) items.push_back(Value::integer(bounds[0] + i * step));
  return Value::list(std::move(items));
}

Result<Value> make_dict(const Arguments& arguments, Budget& budget) {
  if (arguments.positional.size() > 1) return invalid("dict takes at most one dict");
  Dict dict;
  if (!arguments.positional.empty()) {
    if (!arguments.positional[0].is_dict()) {
      return invalid("dict takes a dict, not {}", type_name(arguments.positional[0]));
    }
    dict = arguments.positional[0].as_dict();
  }
  RETURN_IF_ERROR(budget.spend_items((dict.entries().size() + arguments.named.size()) * 2));
  for (const auto& [name, value] : arguments.named) {
    dict.set(Value::text(Text::borrowed(name, false)), value);
  }
  return Value::dict(std::move(dict));
}

Result<Value> format_now(const Arguments& arguments) {
  constexpr size_t kMaxFormat = 256;
  ASSIGN_OR_RETURN(const auto slots, bind_arguments("strftime_now", arguments, {"format"}));
  ASSIGN_OR_RETURN(const Value format, required("strftime_now", "format", slots[0]));
  if (!format.is_text()) return invalid("strftime_now takes a text, not {}", type_name(format));
  if (format.view().size() > kMaxFormat) {
    return invalid("strftime_now: the format has more than {} bytes", kMaxFormat);
  }
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  if (localtime_r(&now, &local) == nullptr) return invalid("strftime_now: no local time");
  std::array<char, 16 * kMaxFormat> buffer{};
  const std::string pattern(format.view());
  const size_t length = std::strftime(buffer.data(), buffer.size(), pattern.c_str(), &local);
  return Value::text(Text::owned({buffer.data(), length}, !format.as_text().data().empty()));
}

}  // namespace flashlane::text
