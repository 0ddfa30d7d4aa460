// One sequence as the scheduler keeps it, from submit to its last event: what was asked, how far it
// is, and what decides its next segment. Plain data with its own arithmetic; nothing here knows the
// other sequences.
#pragma once

#include <algorithm>
#include <climits>
#include <cstdint>
#include <vector>

#include "scheduler/acceptance.h"
#include "scheduler/draft_depth.h"
#include "scheduler/prompt_lookup.h"
#include "scheduler/prompt_states.h"
#include "scheduler/reply_rules.h"
#include "scheduler/scheduler.h"
#include "scheduler/sequence_pages.h"

namespace flashlane::scheduler {

// kPaused: waits for a larger session, between two steps.
enum class Phase : uint8_t { kWaiting, kPrefilling, kDecoding, kPaused, kRetiring };

// Where the rows behind a segment's pending token come from.
enum class DraftSource : uint8_t { kNone, kForced, kLookup, kHead };

struct Sequence {
  Sequence(SequenceId sequence_id, SequenceSpec sequence_spec, const SchedulerOptions& options);

  SequenceId id;
  SequenceSpec spec;
  ReplyRules rules;
  bool uses_mtp;  // keeps the MTP head's state, so that it can draft
  // States of prompts are kept with that of the MTP head, whether this sequence drafts or not.
  bool keeps_mtp;
  bool uses_lookup;  // drafts from its own context

  Phase phase = Phase::kWaiting;
  int slot = -1;                  // from admission to the end
  PromptStatesOfOne states = {};  // from admission to the end
  PageHold pages = {};            // from admission to the end
  int overtaken = 0;              // times that others were admitted before it, which came after it
  int in_flight = 0;              // steps with a segment of it that have not come back
  int rows_in_flight = 0;         // of those segments, at most
  uint64_t served = 0;        // number of the last decode step that included it, or was before it
  int passed_over = 0;        // prompt steps in a row that went to others
  bool prompt_alone = false;  // a shared prompt step failed: its rows go in on their own

  int prefilled = 0;                 // prompt tokens committed
  int waiting_rows = 0;              // committed, and not yet taken in by the MTP head
  int32_t pending = -1;              // last committed reply token, not yet fed
  std::vector<int32_t> drafts = {};  // of the MTP head, for the positions after `pending`
  bool as_drawn = false;             // `pending` is the token that the last step drew last
  int drafts_asked = 0;              // of the head, with the newest segment
  int next_handoff = INT_MAX;        // length of the reply that no window goes beyond
  DraftStats stats = {};

  DraftAcceptance acceptance;
  CopyAcceptance copies = {};
  LoneDepth lone = LoneDepth();
  PromptLookup lookup = {};

  // Of the decode segment in flight.
  DraftSource source = DraftSource::kNone;
  bool was_alone = false;

  // Of the first row of the next window: rows committed so far.
  int reply_position() const { return prompt_size() + rules.emitted() - 1; }
  int most_rows() const { return prompt_size() + spec.max_tokens; }
  int prompt_size() const { return static_cast<int>(spec.prompt.size()); }
  int prompt_left() const { return prompt_size() - prefilled; }

  // The most tokens that a segment may commit behind those that are under way.
  int draft_room() const {
    return std::min(rules.draft_room(), next_handoff - rules.emitted()) - rows_in_flight;
  }

  // What could stand behind the pending token in the next segment, at most draft_room - 1 tokens:
  // forced ones before a copy of the context, a copy before the head's drafts.
  struct Window {
    DraftSource source = DraftSource::kNone;
    std::vector<int32_t> tokens = {};
    std::vector<double> chances = {};  // that each lands; none for forced ones
  };
  Window next_window(bool alone) const;

  // The next `rows` prompt rows; drafts for the first window, at most `depth`, if they end it.
  Segment prefill_segment(int rows, int depth) const;
  // The pending token and the first `rows` of the window; `depth` drafts wanted after it.
  Segment verify_segment(const Window& window, int rows, int depth) const;

  // What the verdict of the step before fills with at most so many rows.
  Segment verdict_segment(int rows) const;

  // Waiting rows that a segment of it makes the head take in, before its own.
  int rows_taken_in(const Segment& segment) const;

  // Takes what a step did: prompt rows, the first reply token that it drew, or a segment's tokens.
  // Nothing else moves the reply.
  void commit_prompt(const Segment& segment);
  Landed commit_first(const SegmentResult& result);
  Landed commit_window(const Segment& segment, const SegmentResult& result);

 private:
  void count_waiting(const Segment& segment, int kept);
  Landed land(const SegmentResult& result, const LookupVerdict& verdict);
};

}  // namespace flashlane::scheduler
