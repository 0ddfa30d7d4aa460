// From a typed API request to an engine request: model name, prompt tokens, sampling with the
// model's defaults, seed, room in the context. Everything that can be refused is refused here,
// before a reply begins.
#pragma once

#include <optional>
#include <string>

#include "server/api_error.h"
#include "server/openai_types.h"
#include "server/services.h"

namespace flashlane::server {

struct ReplyPlan {
  engine::Request request;
  std::string model;  // as the reply names it
  bool chat = false;
  bool starts_in_reasoning = false;  // the prompt ends inside a think block
};

// The refusal, or nothing and a complete plan.
std::optional<ApiError> plan_chat(const Services& services, const ServerOptions& options,
                                  const ChatRequest& request, ReplyPlan& plan);
std::optional<ApiError> plan_completion(const Services& services, const ServerOptions& options,
                                        const CompletionRequest& request, ReplyPlan& plan);

// The 404 for a model that is not served.
ApiError unknown_model(const ModelInfo& model, std::string_view name);
bool is_served(const ModelInfo& model, std::string_view name);

}  // namespace flashlane::server
