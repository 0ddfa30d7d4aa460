// A template's source as tokens, with Jinja's white space rules: trim_blocks, lstrip_blocks, the
// minus and plus signs, one final newline dropped. Line numbers count from 1.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace flashlane::text {

enum class TokenType {
  kText,
  kBlockBegin,
  kBlockEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kInteger,
  kReal,
  kString,
  kOperator,
  kEnd,
};

struct Token {
  TokenType type = TokenType::kEnd;
  std::string text;  // of strings: the value without quotes and escapes
  int line = 1;
};

Result<std::vector<Token>> lex_template(std::string_view source);

}  // namespace flashlane::text
