// One table per type: name to function.
#include "text/template_methods.h"

#include <algorithm>

#include "base/check.h"
#include "text/template_operators.h"
#include "text/template_strings.h"
#include "text/utf8.h"

namespace flashlane::text {
namespace {

// Every method gets its own name for messages.
using Method = Result<Value> (*)(std::string_view name, const Value& self,
                                 const Arguments& arguments, Budget& budget);

template <Side side>
Result<Value> strip_method(std::string_view name, const Value& self, const Arguments& arguments,
                           Budget&) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"chars"}));
  if (!slots[0] || slots[0]->is_none()) return Value::text(strip(self.as_text(), nullptr, side));
  ASSIGN_OR_RETURN(const Text characters, text_or(name, "chars", slots[0], ""));
  const std::string_view view = characters.view();
  return Value::text(strip(self.as_text(), &view, side));
}

template <bool from_right>
Result<Value> split_method(std::string_view name, const Value& self, const Arguments& arguments,
                           Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const int64_t limit, integer_or(name, "maxsplit", slots[1], -1));
  if (!slots[0] || slots[0]->is_none()) {
    if (from_right && limit >= 0) {
      return error(ErrorCode::kUnsupported, "rsplit at white space with a limit is not supported");
    }
    ASSIGN_OR_RETURN(auto parts, split_at_space(self.as_text(), limit, budget));
    return Value::list(std::move(parts));
  }
  ASSIGN_OR_RETURN(const Text separator, text_or(name, "sep", slots[0], ""));
  ASSIGN_OR_RETURN(auto parts, split(self.as_text(), separator.view(), limit, from_right, budget));
  return Value::list(std::move(parts));
}

template <bool at_start>
Result<Value> affix_test(std::string_view name, const Value& self, const Arguments& arguments,
                         Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"affix"}));
  ASSIGN_OR_RETURN(const Value affix, required(name, "affix", slots[0]));
  std::vector<Value> choices{affix};
  if (affix.is_list() && affix.as_list().tuple) {
    ASSIGN_OR_RETURN(choices, items_of(affix, budget));
  }
  bool found = false;
  for (const Value& choice : choices) {
    if (!choice.is_text()) return invalid("{} needs a text, not {}", name, type_name(choice));
    found = found || (at_start ? self.view().starts_with(choice.view())
                               : self.view().ends_with(choice.view()));
  }
  return Value::boolean(found);
}

template <bool at_start>
Result<Value> remove_affix(std::string_view name, const Value& self, const Arguments& arguments,
                           Budget&) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"affix"}));
  ASSIGN_OR_RETURN(const Text affix, text_or(name, "affix", slots[0], ""));
  const Text& text = self.as_text();
  if (at_start && self.view().starts_with(affix.view())) {
    return Value::text(text.slice(affix.size(), text.size()));
  }
  if (!at_start && self.view().ends_with(affix.view())) {
    return Value::text(text.slice(0, text.size() - affix.size()));
  }
  return self;
}

template <Case kind>
Result<Value> case_method(std::string_view name, const Value& self, const Arguments& arguments,
                          Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  ASSIGN_OR_RETURN(Text changed, change_case(self.as_text(), kind, budget));
  return Value::text(std::move(changed));
}

Result<Value> replace_method(std::string_view name, const Value& self, const Arguments& arguments,
                             Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"old", "new", "count"}));
  ASSIGN_OR_RETURN(const Value old_part, required(name, "old", slots[0]));
  ASSIGN_OR_RETURN(const Value new_part, required(name, "new", slots[1]));
  if (!old_part.is_text() || !new_part.is_text()) return invalid("replace needs two texts");
  ASSIGN_OR_RETURN(const int64_t limit, integer_or(name, "count", slots[2], -1));
  ASSIGN_OR_RETURN(Text text,
                   replace(self.as_text(), old_part.view(), new_part.as_text(), limit, budget));
  return Value::text(std::move(text));
}

Result<Value> join_method(std::string_view name, const Value& self, const Arguments& arguments,
                          Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"iterable"}));
  ASSIGN_OR_RETURN(const Value list, required(name, "iterable", slots[0]));
  ASSIGN_OR_RETURN(const auto items, items_of(list, budget));
  for (const Value& item : items) {
    if (!item.is_text()) return invalid("join needs texts, not {}", type_name(item));
  }
  ASSIGN_OR_RETURN(Text text, join(items, self.as_text(), budget));
  return Value::text(std::move(text));
}

template <bool from_right>
Result<Value> find_method(std::string_view name, const Value& self, const Arguments& arguments,
                          Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"sub"}));
  ASSIGN_OR_RETURN(const Text part, text_or(name, "sub", slots[0], ""));
  RETURN_IF_ERROR(budget.spend_steps(self.view().size() / 16));
  const size_t at = from_right ? self.view().rfind(part.view()) : self.view().find(part.view());
  if (at == std::string_view::npos) return Value::integer(-1);
  return Value::integer(static_cast<Integer>(count_code_points(self.view().substr(0, at))));
}

