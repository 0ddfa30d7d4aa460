// Errors in OpenAI's shape.
#include "server/api_error.h"

#include <boost/json/object.hpp>
#include <boost/json/serialize.hpp>
#include <utility>

#include "text/utf8.h"

namespace flashlane::server {

namespace {

constexpr std::string_view kInvalidRequest = "invalid_request_error";
constexpr std::string_view kServerError = "server_error";
constexpr std::string_view kOverloaded = "overloaded_error";

boost::json::value text_or_null(const std::string& text) {
  if (text.empty()) return nullptr;
  return boost::json::value(text);
}

}  // namespace

ApiError invalid_request(std::string message, std::string param, std::string code) {
  return {400, std::string(kInvalidRequest), std::move(message), std::move(param), std::move(code)};
}

ApiError to_api_error(const Error& error) {
  switch (error.code) {
    case ErrorCode::kInvalidArgument:
      return invalid_request(error.message, error.field);
    case ErrorCode::kUnsupported:
      return invalid_request(error.message, error.field, "unsupported_parameter");
    case ErrorCode::kNotFound:
      return {404, std::string(kInvalidRequest), error.message, error.field, "not_found"};
    case ErrorCode::kNoCapacity:
      return {503, std::string(kOverloaded), error.message, error.field, "overloaded"};
    case ErrorCode::kCancelled:
      return {503, std::string(kServerError), error.message, error.field, "cancelled"};
    case ErrorCode::kDeviceLost:
      return {500, std::string(kServerError), error.message, error.field, "device_lost"};
    case ErrorCode::kIo:
    case ErrorCode::kInternal:
      break;
  }
  return {500, std::string(kServerError), error.message, error.field, {}};
}

ApiError http_error(int status, std::string message) {
  std::string_view type = kInvalidRequest;
  if (status == 503) type = kOverloaded;
  if (status == 500) type = kServerError;
  return {status, std::string(type), std::move(message), {}, {}};
}

std::string error_body(const ApiError& error) {
  boost::json::object body;
  body["message"] = error.message;
  body["type"] = error.type;
  body["param"] = text_or_null(error.param);
  body["code"] = text_or_null(error.code);
  return boost::json::serialize(boost::json::object{{"error", std::move(body)}});
}

std::string printable(std::string_view text, size_t limit) {
  std::string out;
  const bool cut = text.size() > limit;
  if (cut) {
    // Never inside a character: continuation bytes start with 10.
    while (limit > 0 && (static_cast<unsigned char>(text[limit]) & 0xC0) == 0x80) --limit;
    text = text.substr(0, limit);
  }
  // A path may hold any bytes, and a reply must be UTF-8.
  text::LossyUtf8 checked;
  checked.push(text, out);
  checked.finish(out);
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) c = '?';
  }
  if (cut) out += "...";
  return out;
}

std::string in_quotes(std::string_view text, size_t limit) {
  return fmt::format("'{}'", printable(text, limit));
}

}  // namespace flashlane::server
