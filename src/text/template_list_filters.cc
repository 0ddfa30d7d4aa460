// Filters that walk a list: each charges the budget for what it walks and builds.
#include <algorithm>

#include "text/template_filters.h"
#include "text/template_operators.h"
#include "text/template_strings.h"
#include "text/template_tests.h"

namespace flashlane::text {
namespace {

// `a.b.0` walks attribute by attribute; digits are positions.
Result<Value> walk_attribute(Value value, const Value& path, Budget& budget) {
  if (path.is_integer()) return item_of(value, path, budget);
  if (!path.is_text()) return invalid("an attribute is named by a text, not {}", type_name(path));
  ASSIGN_OR_RETURN(const auto parts, split(path.as_text(), ".", -1, false, budget));
  for (const Value& part : parts) {
    const std::string_view name = part.view();
    const bool digits = !name.empty() && name.size() < 10 &&
                        name.find_first_not_of("0123456789") == std::string_view::npos;
    const Value key = digits ? Value::integer(std::stoll(std::string(name))) : part;
    ASSIGN_OR_RETURN(value, item_of(value, key, budget));
  }
  return value;
}

Result<Value> first(std::string_view name, const Value& value, const Arguments& arguments,
                    Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  ASSIGN_OR_RETURN(auto items, items_of(value, budget));
  return items.empty() ? Value::undefined("first") : items.front();
}

Result<Value> last(std::string_view name, const Value& value, const Arguments& arguments,
                   Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  ASSIGN_OR_RETURN(auto items, items_of(value, budget));
  return items.empty() ? Value::undefined("last") : items.back();
}

Result<Value> list(std::string_view name, const Value& value, const Arguments& arguments,
                   Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  ASSIGN_OR_RETURN(auto items, items_of(value, budget));
  return Value::list(std::move(items), false, value.from_data());
}

Result<Value> reverse(std::string_view name, const Value& value, const Arguments& arguments,
                      Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {}));
  ASSIGN_OR_RETURN(auto items, items_of(value, budget));
  std::reverse(items.begin(), items.end());
  if (!value.is_text()) return Value::list(std::move(items), false, value.from_data());
  ASSIGN_OR_RETURN(Text text, join(items, Text(), budget));
  return Value::text(std::move(text));
}

Result<Value> join_filter(std::string_view name, const Value& value, const Arguments& arguments,
                          Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"d", "attribute"}));
  ASSIGN_OR_RETURN(const Text separator, text_or(name, "d", slots[0], ""));
  ASSIGN_OR_RETURN(auto items, items_of(value, budget));
  if (slots[1]) {
    for (Value& item : items) {
      ASSIGN_OR_RETURN(item, walk_attribute(item, *slots[1], budget));
    }
  }
  ASSIGN_OR_RETURN(Text text, join(items, separator, budget));
  return Value::text(std::move(text));
}

Result<Value> map(std::string_view name, const Value& value, const Arguments& arguments,
                  Budget& budget) {
  ASSIGN_OR_RETURN(auto items, items_of(value, budget));
  if (arguments.positional.empty()) {
    ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"attribute", "default"}));
    ASSIGN_OR_RETURN(const Value path, required(name, "attribute", slots[0]));
    for (Value& item : items) {
      ASSIGN_OR_RETURN(item, walk_attribute(item, path, budget));
      if (item.is_undefined() && slots[1]) item = *slots[1];
    }
    return Value::list(std::move(items));
  }
  Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  const Value& filter = arguments.positional[0];
  if (!filter.is_text() || !is_filter(filter.view())) {
    return error(ErrorCode::kUnsupported, "map: this filter is not supported");
  }
  // A filter that maps within a map could recurse by its arguments alone; one level is enough.
  if (filter.view() == "map") return error(ErrorCode::kUnsupported, "map of map is not supported");
  for (Value& item : items) {
    ASSIGN_OR_RETURN(item, apply_filter(filter.view(), item, rest, budget));
  }
  return Value::list(std::move(items));
}

template <bool by_attribute, bool keep>
Result<Value> select(std::string_view name, const Value& value, const Arguments& arguments,
                     Budget& budget) {
  size_t next = 0;
  const auto take = [&]() -> const Value* {
    return next < arguments.positional.size() ? &arguments.positional[next++] : nullptr;
  };
  const Value* attribute = by_attribute ? take() : nullptr;
  if (by_attribute && attribute == nullptr) return invalid("{} needs an attribute", name);
  const Value* test = take();
  if (test != nullptr && (!test->is_text() || !is_test(test->view()))) {
    return error(ErrorCode::kUnsupported, "{}: this test is not supported", name);
  }
  const Arguments rest{
      {arguments.positional.begin() + static_cast<ptrdiff_t>(next), arguments.positional.end()},
      arguments.named};
  ASSIGN_OR_RETURN(const auto items, items_of(value, budget));
  std::vector<Value> kept;
  for (const Value& item : items) {
    Value tested = item;
    if (by_attribute) {
      ASSIGN_OR_RETURN(tested, walk_attribute(item, *attribute, budget));
    }
    bool passed = is_true(tested);
    if (test != nullptr) {
      ASSIGN_OR_RETURN(passed, apply_test(test->view(), tested, rest, budget));
    }
    if (passed == keep) kept.push_back(item);
  }
  return Value::list(std::move(kept));
}

// Texts compare without case unless asked otherwise, as Jinja's sorts do.
Result<Value> sort_key(const Value& value, bool case_sensitive, Budget& budget) {
  if (case_sensitive || !value.is_text()) return value;
  ASSIGN_OR_RETURN(Text lower, change_case(value.as_text(), Case::kLower, budget));
  return Value::text(std::move(lower));
}

