// Tags and the parser's small tools; expressions are in template_parser_expressions.cc.
#include "text/template_parser.h"

#include <algorithm>
#include <utility>

namespace flashlane::text {
namespace {

constexpr int kMaxNesting = 100;

}  // namespace

Result<Block> TemplateParser::parse(std::string_view source) {
  ASSIGN_OR_RETURN(auto tokens, lex_template(source));
  TemplateParser parser(std::move(tokens));
  return parser.parse_block({});
}

Token TemplateParser::next() {
  Token token = here();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool TemplateParser::at_operator(std::string_view op) const {
  return here().type == TokenType::kOperator && here().text == op;
}

bool TemplateParser::at_name(std::string_view name) const {
  return here().type == TokenType::kName && here().text == name;
}

bool TemplateParser::skip_operator(std::string_view op) {
  if (!at_operator(op)) return false;
  next();
  return true;
}

bool TemplateParser::skip_name(std::string_view name) {
  if (!at_name(name)) return false;
  next();
  return true;
}

Status TemplateParser::expect_operator(std::string_view op) {
  if (!skip_operator(op)) return unexpected(fmt::format("'{}'", op));
  return {};
}

Status TemplateParser::expect_name(std::string_view name) {
  if (!skip_name(name)) return unexpected(fmt::format("'{}'", name));
  return {};
}

Result<std::string> TemplateParser::expect_any_name(std::string_view what) {
  if (here().type != TokenType::kName) return unexpected(what);
  return next().text;
}

Error TemplateParser::unexpected(std::string_view wanted) const {
  std::string found;
  switch (here().type) {
    case TokenType::kEnd:
      found = "the end of the template";
      break;
    case TokenType::kBlockEnd:
      found = "%}";
      break;
    case TokenType::kPrintEnd:
      found = "}}";
      break;
    case TokenType::kString:
      found = "a string";
      break;
    case TokenType::kText:
    case TokenType::kBlockBegin:
    case TokenType::kPrintBegin:
      found = "text";
      break;
    default:
      found = "'" + here().text + "'";
  }
  return invalid("chat template line {}: expected {}, found {}", here().line, wanted, found);
}

Status TemplateParser::end_tag() {
  if (here().type != TokenType::kBlockEnd) return unexpected("the end of the tag");
  next();
  return {};
}

Status TemplateParser::end_block(std::string_view name) {
  RETURN_IF_ERROR(expect_name(name));
  return end_tag();
}

Result<Block> TemplateParser::parse_block(const std::vector<std::string_view>& stops) {
  if (++nesting_ > kMaxNesting) {
    return invalid("chat template line {}: blocks nest deeper than {}", here().line, kMaxNesting);
  }
  Block block;
  while (true) {
    const Token token = here();
    if (token.type == TokenType::kEnd) {
      if (!stops.empty()) return unexpected(fmt::format("'{}'", stops.back()));
      break;
    }
    next();
    if (token.type == TokenType::kText) {
      block.push_back(std::make_unique<Statement>());
      block.back()->line = token.line;
      block.back()->text = token.text;
    } else if (token.type == TokenType::kPrintBegin) {
      auto statement = std::make_unique<Statement>();
      statement->kind = StatementKind::kPrint;
      statement->line = token.line;
      ASSIGN_OR_RETURN(statement->expression, parse_tuple(true));
      if (here().type != TokenType::kPrintEnd) return unexpected("'}}'");
      next();
      block.push_back(std::move(statement));
    } else {
      const bool stop = here().type == TokenType::kName &&
                        std::find(stops.begin(), stops.end(), here().text) != stops.end();
      if (stop) break;
      RETURN_IF_ERROR(parse_tag(block));
    }
  }
  --nesting_;
  return block;
}

Status TemplateParser::parse_tag(Block& block) {
  if (here().type != TokenType::kName) return unexpected("the name of a tag");
  const Token name = next();
  auto statement = std::make_unique<Statement>();
  statement->line = name.line;
  if (name.text == "set") {
    RETURN_IF_ERROR(parse_set(*statement));
  } else if (name.text == "for") {
    RETURN_IF_ERROR(parse_for(*statement));
  } else if (name.text == "if") {
    RETURN_IF_ERROR(parse_if(*statement));
  } else if (name.text == "macro") {
    RETURN_IF_ERROR(parse_macro(*statement));
  } else if (name.text == "break" || name.text == "continue") {
    statement->kind = name.text == "break" ? StatementKind::kBreak : StatementKind::kContinue;
    RETURN_IF_ERROR(end_tag());
  } else if (name.text == "generation") {
    return parse_generation(block);
  } else {
    return error(ErrorCode::kUnsupported, "chat template line {}: the tag '{}' is not supported",
                 name.line, name.text);
  }
  block.push_back(std::move(statement));
  return {};
}

// {% generation %} marks what a model wrote, for training; rendering takes the inside as it is.
Status TemplateParser::parse_generation(Block& block) {
  RETURN_IF_ERROR(end_tag());
  ASSIGN_OR_RETURN(Block inside, parse_block({"endgeneration"}));
  RETURN_IF_ERROR(end_block("endgeneration"));
  std::move(inside.begin(), inside.end(), std::back_inserter(block));
  return {};
}

Result<Target> TemplateParser::parse_target(bool may_be_attribute) {
  Target target;
  const bool parenthesis = skip_operator("(");
  while (true) {
    ASSIGN_OR_RETURN(std::string name, expect_any_name("a name to assign to"));
    for (const std::string_view constant : {"true", "false", "none", "True", "False", "None"}) {
      if (name == constant) {
        return invalid("chat template line {}: can't assign to {}", here().line, name);
      }
    }
    target.names.push_back(std::move(name));
    if (may_be_attribute && target.names.size() == 1 && !parenthesis && skip_operator(".")) {
      ASSIGN_OR_RETURN(target.attribute, expect_any_name("an attribute's name"));
      return target;
    }
    if (!skip_operator(",")) break;
    target.tuple = true;
    if (here().type != TokenType::kName || at_name("in")) break;
  }
  if (parenthesis) RETURN_IF_ERROR(expect_operator(")"));
  return target;
}

Status TemplateParser::parse_set(Statement& statement) {
  ASSIGN_OR_RETURN(statement.target, parse_target(true));
  if (skip_operator("=")) {
    statement.kind = StatementKind::kSet;
    ASSIGN_OR_RETURN(statement.expression, parse_tuple(true));
    return end_tag();
  }
  statement.kind = StatementKind::kSetBlock;
  if (statement.target.tuple) return unexpected("'='");
  if (at_operator("|")) {
    // The filters work on the block's text, which stands in their innermost place.
    ExpressionPtr node = make(ExpressionKind::kName, here().line);
    while (at_operator("|")) {
      ASSIGN_OR_RETURN(node, parse_filter(std::move(node)));
    }
    statement.expression = std::move(node);
  }
  RETURN_IF_ERROR(end_tag());
  ASSIGN_OR_RETURN(statement.body, parse_block({"endset"}));
  return end_block("endset");
}

Status TemplateParser::parse_for(Statement& statement) {
  statement.kind = StatementKind::kFor;
  ASSIGN_OR_RETURN(statement.target, parse_target(false));
  RETURN_IF_ERROR(expect_name("in"));
  ASSIGN_OR_RETURN(statement.expression, parse_tuple(false));
  if (skip_name("if")) {
    ASSIGN_OR_RETURN(statement.condition, parse_expression());
  }
  if (at_name("recursive")) {
    return error(ErrorCode::kUnsupported,
                 "chat template line {}: 'recursive' loops are not supported", here().line);
  }
  RETURN_IF_ERROR(end_tag());
  ASSIGN_OR_RETURN(statement.body, parse_block({"else", "endfor"}));
  if (skip_name("else")) {
    RETURN_IF_ERROR(end_tag());
    ASSIGN_OR_RETURN(statement.otherwise, parse_block({"endfor"}));
  }
  return end_block("endfor");
}

Status TemplateParser::parse_if(Statement& statement) {
  statement.kind = StatementKind::kIf;
  while (true) {
    Branch branch;
    ASSIGN_OR_RETURN(branch.condition, parse_tuple(false));
    RETURN_IF_ERROR(end_tag());
    ASSIGN_OR_RETURN(branch.body, parse_block({"elif", "else", "endif"}));
    statement.branches.push_back(std::move(branch));
    if (!skip_name("elif")) break;
  }
  if (skip_name("else")) {
    RETURN_IF_ERROR(end_tag());
    ASSIGN_OR_RETURN(statement.otherwise, parse_block({"endif"}));
  }
  return end_block("endif");
}

Status TemplateParser::parse_macro(Statement& statement) {
  statement.kind = StatementKind::kMacro;
  ASSIGN_OR_RETURN(statement.text, expect_any_name("the macro's name"));
  RETURN_IF_ERROR(expect_operator("("));
  while (!at_operator(")")) {
    Parameter parameter;
    ASSIGN_OR_RETURN(parameter.name, expect_any_name("a parameter's name"));
    if (skip_operator("=")) {
      ASSIGN_OR_RETURN(parameter.standard, parse_expression());
    } else if (!statement.parameters.empty() && statement.parameters.back().standard) {
      return invalid("chat template line {}: parameter '{}' without a default follows one with it",
                     here().line, parameter.name);
    }
    statement.parameters.push_back(std::move(parameter));
    if (!at_operator(")")) RETURN_IF_ERROR(expect_operator(","));
  }
  RETURN_IF_ERROR(expect_operator(")"));
  RETURN_IF_ERROR(end_tag());
  ASSIGN_OR_RETURN(statement.body, parse_block({"endmacro"}));
  return end_block("endmacro");
}

}  // namespace flashlane::text
