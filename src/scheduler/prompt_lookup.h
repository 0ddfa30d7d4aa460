// PromptLookup: drafts copied from a sequence's own context, prompt and reply: what followed the
// last tokens where they stood before. There is one proposal between two commits: commit makes it,
// and asking is const, so probe and plan see the same one and silence counts rounds, not questions
// (spec trap T39). Proposals depend on tokens and verdicts alone and cost speed at worst, never a
// token. At most 24 bytes per token of context, and as much again for a moment while it grows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace flashlane::scheduler {

// What a round said about the proposal. Nothing drafted: it was not put to the test.
struct LookupVerdict {
  int drafted = 0;     // proposed tokens that had rows
  int accepted = 0;    // of them, those that were committed
  bool alone = false;  // as asked when the round was planned
};

class PromptLookup {
 public:
  static constexpr int kEntry = 8;            // least tokens that match
  static constexpr int kLongestMatch = 64;    // longer matches count as this long
  static constexpr int kLeastProposed = 2;    // tokens; fewer are not worth a window of their own
  static constexpr int kFirstWidth = 3;       // the ramp's start, and the width in company
  static constexpr int kWidest = 15;          // the ramp's end
  static constexpr int kMissesToSilence = 4;  // judged in a row with nothing accepted
  static constexpr int kSilentRounds = 16;
  // Earlier places looked at for one proposal, the newest first; those beyond are not found.
  static constexpr int kMostCandidates = 64;

  // More of the prompt. No proposal stands before the first commit.
  void append(std::span<const int32_t> tokens);
  // A round of the sequence is over: its verdict, and the tokens that it committed (the first reply
  // token, too, comes by a round). Makes the next round's proposal.
  void commit(std::span<const int32_t> tokens, LookupVerdict verdict = {});

  // At most `most` tokens to follow the context; empty, or at least two. Alone, the width is the
  // ramp's: from 3, after each window of which all landed 2 · width + 1 up to 15, else 3 again.
  std::vector<int32_t> proposal(bool alone, int most) const;
  // Tokens that match before the proposal, kEntry to kLongestMatch; 0 when there is none.
  int matched() const { return matched_; }

  size_t memory_bytes() const;

 private:
  void judge(const LookupVerdict& verdict);
  void index(int32_t end);
  void grow();
  size_t bucket(int32_t end) const;
  int match_length(int32_t end) const;
  void search();

  // The index is over the last kEntry tokens at each place, since a shorter match can't enter:
  // heads_ has each bucket's newest end, previous_ the next older of the same bucket, -1 for none.
  // Other tokens in the same bucket cost candidates, not answers, so no prompt can make it slow.
  std::vector<int32_t> tokens_;
  std::vector<int32_t> previous_;  // by position
  std::vector<int32_t> heads_;     // a power of two of buckets, never fewer than tokens
  int32_t source_ = 0;             // where the proposal's tokens begin, when matched_ > 0
  int matched_ = 0;
  int ramp_width_ = kFirstWidth;
  int misses_ = 0;
  int silent_rounds_ = 0;
};

}  // namespace flashlane::scheduler
