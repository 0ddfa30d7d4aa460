// Integers are exact within 64 bits (JSON's unsigned included on input); beyond is an error, not a
// wrong number.
#include "text/template_operators.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "text/template_methods.h"
#include "text/utf8.h"

namespace flashlane::text {
namespace {

Error bad_operands(std::string_view op, const Value& a, const Value& b) {
  return invalid("operator {} can't take {} and {}", op, type_name(a), type_name(b));
}

Result<Value> whole_result(Integer value, bool from_data) {
  if (value > std::numeric_limits<uint64_t>::max() || value < std::numeric_limits<int64_t>::min()) {
    return invalid("an integer leaves 64 bits");
  }
  return Value::integer(value, from_data);
}

Result<Value> power(Integer base, Integer exponent, bool from_data) {
  Integer result = 1;
  for (Integer i = 0; i < exponent && base != 1; ++i) {
    if (base == 0 || base == -1) {
      result = base == 0 ? 0 : (exponent % 2 == 0 ? 1 : -1);
      break;
    }
    if (__builtin_mul_overflow(result, base, &result) ||
        result > std::numeric_limits<int64_t>::max() ||
        -result > std::numeric_limits<int64_t>::max()) {
      return invalid("an integer leaves 64 bits");
    }
  }
  return Value::integer(result, from_data);
}

Result<Value> whole_arithmetic(std::string_view op, Integer a, Integer b, bool from_data) {
  if (op == "+") return whole_result(a + b, from_data);
  if (op == "-") return whole_result(a - b, from_data);
  if (op == "*") {
    Integer product = 0;
    if (__builtin_mul_overflow(a, b, &product)) return invalid("an integer leaves 64 bits");
    return whole_result(product, from_data);
  }
  if (op == "**") {
    if (b >= 0) return power(a, b, from_data);
    return Value::real(std::pow(static_cast<double>(a), static_cast<double>(b)), from_data);
  }
  if (b == 0) return invalid("division by zero");
  if (op == "/") {
    return Value::real(static_cast<double>(a) / static_cast<double>(b), from_data);
  }
  // Python rounds down: the remainder has the divisor's sign.
  Integer quotient = a / b;
  Integer rest = a % b;
  if (rest != 0 && (rest < 0) != (b < 0)) {
    --quotient;
    rest += b;
  }
  return whole_result(op == "//" ? quotient : rest, from_data);
}

Result<Value> real_arithmetic(std::string_view op, double a, double b, bool from_data) {
  const auto real = [&](double value) { return Value::real(value, from_data); };
  if (op == "+") return real(a + b);
  if (op == "-") return real(a - b);
  if (op == "*") return real(a * b);
  if (op == "**") return real(std::pow(a, b));
  if (b == 0) return invalid("division by zero");
  if (op == "/") return real(a / b);
  if (op == "//") return real(std::floor(a / b));
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) rest += b;
  return real(rest);
}

Result<Value> repeat(const Value& value, Integer count, Budget& budget) {
  count = std::max<Integer>(count, 0);
  if (count > static_cast<Integer>(Budget::kMaxTextBytes)) {
    return invalid(
        "a value repeated {} times is too long",
        static_cast<int64_t>(std::min<Integer>(count, std::numeric_limits<int64_t>::max())));
  }
  const auto times = static_cast<size_t>(count);
  if (value.is_text()) {
    RETURN_IF_ERROR(budget.spend_bytes(value.as_text().size() * times));
    TextBuilder out;
    RETURN_IF_ERROR(budget.spend_bytes(value.as_text().data().size() * times * sizeof(ByteRange)));
    for (size_t i = 0; i < times && !value.as_text().empty(); ++i) out.append(value.as_text());
    return Value::text(out.take());
  }
  const auto& items = value.as_list().items;
  RETURN_IF_ERROR(budget.spend_items(items.size() * times));
  std::vector<Value> out;
  for (size_t i = 0; i < times && !items.empty(); ++i) {
    out.insert(out.end(), items.begin(), items.end());
  }
  return Value::list(std::move(out), value.as_list().tuple);
}

Result<Value> join_lists(const Value& a, const Value& b, Budget& budget) {
  std::vector<Value> items = a.as_list().items;
  const auto& more = b.as_list().items;
  RETURN_IF_ERROR(budget.spend_items(items.size() + more.size()));
  items.insert(items.end(), more.begin(), more.end());
  return Value::list(std::move(items), a.as_list().tuple, a.from_data() && b.from_data());
}

Result<bool> contains(const Value& container, const Value& value, Budget& budget) {
  if (container.is_text()) {
    if (!value.is_text()) return bad_operands("in", value, container);
    RETURN_IF_ERROR(budget.spend_steps(container.as_text().size() / 16));
    return container.view().find(value.view()) != std::string_view::npos;
  }
  if (container.is_list()) {
    const auto& items = container.as_list().items;
    RETURN_IF_ERROR(budget.spend_walk(container));
    return std::any_of(items.begin(), items.end(),
                       [&](const Value& item) { return equal(item, value); });
  }
  if (container.is_dict()) return container.as_dict().find(value) != nullptr;
  if (container.is_undefined()) return false;
  return bad_operands("in", value, container);
}

}  // namespace

