// Any bytes as a tokenizer.json, and any text through a good one: no crash, and what was encoded
// decodes to its normal form, cut anywhere.
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>

#include "base/check.h"
#include "text/detokenizer.h"
#include "text/nfc.h"
#include "text/tokenizer.h"

namespace flashlane::text {
namespace {

const Tokenizer& bundled() {
  static const Tokenizer* tokenizer = [] {
    std::ifstream file(FLASHLANE_SOURCE_DIR "/models/flash-next-nano-6bit/tokenizer.json");
    std::stringstream content;
    content << file.rdbuf();
    return Tokenizer::parse(content.str()).value().release();
  }();
  return *tokenizer;
}

void check_text(const Tokenizer& tokenizer, std::string_view text) {
  for (const bool parse_special : {false, true}) {
    const auto ids = tokenizer.encode(text, {parse_special});
    if (!ids.ok()) continue;
    const std::string whole = tokenizer.decode(*ids, false).value();
    CHECK(whole == to_nfc(text));
    Detokenizer stream(tokenizer, false);
    std::string joined;
    for (const int32_t id : *ids) joined += stream.push(id);
    CHECK(joined + stream.finish() == whole);
  }
}

}  // namespace
}  // namespace flashlane::text

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flashlane::text;
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  check_text(bundled(), input);
  // A file of the input's making may normalise nothing, so only its own contract is checked.
  if (const auto tokenizer = Tokenizer::parse(input); tokenizer.ok()) {
    const auto ids = (*tokenizer)->encode("ab <a>\n", {});
    if (ids.ok()) CHECK((*tokenizer)->decode(*ids, false).value() == "ab <a>\n");
  }
  return 0;
}
