// Expressions of the evaluator.
#include <utility>

#include "text/template_eval.h"
#include "text/template_eval_helpers.h"
#include "text/template_filters.h"
#include "text/template_functions.h"
#include "text/template_methods.h"
#include "text/template_operators.h"
#include "text/template_strings.h"
#include "text/template_tests.h"

namespace flashlane::text {
namespace {

constexpr int kMaxValueDepth = 150;

}  // namespace

Result<Value> TemplateEvaluator::evaluate(const Expression& node) {
  RETURN_IF_ERROR(at_line(budget_.spend_steps(1), node.line));
  const DepthGuard guard(depth_);
  RETURN_IF_ERROR(guard.check(node.line));
  ASSIGN_OR_RETURN(Value value, evaluate_node(node));
  // Values are walked by recursion (printing, comparing, freeing), so their size is bounded here.
  const Extent extent = extent_of(value);
  if (extent.depth > kMaxValueDepth || extent.weight > Budget::kMaxSteps) {
    return invalid("chat template line {}: a value is nested {} deep with {} parts, too much",
                   node.line, extent.depth, extent.weight);
  }
  return value;
}

Result<Value> TemplateEvaluator::evaluate_node(const Expression& node) {
  switch (node.kind) {
    case ExpressionKind::kLiteral:
      return node.literal;
    case ExpressionKind::kString:
      return Value::text(Text::borrowed(node.name, false));
    case ExpressionKind::kName:
      return evaluate_name(node);
    case ExpressionKind::kList:
    case ExpressionKind::kTuple:
      return evaluate_list(node);
    case ExpressionKind::kDict:
      return evaluate_dict(node);
    case ExpressionKind::kItem:
    case ExpressionKind::kSlice:
      return evaluate_item(node);
    case ExpressionKind::kCall:
      return evaluate_call(node);
    case ExpressionKind::kCompare:
      return evaluate_compare(node);
    case ExpressionKind::kConcat:
      return evaluate_concat(node);
    case ExpressionKind::kAnd:
    case ExpressionKind::kOr:
      return evaluate_logic(node);
    case ExpressionKind::kConditional:
      return evaluate_conditional(node);
    default:
      break;
  }
  ASSIGN_OR_RETURN(Value operand, evaluate(*node.children[0]));
  switch (node.kind) {
    case ExpressionKind::kAttribute:
      return at_line(attribute_of(operand, node.name), node.line);
    case ExpressionKind::kNot:
      return Value::boolean(!is_true(operand));
    case ExpressionKind::kNegative:
      return at_line(negate(operand), node.line);
    case ExpressionKind::kPositive:
      if (!operand.is_number()) {
        return invalid("chat template line {}: a value of type {} has no sign", node.line,
                       type_name(operand));
      }
      return operand;
    case ExpressionKind::kArithmetic: {
      ASSIGN_OR_RETURN(const Value right, evaluate(*node.children[1]));
      return at_line(arithmetic(node.name, operand, right, budget_), node.line);
    }
    case ExpressionKind::kFilter: {
      ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node));
      return at_line(apply_filter(node.name, operand, arguments, budget_), node.line);
    }
    case ExpressionKind::kTest: {
      ASSIGN_OR_RETURN(const Arguments arguments, evaluate_arguments(node));
      ASSIGN_OR_RETURN(const bool passed,
                       at_line(apply_test(node.name, operand, arguments, budget_), node.line));
      return Value::boolean(passed);
    }
    default:
      UNREACHABLE();
  }
}

Result<Value> TemplateEvaluator::evaluate_name(const Expression& node) {
  if (const Value* value = scope_->find(node.name)) return *value;
  if (is_function(node.name)) {
    auto function = std::make_shared<Callable>();
    function->name = node.name;
    return Value::of(std::shared_ptr<const Callable>(std::move(function)));
  }
  return Value::undefined(node.name);
}

