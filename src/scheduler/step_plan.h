// What one step runs, as plain data: segments of consecutive rows, all of one role, or copies of
// kept states. The plan is complete: with the model and the slots' states it is enough to replay
// the step.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "memory/page_id.h"

namespace flashlane::scheduler {

// Most rows of a decode step: a constant of the backends.
inline constexpr int kMostDecodeRows = 16;
// Most rows of a sequence that wait for the MTP head.
inline constexpr int kMostWaitingRows = 256;

struct SequenceId {
  uint64_t value = 0;
  friend bool operator==(SequenceId, SequenceId) = default;
};

// Most alternatives that come with a token's log probability.
inline constexpr int kMostLogprobs = 20;

// Penalties that a request may ask for: -kMostPenalty to kMostPenalty, and for repetition, which
// divides, from kLeastRepetitionPenalty to kMostRepetitionPenalty.
inline constexpr double kMostPenalty = 2;
inline constexpr double kLeastRepetitionPenalty = 0.01;
inline constexpr double kMostRepetitionPenalty = 100;

// How a sequence's tokens are drawn. A draw is a pure function of the row's logits, these, the
// token's absolute position and, with penalties, the sequence's own tokens before it (E6).
struct Sampling {
  float temperature = 0;  // 0 = greedy
  int top_k = 0;          // 0 = no cut
  float top_p = 1;        // 1 = no cut
  float min_p = 0;        // 0 = no cut
  uint64_t seed = 0;
  // Of tokens that came before: in the reply, and for repetition in the prompt too.
  float presence_penalty = 0;    // taken off once; 0 = none
  float frequency_penalty = 0;   // taken off for each time; 0 = none
  float repetition_penalty = 1;  // divides or multiplies; 1 = none
};

enum class SegmentKind : uint8_t { kPrefill, kVerify };

struct Segment {
  SequenceId sequence = {};
  int slot = 0;
  SegmentKind kind = SegmentKind::kPrefill;
  // Verify: not 0 where the verdict of the sequence's last step, which may still be under way,
  // fills the segment with the token that it drew last and the drafts behind it, so many rows at
  // most. Such a segment is alone in its plan, and start_position and tokens come with the verdict.
  int verdict_rows = 0;
  // Absolute position of the first row. Authoritative: if the slot's state is further on (a stop
  // cut an accepted run), the runner rolls back to it; 0 starts the slot afresh.
  int start_position = 0;
  // Prefill: a chunk of the prompt. Verify: the pending token, then forced ones or drafts.
  std::vector<int32_t> tokens = {};
  // Verify: of the tokens after the pending one, the first so many stand whatever is drawn.
  int forced_rows = 0;
  // Prefill: the prompt token after this chunk (the MTP head's last input), or -1 at the prompt's
  // end, where the first reply token is sampled.
  int32_t next_token = -1;
  Sampling sampling = {};
  // Position of the first reply token, where one is drawn: it tells penalties what is the reply.
  int reply_start = 0;
  // With each token, its log probability and so many of the best ones; -1 = none at all.
  int logprobs = -1;
  // The token that a rule may put in place of the last one drawn, or -1; its log probability comes
  // with each token too.
  int32_t replacement = -1;
  // Drafts wanted for the sequence's next window; 0 keeps the MTP head out altogether.
  int draft_depth = 0;
  // False for a sequence that never drafts: its MTP state is then not kept at all.
  bool uses_mtp = false;
  // Pages of the runner's pool. With a sequence's first rows, those that hold its state; and those
  // that its next rows go to, added to its page table before the step.
  std::vector<memory::PageId> state_pages = {};
  std::vector<memory::PageId> new_pages = {};
  // Prefill: not empty where the state behind the last row is to be kept, on these pages of the
  // arena: copies of the state pages, then of those of the rows.
  std::vector<memory::PageId> keep_pages = {};

  int most_rows() const {
    return verdict_rows > 0 ? verdict_rows : static_cast<int>(tokens.size());
  }
};

// What a verdict makes of a segment: it begins at `position` with the token drawn last.
inline void fill_from_verdict(Segment& segment, int position, int32_t last_drawn,
                              const std::vector<int32_t>& drafts) {
  const auto rows = std::min(drafts.size(), static_cast<size_t>(segment.verdict_rows) - 1);
  segment.start_position = position;
  segment.tokens = {last_drawn};
  segment.tokens.insert(segment.tokens.end(), drafts.begin(),
                        drafts.begin() + static_cast<std::ptrdiff_t>(rows));
}

// Before a sequence's first rows: its state as it was kept behind these tokens of a prompt.
struct Restore {
  SequenceId sequence = {};
  int slot = 0;
  std::vector<int32_t> tokens = {};             // from position 0 on
  std::vector<memory::PageId> kept_pages = {};  // of the arena, as Segment::keep_pages
  std::vector<memory::PageId> state_pages = {};
  std::vector<memory::PageId> new_pages = {};
};

// A sequence goes on in other pages: copies of its state pages, and of all pages in its table.
struct Move {
  SequenceId sequence = {};
  int slot = 0;
  std::vector<memory::PageId> state_pages = {};
  std::vector<memory::PageId> pages = {};
};

// Of one kind, never two.
struct StepPlan {
  std::vector<Segment> segments = {};
  std::vector<Restore> restores = {};
  std::vector<Move> moves = {};
  bool empty() const { return segments.empty() && restores.empty() && moves.empty(); }
};

}  // namespace flashlane::scheduler
