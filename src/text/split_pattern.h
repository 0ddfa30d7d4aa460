// The pre-tokenizer's regular expression: cuts text into words that merges never cross. Matches are
// words, and so is what lies between two matches; the words joined are the text.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"

namespace flashlane::text {

class SplitPattern {
 public:
  static Result<std::unique_ptr<SplitPattern>> compile(std::string_view regex);
  ~SplitPattern();
  SplitPattern(const SplitPattern&) = delete;
  SplitPattern& operator=(const SplitPattern&) = delete;

  // Appends the words of `text` (valid UTF-8). Safe from many threads. A pattern that runs away is
  // an error, not a hang.
  Status split(std::string_view text, std::vector<std::string_view>& words) const;

 private:
  struct Code;
  explicit SplitPattern(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

// PCRE counts U+180E as white space, tokenizers don't: \s and \S are spelled out.
std::string spell_out_white_space(std::string_view regex);

}  // namespace flashlane::text
