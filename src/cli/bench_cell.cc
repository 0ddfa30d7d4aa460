// Shares are of the mean of the probes before and after, with as many threads.
#include "cli/bench_cell.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "base/check.h"
#include "cli/draft_report.h"

namespace flashlane::cli {

namespace {

std::string_view kind_name(CellKind kind) {
  switch (kind) {
    case CellKind::kPrompt:
      return "prompt";
    case CellKind::kDecode:
      return "decode";
    case CellKind::kDrafted:
      return "drafted";
    case CellKind::kStreams:
      return "streams";
    case CellKind::kForward:
      return "forward";
    case CellKind::kDraftStep:
      return "draft_step";
  }
  UNREACHABLE();
}

double share(const Cell& cell, const Probes& probes) {
  return cell.gbps() / probes.all_threads.mean();
}

// Tokens a second for each GB/s that the memory gives, to set machines side by side.
double per_gbps(const Cell& cell, const Probes& probes) {
  return cell.tokens_per_second() / probes.all_threads.mean();
}

void write_cell(JsonLine& json, const Cell& cell, int threads, const Probes& probes) {
  json.begin_object();
  json.key("kind").text(kind_name(cell.kind));
  json.key("rows").integer(cell.rows).key("streams").integer(cell.streams);
  json.key("chain").boolean(cell.chain).key("threads").integer(threads);
  json.key("tokens_per_second").number(cell.tokens_per_second());
  json.key("ms").number(cell.median_ms()).key("ms_min").number(cell.lowest_ms());
  json.key("ms_max").number(cell.highest_ms()).key("bytes").number(cell.bytes());
  json.key("distinct_experts").number(cell.traffic.experts_per_layer());
  json.key("share_of_read_bandwidth").number(share(cell, probes));
  json.key("tokens_per_second_per_gbps").number(per_gbps(cell, probes));
  json.key("gbps").number(cell.gbps());
  json.key("weight_bytes").number(cell.per_unit(cell.traffic.weight_bytes));
  json.key("expert_bytes").number(cell.per_unit(cell.traffic.expert_bytes));
  json.key("state_bytes").number(cell.per_unit(cell.traffic.state_bytes));
  json.key("kv_bytes").number(cell.per_unit(cell.traffic.kv_bytes));
  json.key("context").integer(cell.context).key("units").integer(cell.timed_units);
  json.key("rounds").unsigned_integer(cell.ms.size());
  if (!cell.token_sha.empty()) json.key("token_sha").text(cell.token_sha);
  if (cell.drafts.has_value()) {
    json.key("drafts");
    write_drafts(json, *cell.drafts);
  }
  json.end_object();
}

void write_spread(JsonLine& json, const ReadBandwidth& read) {
  json.begin_object().key("gbps").number(read.gbps).key("gbps_min").number(read.lowest);
  json.key("gbps_max").number(read.highest).end_object();
}

// What the cell measured, in words: "decode of 128 after 512".
std::string cell_words(const Cell& cell) {
  switch (cell.kind) {
    case CellKind::kPrompt:
      return fmt::format("prompt of {}", cell.context);
    case CellKind::kDecode:
      return fmt::format("decode {} after {}", cell.timed_units, cell.context);
    case CellKind::kDrafted:
      return fmt::format("drafted {} after {}", cell.timed_units, cell.context);
    case CellKind::kStreams:
      return fmt::format("{} at once{}",
                         cell.streams == 1 ? "1 reply" : fmt::format("{} replies", cell.streams),
                         cell.rows > 1 ? ", drafted" : "");
    case CellKind::kForward:
      return cell.streams == 1 ? fmt::format("forward, chain of {}", cell.rows)
                               : fmt::format("forward, {} streams", cell.streams);
    case CellKind::kDraftStep:
      return "chained draft step";
  }
  UNREACHABLE();
}

}  // namespace

double median(std::vector<double> values) {
  CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double Cell::median_ms() const {
  return median(ms);
}
double Cell::lowest_ms() const {
  return *std::min_element(ms.begin(), ms.end());
}
double Cell::highest_ms() const {
  return *std::max_element(ms.begin(), ms.end());
}

void write_probes(JsonLine& json, const Probes& probes) {
  json.key("probe_gbps").begin_array();
  json.number(probes.all_threads.before.gbps).number(probes.all_threads.after.gbps).end_array();
  json.key("probe_gbps_1_thread").begin_array();
  json.number(probes.one_thread.before.gbps).number(probes.one_thread.after.gbps).end_array();
  json.key("probe").begin_object().key("bytes").unsigned_integer(probes.bytes);
  json.key("before");
  write_spread(json, probes.all_threads.before);
  json.key("after");
  write_spread(json, probes.all_threads.after);
  json.key("before_1_thread");
  write_spread(json, probes.one_thread.before);
  json.key("after_1_thread");
  write_spread(json, probes.one_thread.after);
  json.end_object();
}

void write_cells(JsonLine& json, const std::vector<Cell>& cells, int threads,
                 const Probes& probes) {
  json.key("cells").begin_array();
  for (const Cell& cell : cells) write_cell(json, cell, threads, probes);
  json.end_array();
}

std::string cells_table(const std::vector<Cell>& cells, int threads, const Probes& probes) {
  std::string out;
  const auto append = std::back_inserter(out);
  const auto probe = [&](std::string_view words, const ProbePair& pair) {
    fmt::format_to(append,
                   "read bandwidth, {}: {:.1f} GB/s before ({:.1f} to {:.1f}), "
                   "{:.1f} after ({:.1f} to {:.1f})\n",
                   words, pair.before.gbps, pair.before.lowest, pair.before.highest,
                   pair.after.gbps, pair.after.lowest, pair.after.highest);
  };
  if (threads != 1) probe("1 thread", probes.one_thread);
  probe(fmt::format("{} thread{}", threads, threads == 1 ? "" : "s"), probes.all_threads);
  fmt::format_to(append, "\n{:<26}{:>10}{:>10}{:>12} {:>23}{:>11}{:>9}{:>8}{:>9}\n", "", "tokens/s",
                 "per GB/s", "ms", "(lowest to highest)", "MB", "GB/s", "share", "experts");
  for (const Cell& cell : cells) {
    fmt::format_to(
        append, "{:<26}{:>10.1f}{:>10.1f}{:>12.3f} {:>23}{:>11.2f}{:>9.2f}{:>7.0f}%{:>9.1f}\n",
        cell_words(cell), cell.tokens_per_second(), per_gbps(cell, probes), cell.median_ms(),
        fmt::format("({:.3f} to {:.3f})", cell.lowest_ms(), cell.highest_ms()), cell.bytes() / 1e6,
        cell.gbps(), share(cell, probes) * 100, cell.traffic.experts_per_layer());
    if (cell.drafts.has_value()) {
      fmt::format_to(append, "  {}\n", drafts_text(*cell.drafts));
    }
  }
  out +=
      "\nper GB/s: tokens a second over the read bandwidth, mean of before and after.\n"
      "ms: of a token (decode, drafted), of the whole prompt or reply, of a forward with the\n"
      "head, of a draft step; medians over rounds. MB: weights as stored, state and K/V that it\n"
      "has to move, counted; share: of the read bandwidth.\n"
      "experts: distinct ones a layer.\n";
  return out;
}

}  // namespace flashlane::cli