using Keyed = std::pair<Value, Value>;  // key, item

Result<Value> sorted(std::vector<Keyed> keyed, bool descending, Budget& budget) {
  constexpr size_t kComparisons = 20;  // per item, for as many items as the budget allows
  for (const Keyed& entry : keyed) {
    RETURN_IF_ERROR(budget.spend_steps(extent_of(entry.first).weight * kComparisons));
  }
  // A failed comparison must not break the order that the sort relies on, so pairs are checked
  // first.
  for (size_t i = 1; i < keyed.size(); ++i)
    RETURN_IF_ERROR([&]() -> Status {
      const auto order = compare(keyed[0].first, keyed[i].first);
      return order.ok() ? Status() : Status(order.error());
    }());
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    const auto order = descending ? compare(b.first, a.first) : compare(a.first, b.first);
    return order.ok() && *order < 0;
  });
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& entry : keyed) items.push_back(std::move(entry.second));
  return Value::list(std::move(items));
}

Result<Value> sort(std::string_view name, const Value& value, const Arguments& arguments,
                   Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots,
                   bind_arguments(name, arguments, {"reverse", "case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const auto items, items_of(value, budget));
  std::vector<Keyed> keyed;
  for (const Value& item : items) {
    Value key = item;
    if (slots[2] && !slots[2]->is_none()) {
      ASSIGN_OR_RETURN(key, walk_attribute(item, *slots[2], budget));
    }
    if (key.is_list()) return error(ErrorCode::kUnsupported, "sort: lists can't be sorted");
    ASSIGN_OR_RETURN(key, sort_key(key, true_or(slots[1], false), budget));
    keyed.emplace_back(std::move(key), item);
  }
  return sorted(std::move(keyed), true_or(slots[0], false), budget);
}

Result<Value> dictsort(std::string_view name, const Value& value, const Arguments& arguments,
                       Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots,
                   bind_arguments(name, arguments, {"case_sensitive", "by", "reverse"}));
  ASSIGN_OR_RETURN(const Text by, text_or(name, "by", slots[1], "key"));
  if (by.view() != "key" && by.view() != "value") return invalid("dictsort: by is key or value");
  if (!value.is_dict()) return invalid("dictsort needs a mapping, not {}", type_name(value));
  std::vector<Keyed> keyed;
  for (const auto& [key, item] : value.as_dict().entries()) {
    const Value& wanted = by.view() == "key" ? key : item;
    if (wanted.is_list()) return error(ErrorCode::kUnsupported, "dictsort: lists can't be sorted");
    ASSIGN_OR_RETURN(Value sort_by, sort_key(wanted, true_or(slots[0], false), budget));
    keyed.emplace_back(std::move(sort_by), Value::list({key, item}, true, value.from_data()));
  }
  return sorted(std::move(keyed), true_or(slots[2], false), budget);
}

Result<Value> unique(std::string_view name, const Value& value, const Arguments& arguments,
                     Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots,
                   bind_arguments(name, arguments, {"case_sensitive", "attribute"}));
  ASSIGN_OR_RETURN(const auto items, items_of(value, budget));
  std::vector<Value> seen;
  std::vector<Value> kept;
  for (const Value& item : items) {
    Value key = item;
    if (slots[1] && !slots[1]->is_none()) {
      ASSIGN_OR_RETURN(key, walk_attribute(item, *slots[1], budget));
    }
    ASSIGN_OR_RETURN(key, sort_key(key, true_or(slots[0], false), budget));
    const size_t weight = extent_of(key).weight;
    if (seen.size() > Budget::kMaxSteps / weight) return invalid("unique: too much to compare");
    RETURN_IF_ERROR(budget.spend_steps(seen.size() * weight));
    const bool known = std::any_of(seen.begin(), seen.end(),
                                   [&](const Value& other) { return equal(other, key); });
    if (known) continue;
    seen.push_back(std::move(key));
    kept.push_back(item);
  }
  return Value::list(std::move(kept));
}

Result<Value> sum(std::string_view name, const Value& value, const Arguments& arguments,
                  Budget& budget) {
  ASSIGN_OR_RETURN(const auto slots, bind_arguments(name, arguments, {"attribute", "start"}));
  ASSIGN_OR_RETURN(const auto items, items_of(value, budget));
  Value total = slots[1].value_or(Value::integer(0));
  for (const Value& item : items) {
    Value part = item;
    if (slots[0] && !slots[0]->is_none()) {
      ASSIGN_OR_RETURN(part, walk_attribute(item, *slots[0], budget));
    }
    ASSIGN_OR_RETURN(total, arithmetic("+", total, part, budget));
  }
  return total;
}

constexpr std::pair<std::string_view, Filter> kFilters[] = {
    {"first", first},
    {"last", last},
    {"list", list},
    {"reverse", reverse},
    {"join", join_filter},
    {"map", map},
    {"select", select<false, true>},
    {"reject", select<false, false>},
    {"selectattr", select<true, true>},
    {"rejectattr", select<true, false>},
    {"sort", sort},
    {"dictsort", dictsort},
    {"unique", unique},
    {"sum", sum},
};

}  // namespace

Filter find_list_filter(std::string_view name) {
  for (const auto& [known, filter] : kFilters) {
    if (known == name) return filter;
  }
  return nullptr;
}

}  // namespace flashlane::text
