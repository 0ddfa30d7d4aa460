// StepBatch: the rows of one forward as they are put together, segment after segment; its vectors
// are reserved once and reused by every step.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/batch.h"
#include "model/forward.h"

namespace flashlane::runner {

class StepBatch {
 public:
  explicit StepBatch(int max_rows) {
    tokens_.reserve(static_cast<size_t>(max_rows));
    segments_.reserve(kernels::kMaxWindow);
    inputs_.reserve(kernels::kMaxWindow);
  }

  void clear(kernels::Role role) {
    role_ = role;
    tokens_.clear();
    segments_.clear();
    inputs_.clear();
  }

  // Consecutive rows of one sequence from `start` on: `tokens`, then `last` unless it is -1.
  void add(model::SegmentInput input, int start, int pending_rows, std::span<const int32_t> tokens,
           int32_t last = -1) {
    const int row_count = static_cast<int>(tokens.size()) + (last == -1 ? 0 : 1);
    CHECK_LE(tokens_.size() + static_cast<size_t>(row_count), tokens_.capacity());
    CHECK_LT(segments_.size(), segments_.capacity());
    segments_.push_back({.first_row = rows(),
                         .row_count = row_count,
                         .start_position = start,
                         .pending_rows = pending_rows});
    inputs_.push_back(input);
    tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
    if (last != -1) tokens_.push_back(last);
  }

  int rows() const { return static_cast<int>(tokens_.size()); }
  bool empty() const { return tokens_.empty(); }
  kernels::Batch batch() const {
    return {.role = role_, .row_count = rows(), .tokens = tokens_, .segments = segments_};
  }
  std::span<const model::SegmentInput> inputs() const { return inputs_; }

 private:
  kernels::Role role_ = kernels::Role::kPrompt;
  std::vector<int32_t> tokens_;
  std::vector<kernels::Segment> segments_;
  std::vector<model::SegmentInput> inputs_;
};

}  // namespace flashlane::runner
