// Runs a parsed template over its variables within a budget. One evaluator renders once; everything
// it makes dies with it.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "text/template_arguments.h"
#include "text/template_ast.h"
#include "text/template_budget.h"

namespace flashlane::text {

// Names that one block binds. A for loop's pass and a macro's call have their own; `if` has none.
struct Scope {
  std::shared_ptr<Scope> parent;
  std::vector<std::pair<std::string_view, Value>> names;

  void set(std::string_view name, Value value);
  const Value* find(std::string_view name) const;
};

class TemplateEvaluator {
 public:
  // `block` and `variables` outlive the evaluator.
  TemplateEvaluator(const Block& block, const boost::json::object& variables)
      : block_(block), variables_(variables) {}
  Result<Text> run();

 private:
  enum class Flow { kNormal, kBreak, kContinue };

  Status bind_variables();
  Result<Flow> execute(const Block& block);
  Result<Flow> execute(const Statement& statement);
  Result<Flow> execute_for(const Statement& statement);
  Result<Flow> execute_if(const Statement& statement);
  Status execute_print(const Statement& statement);
  Status execute_set(const Statement& statement);
  Status execute_set_block(const Statement& statement);
  void define_macro(const Statement& statement);
  Result<std::vector<Value>> loop_items(const Statement& statement);
  Status assign(const Target& target, Value value, int line);
  Status emit(const Text& text, int line);
  // The text that a block writes.
  Result<Text> capture(const Block& block);

  Result<Value> evaluate(const Expression& node);
  Result<Value> evaluate_node(const Expression& node);
  Result<Value> evaluate_name(const Expression& node);
  Result<Value> evaluate_list(const Expression& node);
  Result<Value> evaluate_dict(const Expression& node);
  Result<Value> evaluate_item(const Expression& node);
  Result<Value> evaluate_call(const Expression& node);
  Result<Value> evaluate_compare(const Expression& node);
  Result<Value> evaluate_concat(const Expression& node);
  Result<Value> evaluate_logic(const Expression& node);
  Result<Value> evaluate_conditional(const Expression& node);
  Result<Arguments> evaluate_arguments(const Expression& node);
  Result<Value> call_macro(const Callable& callable, Arguments arguments, int line);
  // raise_exception, namespace, range, dict, strftime_now
  Result<Value> call_function(std::string_view name, const Arguments& arguments, int line);
  Result<Value> make_namespace(const Arguments& arguments);

  const Block& block_;
  const boost::json::object& variables_;
  Budget budget_;
  std::shared_ptr<Scope> scope_;
  std::vector<std::unique_ptr<Namespace>> namespaces_;
  TextBuilder out_;
  int depth_ = 0;
};

}  // namespace flashlane::text
