#include "server/template_variables.h"

#include <boost/json/array.hpp>
#include <utility>

#include "base/check.h"

namespace flashlane::server {

namespace json = boost::json;

namespace {

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      return "tool";
  }
  UNREACHABLE();
}

}  // namespace

json::object template_variables(const ChatRequest& request) {
  json::array messages;
  for (const ChatMessage& message : request.messages) {
    json::object object;
    object["role"] = json::string(role_name(message.role));
    object["content"] = json::string(message.content);
    if (message.reasoning) object["reasoning_content"] = json::string(*message.reasoning);
    messages.push_back(std::move(object));
  }
  json::object variables;
  variables["messages"] = std::move(messages);
  variables["add_generation_prompt"] = true;
  if (request.enable_thinking) variables["enable_thinking"] = *request.enable_thinking;
  if (request.preserve_thinking) variables["preserve_thinking"] = *request.preserve_thinking;
  if (!request.reasoning_effort.empty()) {
    variables["reasoning_effort"] = json::string(request.reasoning_effort);
  }
  return variables;
}

}  // namespace flashlane::server
