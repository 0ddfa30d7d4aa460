// Scorer: the logits after every token of one sequence, in chunks of prompt rows or in windows of
// decode rows, and what the MTP head would draft there. It owns one sequence's state and pages.
// Positions are independent of the cut: every chunk gives the same bits (E7).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/result.h"
#include "model/forward.h"
#include "model/state.h"

namespace flashlane::cli {

struct TopEntry {
  int32_t id = 0;
  float logit = 0;
};

struct Distribution {
  double logsumexp = 0;       // over the whole vocabulary
  std::vector<TopEntry> top;  // descending, ties to the lower id
};

// Errors when a logit is not finite.
Result<Distribution> summarise(std::span<const float> logits, int top);

struct PositionScore {
  int position = 0;
  int32_t token = 0;              // at this position
  Distribution next;              // of the token after it
  std::vector<Distribution> mtp;  // by depth; empty at the last position
};

struct ScorerOptions {
  int top = 20;
  kernels::Role role = kernels::Role::kPrompt;
  int rows = 512;   // of a forward: the chunk, or the window of decode rows
  int context = 0;  // positions of state to allocate
  int page_rows = 256;
  int mtp_depth = 0;  // 0: the head stays out
  DType kv_dtype = DType::kF32;
  std::vector<int> positions;  // ascending: only these are reported; empty: all
};

class Scorer {
 public:
  using Sink = std::function<Status(const PositionScore&)>;

  Scorer(model::Model& model, ScorerOptions options);

  // Once per Scorer. Ids are in range, at most `context` of them. Positions arrive in order.
  Status run(std::span<const int32_t> tokens, const Sink& sink);

 private:
  bool reported(int position) const;
  // Runs the trunk's rows [start, start + count) and keeps their streams in wide_.
  void forward_rows(std::span<const int32_t> tokens, int start, int count);
  // Runs rows of the head's own cache from position `start` on, fed with `tokens` and `wide`, and
  // keeps their streams in head_wide_.
  void head_rows(std::span<const int32_t> tokens, const float* wide, int start);
  // Scores the reported ones of the rows [start, start + count), a part of the last forward.
  Status score_rows(std::span<const int32_t> tokens, int forward_start, int start, int count,
                    std::vector<PositionScore>& scores);
  Status score_head(std::span<const int32_t> tokens, int forward_start, int start, int count,
                    std::vector<PositionScore>& scores);
  // The logits of so many rows, as the backend left them.
  std::span<const float> logits(int rows);
  // Depths 2 and on, after head row `position` whose streams are `wide`.
  Status score_chain(const float* wide, int position, std::vector<Distribution>& depths);

  model::Model& model_;
  Memory& memory_;
  const ScorerOptions options_;
  model::StateLayout layout_;
  model::Activations activations_;
  Buffer pieces_;
  Buffer pages_;
  std::vector<int32_t> page_table_;
  model::SequenceState state_;
  Buffer wide_;                     // [rows, wide]: the trunk's streams of the rows just run
  Buffer head_wide_;                // [rows, wide]: the head's streams of the rows just run
  Buffer fed_;                      // [wide]: what the head's next row is fed
  Buffer logits_;                   // [kGroup, vocabulary]
  std::vector<float> host_logits_;  // the same, where they can be looked at
};

}  // namespace flashlane::cli
