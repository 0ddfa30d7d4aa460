// What came back from a step, segment by segment in the plan's order.
#pragma once

#include <cstdint>
#include <vector>

namespace flashlane::scheduler {

// One timed piece of work: a forward of so many rows, or a step of the MTP head over so many.
struct MeasuredCost {
  int rows = 0;
  double ms = 0;
};

struct SegmentResult {
  // Prefill that ends its prompt: the first reply token. Verify: the accepted drafts and the token
  // that follows them, i.e. at least one. Otherwise empty.
  std::vector<int32_t> tokens = {};
  // Drafts for the token positions after the last of `tokens`; at most the plan's draft_depth.
  std::vector<int32_t> drafts = {};
};

struct StepResult {
  std::vector<SegmentResult> segments = {};
  // From plan to result, as whoever ran the step saw it; decides how prompts and replies share the
  // time, and no token.
  double elapsed_ms = 0;
};

}  // namespace flashlane::scheduler
