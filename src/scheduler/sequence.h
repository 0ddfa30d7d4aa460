// One sequence as the scheduler keeps it, from submit to its last event: what was asked, how far it
// is, and what decides its next segment. Plain data with its own arithmetic; nothing here knows the
// other sequences.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "scheduler/draft_policy.h"
#include "scheduler/scheduler.h"
#include "scheduler/stop.h"

namespace flashlane::scheduler {

enum class Phase : uint8_t { kWaiting, kPrefilling, kDecoding, kRetiring };

struct Sequence {
  Sequence(SequenceId sequence_id, SequenceSpec sequence_spec, int max_draft)
      : id(sequence_id),
        spec(std::move(sequence_spec)),
        stops(spec.stop_strings),
        policy(spec.drafts ? max_draft : 0),
        uses_mtp(spec.drafts && max_draft > 0) {}

  SequenceId id;
  SequenceSpec spec;
  StopMatcher stops;
  DraftPolicy policy;
  bool uses_mtp;

  Phase phase = Phase::kWaiting;
  int slot = -1;              // from admission to the end
  bool in_flight = false;     // a segment of it is in the step that has not come back
  uint64_t served = 0;        // number of the last decode step that included it; 0 = none
  int passed_over = 0;        // prompt steps in a row that went to others
  bool prompt_alone = false;  // a shared prompt step failed: its rows go in on their own

  int prefilled = 0;                 // prompt tokens committed
  int emitted = 0;                   // reply tokens committed, the pending one included
  int32_t pending = -1;              // last committed reply token, not yet fed
  std::vector<int32_t> drafts = {};  // for the positions after `pending`
  DraftStats stats = {};

  int prompt_size() const { return static_cast<int>(spec.prompt.size()); }
  int prompt_left() const { return prompt_size() - prefilled; }
  int remaining() const { return spec.max_tokens - emitted; }
  // Each row brings at most one token, so a window never has more rows than tokens are left.
  int draft_room() const { return remaining() - 1; }

  // The next `rows` prompt rows; drafts for the first window, at most `depth`, if they end it.
  Segment prefill_segment(int rows, int depth) const;
  // The pending token and the first `draft_rows` drafts; `depth` drafts wanted after it.
  Segment verify_segment(int draft_rows, int depth) const;
};

// What became of tokens that a step brought.
struct Committed {
  std::vector<int32_t> tokens = {};
  std::optional<FinishReason> reason = {};  // set when the reply ended with the last of them
};

// Appends the result's tokens one by one until one of them ends the reply.
Committed commit_tokens(Sequence& sequence, const SegmentResult& result,
                        const TokenBytes* token_bytes);

}  // namespace flashlane::scheduler
