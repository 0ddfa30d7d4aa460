// Trace: the scheduler's decisions in order, as entries of one size in a ring that is made once.
// Adding never fails and allocates nothing, so that no cleanup can be cut short by it; the hash
// covers every entry ever added, also those that the ring has lost. Times and measured costs never
// enter: two runs that decide alike have equal traces.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "scheduler/step_plan.h"

namespace flashlane::scheduler {

// In brackets: what an entry's values say, in order.
enum class TraceKind : uint8_t {
  kSubmit,      // [prompt tokens, most reply tokens, drafts or not]
  kCancel,      // [phase]
  kAdmit,       // [slot]
  kPause,       // [position, capacity]
  kMove,        // [position, capacity, new capacity]
  kRestore,     // [prompt tokens]
  kKeep,        // [worked or not]
  kPromptRows,  // [start position, rows, rows left behind them]
  kWindow,      // [start position, source of the drafts, rows offered, rows granted]
  kLone,        // [rows at most, steps under way before it]
  kHandoff,     // of a lone reply to shared steps
  kDepth,       // [drafts asked of the MTP head]
  kLanded,      // [tokens drawn, tokens committed, of them as drawn]
  kToken,       // [token, its place in the reply]
  kFailed,      // [error code]
  kRestart,     // a prompt that shared a failed step begins again, alone
  kRetire,      // [reason, prompt tokens done, reply tokens]
};

struct TraceEntry {
  TraceKind kind = TraceKind::kSubmit;
  SequenceId sequence = {};
  std::array<int32_t, 4> values = {};
  friend bool operator==(const TraceEntry&, const TraceEntry&) = default;
};

// One line, for people: "window of 3: 17, 2, 3, 1".
std::string describe(const TraceEntry& entry);

class Trace {
 public:
  // Keeps the last `kept` entries; with 0, only their hash and count.
  explicit Trace(size_t kept) : ring_(kept) {}

  void add(TraceKind kind, SequenceId sequence, std::array<int32_t, 4> values = {}) noexcept;

  uint64_t hash() const { return hash_; }
  uint64_t count() const { return count_; }  // of all entries added
  std::vector<TraceEntry> last() const;      // those kept, oldest first

 private:
  std::vector<TraceEntry> ring_;
  uint64_t count_ = 0;
  uint64_t hash_ = 0;
};

}  // namespace flashlane::scheduler