Result<Value> arithmetic(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  const bool from_data = a.from_data() || b.from_data();
  for (const Value* value : {&a, &b}) {
    if (value->is_undefined()) {
      return invalid("'{}' is undefined", value->get<Undefined>().name);
    }
  }
  if (a.is_whole() && b.is_whole()) {
    return whole_arithmetic(op, a.as_integer(), b.as_integer(), from_data);
  }
  if (a.is_number() && b.is_number()) {
    return real_arithmetic(op, a.as_real(), b.as_real(), from_data);
  }
  if (op == "+" && a.is_text() && b.is_text()) {
    const size_t ranges = a.as_text().data().size() + b.as_text().data().size();
    RETURN_IF_ERROR(budget.spend_bytes(a.as_text().size() + b.as_text().size()));
    RETURN_IF_ERROR(budget.spend_bytes(ranges * sizeof(ByteRange)));
    TextBuilder out;
    out.append(a.as_text());
    out.append(b.as_text());
    return Value::text(out.take());
  }
  if (op == "+" && a.is_list() && b.is_list() && a.as_list().tuple == b.as_list().tuple) {
    return join_lists(a, b, budget);
  }
  if (op == "*" && (a.is_text() || a.is_list()) && b.is_whole()) {
    return repeat(a, b.as_integer(), budget);
  }
  if (op == "*" && (b.is_text() || b.is_list()) && a.is_whole()) {
    return repeat(b, a.as_integer(), budget);
  }
  return bad_operands(op, a, b);
}

Result<Value> negate(const Value& value) {
  if (value.is_whole()) return whole_result(-value.as_integer(), value.from_data());
  if (value.is<double>()) return Value::real(-value.get<double>(), value.from_data());
  return invalid("a value of type {} has no negative", type_name(value));
}

Result<bool> compare_with(std::string_view op, const Value& a, const Value& b, Budget& budget) {
  RETURN_IF_ERROR(budget.spend_steps(std::min(extent_of(a).weight, extent_of(b).weight)));
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in" || op == "not in") {
    ASSIGN_OR_RETURN(const bool inside, contains(b, a, budget));
    return inside == (op == "in");
  }
  ASSIGN_OR_RETURN(const int order, compare(a, b));
  if (op == "<") return order < 0;
  if (op == "<=") return order <= 0;
  if (op == ">") return order > 0;
  return order >= 0;
}

namespace {

// Where the character `index` starts; the end of the text if there are fewer.
size_t byte_of_character(std::string_view text, size_t index) {
  size_t at = 0;
  for (; at < text.size() && index > 0; --index) {
    at += std::max<size_t>(1, decode_utf8(text, at).length);
  }
  return at;
}

Value loop_attribute(const Value& value, std::string_view name) {
  const Loop& loop = *value.get<std::shared_ptr<Loop>>();
  const auto& items = loop.items->items;
  const auto whole = [](size_t number) { return Value::integer(static_cast<Integer>(number)); };
  if (name == "index") return whole(loop.index + 1);
  if (name == "index0") return whole(loop.index);
  if (name == "revindex") return whole(items.size() - loop.index);
  if (name == "revindex0") return whole(items.size() - loop.index - 1);
  if (name == "first") return Value::boolean(loop.index == 0);
  if (name == "last") return Value::boolean(loop.index + 1 == items.size());
  if (name == "length") return whole(items.size());
  // Depth counts recursive loops, which are not built: every loop is the first level.
  if (name == "depth") return Value::integer(1);
  if (name == "depth0") return Value::integer(0);
  if (name == "previtem" && loop.index > 0) return items[loop.index - 1];
  if (name == "nextitem" && loop.index + 1 < items.size()) return items[loop.index + 1];
  if (name == "cycle") return make_method(value, "cycle");
  return Value::undefined(name);
}

// The key of a dict, the attribute of a namespace; undefined if there is none.
Value member_of(const Value& object, std::string_view name) {
  if (object.is_dict()) {
    const Value* found = object.as_dict().find(name);
    return found != nullptr ? *found : Value::undefined(name);
  }
  if (object.is<Namespace*>()) {
    for (const auto& [known, value] : object.get<Namespace*>()->attributes) {
      if (known == name) return value;
    }
  }
  if (object.is<std::shared_ptr<Loop>>()) return loop_attribute(object, name);
  return Value::undefined(name);
}

}  // namespace

Result<Value> attribute_of(const Value& object, std::string_view name) {
  if (object.is_undefined()) {
    return invalid("'{}' is undefined, it has no '{}'", object.get<Undefined>().name, name);
  }
  if (is_method(object, name)) return make_method(object, name);
  return member_of(object, name);
}