Result<Value> TemplateEvaluator::evaluate_list(const Expression& node) {
  RETURN_IF_ERROR(at_line(budget_.spend_items(node.children.size()), node.line));
  std::vector<Value> items;
  for (const auto& child : node.children) {
    ASSIGN_OR_RETURN(Value item, evaluate(*child));
    items.push_back(std::move(item));
  }
  return Value::list(std::move(items), node.kind == ExpressionKind::kTuple);
}

Result<Value> TemplateEvaluator::evaluate_dict(const Expression& node) {
  RETURN_IF_ERROR(at_line(budget_.spend_items(node.children.size()), node.line));
  Dict dict;
  for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
    ASSIGN_OR_RETURN(Value key, evaluate(*node.children[i]));
    if (!key.is_text() && !key.is_number() && !key.is_none()) {
      return invalid("chat template line {}: a value of type {} can't be a key", node.line,
                     type_name(key));
    }
    ASSIGN_OR_RETURN(Value value, evaluate(*node.children[i + 1]));
    dict.set(std::move(key), std::move(value));
  }
  return Value::dict(std::move(dict));
}

Result<Value> TemplateEvaluator::evaluate_item(const Expression& node) {
  std::vector<Value> parts;
  for (const auto& child : node.children) {
    if (child == nullptr) {
      parts.push_back(Value::none());
      continue;
    }
    ASSIGN_OR_RETURN(Value part, evaluate(*child));
    parts.push_back(std::move(part));
  }
  if (node.kind == ExpressionKind::kItem) {
    return at_line(item_of(parts[0], parts[1], budget_), node.line);
  }
  return at_line(slice_of(parts[0], parts[1], parts[2], parts[3], budget_), node.line);
}

Result<Value> TemplateEvaluator::evaluate_compare(const Expression& node) {
  ASSIGN_OR_RETURN(Value left, evaluate(*node.children[0]));
  for (size_t i = 0; i < node.operators.size(); ++i) {
    ASSIGN_OR_RETURN(Value right, evaluate(*node.children[i + 1]));
    ASSIGN_OR_RETURN(const bool holds,
                     at_line(compare_with(node.operators[i], left, right, budget_), node.line));
    if (!holds) return Value::boolean(false);
    left = std::move(right);
  }
  return Value::boolean(true);
}

Result<Value> TemplateEvaluator::evaluate_concat(const Expression& node) {
  std::vector<Value> parts;
  for (const auto& child : node.children) {
    ASSIGN_OR_RETURN(Value part, evaluate(*child));
    parts.push_back(std::move(part));
  }
  ASSIGN_OR_RETURN(Text text, at_line(join(parts, Text(), budget_), node.line));
  return Value::text(std::move(text));
}

Result<Value> TemplateEvaluator::evaluate_logic(const Expression& node) {
  ASSIGN_OR_RETURN(Value left, evaluate(*node.children[0]));
  // As in Python, the value that decides is the result.
  if (is_true(left) == (node.kind == ExpressionKind::kOr)) return left;
  return evaluate(*node.children[1]);
}

Result<Value> TemplateEvaluator::evaluate_conditional(const Expression& node) {
  ASSIGN_OR_RETURN(const Value condition, evaluate(*node.children[1]));
  if (is_true(condition)) return evaluate(*node.children[0]);
  if (node.children[2] == nullptr) return Value::undefined("the if without else");
  return evaluate(*node.children[2]);
}

Result<Arguments> TemplateEvaluator::evaluate_arguments(const Expression& node) {
  Arguments arguments;
  for (const auto& argument : node.arguments) {
    ASSIGN_OR_RETURN(Value value, evaluate(*argument));
    arguments.positional.push_back(std::move(value));
  }
  for (const auto& [name, argument] : node.named) {
    ASSIGN_OR_RETURN(Value value, evaluate(*argument));
    arguments.named.emplace_back(name, std::move(value));
  }
  return arguments;
}

