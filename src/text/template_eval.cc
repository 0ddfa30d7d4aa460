// Statements, scopes and output; expressions are in template_eval_expressions.cc.
#include "text/template_eval.h"

#include <boost/json.hpp>

#include <array>
#include <utility>

#include "text/template_eval_helpers.h"
#include "text/template_operators.h"
#include "text/template_print.h"

namespace flashlane::text {
namespace {

// Variables that the server sets from the tokenizer's own files: the template may write them as
// markers. All others come from the request, so what they spell is plain text.
constexpr std::array<std::string_view, 7> kTrusted{
    "bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token"};

bool is_trusted(std::string_view name) {
  for (const std::string_view trusted : kTrusted) {
    if (name == trusted) return true;
  }
  return false;
}

}  // namespace

void Scope::set(std::string_view name, Value value) {
  for (auto& [known, slot] : names) {
    if (known == name) {
      slot = std::move(value);
      return;
    }
  }
  names.emplace_back(name, std::move(value));
}

const Value* Scope::find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->parent.get()) {
    for (const auto& [known, value] : scope->names) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

Result<Text> TemplateEvaluator::run() {
  RETURN_IF_ERROR(bind_variables());
  ASSIGN_OR_RETURN(const Flow flow, execute(block_));
  if (flow != Flow::kNormal) return invalid("chat template: break or continue outside of a loop");
  return out_.take();
}

Status TemplateEvaluator::bind_variables() {
  scope_ = std::make_shared<Scope>();
  for (const auto& [key, json] : variables_) {
    const std::string_view name(key.data(), key.size());
    ASSIGN_OR_RETURN(Value value, value_of(json, !is_trusted(name)));
    scope_->names.emplace_back(name, std::move(value));
  }
  scope_ = std::make_shared<Scope>(Scope{scope_, {}});
  return {};
}

Result<TemplateEvaluator::Flow> TemplateEvaluator::execute(const Block& block) {
  for (const auto& statement : block) {
    ASSIGN_OR_RETURN(const Flow flow, execute(*statement));
    if (flow != Flow::kNormal) return flow;
  }
  return Flow::kNormal;
}

Result<TemplateEvaluator::Flow> TemplateEvaluator::execute(const Statement& statement) {
  RETURN_IF_ERROR(at_line(budget_.spend_steps(1), statement.line));
  const DepthGuard guard(depth_);
  RETURN_IF_ERROR(guard.check(statement.line));
  switch (statement.kind) {
    case StatementKind::kText:
      RETURN_IF_ERROR(emit(Text::borrowed(statement.text, false), statement.line));
      break;
    case StatementKind::kPrint:
      RETURN_IF_ERROR(execute_print(statement));
      break;
    case StatementKind::kSet:
      RETURN_IF_ERROR(execute_set(statement));
      break;
    case StatementKind::kSetBlock:
      RETURN_IF_ERROR(execute_set_block(statement));
      break;
    case StatementKind::kMacro:
      define_macro(statement);
      break;
    case StatementKind::kFor:
      return execute_for(statement);
    case StatementKind::kIf:
      return execute_if(statement);
    case StatementKind::kBreak:
      return Flow::kBreak;
    case StatementKind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNormal;
}

Status TemplateEvaluator::emit(const Text& text, int line) {
  RETURN_IF_ERROR(at_line(budget_.spend_text(text), line));
  if (out_.size() + text.size() > Budget::kMaxTextBytes) {
    return invalid("chat template line {}: the output has more than {} bytes", line,
                   Budget::kMaxTextBytes);
  }
  out_.append(text);
  return {};
}

Result<Text> TemplateEvaluator::capture(const Block& block) {
  TextBuilder outer = std::exchange(out_, TextBuilder());
  auto flow = execute(block);
  TextBuilder inner = std::exchange(out_, std::move(outer));
  if (!flow.ok()) return flow.error();
  if (*flow != Flow::kNormal) {
    return invalid("chat template: break or continue outside of a loop");
  }
  return inner.take();
}

Status TemplateEvaluator::execute_print(const Statement& statement) {
  ASSIGN_OR_RETURN(const Value value, evaluate(*statement.expression));
  ASSIGN_OR_RETURN(const Text text, at_line(print(value, Budget::kMaxTextBytes), statement.line));
  return emit(text, statement.line);
}

Status TemplateEvaluator::execute_set(const Statement& statement) {
  ASSIGN_OR_RETURN(Value value, evaluate(*statement.expression));
  return assign(statement.target, std::move(value), statement.line);
}

Status TemplateEvaluator::execute_set_block(const Statement& statement) {
  auto outer = scope_;
  scope_ = std::make_shared<Scope>(Scope{outer, {}});
  auto text = capture(statement.body);
  scope_ = outer;
  if (!text.ok()) return text.error();
  Value value = Value::text(std::move(text).value());
  if (statement.expression != nullptr) {
    // The filters find the text under the empty name, which no template can write.
    scope_ = std::make_shared<Scope>(Scope{outer, {{std::string_view(), value}}});
    auto filtered = evaluate(*statement.expression);
    scope_ = outer;
    if (!filtered.ok()) return filtered.error();
    value = std::move(filtered).value();
  }
  return assign(statement.target, std::move(value), statement.line);
}

Status TemplateEvaluator::assign(const Target& target, Value value, int line) {
  if (!target.attribute.empty()) {
    const Value* holder = scope_->find(target.names[0]);
    if (holder == nullptr || !holder->is<Namespace*>()) {
      return invalid("chat template line {}: '{}' is no namespace", line, target.names[0]);
    }
    Namespace& space = *holder->get<Namespace*>();
    for (auto& [known, slot] : space.attributes) {
      if (known == target.attribute) {
        slot = std::move(value);
        return {};
      }
    }
    space.attributes.emplace_back(target.attribute, std::move(value));
    return {};
  }
  if (!target.tuple) {
    scope_->set(target.names[0], std::move(value));
    return {};
  }
  ASSIGN_OR_RETURN(auto items, at_line(items_of(value, budget_), line));
  if (items.size() != target.names.size()) {
    return invalid("chat template line {}: {} values for {} names", line, items.size(),
                   target.names.size());
  }
  for (size_t i = 0; i < items.size(); ++i) scope_->set(target.names[i], std::move(items[i]));
  return {};
}

Result<TemplateEvaluator::Flow> TemplateEvaluator::execute_if(const Statement& statement) {
  for (const Branch& branch : statement.branches) {
    ASSIGN_OR_RETURN(const Value condition, evaluate(*branch.condition));
    if (is_true(condition)) return execute(branch.body);
  }
  return execute(statement.otherwise);
}

Result<std::vector<Value>> TemplateEvaluator::loop_items(const Statement& statement) {
  ASSIGN_OR_RETURN(const Value walked, evaluate(*statement.expression));
  ASSIGN_OR_RETURN(auto items, at_line(items_of(walked, budget_), statement.line));
  if (statement.condition == nullptr) return items;
  std::vector<Value> kept;
  auto outer = scope_;
  for (Value& item : items) {
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    Status status = assign(statement.target, item, statement.line);
    Result<Value> condition = status.ok() ? evaluate(*statement.condition) : status.error();
    scope_ = outer;
    if (!condition.ok()) return condition.error();
    if (is_true(*condition)) kept.push_back(std::move(item));
  }
  return kept;
}

Result<TemplateEvaluator::Flow> TemplateEvaluator::execute_for(const Statement& statement) {
  ASSIGN_OR_RETURN(auto items, loop_items(statement));
  if (items.empty()) {
    ASSIGN_OR_RETURN(const Flow flow, execute(statement.otherwise));
    return flow;
  }
  const Value walked = Value::list(std::move(items));
  const auto& list = walked.get<std::shared_ptr<const List>>();
  auto outer = scope_;
  Result<Flow> flow = Flow::kNormal;
  for (size_t i = 0; i < list->items.size(); ++i) {
    // Each pass has its own names and its own loop: a value kept from one pass stays as it was.
    scope_ = std::make_shared<Scope>(Scope{outer, {}});
    scope_->set("loop", Value::of(std::make_shared<Loop>(Loop{list, i})));
    Status status = assign(statement.target, list->items[i], statement.line);
    flow = status.ok() ? execute(statement.body) : Result<Flow>(status.error());
    scope_ = outer;
    if (!flow.ok() || *flow == Flow::kBreak) break;
  }
  if (!flow.ok()) return flow;
  return Flow::kNormal;
}

void TemplateEvaluator::define_macro(const Statement& statement) {
  auto macro = std::make_shared<Callable>();
  macro->name = statement.text;
  macro->macro = &statement;
  macro->scope = scope_;
  scope_->set(statement.text, Value::of(std::shared_ptr<const Callable>(std::move(macro))));
}

}  // namespace flashlane::text
