// ForwardBench: single forwards after a prompt, driven without an engine: windows of R rows of one
// sequence, one row each of R sequences, and chained steps of the MTP head. The rows fed are those
// of a real reply, so that experts are chosen as in use. Every round starts from the same state, so
// a counting round says what a timed one moved.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "cli/bench_cell.h"
#include "cli/bench_replies.h"
#include "model/forward.h"
#include "runner/runner.h"
#include "tensor/buffer.h"

namespace flashlane::cli {

// Most forwards of a round; fewer where the reply is short.
inline constexpr int kMostForwards = 16;
// Positions that rounds of at most `rows` rows may take after a prompt, with a reply of `tokens`.
int forward_positions(int tokens, int rows);

class ForwardBench {
 public:
  // `sizes.slots` sequences of `sizes.context` positions. Counts and times nothing yet.
  ForwardBench(model::Model& model, const runner::RunnerOptions& sizes);

  // Runs the prompt, keeps the state after it, and what to feed next: a reply.
  void start(std::span<const int32_t> prompt, std::span<const int32_t> reply);
  // One cell for each of `rows`, as a chain and (above 1) as streams, and one for the draft step
  // where the model has an MTP head. Each round times all of them in turn.
  std::vector<Cell> run(const std::vector<int>& rows, int rounds, const BenchProgress& progress);

 private:
  struct Lane {
    Buffer pieces;
    std::vector<int32_t> page_table;
    model::SequenceState state;
    std::vector<int32_t> tokens;  // prompt, then what is fed
    int length = 0;               // rows in the state and in pending ones
  };

  // Back to the state after the prompt; sequence `index` is fed the reply from another place.
  void restore(int index);
  // `count` rows of each of `lanes` sequences through trunk and head, all kept.
  void forward(int lanes, int count);
  void draft_steps(int count);
  void prompt_rows(int start, int count);

  // Runs one untimed unit and then the timed ones; returns their milliseconds.
  double round(const Cell& cell);
  Cell make_cell(CellKind kind, int rows, bool chain) const;
  void count(Cell& cell);

  model::Model& model_;
  Memory& memory_;
  const runner::RunnerOptions sizes_;
  model::StateLayout layout_;
  model::Activations activations_;
  Buffer pages_;
  Buffer logits_;        // [kMaxWindow, vocabulary]
  Buffer after_prompt_;  // the pieces of a sequence that has run the prompt
  std::vector<Lane> lanes_;
  std::vector<int32_t> reply_;
  int prompt_length_ = 0;
  // The last row of the draft chain and the token after it.
  int draft_position_ = 0;
  int32_t draft_token_ = 0;
  model::Probe* probe_ = nullptr;  // set while counting
};

}  // namespace flashlane::cli
