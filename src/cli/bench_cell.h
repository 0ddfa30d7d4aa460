// Cell: one measured case of `flashlane bench`, and how all of them are printed: a table for people
// or JSON for tools. A cell keeps every round's time, and the bytes that a counting run of the same
// work had to move.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/json_line.h"
#include "cli/read_probe.h"
#include "model/traffic.h"
#include "scheduler/scheduler.h"

namespace flashlane::cli {

enum class CellKind : uint8_t { kPrompt, kDecode, kDrafted, kStreams, kForward, kDraftStep };

struct Cell {
  CellKind kind = CellKind::kDecode;
  int rows = 1;       // of a forward; of a drafted reply, the most
  int streams = 1;    // sequences at once
  bool chain = true;  // the rows are one sequence's
  int context = 0;    // prompt tokens before, or the prompt's own
  // One entry a round: milliseconds of one unit of work (a token, a prompt, a reply, a forward).
  std::vector<double> ms = {};
  double tokens_per_unit = 1;
  int timed_units = 1;          // of a round
  model::Traffic traffic = {};  // of traffic_units units of work
  int traffic_units = 1;
  // Drafted replies only, of the last round: how much is drafted goes by measured times, so rounds
  // differ, and so does the run that `traffic` is counted in.
  std::optional<scheduler::DraftStats> drafts = {};
  std::string token_sha = {};  // of the reply, where the cell is one

  double median_ms() const;
  double lowest_ms() const;
  double highest_ms() const;
  double tokens_per_second() const { return tokens_per_unit * 1000 / median_ms(); }
  double per_unit(size_t counted) const { return static_cast<double>(counted) / traffic_units; }
  double bytes() const { return per_unit(traffic.bytes()); }
  double gbps() const { return bytes() / median_ms() / 1e6; }
};

// Before and after the cells, in this process.
struct ProbePair {
  ReadBandwidth before, after;
  double mean() const { return (before.gbps + after.gbps) / 2; }
};
struct Probes {
  size_t bytes = 0;
  ProbePair one_thread, all_threads;
};

// The middle value, or the mean of the middle two. `values` is not empty.
double median(std::vector<double> values);

void write_probes(JsonLine& json, const Probes& probes);
void write_cells(JsonLine& json, const std::vector<Cell>& cells, int threads, const Probes& probes);
std::string cells_table(const std::vector<Cell>& cells, int threads, const Probes& probes);

}  // namespace flashlane::cli
