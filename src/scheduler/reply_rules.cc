// Commit asks first which token is due, then lands it, and lands no other token any other way: the
// order of the checks stands in `land`, once.
#include "scheduler/reply_rules.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace flashlane::scheduler {

ReplyRules::ReplyRules(ReplyLimits limits, std::shared_ptr<const TokenBytes> token_bytes)
    : limits_(std::move(limits)),
      token_bytes_(std::move(token_bytes)),
      matcher_(limits_.stop_strings) {
  CHECK_GE(limits_.max_tokens, 1);
  const ThinkingRules& thinking = limits_.thinking;
  const bool watched = thinking.repetition_guard && thinking.end_token >= 0;
  open_ = thinking.starts_open.value_or(thinking.budget > 0 || watched);
  next_forced_ = thinking.close_tokens.size();
}

Landed ReplyRules::commit(std::span<const int32_t> drawn) {
  CHECK(!ended_);
  CHECK(!drawn.empty());
  Landed landed;
  for (const int32_t token : drawn) {
    const int32_t committed = due(token);
    if (committed == token) ++landed.unchanged;
    land(committed, landed);
    if (ended_ || landed.repetition_period != 0 || committed != token) break;
  }
  return landed;
}

std::optional<int32_t> ReplyRules::replacement(int forced_rows) const {
  const std::span<const int32_t> due = forced();
  const auto rows = static_cast<size_t>(forced_rows);
  if (rows < due.size()) return due[rows];
  if (due.empty() && budget_counts()) return limits_.thinking.close_tokens.front();
  return std::nullopt;
}

bool ReplyRules::may_replace() const {
  const bool guarded = guard_watches() && !limits_.thinking.close_tokens.empty();
  return !forced().empty() || budget_counts() || guarded;
}

std::span<const int32_t> ReplyRules::forced() const {
  const std::span<const int32_t> waiting =
      std::span(limits_.thinking.close_tokens).subspan(next_forced_);
  const auto left = static_cast<size_t>(ended_ ? 0 : limits_.max_tokens - emitted_);
  return waiting.first(std::min(waiting.size(), left));
}

int ReplyRules::draft_room() const {
  if (ended_) return 0;
  const int left = limits_.max_tokens - emitted_;
  return budget_counts() ? std::min(left, limits_.thinking.budget - emitted_) : left;
}

bool ReplyRules::budget_counts() const {
  return open_ && limits_.thinking.budget > 0 && !limits_.thinking.close_tokens.empty();
}

bool ReplyRules::guard_watches() const {
  return open_ && limits_.thinking.repetition_guard && limits_.thinking.end_token >= 0;
}

// The block closes for the budget and the guard at once, not with the last forced token: neither
// may cut again inside the close tokens.
void ReplyRules::close_block() {
  open_ = false;
  next_forced_ = 0;
}

// The token at this position. The count comes before anything about the drawn token, so a thinking
// end or an end id drawn exactly at the budget is replaced too.
int32_t ReplyRules::due(int32_t drawn) {
  const std::vector<int32_t>& close_tokens = limits_.thinking.close_tokens;
  if (budget_counts() && emitted_ + 1 >= limits_.thinking.budget) close_block();
  return next_forced_ < close_tokens.size() ? close_tokens[next_forced_++] : drawn;
}

bool ReplyRules::stops(int32_t token) {
  const std::vector<int32_t>& end_ids = limits_.end_ids;
  if (std::find(end_ids.begin(), end_ids.end(), token) != end_ids.end()) return true;
  return token_bytes_ != nullptr && matcher_.push(token_bytes_->bytes(token));
}

void ReplyRules::land(int32_t token, Landed& landed) {
  const ThinkingRules& thinking = limits_.thinking;
  landed.tokens.push_back(token);
  ++emitted_;
  if (token == thinking.end_token) open_ = false;
  // Only an open block is watched, it never opens again, and a guard that fires closes it: so the
  // guard has seen every token so far, and fires once at most.
  const int period = guard_watches() ? guard_.push(token) : 0;
  const bool full = emitted_ >= limits_.max_tokens;
  if (stops(token)) {
    landed.end = ReplyEnd::kStop;
  } else if (period != 0) {
    landed.repetition_period = period;
    repetition_period_ = period;
    if (full) {
      landed.end = ReplyEnd::kLength;
    } else if (thinking.close_tokens.empty()) {
      landed.end = ReplyEnd::kStop;
    } else {
      close_block();
    }
  } else if (full) {
    landed.end = ReplyEnd::kLength;
  }
  ended_ = landed.end.has_value();
}

}  // namespace flashlane::scheduler
