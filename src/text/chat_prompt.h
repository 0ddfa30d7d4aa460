// A chat request's prompt as ids: the template writes markers, what messages spell is plain text.
#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <vector>

#include "base/result.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace flashlane::text {

Result<std::vector<int32_t>> encode_chat(const Tokenizer& tokenizer,
                                         const ChatTemplate& chat_template,
                                         const boost::json::object& variables);

}  // namespace flashlane::text
