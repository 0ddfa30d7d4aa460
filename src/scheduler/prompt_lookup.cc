// Chains of places with the same hash, newest first. Appending a token links one place; the buckets
// double with the context and are then linked anew, which adds a constant share per token. A
// proposal looks at kMostCandidates places and kLongestMatch tokens of each at the most.
#include "scheduler/prompt_lookup.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

constexpr size_t kFewestBuckets = 64;
constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15;  // odd, its bits well spread (2^64 / φ)

}  // namespace

void PromptLookup::append(std::span<const int32_t> tokens) {
  CHECK_LE(tokens.size(), size_t{std::numeric_limits<int32_t>::max()} - tokens_.size());
  const size_t before = tokens_.size();
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  previous_.resize(tokens_.size(), -1);
  if (heads_.size() < tokens_.size()) {
    grow();
  } else {
    for (size_t end = before; end < tokens_.size(); ++end) index(static_cast<int32_t>(end));
  }
  matched_ = 0;
}

void PromptLookup::commit(std::span<const int32_t> tokens, LookupVerdict verdict) {
  CHECK(!tokens.empty());
  if (silent_rounds_ > 0) --silent_rounds_;
  judge(verdict);
  append(tokens);
  if (silent_rounds_ == 0) search();
}

void PromptLookup::judge(const LookupVerdict& verdict) {
  CHECK_GE(verdict.accepted, 0);
  CHECK_LE(verdict.accepted, verdict.drafted);
  if (verdict.drafted == 0) return;
  if (verdict.alone) {
    const bool all = verdict.accepted == verdict.drafted;
    ramp_width_ = all ? std::min(kWidest, 2 * ramp_width_ + 1) : kFirstWidth;
  }
  misses_ = verdict.accepted == 0 ? misses_ + 1 : 0;
  if (misses_ == kMissesToSilence) {
    misses_ = 0;
    silent_rounds_ = kSilentRounds;
  }
}

std::vector<int32_t> PromptLookup::proposal(bool alone, int most) const {
  if (matched_ == 0) return {};
  const int width = std::min(alone ? ramp_width_ : kFirstWidth, most);
  const int count = std::min(width, static_cast<int>(tokens_.size()) - source_);
  if (count < kLeastProposed) return {};
  return {tokens_.begin() + source_, tokens_.begin() + source_ + count};
}

size_t PromptLookup::memory_bytes() const {
  return (tokens_.capacity() + previous_.capacity() + heads_.capacity()) * sizeof(int32_t);
}

size_t PromptLookup::bucket(int32_t end) const {
  uint64_t hash = 0;
  for (int32_t at = end + 1 - kEntry; at <= end; ++at) {
    hash = (hash + static_cast<uint32_t>(tokens_[static_cast<size_t>(at)])) * kMultiplier;
    hash ^= hash >> 32;
  }
  return hash & (heads_.size() - 1);
}

void PromptLookup::index(int32_t end) {
  if (end + 1 < kEntry) return;
  int32_t& head = heads_[bucket(end)];
  previous_[static_cast<size_t>(end)] = head;
  head = end;
}

void PromptLookup::grow() {
  heads_.assign(std::max(kFewestBuckets, std::bit_ceil(tokens_.size())), -1);
  for (size_t end = 0; end < tokens_.size(); ++end) index(static_cast<int32_t>(end));
}

// How many tokens that end at `end` equal the context's last ones; places that can't beat the best
// match so far are told by the one token that would have to.
int PromptLookup::match_length(int32_t end) const {
  const auto last = static_cast<int32_t>(tokens_.size()) - 1;
  const auto equal = [&](int32_t back) {
    return tokens_[static_cast<size_t>(end - back)] == tokens_[static_cast<size_t>(last - back)];
  };
  if (matched_ > end || !equal(matched_)) return 0;
  const int32_t longest = std::min(kLongestMatch, end + 1);
  int32_t length = 0;
  while (length < longest && equal(length)) ++length;
  return length;
}

void PromptLookup::search() {
  const auto last = static_cast<int32_t>(tokens_.size()) - 1;
  int candidates = 0;
  for (int32_t end = previous_[static_cast<size_t>(last)]; end >= 0 && matched_ < kLongestMatch;
       end = previous_[static_cast<size_t>(end)]) {
    if (last - end < kLeastProposed) continue;  // too little follows there, whatever matches
    if (++candidates > kMostCandidates) return;
    const int length = match_length(end);
    if (length < kEntry || length <= matched_) continue;
    matched_ = length;
    source_ = end + 1;
  }
}

}  // namespace flashlane::scheduler
