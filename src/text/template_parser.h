// Tokens to AST: recursive descent with Jinja's precedence. Nesting is bounded, and what is not
// built is refused with its line and name.
#pragma once

#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/template_ast.h"
#include "text/template_lexer.h"

namespace flashlane::text {

class TemplateParser {
 public:
  static constexpr int kMaxExpressionDepth = 100;
  static Result<Block> parse(std::string_view source);

 private:
  explicit TemplateParser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  // Statements; `stops` are the names that end the block, whose tag stays to be read.
  Result<Block> parse_block(const std::vector<std::string_view>& stops);
  Status parse_tag(Block& block);
  Status parse_set(Statement& statement);
  Status parse_for(Statement& statement);
  Status parse_if(Statement& statement);
  Status parse_macro(Statement& statement);
  Status parse_generation(Block& block);
  Result<Target> parse_target(bool may_be_attribute);
  Status end_tag();
  Status end_block(std::string_view name);  // {% name %} whose {% is read

  // Expressions, loosest first.
  Result<ExpressionPtr> parse_tuple(bool with_conditional);
  Result<ExpressionPtr> parse_expression();
  Result<ExpressionPtr> parse_or();
  Result<ExpressionPtr> parse_and();
  Result<ExpressionPtr> parse_not();
  Result<ExpressionPtr> parse_compare();
  Result<ExpressionPtr> parse_sum();
  Result<ExpressionPtr> parse_concat();
  Result<ExpressionPtr> parse_product();
  Result<ExpressionPtr> parse_power();
  Result<ExpressionPtr> parse_unary(bool with_filter);
  Result<ExpressionPtr> parse_primary();
  Result<ExpressionPtr> parse_parenthesis();
  Result<ExpressionPtr> parse_list();
  Result<ExpressionPtr> parse_dict();
  Result<ExpressionPtr> parse_number();
  Result<ExpressionPtr> parse_postfix(ExpressionPtr node, bool with_filter);
  Result<ExpressionPtr> parse_subscript(ExpressionPtr object);
  Result<ExpressionPtr> parse_filter(ExpressionPtr node);
  Result<ExpressionPtr> parse_test(ExpressionPtr node);
  Status parse_arguments(Expression& call);  // the opening parenthesis is read

  using Rule = Result<ExpressionPtr> (TemplateParser::*)();
  Result<ExpressionPtr> parse_chain(Rule operand, const std::vector<std::string_view>& operators);

  const Token& here() const { return tokens_[at_]; }
  const Token& ahead() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  Token next();
  bool at_operator(std::string_view op) const;
  bool at_name(std::string_view name) const;
  bool skip_operator(std::string_view op);
  bool skip_name(std::string_view name);
  Status expect_operator(std::string_view op);
  Status expect_name(std::string_view name);
  Result<std::string> expect_any_name(std::string_view what);
  Error unexpected(std::string_view wanted) const;

  ExpressionPtr make(ExpressionKind kind, int line, std::string name = {}) const;
  // Appends a child and keeps the depth; too deep is an error.
  Status adopt(Expression& parent, ExpressionPtr child) const;

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int nesting_ = 0;
};

}  // namespace flashlane::text
