// One table: name to function.
#include "text/template_tests.h"

#include "base/check.h"
#include "text/template_operators.h"

namespace flashlane::text {
namespace {

using Test = Result<bool> (*)(const Value&, const Arguments&, Budget&);

template <bool (*Predicate)(const Value&)>
Result<bool> plain(const Value& value, const Arguments& arguments, Budget&) {
  if (!arguments.positional.empty() || !arguments.named.empty()) {
    return invalid("the test takes no argument");
  }
  return Predicate(value);
}

Result<Value> only_argument(const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    return invalid("the test takes one argument");
  }
  return arguments.positional[0];
}

template <const char* Operator>
Result<bool> comparison(const Value& value, const Arguments& arguments, Budget& budget) {
  ASSIGN_OR_RETURN(const Value other, only_argument(arguments));
  return compare_with(Operator, value, other, budget);
}
constexpr char kEqual[] = "==";
constexpr char kNotEqual[] = "!=";
constexpr char kLess[] = "<";
constexpr char kLessEqual[] = "<=";
constexpr char kGreater[] = ">";
constexpr char kGreaterEqual[] = ">=";
constexpr char kIn[] = "in";

Result<Integer> remainder(const Value& value, const Value& divisor) {
  if (!value.is_whole() || !divisor.is_whole()) {
    return invalid("the test needs integers, not {} and {}", type_name(value), type_name(divisor));
  }
  if (divisor.as_integer() == 0) return invalid("the test divides by zero");
  return value.as_integer() % divisor.as_integer();
}

Result<bool> divisible_by(const Value& value, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const Value divisor, only_argument(arguments));
  ASSIGN_OR_RETURN(const Integer rest, remainder(value, divisor));
  return rest == 0;
}

template <bool Odd>
Result<bool> parity(const Value& value, const Arguments&, Budget&) {
  ASSIGN_OR_RETURN(const Integer rest, remainder(value, Value::integer(2)));
  return (rest != 0) == Odd;
}

Result<bool> same_as(const Value& value, const Arguments& arguments, Budget&) {
  ASSIGN_OR_RETURN(const Value other, only_argument(arguments));
  return type_name(value) == type_name(other) && equal(value, other);
}

bool is_defined(const Value& v) {
  return !v.is_undefined();
}
bool is_undefined(const Value& v) {
  return v.is_undefined();
}
bool is_none(const Value& v) {
  return v.is_none();
}
bool is_string(const Value& v) {
  return v.is_text();
}
bool is_mapping(const Value& v) {
  return v.is_dict();
}
bool is_sequence(const Value& v) {
  return v.is_list() || v.is_text() || v.is_dict() || v.is_undefined();
}
bool is_iterable(const Value& v) {
  return is_sequence(v) || v.is<std::shared_ptr<Loop>>();
}
bool is_number(const Value& v) {
  return v.is_number();
}
bool is_integer(const Value& v) {
  return v.is_integer();
}
bool is_float(const Value& v) {
  return v.is<double>();
}
bool is_boolean(const Value& v) {
  return v.is<bool>();
}
bool is_the_true(const Value& v) {
  return v.is<bool>() && v.get<bool>();
}
bool is_the_false(const Value& v) {
  return v.is<bool>() && !v.get<bool>();
}
bool is_callable(const Value& v) {
  return v.is<std::shared_ptr<const Callable>>();
}

template <bool Upper>
bool has_case(const Value& v) {
  if (!v.is_text()) return false;
  bool cased = false;
  for (const char c : v.view()) {
    const bool lower = c >= 'a' && c <= 'z';
    const bool upper = c >= 'A' && c <= 'Z';
    if (Upper ? lower : upper) return false;
    cased = cased || lower || upper;
  }
  return cased;
}

constexpr std::pair<std::string_view, Test> kTests[] = {
    {"defined", plain<is_defined>},
    {"undefined", plain<is_undefined>},
    {"none", plain<is_none>},
    {"string", plain<is_string>},
    {"mapping", plain<is_mapping>},
    {"sequence", plain<is_sequence>},
    {"iterable", plain<is_iterable>},
    {"number", plain<is_number>},
    {"integer", plain<is_integer>},
    {"float", plain<is_float>},
    {"boolean", plain<is_boolean>},
    {"true", plain<is_the_true>},
    {"false", plain<is_the_false>},
    {"callable", plain<is_callable>},
    {"lower", plain<has_case<false>>},
    {"upper", plain<has_case<true>>},
    {"odd", parity<true>},
    {"even", parity<false>},
    {"divisibleby", divisible_by},
    {"sameas", same_as},
    {"in", comparison<kIn>},
    {"eq", comparison<kEqual>},
    {"equalto", comparison<kEqual>},
    {"ne", comparison<kNotEqual>},
    {"lt", comparison<kLess>},
    {"lessthan", comparison<kLess>},
    {"le", comparison<kLessEqual>},
    {"gt", comparison<kGreater>},
    {"greaterthan", comparison<kGreater>},
    {"ge", comparison<kGreaterEqual>},
};

Test find_test(std::string_view name) {
  for (const auto& [known, test] : kTests) {
    if (known == name) return test;
  }
  return nullptr;
}

}  // namespace

bool is_test(std::string_view name) {
  return find_test(name) != nullptr;
}

Result<bool> apply_test(std::string_view name, const Value& value, const Arguments& arguments,
                        Budget& budget) {
  const Test test = find_test(name);
  CHECK(test != nullptr);
  auto result = test(value, arguments, budget);
  if (!result.ok()) return invalid("test '{}': {}", name, result.error().message);
  return result;
}

}  // namespace flashlane::text
