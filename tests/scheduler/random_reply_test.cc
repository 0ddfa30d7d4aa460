// Random replies, cut alike one token at a time, in runs of any length, with and without rows for
// forced tokens, and by a naive reading of the rules over the whole reply. What is drawn depends on
// all that was committed before, so a token taken from behind a cut shows.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <functional>

#include "scheduler/reply_rules.h"

namespace flashlane::scheduler {
namespace {

using Tokens = std::vector<int32_t>;

const std::vector<std::string> kTexts = {"a", "b", "ab", "", "ba", "c", "d", "e"};

struct Reply {
  Tokens tokens = {};
  std::optional<ReplyEnd> end = {};
  int period = 0;
  friend bool operator==(const Reply&, const Reply&) = default;
};

struct World {
  ReplyLimits limits;
  Tokens script;  // tokens by position while no close token has been committed
  Tokens answer;  // and afterwards
  std::shared_ptr<const TokenBytes> bytes = std::make_shared<TokenBytes>(kTexts);

  int32_t draw(const Tokens& before) const {
    const Tokens& close = limits.thinking.close_tokens;
    const bool closed =
        !close.empty() && std::find(before.begin(), before.end(), close.front()) != before.end();
    const Tokens& tokens = closed ? answer : script;
    return tokens[before.size() % tokens.size()];
  }
};

// Section 3 of the rules read naively: everything is worked out anew over the whole reply.
Reply naive(const World& world) {
  const ThinkingRules& thinking = world.limits.thinking;
  const bool guard = thinking.repetition_guard && thinking.end_token >= 0;
  bool open = thinking.starts_open.value_or(thinking.budget > 0 || guard);
  Reply reply;
  std::string text;
  Tokens queue;
  while (!reply.end) {
    int32_t token = world.draw(reply.tokens);
    const auto count = static_cast<int>(reply.tokens.size()) + 1;
    if (!queue.empty()) {
      token = queue.front();
      queue.erase(queue.begin());
    } else if (open && thinking.budget > 0 && !thinking.close_tokens.empty() &&
               count >= thinking.budget) {
      queue = thinking.close_tokens;
      token = queue.front();
      queue.erase(queue.begin());
      open = false;
    }
    reply.tokens.push_back(token);
    text += world.bytes->bytes(token);
    if (token == thinking.end_token) open = false;
    int period = 0;
    for (int p = 8; guard && open && p >= 1; --p) {
      bool repeats = count - 256 - p >= 64;
      for (int i = count - 256; repeats && i < count; ++i) {
        repeats = reply.tokens[static_cast<size_t>(i)] == reply.tokens[static_cast<size_t>(i - p)];
      }
      if (repeats) period = p;
    }
    const Tokens& ends = world.limits.end_ids;
    const bool stops =
        std::any_of(world.limits.stop_strings.begin(), world.limits.stop_strings.end(),
                    [&](const std::string& stop) { return text.find(stop) != std::string::npos; });
    if (stops || std::find(ends.begin(), ends.end(), token) != ends.end()) {
      reply.end = ReplyEnd::kStop;
    } else if (period > 0) {
      reply.period = period;
      if (count >= world.limits.max_tokens) {
        reply.end = ReplyEnd::kLength;
      } else if (thinking.close_tokens.empty()) {
        reply.end = ReplyEnd::kStop;
      }
      queue = thinking.close_tokens;
      open = false;
    } else if (count >= world.limits.max_tokens) {
      reply.end = ReplyEnd::kLength;
    }
  }
  return reply;
}

// The reply by steps whose segments have as many rows as `rows` says. Forced tokens get rows when
// `force_rows`; the verify step draws on what the rows hold, right or wrong.
Reply by_steps(const World& world, const std::function<int()>& rows, bool force_rows,
               bool within_room) {
  ReplyRules reply(world.limits, world.bytes);
  Reply result;
  while (!result.end) {
    int count = rows();
    if (within_room) count = std::min(count, reply.draft_room());
    Tokens before = result.tokens;
    Tokens drawn;
    size_t taken = 0;
    if (force_rows) {
      const std::span<const int32_t> due = reply.forced();
      taken = std::min(due.size(), static_cast<size_t>(count - 1));
      drawn.assign(due.begin(), due.begin() + static_cast<std::ptrdiff_t>(taken));
      before.insert(before.end(), drawn.begin(), drawn.end());
      if (taken > 0) count = static_cast<int>(taken) + 1;
    }
    while (static_cast<int>(drawn.size()) < count) {
      drawn.push_back(world.draw(before));
      before.push_back(drawn.back());
    }
    const std::optional<int32_t> replacement = reply.replacement(static_cast<int>(taken));
    const Landed landed = reply.commit(drawn);
    const auto kept = static_cast<std::ptrdiff_t>(landed.unchanged);
    RC_ASSERT(!landed.tokens.empty());
    RC_ASSERT(landed.tokens.size() <= drawn.size());
    RC_ASSERT(landed.tokens.size() - static_cast<size_t>(kept) <= 1U);
    RC_ASSERT(std::equal(drawn.begin(), drawn.begin() + kept, landed.tokens.begin()));
    if (force_rows && within_room && static_cast<size_t>(kept) < landed.tokens.size()) {
      RC_ASSERT(replacement == landed.tokens.back());  // known before the draw
    }
    result.tokens.insert(result.tokens.end(), landed.tokens.begin(), landed.tokens.end());
    result.end = landed.end;
    RC_ASSERT(landed.repetition_period == 0 || result.period == 0);  // at most once
    if (landed.repetition_period != 0) result.period = landed.repetition_period;
    RC_ASSERT(reply.emitted() == static_cast<int>(result.tokens.size()));
    RC_ASSERT(reply.ended() == result.end.has_value());
    RC_ASSERT(reply.repetition_period() == result.period);
    RC_ASSERT((reply.draft_room() == 0) == reply.ended());
  }
  return result;
}

// Stretches of anything, ends (6) and thinking ends (7) among them, then a loop: in every other
// script one that the guard would need all of.
Tokens random_script() {
  Tokens script;
  const bool loops = *rc::gen::arbitrary<bool>();
  const int stretches = loops ? 1 : *rc::gen::inRange(1, 4);
  for (int stretch = 0; stretch < stretches; ++stretch) {
    const int length = *rc::gen::element(0, 1, 40, 63, 64, 65, 90);
    for (int i = 0; i < length; ++i) script.push_back((i * i + stretch) % 6);
    if (!loops) script.push_back(*rc::gen::element<int32_t>(0, 1, 2, 3, 6, 7));
  }
  const int period = *rc::gen::element(1, 2, 3, 5, 8, 9);
  const int length = loops ? 400 : *rc::gen::element(1, 20, 258);
  for (int i = 0; i < length; ++i) script.push_back(i % period % 6);
  return script;
}

World random_world() {
  World world;
  world.limits.max_tokens = *rc::gen::element(2, 60, 321, 325, 340, 400, 500, 600);
  world.limits.end_ids = *rc::gen::element(Tokens{}, Tokens{6}, Tokens{6, 20});
  world.limits.stop_strings =
      *rc::gen::element(std::vector<std::string>{}, std::vector<std::string>{},
                        std::vector<std::string>{"cab"}, std::vector<std::string>{"bbbb", "ed"});
  ThinkingRules& thinking = world.limits.thinking;
  thinking.budget = *rc::gen::element(0, 0, 0, 0, 0, 1, 16, 63, 320, 321, 322, 330, 400);
  thinking.close_tokens =
      *rc::gen::element(Tokens{}, Tokens{7}, Tokens{21, 22, 7}, Tokens{21, 20, 22}, Tokens{0, 1},
                        Tokens{21, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 7});
  thinking.end_token = *rc::gen::element<int32_t>(-1, 7, 7, 7);
  thinking.repetition_guard = *rc::gen::inRange(0, 4) != 0;
  thinking.starts_open =
      *rc::gen::element<std::optional<bool>>(std::nullopt, std::nullopt, true, false);
  world.script = random_script();
  world.answer = random_script();
  return world;
}

// One random world, cut in every way; what it showed is counted, so that a generator that stopped
// reaching a rule does not look like a rule that holds.
struct Seen {
  int stops = 0;
  int lengths = 0;
  int periods = 0;
  int closes = 0;
};

void compare(Seen& seen) {
  const World world = random_world();
  const Reply expected = naive(world);
  RC_ASSERT(by_steps(
                world, [] { return 1; }, false, false) == expected);
  const bool within_room = *rc::gen::arbitrary<bool>();
  const bool force_rows = *rc::gen::arbitrary<bool>();
  const auto any = [] { return *rc::gen::inRange(1, 17); };
  RC_ASSERT(by_steps(world, any, force_rows, within_room) == expected);
  const int fixed = any();
  RC_ASSERT(by_steps(
                world, [fixed] { return fixed; }, force_rows, within_room) == expected);
  (expected.end == ReplyEnd::kStop ? seen.stops : seen.lengths) += 1;
  seen.periods += expected.period != 0 ? 1 : 0;
  const bool closed =
      std::find(expected.tokens.begin(), expected.tokens.end(), 21) != expected.tokens.end();
  seen.closes += closed ? 1 : 0;
}

TEST(RandomReply, EveryRunLengthCutsAtTheSameToken) {
  Seen seen;
  const bool passed = rc::check("same cut", [&seen] {
    for (int world = 0; world < 10; ++world) compare(seen);
  });
  EXPECT_TRUE(passed);
  EXPECT_GT(seen.stops, 50);
  EXPECT_GT(seen.lengths, 50);
  EXPECT_GT(seen.periods, 10);
  EXPECT_GT(seen.closes, 50);
}

}  // namespace
}  // namespace flashlane::scheduler