Result<Value> item_of(const Value& object, const Value& key, Budget& budget) {
  if (object.is_undefined()) {
    return invalid("'{}' is undefined, it has no items", object.get<Undefined>().name);
  }
  if (object.is_dict()) {
    RETURN_IF_ERROR(budget.spend_walk(key));
    const Value* found = object.as_dict().find(key);
    if (found != nullptr) return *found;
  }
  if (key.is_text()) {
    // The name of what is missing must outlive the key, so messages stay general here.
    if (is_method(object, key.view())) return make_method(object, key.view());
    const Value found = object.is_dict() ? Value() : member_of(object, key.view());
    return found.is_undefined() ? Value::undefined("item") : found;
  }
  if (!key.is_whole() || !(object.is_list() || object.is_text())) return Value::undefined("item");
  ASSIGN_OR_RETURN(const size_t length, length_of(object, budget));
  Integer index = key.as_integer();
  if (index < 0) index += static_cast<Integer>(length);
  if (index < 0 || index >= static_cast<Integer>(length)) return Value::undefined("item");
  const auto at = static_cast<size_t>(index);
  if (object.is_list()) return object.as_list().items[at];
  const size_t begin = byte_of_character(object.view(), at);
  return Value::text(
      object.as_text().slice(begin, byte_of_character(object.view().substr(begin), 1) + begin));
}

Result<Value> slice_of(const Value& object, const Value& begin, const Value& end, const Value& step,
                       Budget& budget) {
  if (object.is_undefined()) {
    return invalid("'{}' is undefined, it has no slice", object.get<Undefined>().name);
  }
  if (!object.is_list() && !object.is_text()) {
    return invalid("a value of type {} has no slice", type_name(object));
  }
  for (const Value* bound : {&begin, &end, &step}) {
    if (!bound->is_none() && !bound->is_whole()) {
      return invalid("a slice needs integers, not {}", type_name(*bound));
    }
  }
  ASSIGN_OR_RETURN(const size_t count, length_of(object, budget));
  const auto length = static_cast<Integer>(count);
  const Integer stride = step.is_none() ? 1 : step.as_integer();
  if (stride == 0) return invalid("a slice can't have step 0");
  const auto clamp = [&](const Value& bound, Integer absent) {
    if (bound.is_none()) return absent;
    Integer value = bound.as_integer();
    if (value < 0) value += length;
    return stride > 0 ? std::clamp<Integer>(value, 0, length)
                      : std::clamp<Integer>(value, -1, length - 1);
  };
  const Integer first = clamp(begin, stride > 0 ? 0 : length - 1);
  const Integer last = clamp(end, stride > 0 ? length : -1);
  if (object.is_text() && stride == 1) {  // the usual slice of a text shares its bytes
    const size_t from = byte_of_character(object.view(), static_cast<size_t>(first));
    const size_t to = byte_of_character(object.view(), static_cast<size_t>(std::max(first, last)));
    return Value::text(object.as_text().slice(from, to));
  }
  ASSIGN_OR_RETURN(const auto items, items_of(object, budget));
  std::vector<Value> kept;
  for (Integer at = first; stride > 0 ? at < last : at > last; at += stride) {
    kept.push_back(items[static_cast<size_t>(at)]);
  }
  if (object.is_list()) {
    return Value::list(std::move(kept), object.as_list().tuple, object.from_data());
  }
  TextBuilder out;
  for (const Value& character : kept) out.append(character.as_text());
  return Value::text(out.take());
}

Result<std::vector<Value>> characters_of(const Text& text, Budget& budget) {
  RETURN_IF_ERROR(budget.spend_items(count_code_points(text.view())));
  std::vector<Value> characters;
  for (size_t at = 0; at < text.size();) {
    const size_t length = std::max<size_t>(1, decode_utf8(text.view(), at).length);
    characters.push_back(Value::text(text.slice(at, at + length)));
    at += length;
  }
  return characters;
}

Result<std::vector<Value>> items_of(const Value& value, Budget& budget) {
  if (value.is_undefined()) return std::vector<Value>();
  if (value.is_text()) return characters_of(value.as_text(), budget);
  if (value.is_list()) {
    RETURN_IF_ERROR(budget.spend_items(value.as_list().items.size()));
    return value.as_list().items;
  }
  if (value.is_dict()) {
    RETURN_IF_ERROR(budget.spend_items(value.as_dict().entries().size()));
    std::vector<Value> keys;
    for (const auto& entry : value.as_dict().entries()) keys.push_back(entry.first);
    return keys;
  }
  return invalid("a value of type {} has no items", type_name(value));
}

Result<size_t> length_of(const Value& value, Budget& budget) {
  if (value.is_undefined()) return size_t{0};
  if (value.is_text()) {
    RETURN_IF_ERROR(budget.spend_steps(value.as_text().size() / 16));
    return count_code_points(value.view());
  }
  if (value.is_list()) return value.as_list().items.size();
  if (value.is_dict()) return value.as_dict().entries().size();
  return invalid("a value of type {} has no length", type_name(value));
}

}  // namespace flashlane::text
