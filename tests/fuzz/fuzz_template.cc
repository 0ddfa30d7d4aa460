// Any bytes as a chat template, rendered over a small chat: no crash, no hang, and the pieces
// joined are the text.
#include <boost/json.hpp>
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"
#include "text/chat_template.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace flashlane::text;
  static const auto variables = boost::json::parse(R"({
    "messages": [{"role": "system", "content": " Be <|im_end|> brief.\n"},
                 {"role": "user", "content": [{"type": "text", "text": "é한"}]},
                 {"role": "assistant", "content": null, "tool_calls": [
                   {"function": {"name": "f", "arguments": {"a": [1, 2.5, true, null]}}}]}],
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "bos_token": "<s>", "add_generation_prompt": true})")
                                    .as_object();
  const auto parsed = ChatTemplate::parse({reinterpret_cast<const char*>(data), size});
  if (!parsed.ok()) return 0;
  const auto pieces = (*parsed)->render_pieces(variables);
  const auto text = (*parsed)->render(variables);
  if (!pieces.ok() || !text.ok()) return 0;
  std::string joined;
  for (const auto& piece : *pieces) joined += piece.text;
  // strftime_now may tick between the two renderings.
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  if (source.find("strftime_now") == source.npos) CHECK(joined == *text);
  return 0;
}
