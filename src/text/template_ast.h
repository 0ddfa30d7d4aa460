// The parsed template. Immutable once parsed and shared by all renderings, which borrow its
// strings.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "text/template_value.h"

namespace flashlane::text {

struct Expression;
using ExpressionPtr = std::unique_ptr<Expression>;

enum class ExpressionKind {
  kLiteral,    // literal
  kString,     // name is the string
  kName,       // name
  kList,       // children
  kTuple,      // children
  kDict,       // children: key, value, key, value …
  kAttribute,  // children[0].name
  kItem,       // children[0][children[1]]
  kSlice,      // children[0][children[1]:children[2]:children[3]], absent ones null
  kCall,       // children[0](arguments)
  kFilter,     // children[0] | name(arguments)
  kTest,       // children[0] is name(arguments)
  kNot,
  kNegative,
  kPositive,
  kArithmetic,  // children[0] name children[1]
  kConcat,      // children joined as text
  kCompare,     // children[0] operators[0] children[1] operators[1] …
  kAnd,
  kOr,
  kConditional,  // children[0] if children[1] else children[2]; the last may be null
};

struct Expression {
  ExpressionKind kind = ExpressionKind::kLiteral;
  int line = 0;
  int depth = 1;  // levels of nesting below and with this node
  std::string name;
  Value literal;
  std::vector<ExpressionPtr> children;
  std::vector<ExpressionPtr> arguments;
  std::vector<std::pair<std::string, ExpressionPtr>> named;
  std::vector<std::string> operators;
};

struct Statement;
using Block = std::vector<std::unique_ptr<Statement>>;

// What set and for assign to: a name, names of a tuple, or an attribute of a namespace.
struct Target {
  std::vector<std::string> names;
  bool tuple = false;
  std::string attribute;  // not empty: names[0].attribute
};

struct Branch {
  ExpressionPtr condition;
  Block body;
};

struct Parameter {
  std::string name;
  ExpressionPtr standard;  // null: undefined unless given
};

enum class StatementKind { kText, kPrint, kSet, kSetBlock, kFor, kIf, kMacro, kBreak, kContinue };

struct Statement {
  StatementKind kind = StatementKind::kText;
  int line = 0;
  std::string text;          // kText; kMacro: its name
  ExpressionPtr expression;  // kPrint, kSet; kFor: what is walked; kSetBlock: filters, or null
  ExpressionPtr condition;   // kFor: the filter, or null
  Target target;
  std::vector<Branch> branches;  // kIf
  std::vector<Parameter> parameters;
  Block body;
  Block otherwise;  // else of kIf and kFor
};

}  // namespace flashlane::text
