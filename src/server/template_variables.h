// What a chat template sees of a request.
#pragma once

#include <boost/json/object.hpp>

#include "server/openai_types.h"

namespace flashlane::server {

// Absent settings stay undefined, for the template's own defaults.
boost::json::object template_variables(const ChatRequest& request);

}  // namespace flashlane::server
