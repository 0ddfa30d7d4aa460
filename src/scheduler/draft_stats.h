// DraftStats: how many drafts were run and how many stood, in all, by who made them, and by their
// place behind the pending token. The parts always add up to the whole.
#pragma once

#include <cstdint>
#include <vector>

namespace flashlane::scheduler {

struct DraftCounts {
  int64_t drafted = 0;   // draft rows run
  int64_t accepted = 0;  // of them, rows whose token stood
  friend bool operator==(const DraftCounts&, const DraftCounts&) = default;
};

struct DraftStats {
  int64_t rounds = 0;  // verify steps, with drafts or without
  int64_t drafted = 0;
  int64_t accepted = 0;
  // By place, the first behind the pending token first; as long as the longest run of drafts.
  std::vector<DraftCounts> head = {};    // of the MTP head
  std::vector<DraftCounts> copied = {};  // prompt-lookup drafts

  // A run of `drafted` drafts, of which the first `accepted` stood.
  void count(std::vector<DraftCounts> DraftStats::*source, int drafted_rows, int accepted_rows);
  DraftStats& operator+=(const DraftStats& other);
};

DraftCounts sum(const std::vector<DraftCounts>& places);

}  // namespace flashlane::scheduler
