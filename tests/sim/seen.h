// What the worlds of a run went through, counted, so that a simulator which no longer reaches a
// case is found out and does not stay green for nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace flashlane::sim {

enum class Seen : uint8_t {
  kRequest,
  kRefused,
  kStep,
  kSharedPromptStep,
  kSharedDecodeStep,
  kFullDecodeStep,  // sixteen sequences
  kStop,
  kLength,
  kAcceptedDraft,
  kForcedRow,
  kCopiedRow,  // in a window that is wider than the head's drafts
  kLogprobs,
  kReplacedLogprobs,  // of a token that a rule put in place of a drawn one
  kCancelWaiting,
  kCancelFilling,
  kCancelDecoding,
  kCancelInFlight,
  kCancelTwice,
  kCancelEnded,
  kCancelUnknown,
  kSlowFilling,      // cut off: no room for news of its prompt
  kSlowDecoding,     // cut off: no room for tokens
  kSlowAmongOthers,  // cut off with more of the same collect() still to be delivered to others
  kSlowAtTheEnd,     // cut off when its sequence had ended by itself
  kWithheld,         // an event of the same collect(), after the cut
  kCutReply,         // read to its end by who was cut off
  kShutdown,
  kFailedPrompt,
  kFailedSharedPrompt,
  kFailedDecode,
  kFailedAfterWork,
  kDeviceLost,
  kOverduePrompt,  // served after eight steps or more without it
  kLoneStep,       // filled by the verdict of the one before
  kStepAhead,      // the same, begun before that one had landed
  kStepInVain,     // begun ahead, of a reply that had ended
  kMoveStep,
  kMoved,   // to a larger session
  kPaused,  // for want of one
  kFailedMove,
  kRestoreStep,
  kResumed,  // went on from a kept state
  kFailedRestore,
  kOvertaken,  // admitted before one that waits for pages
  kDebt,       // a prompt waited because replies had not had their share
  kCount,
};

inline constexpr std::array<const char*, static_cast<size_t>(Seen::kCount)> kSeenNames = {
    "requests",
    "refused",
    "steps",
    "shared prompt steps",
    "shared decode steps",
    "decode steps of sixteen",
    "ended by a stop",
    "ended by length",
    "accepted drafts",
    "forced rows",
    "copied rows",
    "log probabilities",
    "replaced log probabilities",
    "cancelled waiting",
    "cancelled filling",
    "cancelled decoding",
    "cancelled in flight",
    "cancelled twice",
    "cancelled after the end",
    "cancelled unknown",
    "slow while filling",
    "slow while decoding",
    "slow among others",
    "slow at the end",
    "withheld from the slow",
    "replies cut off",
    "shutdowns",
    "failed prompts",
    "failed shared prompt steps",
    "failed decode steps",
    "failed after partial work",
    "lost devices",
    "overdue prompts",
    "lone steps",
    "steps ahead",
    "steps in vain",
    "move steps",
    "moved replies",
    "paused replies",
    "failed moves",
    "restore steps",
    "resumed prompts",
    "failed restores",
    "admitted past others",
    "prompts in debt",
};

struct Tally {
  std::array<int64_t, static_cast<size_t>(Seen::kCount)> counts = {};

  void add(Seen what, int64_t count = 1) { counts[static_cast<size_t>(what)] += count; }
  int64_t of(Seen what) const { return counts[static_cast<size_t>(what)]; }
  void add(const Tally& other) {
    for (size_t i = 0; i < counts.size(); ++i) counts[i] += other.counts[i];
  }
};

}  // namespace flashlane::sim
