// Outside of tags the lexer copies text and trims it at tags; inside it reads tokens and watches
// brackets, so that }} inside a dict literal does not end the tag.
#include "text/template_lexer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "text/utf8.h"

namespace flashlane::text {
namespace {

constexpr size_t kMaxSourceBytes = size_t{1} << 20;

bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_part(char c) {
  return is_name_start(c) || is_digit(c);
}

// Newlines become \n, one at the very end is dropped.
std::string normalize_newlines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}
  Result<std::vector<Token>> run();

 private:
  Status lex_tag(size_t tag);
  Status lex_comment();
  Status lex_raw(size_t text_begin, int line);
  Status lex_inside(bool block);
  Status lex_token();
  Status lex_string();
  void lex_number();
  Status append_escape(std::string& out);
  bool lex_end_of_tag(bool block);
  // The position after `{% word` (signs and spaces allowed) if that stands here, and after its end.
  std::optional<size_t> match_word_tag(size_t at, std::string_view word, bool closing) const;

  void add_text(std::string_view text, char sign, bool print, int line);
  void add(TokenType type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }
  std::string_view rest() const { return std::string_view(source_).substr(at_); }
  bool starts_with(std::string_view prefix) const {
    return rest().substr(0, prefix.size()) == prefix;
  }
  char here() const { return at_ < source_.size() ? source_[at_] : '\0'; }
  // Moves to `to`, counting lines; a tag's end that took a newline begins a line.
  void advance(size_t to) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<ptrdiff_t>(at_),
                                         source_.begin() + static_cast<ptrdiff_t>(to), '\n'));
    at_ = to;
  }
  void end_tag(size_t to) {
    advance(to);
    line_starting_ = source_[to - 1] == '\n';
  }
  size_t after_space(size_t at) const {
    return at + skip_leading_space(std::string_view(source_).substr(at));
  }

  std::string source_;
  std::vector<Token> tokens_;
  std::string brackets_;  // the closing bracket of each open one
  size_t at_ = 0;
  int line_ = 1;
  bool line_starting_ = true;
};

void Lexer::add_text(std::string_view text, char sign, bool print, int line) {
  if (sign == '-') {
    text = text.substr(0, skip_trailing_space(text));
  } else if (sign != '+' && !print) {
    const size_t newline = text.rfind('\n');
    const size_t begin = newline == text.npos ? 0 : newline + 1;
    const bool at_line_start = begin > 0 || line_starting_;
    if (at_line_start && begin + skip_leading_space(text.substr(begin)) == text.size()) {
      text = text.substr(0, begin);
    }
  }
  if (!text.empty()) tokens_.push_back({TokenType::kText, std::string(text), line});
}

Result<std::vector<Token>> Lexer::run() {
  while (at_ < source_.size()) {
    size_t tag = source_.find('{', at_);
    while (tag != std::string::npos &&
           (tag + 1 >= source_.size() ||
            std::string_view("{%#").find(source_[tag + 1]) == std::string_view::npos)) {
      tag = source_.find('{', tag + 1);
    }
    if (tag == std::string::npos) {
      add_text(rest(), '+', true, line_);
      advance(source_.size());
      break;
    }
    RETURN_IF_ERROR(lex_tag(tag));
  }
  add(TokenType::kEnd, "");
  return std::move(tokens_);
}

Status Lexer::lex_tag(size_t tag) {
  const std::string_view text = std::string_view(source_).substr(at_, tag - at_);
  const int text_line = line_;
  const char kind = source_[tag + 1];
  const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
  const bool signed_tag = sign == '-' || sign == '+';
  add_text(text, sign, kind == '{', text_line);
  const auto raw_end = kind == '%' ? match_word_tag(tag, "raw", false) : std::nullopt;
  if (raw_end) {
    end_tag(*raw_end);
    return lex_raw(at_, line_);
  }
  advance(tag + (signed_tag ? 3 : 2));
  if (kind == '#') return lex_comment();
  add(kind == '%' ? TokenType::kBlockBegin : TokenType::kPrintBegin, "");
  return lex_inside(kind == '%');
}

