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

// Natural logarithms of probabilities, as the model gives them: no temperature, cuts or penalties.
struct Logprob {
  int32_t token = 0;
  float logprob = 0;
};
struct TokenLogprobs {
  float logprob = 0;               // of the token itself
  float of_replacement = 0;        // of the plan's `replacement`, if it names one
  std::vector<Logprob> best = {};  // the most probable tokens, best first, ties to the lower id
};

struct SegmentResult {
  // Prefill that ends its prompt: the first reply token. Verify: the accepted drafts and the token
  // that follows them, i.e. at least one. Otherwise empty.
  std::vector<int32_t> tokens = {};
  // One for each of `tokens` where the plan asks for them.
  std::vector<TokenLogprobs> logprobs = {};
  // Drafts for the token positions after the last of `tokens`; at most the plan's draft_depth.
  std::vector<int32_t> drafts = {};
  // Of a segment that a verdict filled: the rows that it had.
  int rows = 0;
  // Whether the state was copied, where the plan asks for it.
  bool kept = false;
};

struct StepResult {
  std::vector<SegmentResult> segments = {};
  // Whether each of the plan's restores worked; the slot of one that did not must start afresh.
  std::vector<bool> restored = {};
  // Whether each of the plan's moves worked; a sequence whose move did not stands where it stood.
  std::vector<bool> moved = {};
  // From plan to result, as whoever ran the step saw it; decides how prompts and replies share the
  // time, and no token.
  double elapsed_ms = 0;
};

}  // namespace flashlane::scheduler
