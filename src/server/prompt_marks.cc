#include "server/prompt_marks.h"

#include <algorithm>

#include "server/template_variables.h"
#include "text/chat_prompt.h"

namespace flashlane::server {
namespace {

// Rendering anew costs little beside so many prompt rows, and nothing is gained below.
constexpr size_t kLeastPrompt = 256;
// A state behind fewer tokens costs more to keep than it saves.
constexpr int kLeastMark = 64;
// What no message begins with, so that its tokens differ from any other text's at once.
constexpr std::string_view kProbe = "\u2e3a";

// Tokens that the prompt shares with the same chat of these messages; 0 where the template refuses
// them.
int shared_with(const Services& services, ChatRequest request, std::vector<ChatMessage> messages,
                const std::vector<int32_t>& prompt) {
  request.messages = std::move(messages);
  const auto other =
      text::encode_chat(*services.tokenizer, *services.chat_template, template_variables(request));
  if (!other.ok()) return 0;
  const auto [end, unused] =
      std::mismatch(prompt.begin(), prompt.end(), other.value().begin(), other.value().end());
  return static_cast<int>(end - prompt.begin());
}

}  // namespace

std::vector<int> prompt_marks(const Services& services, const ChatRequest& request,
                              const std::vector<int32_t>& prompt) {
  if (!services.keeps_prompts || prompt.size() < kLeastPrompt) return {};
  const std::vector<ChatMessage>& messages = request.messages;
  const auto last_user =
      std::find_if(messages.rbegin(), messages.rend(),
                   [](const ChatMessage& message) { return message.role == Role::kUser; });
  if (last_user == messages.rend()) return {};
  const auto first_other =
      std::find_if(messages.begin(), messages.end(),
                   [](const ChatMessage& message) { return message.role != Role::kSystem; });
  ChatMessage probe = *last_user;
  probe.content = kProbe;
  std::vector<int> marks;
  if (first_other != messages.begin()) {
    std::vector<ChatMessage> system(messages.begin(), first_other);
    system.push_back(probe);
    marks.push_back(shared_with(services, request, std::move(system), prompt));
  }
  std::vector<ChatMessage> asked(messages.begin(), last_user.base() - 1);
  asked.push_back(probe);
  marks.push_back(shared_with(services, request, std::move(asked), prompt));
  std::erase_if(marks, [](int mark) { return mark < kLeastMark; });
  return marks;
}

}  // namespace flashlane::server
