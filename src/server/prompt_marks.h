// Where in a chat's prompt states are worth keeping (H4): behind the system message, which other
// conversations share, and where the last user message begins to matter, which an edit or another
// answer goes back to. Found by rendering the same chat with another text in its place, so it holds
// for any template. Where a prompt ends needs no mark; the engine keeps a state there anyway.
#pragma once

#include <cstdint>
#include <vector>

#include "server/openai_types.h"
#include "server/services.h"

namespace flashlane::server {

// Ascending, the last user message's last; empty for prompts too short to be worth it.
std::vector<int> prompt_marks(const Services& services, const ChatRequest& request,
                              const std::vector<int32_t>& prompt);

}  // namespace flashlane::server
