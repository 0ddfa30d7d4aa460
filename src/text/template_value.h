// Values of the template language: Python's none, bool, int, float, str, list, tuple and dict, plus
// undefined, namespaces, loop and callables. Lists and dicts never change once built; a namespace
// does, and belongs to its rendering, so no value can keep itself alive.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "base/result.h"
#include "text/template_text.h"

namespace flashlane::text {

class Value;
struct Statement;
struct Scope;

// Wide enough for every JSON integer; arithmetic that leaves 64 bits is refused.
__extension__ typedef __int128 Integer;  // NOLINT(modernize-use-using): goes with __extension__

struct Undefined {
  std::string_view name;  // for messages; a part of the template's source
};
struct None {};

// How much a value holds, shared parts counted each time: what walking it would cost.
struct Extent {
  size_t weight = 1;
  int depth = 0;
  void add(const Value& value);
};

struct List {
  std::vector<Value> items;
  bool tuple = false;
  Extent extent = {};
};

class Dict {
 public:
  // A key that is there keeps its place and gets the new value.
  void set(Value key, Value value);
  const Value* find(const Value& key) const;
  const Value* find(std::string_view key) const;
  const std::vector<std::pair<Value, Value>>& entries() const { return entries_; }
  const Extent& extent() const { return extent_; }

 private:
  size_t position(const Value& key) const;
  std::vector<std::pair<Value, Value>> entries_;
  std::unordered_map<std::string, size_t> by_text_;
  Extent extent_;
};

struct Namespace {
  std::vector<std::pair<std::string_view, Value>> attributes;
};

struct Loop {
  std::shared_ptr<const List> items;
  size_t index = 0;
};

// A macro, a method with its object, or a function of the language.
struct Callable {
  std::string_view name;
  const Statement* macro = nullptr;   // the template outlives its renderings
  std::weak_ptr<Scope> scope;         // where the macro was defined
  std::shared_ptr<const Value> self;  // the object of a method
};

class Value {
 public:
  using State = std::variant<Undefined, None, bool, Integer, double, Text,
                             std::shared_ptr<const List>, std::shared_ptr<const Dict>, Namespace*,
                             std::shared_ptr<Loop>, std::shared_ptr<const Callable>>;
  Value() : state_(Undefined{}) {}
  static Value undefined(std::string_view name) { return Value(State(Undefined{name}), false); }
  static Value none() { return Value(State(None{}), false); }
  static Value boolean(bool value) { return Value(State(value), false); }
  static Value integer(Integer value, bool from_data = false) {
    return Value(State(value), from_data);
  }
  static Value real(double value, bool from_data = false) { return Value(State(value), from_data); }
  static Value text(Text value) { return Value(State(std::move(value)), false); }
  static Value list(std::vector<Value> items, bool tuple = false, bool from_data = false);
  static Value dict(Dict dict, bool from_data = false);
  static Value of(State state) { return Value(std::move(state), false); }

  template <typename T>
  bool is() const {
    return std::holds_alternative<T>(state_);
  }
  template <typename T>
  const T& get() const {
    return std::get<T>(state_);
  }
  bool is_undefined() const { return is<Undefined>(); }
  bool is_none() const { return is<None>(); }
  bool is_text() const { return is<Text>(); }
  bool is_list() const { return is<std::shared_ptr<const List>>(); }
  bool is_dict() const { return is<std::shared_ptr<const Dict>>(); }
  bool is_integer() const { return is<Integer>(); }
  bool is_number() const { return is<bool>() || is<Integer>() || is<double>(); }
  const Text& as_text() const { return get<Text>(); }
  std::string_view view() const { return as_text().view(); }
  const List& as_list() const { return *get<std::shared_ptr<const List>>(); }
  const Dict& as_dict() const { return *get<std::shared_ptr<const Dict>>(); }
  // Booleans count as 0 and 1.
  bool is_whole() const { return is<bool>() || is<Integer>(); }
  Integer as_integer() const { return is<bool>() ? Integer{get<bool>()} : get<Integer>(); }
  double as_real() const {
    return is<double>() ? get<double>() : static_cast<double>(as_integer());
  }
  // Whether the value itself (not what is inside it) came from data; texts know it by byte.
  bool from_data() const { return from_data_; }
  Value with_origin(bool from_data) && {
    from_data_ = from_data;
    return std::move(*this);
  }

 private:
  Value(State state, bool from_data) : state_(std::move(state)), from_data_(from_data) {}
  State state_;
  bool from_data_ = false;
};

bool is_true(const Value& value);
Extent extent_of(const Value& value);
// Name of the value's type, as Python says it.
std::string_view type_name(const Value& value);
bool equal(const Value& a, const Value& b);
// -1, 0, 1; an error where Python refuses to order the two.
Result<int> compare(const Value& a, const Value& b);
// Nesting is bounded; strings are borrowed from `json`.
Result<Value> value_of(const boost::json::value& json, bool from_data, int depth = 0);

}  // namespace flashlane::text
