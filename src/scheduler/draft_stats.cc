// Every count goes into a place and the whole at once.
#include "scheduler/draft_stats.h"

#include <algorithm>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

void add(std::vector<DraftCounts>& places, const std::vector<DraftCounts>& others) {
  places.resize(std::max(places.size(), others.size()));
  for (size_t i = 0; i < others.size(); ++i) {
    places[i].drafted += others[i].drafted;
    places[i].accepted += others[i].accepted;
  }
}

}  // namespace

void DraftStats::count(std::vector<DraftCounts> DraftStats::*source, int drafted_rows,
                       int accepted_rows) {
  CHECK(accepted_rows >= 0 && accepted_rows <= drafted_rows);
  drafted += drafted_rows;
  accepted += accepted_rows;
  const auto rows = static_cast<size_t>(drafted_rows);
  std::vector<DraftCounts>& places = this->*source;
  places.resize(std::max(places.size(), rows));
  for (size_t i = 0; i < rows; ++i) {
    ++places[i].drafted;
    places[i].accepted += i < static_cast<size_t>(accepted_rows) ? 1 : 0;
  }
}

DraftStats& DraftStats::operator+=(const DraftStats& other) {
  rounds += other.rounds;
  drafted += other.drafted;
  accepted += other.accepted;
  add(head, other.head);
  add(copied, other.copied);
  return *this;
}

DraftCounts sum(const std::vector<DraftCounts>& places) {
  DraftCounts total;
  for (const DraftCounts& place : places) {
    total.drafted += place.drafted;
    total.accepted += place.accepted;
  }
  return total;
}

}  // namespace flashlane::scheduler
