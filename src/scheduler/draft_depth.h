// How many drafts a sequence that runs alone asks of the MTP head: the depth with the most expected
// tokens per millisecond, by measured steps where there are any and by the costs measured at load
// where not. In the default policy no draft at all competes too, so that drafting pays for itself;
// with PlainSteps::kNever at least one is drafted, as the reference does. Only time depends on
// it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "scheduler/cost_table.h"

namespace flashlane::scheduler {

// Wall time of lone steps by number of drafts, a moving average, shared by all sequences. Leave out
// a sequence's first step: it carries the switch from prompt to decode.
class StepTimes {
 public:
  void observe(int drafts, double wall_ms);
  std::optional<double> ms(int drafts) const;

 private:
  std::vector<std::optional<double>> ms_;  // by drafts
};

inline constexpr int kFirstPlainWait = 8;
inline constexpr int kLongestWait = 128;

enum class PlainSteps : uint8_t { kCompete, kNever };

// One per sequence: it remembers its decisions, to look again at what it does not choose.
// - Every 8th drafting decision goes one deeper, so that deeper rates stay measured.
// - Where plain wins, one draft is tried after 8 plain steps in a row, then 16, … up to 128; where
//   drafting wins again, the wait is back at 8.
// - After 128 drafting decisions in a row one step is plain, else a single bad measurement of a
//   plain step would never be corrected.
class LoneDepth {
 public:
  explicit LoneDepth(PlainSteps plain = PlainSteps::kCompete) : plain_(plain) {}

  // The depth for the sequence's next segment. `landing` are the landing chances of its drafts
  // (DraftAcceptance::landing), as many as the head may make; `draft_room` is how many tokens it
  // may still commit (a segment commits one more than drafts of it stand).
  int choose(std::span<const double> landing, const StepCosts& costs, const StepTimes& times,
             int draft_room);

 private:
  int plain_decision();
  int drafting_decision(int depth, int most);

  PlainSteps plain_;
  int decisions_ = 0;    // that drafting won
  int drafted_run_ = 0;  // of them, in a row since the last plain step
  int plain_run_ = 0;
  int plain_wait_ = kFirstPlainWait;
};

// What is known of a sequence's next segment when its drafts are asked for.
struct NextSegment {
  bool finished = false;    // there is none
  bool forced_due = false;  // it will hold forced tokens
  bool copy_ahead = false;  // a copy is likely to replace the head's drafts
};

// The depth asked of the head, given what the policy wants: 0 where the drafts could not be used,
// at most 1 where a copy is ahead.
int head_depth(int wanted, const NextSegment& next);

}  // namespace flashlane::scheduler
