// What became of a reply's drafts, as `generate` and `bench` print it.
#pragma once

#include <string>

#include "cli/json_line.h"
#include "scheduler/draft_stats.h"

namespace flashlane::cli {

// {"rounds","drafted","accepted","head","copied"}; the last two:
// {"drafted":[...],"accepted":[...]}, by place behind the pending token.
void write_drafts(JsonLine& json, const scheduler::DraftStats& drafts);

// "12 of 15 drafts accepted in 9 rounds; head 9 of 12, by place 5/6 3/4 1/2; copied 3 of 3, …".
std::string drafts_text(const scheduler::DraftStats& drafts);

}  // namespace flashlane::cli
