// PCRE2 with JIT. The pattern is compiled anchored, because anchoring at match time leaves the JIT;
// match data and JIT stack belong to the thread.
#include "text/split_pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/check.h"
#include "text/utf8.h"

namespace flashlane::text {
namespace {

constexpr uint32_t kMatchLimit = 50'000'000;
constexpr size_t kJitStackBytes = size_t{8} << 20;

std::string pcre_message(int code) {
  PCRE2_UCHAR buffer[256];
  if (pcre2_get_error_message(code, buffer, sizeof buffer) < 0) return "unknown error";
  return reinterpret_cast<const char*>(buffer);
}

struct ThreadState {
  ThreadState() {
    context = pcre2_match_context_create(nullptr);
    data = pcre2_match_data_create(1, nullptr);
    stack = pcre2_jit_stack_create(32 << 10, kJitStackBytes, nullptr);
    CHECK(context != nullptr && data != nullptr);
    pcre2_set_match_limit(context, kMatchLimit);
    if (stack != nullptr) pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~ThreadState() {
    pcre2_jit_stack_free(stack);
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
  }
  ThreadState(const ThreadState&) = delete;
  ThreadState& operator=(const ThreadState&) = delete;

  pcre2_match_context* context = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_jit_stack* stack = nullptr;
};

}  // namespace

struct SplitPattern::Code {
  ~Code() { pcre2_code_free(code); }
  pcre2_code* code = nullptr;
};

SplitPattern::SplitPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitPattern::~SplitPattern() = default;

std::string spell_out_white_space(std::string_view regex) {
  constexpr std::string_view kSpace = "\\p{Z}\\t-\\r\\x{85}";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '\\' && i + 1 < regex.size()) {
      const char escaped = regex[++i];
      if (escaped == 's') {
        out += in_class ? std::string(kSpace) : "[" + std::string(kSpace) + "]";
      } else if (escaped == 'S' && !in_class) {
        out += "[^" + std::string(kSpace) + "]";
      } else {
        out += '\\';
        out += escaped;
      }
      continue;
    }
    if (!in_class && regex[i] == '[') {
      in_class = true;
      out += '[';
      // A bracket right after the opening (or its negation) is a member of the class.
      if (i + 1 < regex.size() && regex[i + 1] == '^') out += regex[++i];
      if (i + 1 < regex.size() && regex[i + 1] == ']') out += regex[++i];
      continue;
    }
    if (in_class && regex[i] == ']') in_class = false;
    out += regex[i];
  }
  return out;
}

Result<std::unique_ptr<SplitPattern>> SplitPattern::compile(std::string_view regex) {
  constexpr size_t kMaxBytes = 64 << 10;
  if (regex.size() > kMaxBytes) {
    return invalid("the split pattern has {} bytes, the limit is {}", regex.size(), kMaxBytes);
  }
  const std::string pattern = spell_out_white_space(regex);
  int code = 0;
  PCRE2_SIZE offset = 0;
  auto compiled = std::make_unique<Code>();
  compiled->code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED | PCRE2_NEVER_BACKSLASH_C,
                                 &code, &offset, nullptr);
  if (compiled->code == nullptr) {
    return invalid("the split pattern is wrong near its byte {}: {}", offset, pcre_message(code));
  }
  uint32_t may_match_empty = 0;
  CHECK_EQ(pcre2_pattern_info(compiled->code, PCRE2_INFO_MATCHEMPTY, &may_match_empty), 0);
  if (may_match_empty != 0) return invalid("the split pattern may match the empty text");
  // Without JIT (a machine that forbids it) the interpreter gives the same matches.
  static_cast<void>(pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE));
  return std::unique_ptr<SplitPattern>(new SplitPattern(std::move(compiled)));
}

Status SplitPattern::split(std::string_view text, std::vector<std::string_view>& words) const {
  thread_local ThreadState state;
  size_t gap = 0;  // start of text that no match covers yet
  for (size_t at = 0; at < text.size();) {
    const int code = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                 text.size(), at, PCRE2_NO_UTF_CHECK, state.data, state.context);
    if (code == PCRE2_ERROR_NOMATCH) {
      at += decode_utf8(text, at).length;
      continue;
    }
    if (code < 0) {
      return error(ErrorCode::kUnsupported, "the split pattern failed at byte {}: {}", at,
                   pcre_message(code));
    }
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(state.data);
    // \K could move the start; then the match is not a word from here on.
    if (bounds[0] != at || bounds[1] <= at) {
      return error(ErrorCode::kUnsupported, "the split pattern moves its match at byte {}", at);
    }
    if (gap < at) words.push_back(text.substr(gap, at - gap));
    words.push_back(text.substr(at, bounds[1] - at));
    at = gap = bounds[1];
  }
  if (gap < text.size()) words.push_back(text.substr(gap));
  return {};
}

}  // namespace flashlane::text
