// Request bodies of chat completions and completions: any bytes give a request within its limits or
// an error that can be sent and logged.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/check.h"
#include "server/api_error.h"
#include "server/openai_types.h"

namespace flashlane::server {
namespace {

void check_options(const ReplyOptions& options) {
  CHECK_GE(options.max_tokens.value_or(1), 1);
  const double temperature = options.temperature.value_or(0);
  CHECK(temperature >= 0 && temperature <= 2);
  const double top_p = options.top_p.value_or(1);
  CHECK(top_p > 0 && top_p <= 1);
  const double min_p = options.min_p.value_or(0);
  CHECK(min_p >= 0 && min_p <= 1);
  CHECK_LE(options.stop.size(), kMaxStopStrings);
  for (const std::string& stop : options.stop) CHECK(!stop.empty());
  CHECK(options.stream || !options.include_usage);
}

void check_error(const Error& error) {
  CHECK(!error.message.empty());
  CHECK_LT(error.message.size(), 2000u);
  // Nothing from the request may break a log line or the reply's JSON.
  for (const char c : error.message) CHECK_GE(static_cast<unsigned char>(c), 0x20);
  CHECK_EQ(to_api_error(error).status, 400);
  CHECK(!error_body(to_api_error(error)).empty());
}

void parse_both(std::string_view body) {
  const Result<ChatRequest> chat = parse_chat_request(body);
  if (chat.ok()) {
    CHECK(!chat.value().messages.empty());
    check_options(chat.value().options);
  } else {
    check_error(chat.error());
  }
  const Result<CompletionRequest> completion = parse_completion_request(body);
  if (completion.ok()) {
    check_options(completion.value().options);
  } else {
    check_error(completion.error());
  }
}

}  // namespace
}  // namespace flashlane::server

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  flashlane::server::parse_both({reinterpret_cast<const char*>(data), size});
  return 0;
}
