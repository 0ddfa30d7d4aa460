// Drafts in figures.
#include "cli/draft_report.h"

#include <fmt/format.h>

#include <iterator>
#include <string_view>

namespace flashlane::cli {

namespace {

using scheduler::DraftCounts;

void write_places(JsonLine& json, std::string_view name, const std::vector<DraftCounts>& places) {
  json.key(name).begin_object().key("drafted").begin_array();
  for (const DraftCounts& place : places) json.integer(place.drafted);
  json.end_array().key("accepted").begin_array();
  for (const DraftCounts& place : places) json.integer(place.accepted);
  json.end_array().end_object();
}

void add_places(std::string& out, std::string_view name, const std::vector<DraftCounts>& places) {
  if (places.empty()) return;
  const DraftCounts total = scheduler::sum(places);
  fmt::format_to(std::back_inserter(out), "; {} {} of {}, by place", name, total.accepted,
                 total.drafted);
  for (const DraftCounts& place : places) {
    fmt::format_to(std::back_inserter(out), " {}/{}", place.accepted, place.drafted);
  }
}

}  // namespace

void write_drafts(JsonLine& json, const scheduler::DraftStats& drafts) {
  json.begin_object().key("rounds").integer(drafts.rounds);
  json.key("drafted").integer(drafts.drafted).key("accepted").integer(drafts.accepted);
  write_places(json, "head", drafts.head);
  write_places(json, "copied", drafts.copied);
  json.end_object();
}

std::string drafts_text(const scheduler::DraftStats& drafts) {
  std::string out = fmt::format("{} of {} drafts accepted in {} rounds", drafts.accepted,
                                drafts.drafted, drafts.rounds);
  add_places(out, "head", drafts.head);
  add_places(out, "copied", drafts.copied);
  return out;
}

}  // namespace flashlane::cli
