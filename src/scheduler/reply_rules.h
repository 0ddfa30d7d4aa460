// ReplyRules: all that decides where one reply is cut. End ids, stop strings, max_tokens, the
// thinking budget, the repetition guard and the queue of forced tokens, in one value per sequence.
// Every rule looks at committed tokens and their count alone, one token at a time, so a reply is
// cut at the same token drafted, plain, alone or shared, however its rounds were sized (S8, E1).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "scheduler/repetition_guard.h"
#include "scheduler/step_result.h"
#include "scheduler/stop.h"

namespace flashlane::scheduler {

struct ThinkingRules {
  // With the block open, the budget-th reply token becomes the first close token, whatever was
  // drawn, and the other close tokens follow it. 0, or no close tokens: no budget.
  int budget = 0;
  std::vector<int32_t> close_tokens = {};
  int32_t end_token = -1;         // closes the block where it is committed; -1 = not known
  bool repetition_guard = false;  // needs end_token
  // Whether the reply begins inside the block. Unsaid: it does where a budget is set, or where the
  // repetition guard is on and end_token is known.
  std::optional<bool> starts_open = {};
};

struct ReplyLimits {
  int max_tokens = 0;                          // ≥ 1
  std::vector<int32_t> end_ids = {};           // any of them ends the reply, itself included
  std::vector<std::string> stop_strings = {};  // raw bytes; the token that completes one ends it
  ThinkingRules thinking = {};
};

enum class ReplyEnd : uint8_t { kStop, kLength };

// What became of the tokens that a step drew.
struct Landed {
  // Committed, at least one; the last is the sequence's new pending token. Token i follows the
  // segment's row i, so this is also the count of rows that stay.
  std::vector<int32_t> tokens = {};
  // How many of them are as drawn: all, or all but the last, which a rule then replaced. Unless it
  // is the count of drawn tokens, the drafts that came with them follow a token that isn't there.
  int unchanged = 0;
  // One for each of `tokens` where the request asks for them.
  std::vector<TokenLogprobs> logprobs = {};
  std::optional<ReplyEnd> end = {};  // set when the last of `tokens` ended the reply
  int repetition_period = 0;         // not 0 when the repetition guard fired on the last of them
};

class ReplyRules {
 public:
  // `token_bytes` may be null where there are no stop strings.
  ReplyRules(ReplyLimits limits, std::shared_ptr<const TokenBytes> token_bytes);

  // Takes what a step drew, in order: the first reply token, or the accepted drafts and the token
  // behind them, or the forced tokens that had rows and the token behind them. Where a forced token
  // is due it is committed in place of the one drawn, so a draw behind forced rows need not be
  // looked at. Stops at the first token that ends the reply, was replaced, or made the guard fire;
  // what is left was drawn behind something that did not happen. Not to be called after the end.
  Landed commit(std::span<const int32_t> drawn);
  // The only token that the next commit may put in place of a drawn one; none when it can't replace
  // any. For segments that keep to draft_room() and, where forced tokens wait, have no other rows:
  // `forced_rows` of them.
  std::optional<int32_t> replacement(int forced_rows) const;

  // Whether any commit from here on may put a token in place of a drawn one. Once false, for good.
  bool may_replace() const;

  // The tokens that come next whatever is drawn, as far as max_tokens lets them. A segment takes
  // at most draft_room() - 1 of them as rows. Holds until the next commit.
  std::span<const int32_t> forced() const;
  // The most tokens that a step may commit before the end or the budget's cut: a segment of more
  // rows computes some in vain. 0 after the end, else at least 1.
  int draft_room() const;

  bool ended() const { return ended_; }
  int emitted() const { return emitted_; }  // tokens committed
  bool thinking() const { return open_; }   // inside the block
  // The period that the repetition guard fired at, 0 when it has not.
  int repetition_period() const { return repetition_period_; }

 private:
  bool budget_counts() const;
  bool guard_watches() const;
  void close_block();
  int32_t due(int32_t drawn);
  bool stops(int32_t token);
  void land(int32_t token, Landed& landed);

  ReplyLimits limits_;
  std::shared_ptr<const TokenBytes> token_bytes_;
  StopMatcher matcher_;
  RepetitionGuard guard_;
  bool open_ = false;
  bool ended_ = false;
  int emitted_ = 0;
  int repetition_period_ = 0;
  size_t next_forced_ = 0;  // of close_tokens; their count when none is due
};

}  // namespace flashlane::scheduler
