// How the rows of decode steps are spent: how many of each sequence's drafts are verified in a
// step, and how many new ones are asked of the MTP head for the next. One value for all sequences,
// which learns from steps as they come back; what it decides changes how long a reply takes and
// never what it says (S4, S6, S7).
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "scheduler/acceptance.h"
#include "scheduler/cost_table.h"
#include "scheduler/draft_allocation.h"
#include "scheduler/draft_depth.h"
#include "scheduler/overhead.h"

namespace flashlane::scheduler {

struct DecodePolicyOptions {
  StepCosts costs = {};     // empty: unpriced
  bool lone_priced = true;  // false: a sequence alone drafts by its acceptance only
  int max_draft = 0;        // of the MTP head
};

// One sequence that is in the step, and what it could have verified.
struct VerifyClaim {
  int fixed_rows = 1;                // its pending token, and forced ones
  std::vector<double> chances = {};  // that each of its drafts lands, never rising
};

// One sequence of the step, when drafts for its next segment are chosen.
struct DepthClaim {
  const DraftAcceptance* acceptance = nullptr;
  LoneDepth* lone = nullptr;
  int draft_room = 0;     // tokens that its next segment may commit, at least
  int waiting_rows = 0;   // that the head takes in before it can draft
  NextSegment next = {};  // as far as it is known now
};

class DecodePolicy {
 public:
  explicit DecodePolicy(DecodePolicyOptions options);

  // Draft rows for each claim; with the fixed ones at most kMostDecodeRows, or their number if
  // more.
  std::vector<int> verify_rows(std::span<const VerifyClaim> claims, bool sampled) const;
  // Drafts to ask of the head for each claim. `others`: sequences that run beside them; one claim
  // without others is alone.
  std::vector<int> depths(std::span<const DepthClaim> claims, int others, bool sampled);

  // Of the head's drafts that one sequence had verified.
  void observe_drafts(int drafted, int accepted) { usual_acceptance_.observe(drafted, accepted); }
  // What to expect of a sequence that has had none verified yet.
  const DraftAcceptance& usual_acceptance() const { return usual_acceptance_; }

  // A decode step that came back after `wall_ms` (0 = not measured). `depths` as they were asked
  // of the head, which took in `waiting_rows` for them. `lone_drafts`: the draft rows of a step of
  // one sequence that says how long such steps take, not its first and none of copies or forced
  // tokens.
  void observe(int rows, bool sampled, double wall_ms, std::span<const int> depths,
               int waiting_rows, std::optional<int> lone_drafts);

 private:
  int most_drafts(const DepthClaim& claim) const;
  CostTable step_costs(int sequences, bool sampled) const;
  std::vector<int> allocate(std::span<const DraftClaim> claims, int sequences, bool sampled) const;
  double toll(const DepthClaim& claim, int sequences, bool sampled) const;
  std::vector<int> shared_depths(std::span<const DepthClaim> claims, int others, bool sampled);
  int probed(std::span<const DepthClaim> claims, int sequences);

  DecodePolicyOptions options_;
  DraftAllocator allocator_;
  StepCosts lone_costs_;
  StepTimes times_;
  OverheadEstimate overhead_;
  DraftAcceptance usual_acceptance_;
  int probe_company_ = 0;  // sequences that the wait is for
  int probe_wait_ = 0;
  int unprobed_ = 0;  // shared decisions since the last probe
};

}  // namespace flashlane::scheduler
