// Expressions, one function per level of precedence.
#include <algorithm>
#include <charconv>
#include <utility>

#include "text/template_parser.h"

namespace flashlane::text {
namespace {

// Counts the levels of recursion, down again when it leaves.
class Level {
 public:
  explicit Level(int& level) : level_(level) { ++level_; }
  ~Level() { --level_; }
  Level(const Level&) = delete;
  Level& operator=(const Level&) = delete;

 private:
  int& level_;
};

}  // namespace

ExpressionPtr TemplateParser::make(ExpressionKind kind, int line, std::string name) const {
  auto node = std::make_unique<Expression>();
  node->kind = kind;
  node->line = line;
  node->name = std::move(name);
  return node;
}

Status TemplateParser::adopt(Expression& parent, ExpressionPtr child) const {
  if (child != nullptr) {
    parent.depth = std::max(parent.depth, child->depth + 1);
    if (parent.depth > kMaxExpressionDepth) {
      return invalid("chat template line {}: an expression nests deeper than {}", parent.line,
                     kMaxExpressionDepth);
    }
  }
  parent.children.push_back(std::move(child));
  return {};
}

Result<ExpressionPtr> TemplateParser::parse_tuple(bool with_conditional) {
  const auto part = [&] { return with_conditional ? parse_expression() : parse_or(); };
  const auto at_end = [&] {
    return here().type == TokenType::kPrintEnd || here().type == TokenType::kBlockEnd ||
           at_operator(")");
  };
  const int line = here().line;
  ASSIGN_OR_RETURN(ExpressionPtr first, part());
  if (!at_operator(",")) return first;
  ExpressionPtr tuple = make(ExpressionKind::kTuple, line);
  RETURN_IF_ERROR(adopt(*tuple, std::move(first)));
  while (skip_operator(",") && !at_end()) {
    ASSIGN_OR_RETURN(ExpressionPtr item, part());
    RETURN_IF_ERROR(adopt(*tuple, std::move(item)));
  }
  return tuple;
}

Result<ExpressionPtr> TemplateParser::parse_expression() {
  const Level level(nesting_);
  if (nesting_ > kMaxExpressionDepth) {
    return invalid("chat template line {}: an expression nests deeper than {}", here().line,
                   kMaxExpressionDepth);
  }
  ASSIGN_OR_RETURN(ExpressionPtr node, parse_or());
  while (at_name("if")) {
    ExpressionPtr conditional = make(ExpressionKind::kConditional, next().line);
    RETURN_IF_ERROR(adopt(*conditional, std::move(node)));
    ASSIGN_OR_RETURN(ExpressionPtr condition, parse_or());
    RETURN_IF_ERROR(adopt(*conditional, std::move(condition)));
    ExpressionPtr otherwise;
    if (skip_name("else")) {
      ASSIGN_OR_RETURN(otherwise, parse_expression());
    }
    RETURN_IF_ERROR(adopt(*conditional, std::move(otherwise)));
    node = std::move(conditional);
  }
  return node;
}

Result<ExpressionPtr> TemplateParser::parse_or() {
  ASSIGN_OR_RETURN(ExpressionPtr left, parse_and());
  while (at_name("or")) {
    ExpressionPtr node = make(ExpressionKind::kOr, next().line);
    RETURN_IF_ERROR(adopt(*node, std::move(left)));
    ASSIGN_OR_RETURN(ExpressionPtr right, parse_and());
    RETURN_IF_ERROR(adopt(*node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

Result<ExpressionPtr> TemplateParser::parse_and() {
  ASSIGN_OR_RETURN(ExpressionPtr left, parse_not());
  while (at_name("and")) {
    ExpressionPtr node = make(ExpressionKind::kAnd, next().line);
    RETURN_IF_ERROR(adopt(*node, std::move(left)));
    ASSIGN_OR_RETURN(ExpressionPtr right, parse_not());
    RETURN_IF_ERROR(adopt(*node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

Result<ExpressionPtr> TemplateParser::parse_not() {
  if (!at_name("not")) return parse_compare();
  const Level level(nesting_);
  if (nesting_ > kMaxExpressionDepth) return unexpected("fewer levels of 'not'");
  ExpressionPtr node = make(ExpressionKind::kNot, next().line);
  ASSIGN_OR_RETURN(ExpressionPtr child, parse_not());
  RETURN_IF_ERROR(adopt(*node, std::move(child)));
  return node;
}

Result<ExpressionPtr> TemplateParser::parse_compare() {
  const int line = here().line;
  ASSIGN_OR_RETURN(ExpressionPtr first, parse_sum());
  ExpressionPtr node;
  while (true) {
    std::string op;
    if (here().type == TokenType::kOperator &&
        (here().text == "==" || here().text == "!=" || here().text == "<" || here().text == ">" ||
         here().text == "<=" || here().text == ">=")) {
      op = next().text;
    } else if (skip_name("in")) {
      op = "in";
    } else if (at_name("not") && ahead().type == TokenType::kName && ahead().text == "in") {
      next();
      next();
      op = "not in";
    } else {
      break;
    }
    if (node == nullptr) {
      node = make(ExpressionKind::kCompare, line);
      RETURN_IF_ERROR(adopt(*node, std::move(first)));
    }
    ASSIGN_OR_RETURN(ExpressionPtr operand, parse_sum());
    RETURN_IF_ERROR(adopt(*node, std::move(operand)));
    node->operators.push_back(std::move(op));
  }
  return node == nullptr ? std::move(first) : std::move(node);
}

Result<ExpressionPtr> TemplateParser::parse_chain(Rule operand,
                                                  const std::vector<std::string_view>& operators) {
  ASSIGN_OR_RETURN(ExpressionPtr left, (this->*operand)());
  while (here().type == TokenType::kOperator &&
         std::find(operators.begin(), operators.end(), here().text) != operators.end()) {
    const Token op = next();
    ExpressionPtr node = make(ExpressionKind::kArithmetic, op.line, op.text);
    RETURN_IF_ERROR(adopt(*node, std::move(left)));
    ASSIGN_OR_RETURN(ExpressionPtr right, (this->*operand)());
    RETURN_IF_ERROR(adopt(*node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

Result<ExpressionPtr> TemplateParser::parse_sum() {
  return parse_chain(&TemplateParser::parse_concat, {"+", "-"});
}

Result<ExpressionPtr> TemplateParser::parse_concat() {
  ASSIGN_OR_RETURN(ExpressionPtr first, parse_product());
  if (!at_operator("~")) return first;
  ExpressionPtr node = make(ExpressionKind::kConcat, here().line);
  RETURN_IF_ERROR(adopt(*node, std::move(first)));
  while (skip_operator("~")) {
    ASSIGN_OR_RETURN(ExpressionPtr part, parse_product());
    RETURN_IF_ERROR(adopt(*node, std::move(part)));
  }
  return node;
}

Result<ExpressionPtr> TemplateParser::parse_product() {
  return parse_chain(&TemplateParser::parse_power, {"*", "/", "//", "%"});
}

Result<ExpressionPtr> TemplateParser::parse_power() {
  ASSIGN_OR_RETURN(ExpressionPtr left, parse_unary(true));
  while (at_operator("**")) {
    ExpressionPtr node = make(ExpressionKind::kArithmetic, next().line, "**");
    RETURN_IF_ERROR(adopt(*node, std::move(left)));
    ASSIGN_OR_RETURN(ExpressionPtr right, parse_unary(true));
    RETURN_IF_ERROR(adopt(*node, std::move(right)));
    left = std::move(node);
  }
  return left;
}

Result<ExpressionPtr> TemplateParser::parse_unary(bool with_filter) {
  const Level level(nesting_);
  if (nesting_ > kMaxExpressionDepth) return unexpected("fewer levels of signs or brackets");
  if (at_operator("-") || at_operator("+")) {
    const Token sign = next();
    ExpressionPtr node =
        make(sign.text == "-" ? ExpressionKind::kNegative : ExpressionKind::kPositive, sign.line);
    ASSIGN_OR_RETURN(ExpressionPtr child, parse_unary(false));
    RETURN_IF_ERROR(adopt(*node, std::move(child)));
    return parse_postfix(std::move(node), with_filter);
  }
  ASSIGN_OR_RETURN(ExpressionPtr node, parse_primary());
  return parse_postfix(std::move(node), with_filter);
}

Result<ExpressionPtr> TemplateParser::parse_primary() {
  const Token token = here();
  if (token.type == TokenType::kInteger || token.type == TokenType::kReal) return parse_number();
  if (token.type == TokenType::kString) {
    ExpressionPtr node = make(ExpressionKind::kString, token.line);
    while (here().type == TokenType::kString) node->name += next().text;
    return node;
  }
  if (token.type == TokenType::kName) {
    next();
    ExpressionPtr node = make(ExpressionKind::kLiteral, token.line);
    if (token.text == "true" || token.text == "True") {
      node->literal = Value::boolean(true);
    } else if (token.text == "false" || token.text == "False") {
      node->literal = Value::boolean(false);
    } else if (token.text == "none" || token.text == "None") {
      node->literal = Value::none();
    } else {
      node->kind = ExpressionKind::kName;
      node->name = token.text;
    }
    return node;
  }
  if (at_operator("(")) return parse_parenthesis();
  if (at_operator("[")) return parse_list();
  if (at_operator("{")) return parse_dict();
  return unexpected("an expression");
}

Result<ExpressionPtr> TemplateParser::parse_number() {
  const Token token = next();
  ExpressionPtr node = make(ExpressionKind::kLiteral, token.line);
  const char* begin = token.text.data();
  const char* end = begin + token.text.size();
  if (token.type == TokenType::kInteger) {
    int64_t value = 0;
    if (std::from_chars(begin, end, value).ec != std::errc()) {
      return invalid("chat template line {}: the integer {} is too large", token.line, token.text);
    }
    node->literal = Value::integer(value);
  } else {
    double value = 0;
    if (std::from_chars(begin, end, value).ec != std::errc()) {
      return invalid("chat template line {}: the number {} is out of range", token.line,
                     token.text);
    }
    node->literal = Value::real(value);
  }
  return node;
}

Result<ExpressionPtr> TemplateParser::parse_parenthesis() {
  const Token open = next();
  if (skip_operator(")")) return make(ExpressionKind::kTuple, open.line);
  ASSIGN_OR_RETURN(ExpressionPtr node, parse_tuple(true));
  RETURN_IF_ERROR(expect_operator(")"));
  return node;
}

Result<ExpressionPtr> TemplateParser::parse_list() {
  ExpressionPtr list = make(ExpressionKind::kList, next().line);
  while (!at_operator("]")) {
    ASSIGN_OR_RETURN(ExpressionPtr item, parse_expression());
    RETURN_IF_ERROR(adopt(*list, std::move(item)));
    if (!at_operator("]")) RETURN_IF_ERROR(expect_operator(","));
  }
  next();
  return list;
}

Result<ExpressionPtr> TemplateParser::parse_dict() {
  ExpressionPtr dict = make(ExpressionKind::kDict, next().line);
  while (!at_operator("}")) {
    ASSIGN_OR_RETURN(ExpressionPtr key, parse_expression());
    RETURN_IF_ERROR(expect_operator(":"));
    ASSIGN_OR_RETURN(ExpressionPtr value, parse_expression());
    RETURN_IF_ERROR(adopt(*dict, std::move(key)));
    RETURN_IF_ERROR(adopt(*dict, std::move(value)));
    if (!at_operator("}")) RETURN_IF_ERROR(expect_operator(","));
  }
  next();
  return dict;
}

}  // namespace flashlane::text