Status Lexer::lex_comment() {
  const size_t end = source_.find("#}", at_);
  if (end == std::string::npos) {
    return invalid("chat template line {}: a comment {{# has no end", line_);
  }
  const char sign = end > at_ ? source_[end - 1] : '\0';
  size_t to = end + 2;
  if (sign == '-') {
    to = after_space(to);
  } else if (sign != '+' && to < source_.size() && source_[to] == '\n') {
    ++to;
  }
  end_tag(to);
  return {};
}

std::optional<size_t> Lexer::match_word_tag(size_t at, std::string_view word, bool closing) const {
  const std::string_view source = source_;
  at += 2;
  if (at < source.size() && (source[at] == '-' || source[at] == '+')) ++at;
  at = after_space(at);
  if (source.substr(at, word.size()) != word) return std::nullopt;
  at = after_space(at + word.size());
  if (source.substr(at, 3) == "-%}") return after_space(at + 3);
  if (closing && source.substr(at, 3) == "+%}") return at + 3;
  if (source.substr(at, 2) != "%}") return std::nullopt;
  at += 2;
  if (closing && at < source.size() && source[at] == '\n') ++at;
  return at;
}

Status Lexer::lex_raw(size_t text_begin, int line) {
  for (size_t tag = source_.find("{%", text_begin); tag != std::string::npos;
       tag = source_.find("{%", tag + 1)) {
    const auto end = match_word_tag(tag, "endraw", true);
    if (!end) continue;
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    add_text(std::string_view(source_).substr(text_begin, tag - text_begin), sign, false, line);
    end_tag(*end);
    return {};
  }
  return invalid("chat template line {}: raw has no endraw", line);
}

bool Lexer::lex_end_of_tag(bool block) {
  if (!brackets_.empty()) return false;
  const std::string_view end = block ? "%}" : "}}";
  size_t to;
  if (here() == '-' && source_.compare(at_ + 1, 2, end) == 0) {
    to = after_space(at_ + 3);
  } else if (block && here() == '+' && source_.compare(at_ + 1, 2, end) == 0) {
    to = at_ + 3;
  } else if (starts_with(end)) {
    to = at_ + 2;
    if (block && to < source_.size() && source_[to] == '\n') ++to;
  } else {
    return false;
  }
  add(block ? TokenType::kBlockEnd : TokenType::kPrintEnd, "");
  end_tag(to);
  return true;
}

Status Lexer::lex_inside(bool block) {
  const int line = line_;
  while (true) {
    advance(after_space(at_));
    if (at_ >= source_.size()) {
      return invalid("chat template line {}: a tag {} has no end", line, block ? "{%" : "{{");
    }
    if (lex_end_of_tag(block)) return {};
    RETURN_IF_ERROR(lex_token());
  }
}

Status Lexer::lex_token() {
  const char c = here();
  if (is_name_start(c)) {
    size_t end = at_;
    while (end < source_.size() && is_name_part(source_[end])) ++end;
    add(TokenType::kName, source_.substr(at_, end - at_));
    advance(end);
    return {};
  }
  if (is_digit(c)) {
    lex_number();
    return {};
  }
  if (c == '"' || c == '\'') return lex_string();
  constexpr std::array<std::string_view, 6> kLong{"**", "//", "==", "!=", ">=", "<="};
  for (const std::string_view op : kLong) {
    if (!starts_with(op)) continue;
    add(TokenType::kOperator, std::string(op));
    advance(at_ + 2);
    return {};
  }
  if (std::string_view("+-*/%~[](){}<>=.:|,;").find(c) == std::string_view::npos || c == '\0') {
    return invalid("chat template line {}: unexpected character '{}'", line_,
                   rest().substr(0, std::max<size_t>(1, decode_utf8(source_, at_).length)));
  }
  constexpr std::string_view kOpen = "([{";
  constexpr std::string_view kClose = ")]}";
  if (const size_t open = kOpen.find(c); open != kOpen.npos) brackets_ += kClose[open];
  if (kClose.find(c) != kClose.npos) {
    if (brackets_.empty() || brackets_.back() != c) {
      return invalid("chat template line {}: unexpected '{}'", line_, c);
    }
    brackets_.pop_back();
  }
  add(TokenType::kOperator, std::string(1, c));
  advance(at_ + 1);
  return {};
}

