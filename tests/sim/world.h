// One seeded world: the real scheduler, a runner whose tokens are a function of all that was fed, a
// clock that the world moves, arrivals and faults for a while, and then neither, until all replies
// have ended within as many steps as they have rows to come. The ledger judges.
#pragma once

#include <cstdint>
#include <string>

#include "tests/sim/seen.h"

namespace flashlane::sim {

// Worlds that are broken on purpose, each in a way that the checks have to find.
enum class Canary : uint8_t {
  kNone,
  kWrongToken,      // the runner draws another token, once
  kSwappedSlots,    // the runner mixes up two slots
  kLostEnd,         // a terminal event is dropped
  kSecondEnd,       // a terminal event comes twice
  kLostTokens,      // new tokens of a reply are dropped on their way
  kLostCancel,      // a cancel does not reach the scheduler
  kUnservedReply,   // a reply gets no rows though it is in the step's account
  kUnservedPrompt,  // the same for a prompt
  kDroppedRest,     // what is to be delivered after a client was cut off is dropped
  kSlowRunsOn,      // the reply of a client that was cut off is not cancelled
  kCount,
};

struct Outcome {
  std::string problem = {};  // the first breach; empty when there is none
  Tally tally = {};
  uint64_t trace = 0;  // of all plans, events and decisions
};

Outcome run_world(uint64_t seed, Canary canary = Canary::kNone);

}  // namespace flashlane::sim