Result<Value> TemplateEvaluator::evaluate_call(const Expression& node) {
  ASSIGN_OR_RETURN(const Value called, evaluate(*node.children[0]));
  if (!called.is<std::shared_ptr<const Callable>>()) {
    return invalid("chat template line {}: '{}' of type {} can't be called", node.line,
                   called.is_undefined() ? called.get<Undefined>().name : node.children[0]->name,
                   type_name(called));
  }
  const Callable& callable = *called.get<std::shared_ptr<const Callable>>();
  ASSIGN_OR_RETURN(Arguments arguments, evaluate_arguments(node));
  if (callable.macro != nullptr) return call_macro(callable, std::move(arguments), node.line);
  if (callable.self != nullptr) {
    return at_line(call_method(*callable.self, callable.name, arguments, budget_), node.line);
  }
  return call_function(callable.name, arguments, node.line);
}

Result<Value> TemplateEvaluator::call_macro(const Callable& callable, Arguments arguments,
                                            int line) {
  const Statement& macro = *callable.macro;
  const auto& parameters = macro.parameters;
  if (arguments.positional.size() > parameters.size()) {
    return invalid("chat template line {}: macro '{}' takes at most {} arguments, {} given", line,
                   macro.text, parameters.size(), arguments.positional.size());
  }
  auto outer = scope_;
  auto definition = callable.scope.lock();
  auto inner = std::make_shared<Scope>(Scope{definition ? definition : outer, {}});
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    inner->set(parameters[i].name, std::move(arguments.positional[i]));
  }
  for (auto& [name, value] : arguments.named) {
    bool known = false;
    for (size_t i = arguments.positional.size(); i < parameters.size(); ++i) {
      known = known || parameters[i].name == name;
    }
    if (!known) {
      return invalid("chat template line {}: macro '{}' can't take '{}' here", line, macro.text,
                     name);
    }
    inner->set(name, std::move(value));
  }
  scope_ = inner;
  Status status;
  for (const Parameter& parameter : parameters) {
    bool given = false;
    for (const auto& [name, value] : inner->names) given = given || name == parameter.name;
    if (given) continue;
    Value standard = Value::undefined(parameter.name);
    if (parameter.standard != nullptr) {
      auto value = evaluate(*parameter.standard);
      if (!value.ok()) {
        status = value.error();
        break;
      }
      standard = std::move(value).value();
    }
    inner->set(parameter.name, std::move(standard));
  }
  Result<Text> text = status.ok() ? capture(macro.body) : Result<Text>(status.error());
  scope_ = outer;
  if (!text.ok()) return text.error();
  return Value::text(std::move(text).value());
}

Result<Value> TemplateEvaluator::make_namespace(const Arguments& arguments) {
  if (arguments.positional.size() > 1 ||
      (arguments.positional.size() == 1 && !arguments.positional[0].is_dict())) {
    return invalid("namespace takes named arguments, or one dict");
  }
  RETURN_IF_ERROR(budget_.spend_items(arguments.named.size() + 1));
  auto space = std::make_unique<Namespace>();
  for (const auto& [name, value] : arguments.named) space->attributes.emplace_back(name, value);
  if (!arguments.positional.empty()) {
    return error(ErrorCode::kUnsupported, "namespace from a dict is not supported");
  }
  namespaces_.push_back(std::move(space));
  return Value::of(namespaces_.back().get());
}

Result<Value> TemplateEvaluator::call_function(std::string_view name, const Arguments& arguments,
                                               int line) {
  if (name == "namespace") return at_line(make_namespace(arguments), line);
  if (name == "range") return at_line(make_range(arguments, budget_), line);
  if (name == "dict") return at_line(make_dict(arguments, budget_), line);
  if (name == "strftime_now") return at_line(format_now(arguments), line);
  CHECK_EQ(name, "raise_exception");
  if (arguments.positional.size() != 1 || !arguments.positional[0].is_text()) {
    return invalid("chat template line {}: raise_exception takes one text", line);
  }
  // The template's own words, as they are: they go to the client.
  return Error{ErrorCode::kInvalidArgument, std::string(arguments.positional[0].view())};
}

}  // namespace flashlane::text