void Lexer::lex_number() {
  size_t end = at_;
  const auto digits = [&] {
    while (end < source_.size() && (is_digit(source_[end]) || source_[end] == '_')) ++end;
  };
  const auto digit_at = [&](size_t at) { return at < source_.size() && is_digit(source_[at]); };
  digits();
  TokenType type = TokenType::kInteger;
  if (end < source_.size() && source_[end] == '.' && digit_at(end + 1)) {
    type = TokenType::kReal;
    ++end;
    digits();
  }
  if (end < source_.size() && (source_[end] == 'e' || source_[end] == 'E')) {
    const bool sign =
        end + 1 < source_.size() && (source_[end + 1] == '+' || source_[end + 1] == '-');
    if (digit_at(end + (sign ? 2 : 1))) {
      type = TokenType::kReal;
      end += sign ? 2 : 1;
      digits();
    }
  }
  std::string text = source_.substr(at_, end - at_);
  std::erase(text, '_');
  add(type, std::move(text));
  advance(end);
}

Status Lexer::lex_string() {
  const char quote = here();
  const int line = line_;
  std::string value;
  advance(at_ + 1);
  while (at_ < source_.size() && here() != quote) {
    if (here() == '\\') {
      RETURN_IF_ERROR(append_escape(value));
    } else {
      value += here();
      advance(at_ + 1);
    }
  }
  if (at_ >= source_.size()) return invalid("chat template line {}: a string has no end", line);
  advance(at_ + 1);
  tokens_.push_back({TokenType::kString, std::move(value), line});
  return {};
}

Status Lexer::append_escape(std::string& out) {
  constexpr std::string_view kNames = "ntrbfav\\'\"";
  constexpr std::string_view kValues = "\n\t\r\b\f\a\v\\'\"";
  if (at_ + 1 >= source_.size()) {
    return invalid("chat template line {}: a string has no end", line_);
  }
  const char name = source_[at_ + 1];
  if (name == '\n') {  // an escaped line end is no character
    advance(at_ + 2);
    return {};
  }
  if (const size_t known = kNames.find(name); known != kNames.npos) {
    out += kValues[known];
    advance(at_ + 2);
    return {};
  }
  if (name >= '0' && name <= '7') {  // octal, up to three digits
    size_t end = at_ + 1;
    char32_t code = 0;
    while (end < source_.size() && end < at_ + 4 && source_[end] >= '0' && source_[end] <= '7') {
      code = code * 8 + static_cast<char32_t>(source_[end++] - '0');
    }
    append_utf8(out, code);
    advance(end);
    return {};
  }
  const size_t digits = name == 'x' ? 2 : name == 'u' ? 4 : name == 'U' ? 8 : 0;
  if (digits == 0) {  // Python keeps the backslash of an escape it does not know
    out += '\\';
    advance(at_ + 1);
    return {};
  }
  uint32_t code_point = 0;
  for (size_t i = 0; i < digits; ++i) {
    const char c = at_ + 2 + i < source_.size() ? source_[at_ + 2 + i] : '?';
    const int value = is_digit(c)            ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (value < 0 || code_point > 0x10FFFF) {
      return invalid("chat template line {}: \\{} needs {} hexadecimal digits", line_, name,
                     digits);
    }
    code_point = code_point * 16 + static_cast<uint32_t>(value);
  }
  if (code_point > 0x10FFFF || (code_point >= 0xD800 && code_point <= 0xDFFF)) {
    return invalid("chat template line {}: \\{} names no character", line_, name);
  }
  append_utf8(out, code_point);
  advance(at_ + 2 + digits);
  return {};
}

}  // namespace

Result<std::vector<Token>> lex_template(std::string_view source) {
  if (source.size() > kMaxSourceBytes) {
    return invalid("the chat template has {} bytes, the limit is {}", source.size(),
                   kMaxSourceBytes);
  }
  if (const auto offset = find_invalid_utf8(source)) {
    return invalid("the chat template is not valid UTF-8 at byte {}", *offset);
  }
  return Lexer(normalize_newlines(source)).run();
}

}  // namespace flashlane::text
