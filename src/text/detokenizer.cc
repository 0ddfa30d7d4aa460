// The lossy stream does the work; this adds which tokens are shown.
#include "text/detokenizer.h"

namespace flashlane::text {

std::string Detokenizer::push(int32_t id) {
  std::string out;
  if (skip_special_ && tokenizer_->is_special(id)) return out;
  stream_.push(tokenizer_->token_bytes(id), out);
  return out;
}

std::string Detokenizer::finish() {
  std::string out;
  stream_.finish(out);
  return out;
}

}  // namespace flashlane::text
