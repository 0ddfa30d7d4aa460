// Errors as OpenAI clients read them: a status and {"error":{"message","type","param","code"}}.
// Texts that came from a request are made printable and short before they go into a message or log.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace flashlane::server {

struct ApiError {
  int status = 500;
  std::string type;  // "invalid_request_error", "server_error", "overloaded_error"
  std::string message;
  std::string param = {};  // the request field at fault; empty = null
  std::string code = {};   // empty = null
};

ApiError invalid_request(std::string message, std::string param = {}, std::string code = {});

// Input errors are 400, unknown names 404, no room 503, everything else 500.
ApiError to_api_error(const Error& error);

// The error with the type that belongs to a status of the HTTP layer.
ApiError http_error(int status, std::string message);

std::string error_body(const ApiError& error);

// 'text' in quotes, cut to about `limit` bytes at a character's start, control characters replaced.
std::string in_quotes(std::string_view text, size_t limit = 64);

// One line without control characters, for logs.
std::string printable(std::string_view text, size_t limit);

}  // namespace flashlane::server
