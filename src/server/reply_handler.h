// Drives one reply: submits the plan, passes tokens on as they come, keeps a silent stream alive,
// and stops the engine's work within one step when the client leaves or the server stops.
#pragma once

#include "server/http.h"
#include "server/plan.h"

namespace flashlane::server {

// Answers through `writer`, whatever happens.
void run_reply(const Services& services, const ServerOptions& server, ReplyPlan plan,
               const ReplyOptions& options, ResponseWriter& writer);

// Sends the error as a whole reply and logs it; `what` is the request line.
void refuse(const ApiError& error, std::string_view what, ResponseWriter& writer);

}  // namespace flashlane::server
