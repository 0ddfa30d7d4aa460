// What may follow an expression: subscripts, calls, filters, tests.
#include <algorithm>
#include <utility>

#include "text/template_filters.h"
#include "text/template_parser.h"
#include "text/template_tests.h"

namespace flashlane::text {

Result<ExpressionPtr> TemplateParser::parse_postfix(ExpressionPtr node, bool with_filter) {
  bool filtered = false;
  while (true) {
    if (!filtered && (at_operator(".") || at_operator("["))) {
      ASSIGN_OR_RETURN(node, parse_subscript(std::move(node)));
    } else if (at_operator("(")) {
      ExpressionPtr call = make(ExpressionKind::kCall, next().line);
      RETURN_IF_ERROR(adopt(*call, std::move(node)));
      RETURN_IF_ERROR(parse_arguments(*call));
      node = std::move(call);
    } else if (with_filter && at_operator("|")) {
      filtered = true;
      ASSIGN_OR_RETURN(node, parse_filter(std::move(node)));
    } else if (with_filter && at_name("is")) {
      filtered = true;
      ASSIGN_OR_RETURN(node, parse_test(std::move(node)));
    } else {
      return node;
    }
  }
}

Result<ExpressionPtr> TemplateParser::parse_subscript(ExpressionPtr object) {
  const Token token = next();
  if (token.text == ".") {
    if (here().type == TokenType::kInteger) {
      ExpressionPtr item = make(ExpressionKind::kItem, token.line);
      RETURN_IF_ERROR(adopt(*item, std::move(object)));
      ASSIGN_OR_RETURN(ExpressionPtr index, parse_number());
      RETURN_IF_ERROR(adopt(*item, std::move(index)));
      return item;
    }
    ASSIGN_OR_RETURN(std::string name, expect_any_name("an attribute's name"));
    ExpressionPtr attribute = make(ExpressionKind::kAttribute, token.line, std::move(name));
    RETURN_IF_ERROR(adopt(*attribute, std::move(object)));
    return attribute;
  }
  ExpressionPtr node = make(ExpressionKind::kItem, token.line);
  RETURN_IF_ERROR(adopt(*node, std::move(object)));
  ExpressionPtr part;
  if (!at_operator(":")) {
    ASSIGN_OR_RETURN(part, parse_expression());
  }
  RETURN_IF_ERROR(adopt(*node, std::move(part)));
  if (!at_operator(":")) {
    RETURN_IF_ERROR(expect_operator("]"));
    return node;
  }
  node->kind = ExpressionKind::kSlice;
  for (int i = 0; i < 2; ++i) {
    ExpressionPtr bound;
    if (skip_operator(":") && !at_operator(":") && !at_operator("]")) {
      ASSIGN_OR_RETURN(bound, parse_expression());
    }
    RETURN_IF_ERROR(adopt(*node, std::move(bound)));
  }
  RETURN_IF_ERROR(expect_operator("]"));
  return node;
}

Status TemplateParser::parse_arguments(Expression& call) {
  const auto deepen = [&](const ExpressionPtr& argument) {
    call.depth = std::max(call.depth, argument->depth + 1);
  };
  while (!at_operator(")")) {
    if (at_operator("*") || at_operator("**")) {
      return error(ErrorCode::kUnsupported,
                   "chat template line {}: unpacking arguments with {} is not supported",
                   here().line, here().text);
    }
    if (here().type == TokenType::kName && ahead().type == TokenType::kOperator &&
        ahead().text == "=") {
      std::string name = next().text;
      next();
      ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
      deepen(value);
      for (const auto& [known, ignored] : call.named) {
        if (known == name) return unexpected(fmt::format("argument '{}' only once", name));
      }
      call.named.emplace_back(std::move(name), std::move(value));
    } else {
      if (!call.named.empty()) return unexpected("a named argument");
      ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
      deepen(value);
      call.arguments.push_back(std::move(value));
    }
    if (!at_operator(")")) RETURN_IF_ERROR(expect_operator(","));
  }
  next();
  if (call.depth > kMaxExpressionDepth) return unexpected("fewer levels of calls");
  return {};
}

Result<ExpressionPtr> TemplateParser::parse_filter(ExpressionPtr node) {
  next();
  const int line = here().line;
  ASSIGN_OR_RETURN(std::string name, expect_any_name("a filter's name"));
  if (!is_filter(name)) {
    return error(ErrorCode::kUnsupported, "chat template line {}: the filter '{}' is not supported",
                 line, name);
  }
  ExpressionPtr filter = make(ExpressionKind::kFilter, line, std::move(name));
  RETURN_IF_ERROR(adopt(*filter, std::move(node)));
  if (skip_operator("(")) RETURN_IF_ERROR(parse_arguments(*filter));
  return filter;
}

Result<ExpressionPtr> TemplateParser::parse_test(ExpressionPtr node) {
  const int line = next().line;
  const bool negated = skip_name("not");
  ASSIGN_OR_RETURN(std::string name, expect_any_name("a test's name"));
  if (!is_test(name)) {
    return error(ErrorCode::kUnsupported, "chat template line {}: the test '{}' is not supported",
                 line, name);
  }
  ExpressionPtr test = make(ExpressionKind::kTest, line, std::move(name));
  RETURN_IF_ERROR(adopt(*test, std::move(node)));
  const auto is_word = [&] {
    for (const std::string_view word :
         {"else", "or", "and", "if", "in", "not", "is", "recursive"}) {
      if (at_name(word)) return true;
    }
    return false;
  };
  if (skip_operator("(")) {
    RETURN_IF_ERROR(parse_arguments(*test));
  } else if ((here().type == TokenType::kName && !is_word()) || here().type == TokenType::kString ||
             here().type == TokenType::kInteger || here().type == TokenType::kReal ||
             at_operator("[") || at_operator("{")) {
    ASSIGN_OR_RETURN(ExpressionPtr argument, parse_primary());
    ASSIGN_OR_RETURN(argument, parse_postfix(std::move(argument), false));
    test->depth = std::max(test->depth, argument->depth + 1);
    test->arguments.push_back(std::move(argument));
  }
  if (!negated) return test;
  ExpressionPtr node_not = make(ExpressionKind::kNot, line);
  RETURN_IF_ERROR(adopt(*node_not, std::move(test)));
  return node_not;
}

}  // namespace flashlane::text
