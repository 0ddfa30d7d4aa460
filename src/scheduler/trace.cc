// Entry number n lies at place n modulo the ring's size.
#include "scheduler/trace.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/keyed_random.h"

namespace flashlane::scheduler {
namespace {

constexpr std::string_view kNames[] = {
    "submit", "cancel",  "admit", "pause",  "move",  "restore", "keep",    "prompt rows", "window",
    "lone",   "handoff", "depth", "landed", "token", "failed",  "restart", "retire"};
static_assert(std::size(kNames) == static_cast<size_t>(TraceKind::kRetire) + 1);

}  // namespace

std::string describe(const TraceEntry& entry) {
  return fmt::format("{} of {}: {}", kNames[static_cast<size_t>(entry.kind)], entry.sequence.value,
                     fmt::join(entry.values, ", "));
}

void Trace::add(TraceKind kind, SequenceId sequence, std::array<int32_t, 4> values) noexcept {
  hash_ = splitmix64(hash_ ^ (sequence.value << 8) ^ static_cast<uint64_t>(kind));
  for (const int32_t value : values) hash_ = splitmix64(hash_ ^ static_cast<uint32_t>(value));
  if (!ring_.empty()) ring_[count_ % ring_.size()] = {kind, sequence, values};
  ++count_;
}

std::vector<TraceEntry> Trace::last() const {
  std::vector<TraceEntry> entries;
  const uint64_t kept = std::min<uint64_t>(count_, ring_.size());
  entries.reserve(kept);
  for (uint64_t n = count_ - kept; n < count_; ++n) entries.push_back(ring_[n % ring_.size()]);
  return entries;
}

}  // namespace flashlane::scheduler
