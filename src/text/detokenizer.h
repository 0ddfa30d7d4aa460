// Ids to text as they come: never half a UTF-8 character, at most 3 bytes held back. All pushes and
// finish joined equal Tokenizer::decode of all ids.
#pragma once

#include <cstdint>
#include <string>

#include "text/tokenizer.h"
#include "text/utf8.h"

namespace flashlane::text {

class Detokenizer {
 public:
  Detokenizer(const Tokenizer& tokenizer, bool skip_special)
      : tokenizer_(&tokenizer), skip_special_(skip_special) {}
  // An id that has no token gives no text: a model may have more output rows than tokens.
  std::string push(int32_t id);
  std::string finish();  // what is left, as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  LossyUtf8 stream_;
};

}  // namespace flashlane::text
