// LoneDriver: a reply that runs alone goes on by itself. Each of its steps is filled by the verdict
// of the one before it, the last token drawn and the drafts behind it, so that the next can be
// under way before the host has looked at this one. It yields as soon as anybody else arrives: what
// is under way lands, and shared steps go on from there with nothing to settle. It decides when,
// never what: the reply is the same with and without it (L1 to L4, E3).
#pragma once

#include <climits>
#include <cstdint>
#include <vector>

#include "scheduler/step_plan.h"

namespace flashlane::scheduler {

struct Sequence;

struct LoneUsage {
  bool on = false;
  int steps_in_flight = 1;  // at most
  bool active = false;      // a reply is driven now
  int64_t runs = 0;         // times that a reply was taken
  int64_t steps = 0;
  int64_t ahead = 0;     // of them, planned while the one before was under way
  int64_t handoffs = 0;  // runs that ended before their reply did
};

class LoneDriver {
 public:
  // `handoffs`: lengths of a reply, rising, at which it is handed over for one step, if nothing
  // else does it; for tests.
  LoneDriver(bool on, int steps_in_flight, std::vector<int> handoffs);

  // Whether the reply's next step may be its own. Not while a rule may put another token in place
  // of the one that was drawn: a step that is under way by then would go on from the wrong one.
  bool takes(const Sequence& sequence) const;
  // The length at which a reply of so many tokens is to be handed over next.
  int next_handoff(int emitted) const;
  int steps_in_flight() const { return usage_.steps_in_flight; }

  void drove(SequenceId sequence, bool ahead);
  // Between two steps: the reply that is alone now, or none. True where another one was driven,
  // which is handed over by that.
  bool hands_over(SequenceId alone);
  void ended(SequenceId sequence);

  SequenceId driven() const { return driven_; }  // {} = none
  const LoneUsage& usage() const { return usage_; }

 private:
  LoneUsage usage_;
  std::vector<int> handoffs_;
  SequenceId driven_ = {};
};

}  // namespace flashlane::scheduler