Result<Value> count_method(std::string_view name, const Value& self, const Arguments& arguments,
                           Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"sub"}));
  ASSIGN_OR_RETURN(const Text part, text_or(name, "sub", slots[0], ""));
  if (part.empty()) {
    return Value::integer(static_cast<Integer>(count_code_points(self.view()) + 1));
  }
  ASSIGN_OR_RETURN(const auto parts, split(self.as_text(), part.view(), -1, false, budget));
  return Value::integer(static_cast<Integer>(parts.size()) - 1);
}

Result<Value> lines_method(std::string_view name, const Value& self, const Arguments& arguments,
                           Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  ASSIGN_OR_RETURN(auto lines, split_lines(self.as_text(), budget));
  return Value::list(std::move(lines));
}

Result<Value> is_digit_method(std::string_view name, const Value& self, const Arguments& arguments,
                              Budget&) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  return Value::boolean(!self.view().empty() &&
                        self.view().find_first_not_of("0123456789") == std::string_view::npos);
}

enum class DictPart { kKeys, kValues, kItems };
template <DictPart part>
Result<Value> dict_part(std::string_view name, const Value& self, const Arguments& arguments,
                        Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  const auto& entries = self.as_dict().entries();
  RETURN_IF_ERROR(budget.spend_items(entries.size() * (part == DictPart::kItems ? 3 : 1)));
  std::vector<Value> items;
  for (const auto& [key, value] : entries) {
    if (part == DictPart::kKeys) items.push_back(key);
    if (part == DictPart::kValues) items.push_back(value);
    if (part == DictPart::kItems)
      items.push_back(Value::list({key, value}, true, self.from_data()));
  }
  return Value::list(std::move(items), false, self.from_data());
}

Result<Value> dict_get(std::string_view name, const Value& self, const Arguments& arguments,
                       Budget&) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"key", "default"}));
  ASSIGN_OR_RETURN(const Value key, required(name, "key", slots[0]));
  const Value* found = self.as_dict().find(key);
  return found != nullptr ? *found : slots[1].value_or(Value::none());
}

Result<Value> loop_cycle(std::string_view, const Value& self, const Arguments& arguments, Budget&) {
  if (arguments.positional.empty()) return invalid("loop.cycle needs arguments");
  const size_t index = self.get<std::shared_ptr<Loop>>()->index;
  return arguments.positional[index % arguments.positional.size()];
}

using Entry = std::pair<std::string_view, Method>;

constexpr Entry kTextMethods[] = {
    {"strip", strip_method<Side::kBoth>},
    {"lstrip", strip_method<Side::kLeft>},
    {"rstrip", strip_method<Side::kRight>},
    {"split", split_method<false>},
    {"rsplit", split_method<true>},
    {"splitlines", lines_method},
    {"startswith", affix_test<true>},
    {"endswith", affix_test<false>},
    {"removeprefix", remove_affix<true>},
    {"removesuffix", remove_affix<false>},
    {"upper", case_method<Case::kUpper>},
    {"lower", case_method<Case::kLower>},
    {"capitalize", case_method<Case::kCapitalized>},
    {"title", case_method<Case::kTitle>},
    {"replace", replace_method},
    {"join", join_method},
    {"find", find_method<false>},
    {"rfind", find_method<true>},
    {"count", count_method},
    {"isdigit", is_digit_method},
};

constexpr Entry kDictMethods[] = {
    {"keys", dict_part<DictPart::kKeys>},
    {"values", dict_part<DictPart::kValues>},
    {"items", dict_part<DictPart::kItems>},
    {"get", dict_get},
};

constexpr Entry kLoopMethods[] = {{"cycle", loop_cycle}};

const Entry* find_method(const Value& object, std::string_view name) {
  const auto search = [&](const auto& table) -> const Entry* {
    const auto found = std::find_if(std::begin(table), std::end(table),
                                    [&](const Entry& entry) { return entry.first == name; });
    return found == std::end(table) ? nullptr : &*found;
  };
  if (object.is_text()) return search(kTextMethods);
  if (object.is_dict()) return search(kDictMethods);
  if (object.is<std::shared_ptr<Loop>>()) return search(kLoopMethods);
  return nullptr;
}

}  // namespace

bool is_method(const Value& object, std::string_view name) {
  return find_method(object, name) != nullptr;
}

Value make_method(const Value& object, std::string_view name) {
  const Entry* entry = find_method(object, name);
  CHECK(entry != nullptr);
  auto callable = std::make_shared<Callable>();
  callable->name = entry->first;  // lives as long as the table
  callable->self = std::make_shared<const Value>(object);
  return Value::of(std::shared_ptr<const Callable>(std::move(callable)));
}

Result<Value> call_method(const Value& object, std::string_view name, const Arguments& arguments,
                          Budget& budget) {
  const Entry* entry = find_method(object, name);
  CHECK(entry != nullptr);
  RETURN_IF_ERROR(budget.spend_walk(object));
  return entry->second(name, object, arguments, budget);
}

}  // namespace flashlane::text
