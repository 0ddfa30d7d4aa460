// Where a reply is cut, each edge case of the rules by itself.
#include "scheduler/reply_rules.h"

#include <gtest/gtest.h>

#include <numeric>

namespace flashlane::scheduler {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int32_t kEnd = 90;
constexpr int32_t kThinkEnd = 91;

ReplyRules rules(ReplyLimits limits) {
  return {std::move(limits), nullptr};
}

ReplyLimits budget(int tokens, Tokens close) {
  return {.max_tokens = 1000,
          .end_ids = {kEnd},
          .thinking = {.budget = tokens, .close_tokens = std::move(close), .end_token = kThinkEnd}};
}

ReplyLimits guarded(Tokens close) {
  return {.max_tokens = 1000,
          .end_ids = {kEnd},
          .thinking = {
              .close_tokens = std::move(close), .end_token = kThinkEnd, .repetition_guard = true}};
}

// `count` tokens of a loop with this period, none of them special.
Tokens loop(int count, int period) {
  Tokens tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = i % period;
  return tokens;
}

Tokens forced(const ReplyRules& rules) {
  return {rules.forced().begin(), rules.forced().end()};
}

Tokens commit(ReplyRules& rules, Tokens drawn) {
  return rules.commit(drawn).tokens;
}

TEST(ReplyRules, CommitsWhatWasDrawnAndEndsAtAnEndId) {
  ReplyRules reply = rules({.max_tokens = 9, .end_ids = {kEnd, 80}});
  const Landed first = reply.commit(Tokens{1, 2});
  EXPECT_EQ(first.tokens, (Tokens{1, 2}));
  EXPECT_EQ(first.unchanged, 2);
  EXPECT_FALSE(first.end.has_value());
  EXPECT_EQ(reply.draft_room(), 7);
  const Landed second = reply.commit(Tokens{3, 80, 4, 5});
  EXPECT_EQ(second.tokens, (Tokens{3, 80}));
  EXPECT_EQ(second.unchanged, 2);
  EXPECT_EQ(second.end, ReplyEnd::kStop);
  EXPECT_TRUE(reply.ended());
  EXPECT_EQ(reply.emitted(), 4);
  EXPECT_EQ(reply.draft_room(), 0);
}

// Once nothing can be replaced any more, steps of a lone reply may follow one another by
// themselves.
TEST(ReplyRules, SayWhetherTheyMayReplaceAToken) {
  ReplyRules plain = rules({.max_tokens = 9, .end_ids = {kEnd}, .stop_strings = {"x"}});
  EXPECT_FALSE(plain.may_replace());
  ReplyRules counted = rules(budget(3, {7, 8, 9}));
  EXPECT_TRUE(counted.may_replace());
  EXPECT_EQ(commit(counted, {1, 2, 3}), (Tokens{1, 2, 7}));
  EXPECT_TRUE(counted.may_replace()) << "8 and 9 are to come";
  commit(counted, {8, 9});
  EXPECT_FALSE(counted.may_replace());
  ReplyRules closed = rules(budget(30, {7}));
  commit(closed, {1, kThinkEnd});
  EXPECT_FALSE(closed.may_replace());
  ReplyRules watched = rules(guarded({7, 8}));
  EXPECT_TRUE(watched.may_replace());
  commit(watched, {1, kThinkEnd});
  EXPECT_FALSE(watched.may_replace());
  // The guard ends the reply where it has nothing to put in.
  EXPECT_FALSE(rules(guarded({})).may_replace());
}

TEST(ReplyRules, EndsAtMaxTokensInsideARun) {
  ReplyRules reply = rules({.max_tokens = 3});
  const Landed landed = reply.commit(Tokens{1, 2, 3, 4});
  EXPECT_EQ(landed.tokens, (Tokens{1, 2, 3}));
  EXPECT_EQ(landed.unchanged, 3);
  EXPECT_EQ(landed.end, ReplyEnd::kLength);
}

TEST(ReplyRules, AnEndIdAtMaxTokensIsAStop) {
  ReplyRules reply = rules({.max_tokens = 2, .end_ids = {kEnd}});
  EXPECT_EQ(reply.commit(Tokens{1, kEnd}).end, ReplyEnd::kStop);
}

TEST(ReplyRules, StopStringAcrossTokensAndInsideARun) {
  const std::vector<std::string> texts = {"x", "EN", "D!", "y"};
  const auto bytes = std::make_shared<TokenBytes>(texts);
  ReplyRules reply({.max_tokens = 9, .stop_strings = {"END"}}, bytes);
  EXPECT_EQ(reply.commit(Tokens{0, 1}).end, std::nullopt);
  const Landed landed = reply.commit(Tokens{2, 3, 0});
  EXPECT_EQ(landed.tokens, (Tokens{2}));
  EXPECT_EQ(landed.end, ReplyEnd::kStop);
  ReplyRules at_once({.max_tokens = 9, .stop_strings = {"END"}}, bytes);
  EXPECT_EQ(commit(at_once, {3, 1, 2, 3, 0}), (Tokens{3, 1, 2}));
}

TEST(ThinkingBudget, ReplacesTheTokenAtTheBudgetAndForcesTheRest) {
  ReplyRules reply = rules(budget(3, {50, 51, kThinkEnd}));
  EXPECT_TRUE(reply.thinking());
  EXPECT_EQ(reply.draft_room(), 3);
  const Landed landed = reply.commit(Tokens{1, 2, 3, 4});
  EXPECT_EQ(landed.tokens, (Tokens{1, 2, 50}));
  EXPECT_EQ(landed.unchanged, 2);
  EXPECT_FALSE(landed.end.has_value());
  EXPECT_FALSE(reply.thinking());
  EXPECT_EQ(forced(reply), (Tokens{51, kThinkEnd}));
  EXPECT_EQ(reply.draft_room(), 997);
  // The forced tokens had rows; the token behind them is the answer's first.
  const Landed closed = reply.commit(Tokens{51, kThinkEnd, 7});
  EXPECT_EQ(closed.tokens, (Tokens{51, kThinkEnd, 7}));
  EXPECT_EQ(closed.unchanged, 3);
  EXPECT_TRUE(forced(reply).empty());
  EXPECT_EQ(commit(reply, {8, 9, 8}), (Tokens{8, 9, 8}));
}

TEST(ThinkingBudget, CountsBeforeItLooksAtTheToken) {
  for (const int32_t drawn : {kThinkEnd, kEnd}) {
    ReplyRules reply = rules(budget(2, {50, kThinkEnd}));
    const Landed landed = reply.commit(Tokens{1, drawn, 2});
    EXPECT_EQ(landed.tokens, (Tokens{1, 50}));
    EXPECT_FALSE(landed.end.has_value());
    EXPECT_EQ(forced(reply), (Tokens{kThinkEnd}));
  }
}

TEST(ThinkingBudget, OneTokenEarlierTheEndTokenCloses) {
  ReplyRules reply = rules(budget(3, {50, kThinkEnd}));
  EXPECT_EQ(commit(reply, {1, kThinkEnd, 2, 3, 4}), (Tokens{1, kThinkEnd, 2, 3, 4}));
  EXPECT_FALSE(reply.thinking());
  EXPECT_EQ(reply.draft_room(), 995);
}

TEST(ThinkingBudget, OfOneReplacesTheFirstToken) {
  ReplyRules reply = rules(budget(1, {50, 51}));
  EXPECT_EQ(reply.draft_room(), 1);
  const Landed landed = reply.commit(Tokens{7});
  EXPECT_EQ(landed.tokens, (Tokens{50}));
  EXPECT_EQ(landed.unchanged, 0);
  EXPECT_EQ(commit(reply, {51, 7}), (Tokens{51, 7}));
}

TEST(ThinkingBudget, DrawnCloseTokensStandAsTheyAre) {
  ReplyRules reply = rules(budget(2, {50, 51}));
  const Landed landed = reply.commit(Tokens{1, 50, 51, 2});
  EXPECT_EQ(landed.tokens, (Tokens{1, 50, 51, 2}));
  EXPECT_EQ(landed.unchanged, 4);
}

TEST(ThinkingBudget, NeedsABudgetCloseTokensAndAnOpenBlock) {
  ReplyLimits closed = budget(1, {50});
  closed.thinking.starts_open = false;
  for (const ReplyLimits& limits : {budget(0, {50}), budget(1, {}), closed}) {
    ReplyRules reply = rules(limits);
    EXPECT_EQ(reply.draft_room(), 1000);
    EXPECT_EQ(commit(reply, {1, 2, 3}), (Tokens{1, 2, 3}));
    EXPECT_TRUE(forced(reply).empty());
  }
}

TEST(ThinkingBudget, CloseLongerThanASegment) {
  Tokens close(23);
  std::iota(close.begin(), close.end(), 50);
  ReplyRules reply = rules(budget(1, close));
  Tokens committed = commit(reply, {7});
  // Segments of three rows: the pending token and two forced ones; what the last row draws gives
  // way to the next forced token, or is the answer's first when none is left.
  while (!forced(reply).empty()) {
    const Tokens due = forced(reply);
    Tokens drawn(due.begin(), due.begin() + static_cast<std::ptrdiff_t>(std::min(due.size(), 2UL)));
    drawn.push_back(7);
    const Landed landed = reply.commit(drawn);
    EXPECT_EQ(landed.tokens.size(), drawn.size());
    EXPECT_EQ(landed.unchanged, static_cast<int>(drawn.size()) - (due.size() > 2 ? 1 : 0));
    committed.insert(committed.end(), landed.tokens.begin(), landed.tokens.end());
  }
  Tokens expected = close;
  expected.push_back(7);
  EXPECT_EQ(committed, expected);
  EXPECT_EQ(commit(reply, {7, 8}), (Tokens{7, 8}));
}

TEST(ThinkingBudget, WithoutRowsEachForcedTokenTakesTheDrawsPlace) {
  ReplyRules reply = rules(budget(1, {50, 51, 52}));
  EXPECT_EQ(commit(reply, {7}), (Tokens{50}));
  EXPECT_EQ(commit(reply, {7, 8, 9}), (Tokens{51}));
  EXPECT_EQ(commit(reply, {7}), (Tokens{52}));
  EXPECT_EQ(commit(reply, {7}), (Tokens{7}));
}

TEST(ThinkingBudget, MaxTokensInsideTheForcedClose) {
  ReplyLimits limits = budget(2, {50, 51, 52});
  limits.max_tokens = 3;
  ReplyRules reply = rules(limits);
  EXPECT_EQ(commit(reply, {1, 2}), (Tokens{1, 50}));
  EXPECT_EQ(forced(reply), (Tokens{51}));  // 52 will never be due
  EXPECT_EQ(reply.draft_room(), 1);
  const Landed landed = reply.commit(Tokens{51, 52});
  EXPECT_EQ(landed.tokens, (Tokens{51}));
  EXPECT_EQ(landed.end, ReplyEnd::kLength);
  EXPECT_TRUE(forced(reply).empty());
}

TEST(ThinkingBudget, EndIdAmongTheForcedTokens) {
  ReplyRules reply = rules(budget(2, {50, kEnd, 51}));
  EXPECT_EQ(commit(reply, {1, 2}), (Tokens{1, 50}));
  const Landed landed = reply.commit(Tokens{kEnd, 51, 3});
  EXPECT_EQ(landed.tokens, (Tokens{kEnd}));
  EXPECT_EQ(landed.end, ReplyEnd::kStop);
  EXPECT_TRUE(forced(reply).empty());
}

TEST(ThinkingBudget, StopStringAcrossTheForcedTokens) {
  const std::vector<std::string> texts = {"a", "E", "N", "D"};
  ReplyLimits limits = budget(2, {1, 2, 3, 0});
  limits.stop_strings = {"END"};
  ReplyRules reply(limits, std::make_shared<TokenBytes>(texts));
  EXPECT_EQ(commit(reply, {0, 0}), (Tokens{0, 1}));
  const Landed landed = reply.commit(Tokens{2, 3, 0, 0});
  EXPECT_EQ(landed.tokens, (Tokens{2, 3}));
  EXPECT_EQ(landed.end, ReplyEnd::kStop);
}

TEST(RepetitionRule, KeepsTheTokenThatFiresAndClosesTheBlock) {
  ReplyRules reply = rules(guarded({50, kThinkEnd}));
  EXPECT_TRUE(reply.thinking());
  const Landed landed = reply.commit(loop(340, 3));
  EXPECT_EQ(landed.tokens.size(), 323U);  // 256 + 64 + 3
  EXPECT_EQ(landed.unchanged, 323);
  EXPECT_EQ(landed.repetition_period, 3);
  EXPECT_FALSE(landed.end.has_value());
  EXPECT_EQ(reply.repetition_period(), 3);
  EXPECT_EQ(forced(reply), (Tokens{50, kThinkEnd}));
  EXPECT_EQ(commit(reply, {50, kThinkEnd, 4}), (Tokens{50, kThinkEnd, 4}));
}

TEST(RepetitionRule, FiresOnceAndIgnoresALoopInTheAnswer) {
  // No thinking end among the close tokens, so that nothing but the guard closes the block.
  ReplyRules reply = rules(guarded({50}));
  EXPECT_EQ(reply.commit(loop(400, 1)).repetition_period, 1);
  EXPECT_EQ(commit(reply, {50}), (Tokens{50}));
  const Landed answer = reply.commit(loop(600, 1));
  EXPECT_EQ(answer.tokens.size(), 600U);
  EXPECT_EQ(answer.repetition_period, 0);
  ReplyRules closed_by_the_model = rules(guarded({50}));
  EXPECT_EQ(commit(closed_by_the_model, {kThinkEnd}), (Tokens{kThinkEnd}));
  EXPECT_EQ(closed_by_the_model.commit(loop(900, 2)).tokens.size(), 900U);
  EXPECT_EQ(closed_by_the_model.repetition_period(), 0);
}

TEST(RepetitionRule, StopsTheReplyWithoutCloseTokens) {
  ReplyRules reply = rules(guarded({}));
  const Landed landed = reply.commit(loop(400, 2));
  EXPECT_EQ(landed.tokens.size(), 322U);
  EXPECT_EQ(landed.end, ReplyEnd::kStop);
  EXPECT_EQ(landed.repetition_period, 2);
}

TEST(RepetitionRule, AtMaxTokensTheEndIsLength) {
  ReplyLimits limits = guarded({});
  limits.max_tokens = 322;
  ReplyRules reply = rules(limits);
  const Landed landed = reply.commit(loop(400, 2));
  EXPECT_EQ(landed.end, ReplyEnd::kLength);
  EXPECT_EQ(landed.repetition_period, 2);
}

TEST(RepetitionRule, AStopOnTheSameTokenComesFirst) {
  const std::vector<std::string> texts = {"a"};
  ReplyLimits limits = guarded({50});
  limits.stop_strings = {std::string(321, 'a')};  // completed where the guard would fire
  ReplyRules reply(limits, std::make_shared<TokenBytes>(texts));
  const Landed landed = reply.commit(loop(400, 1));
  EXPECT_EQ(landed.tokens.size(), 321U);
  EXPECT_EQ(landed.end, ReplyEnd::kStop);
  EXPECT_EQ(landed.repetition_period, 0);
  EXPECT_EQ(reply.repetition_period(), 0);
}

TEST(RepetitionRule, NeedsItsSwitchAndAnEndToken) {
  ReplyLimits off = guarded({50});
  off.thinking.repetition_guard = false;
  off.thinking.starts_open = true;
  ReplyLimits unknown = guarded({50});
  unknown.thinking.end_token = -1;
  unknown.thinking.starts_open = true;
  ReplyLimits closed = guarded({50});
  closed.thinking.starts_open = false;
  for (const ReplyLimits& limits : {off, unknown, closed}) {
    EXPECT_EQ(rules(limits).commit(loop(500, 1)).tokens.size(), 500U);
  }
  unknown.thinking.starts_open = {};
  EXPECT_FALSE(rules(unknown).thinking());
}

TEST(RepetitionRule, TheBudgetWinsOnTheSameToken) {
  for (const int tokens : {320, 321, 322}) {
    ReplyLimits limits = guarded({50, kThinkEnd});
    limits.thinking.budget = tokens;
    ReplyRules reply = rules(limits);
    const Landed landed = reply.commit(loop(400, 1));
    if (tokens > 321) {
      EXPECT_EQ(landed.tokens, loop(321, 1));
      EXPECT_EQ(landed.repetition_period, 1);
      EXPECT_EQ(forced(reply), (Tokens{50, kThinkEnd}));
    } else {
      EXPECT_EQ(landed.tokens.size(), static_cast<size_t>(tokens));
      EXPECT_EQ(landed.tokens.back(), 50);
      EXPECT_EQ(reply.repetition_period(), 0);
      EXPECT_EQ(forced(reply), (Tokens{kThinkEnd}));
    }
  }
}

TEST(ReplyRulesDeathTest, NothingLandsAfterTheEnd) {
  ReplyRules reply = rules({.max_tokens = 1});
  reply.commit(Tokens{1});
  EXPECT_DEATH(reply.commit(Tokens{1}), "ended_");
}

}  // namespace
}  // namespace flashlane::scheduler
