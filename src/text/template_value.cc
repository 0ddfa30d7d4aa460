// Equality and order follow Python: numbers compare across types, texts by code point.
#include "text/template_value.h"

#include <boost/json.hpp>

#include <algorithm>
#include <cstdint>

namespace flashlane::text {
namespace {

constexpr int kMaxNesting = 100;
constexpr size_t kIndexedFrom = 8;  // smaller dicts are searched in order

}  // namespace

size_t Dict::position(const Value& key) const {
  if (key.is_text() && !by_text_.empty()) {
    const auto found = by_text_.find(std::string(key.view()));
    return found == by_text_.end() ? entries_.size() : found->second;
  }
  size_t at = 0;
  while (at < entries_.size() && !equal(entries_[at].first, key)) ++at;
  return at;
}

void Dict::set(Value key, Value value) {
  const size_t at = position(key);
  extent_.add(value);  // a value that is replaced stays counted
  if (at < entries_.size()) {
    entries_[at].second = std::move(value);
    return;
  }
  extent_.add(key);
  entries_.emplace_back(std::move(key), std::move(value));
  if (entries_.size() < kIndexedFrom) return;
  for (size_t i = by_text_.empty() ? 0 : at; i < entries_.size(); ++i) {
    if (entries_[i].first.is_text()) by_text_.emplace(entries_[i].first.view(), i);
  }
}

const Value* Dict::find(const Value& key) const {
  const size_t at = position(key);
  return at < entries_.size() ? &entries_[at].second : nullptr;
}

const Value* Dict::find(std::string_view key) const {
  return find(Value::text(Text::borrowed(key, false)));
}

Value Value::list(std::vector<Value> items, bool tuple, bool from_data) {
  Extent extent;
  for (const Value& item : items) extent.add(item);
  return Value(State(std::make_shared<const List>(List{std::move(items), tuple, extent})),
               from_data);
}

Value Value::dict(Dict dict, bool from_data) {
  return Value(State(std::make_shared<const Dict>(std::move(dict))), from_data);
}

void Extent::add(const Value& value) {
  const Extent other = extent_of(value);
  if (__builtin_add_overflow(weight, other.weight, &weight)) weight = SIZE_MAX;
  depth = std::max(depth, other.depth + 1);
}

Extent extent_of(const Value& value) {
  constexpr size_t kBytesPerStep = 256;
  if (value.is_text()) return {1 + value.as_text().size() / kBytesPerStep, 0};
  if (value.is_list()) return value.as_list().extent;
  if (value.is_dict()) return value.as_dict().extent();
  if (value.is<std::shared_ptr<Loop>>()) {
    return {1, value.get<std::shared_ptr<Loop>>()->items->extent.depth + 1};
  }
  if (value.is<std::shared_ptr<const Callable>>()) {
    const Callable& callable = *value.get<std::shared_ptr<const Callable>>();
    if (callable.self != nullptr) return {1, extent_of(*callable.self).depth + 1};
  }
  return {};
}

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (value.is<double>()) return value.get<double>() != 0;
  if (value.is_number()) return value.as_integer() != 0;
  if (value.is_text()) return !value.as_text().empty();
  if (value.is_list()) return !value.as_list().items.empty();
  if (value.is_dict()) return !value.as_dict().entries().empty();
  return true;
}

std::string_view type_name(const Value& value) {
  if (value.is_undefined()) return "undefined";
  if (value.is_none()) return "none";
  if (value.is<bool>()) return "bool";
  if (value.is_integer()) return "int";
  if (value.is<double>()) return "float";
  if (value.is_text()) return "str";
  if (value.is_list()) return value.as_list().tuple ? "tuple" : "list";
  if (value.is_dict()) return "dict";
  if (value.is<Namespace*>()) return "namespace";
  if (value.is<std::shared_ptr<Loop>>()) return "loop";
  return "function";
}

bool equal(const Value& a, const Value& b) {
  if (a.is_whole() && b.is_whole()) return a.as_integer() == b.as_integer();
  if (a.is_number() && b.is_number()) return a.as_real() == b.as_real();
  if (a.is_text() && b.is_text()) return a.view() == b.view();
  if (a.is_list() && b.is_list()) {
    const List& left = a.as_list();
    const List& right = b.as_list();
    return left.tuple == right.tuple && std::equal(left.items.begin(), left.items.end(),
                                                   right.items.begin(), right.items.end(), equal);
  }
  if (a.is_dict() && b.is_dict()) {
    const auto& left = a.as_dict().entries();
    if (left.size() != b.as_dict().entries().size()) return false;
    return std::all_of(left.begin(), left.end(), [&](const auto& entry) {
      const Value* other = b.as_dict().find(entry.first);
      return other != nullptr && equal(entry.second, *other);
    });
  }
  if (a.is<Namespace*>() && b.is<Namespace*>()) return a.get<Namespace*>() == b.get<Namespace*>();
  return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

Result<int> compare(const Value& a, const Value& b) {
  const auto order = [](const auto& left, const auto& right) {
    return left < right ? -1 : (right < left ? 1 : 0);
  };
  if (a.is_whole() && b.is_whole()) return order(a.as_integer(), b.as_integer());
  if (a.is_number() && b.is_number()) return order(a.as_real(), b.as_real());
  if (a.is_text() && b.is_text()) return order(a.view(), b.view());
  if (a.is_list() && b.is_list() && a.as_list().tuple == b.as_list().tuple) {
    const auto& left = a.as_list().items;
    const auto& right = b.as_list().items;
    for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
      if (!equal(left[i], right[i])) return compare(left[i], right[i]);
    }
    return order(left.size(), right.size());
  }
  return invalid("values of type {} and {} have no order", type_name(a), type_name(b));
}

Result<Value> value_of(const boost::json::value& json, bool from_data, int depth) {
  if (depth > kMaxNesting) {
    return invalid("the template's variables nest deeper than {} levels", kMaxNesting);
  }
  switch (json.kind()) {
    case boost::json::kind::null:
      return Value::none().with_origin(from_data);
    case boost::json::kind::bool_:
      return Value::boolean(json.get_bool()).with_origin(from_data);
    case boost::json::kind::int64:
      return Value::integer(json.get_int64(), from_data);
    case boost::json::kind::uint64:
      return Value::integer(json.get_uint64(), from_data);
    case boost::json::kind::double_:
      return Value::real(json.get_double(), from_data);
    case boost::json::kind::string: {
      const auto& string = json.get_string();
      return Value::text(Text::borrowed({string.data(), string.size()}, from_data));
    }
    case boost::json::kind::array: {
      std::vector<Value> items;
      items.reserve(json.get_array().size());
      for (const auto& item : json.get_array()) {
        ASSIGN_OR_RETURN(Value value, value_of(item, from_data, depth + 1));
        items.push_back(std::move(value));
      }
      return Value::list(std::move(items), false, from_data);
    }
    case boost::json::kind::object:
      break;
  }
  Dict dict;
  for (const auto& [key, item] : json.get_object()) {
    ASSIGN_OR_RETURN(Value value, value_of(item, from_data, depth + 1));
    dict.set(Value::text(Text::borrowed({key.data(), key.size()}, from_data)), std::move(value));
  }
  return Value::dict(std::move(dict), from_data);
}

}  // namespace flashlane::text
