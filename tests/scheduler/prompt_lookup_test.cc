// Proposals against a naive search through the whole context; ramp, entry and silence by
// themselves; and contexts that would be slow if anything in them were searched in full.
#include "scheduler/prompt_lookup.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

namespace flashlane::scheduler {
namespace {

using Tokens = std::vector<int32_t>;
using Verdict = LookupVerdict;

constexpr int kAny = 1000;  // more than any width

struct Match {
  int length = 0;
  size_t source = 0;
};

// The longest match of at least 8 tokens, 64 at most, the newest among equals, that at least two
// tokens follow.
Match naive_match(const Tokens& context) {
  Match best;
  const size_t size = context.size();
  for (size_t after = size; after-- > 1;) {  // the match ends before context[after]
    if (size - after < 2) continue;
    int length = 0;
    while (length < 64 && static_cast<size_t>(length) < after &&
           context[after - 1 - static_cast<size_t>(length)] ==
               context[size - 1 - static_cast<size_t>(length)]) {
      ++length;
    }
    if (length >= 8 && length > best.length) best = {.length = length, .source = after};
  }
  return best;
}

Tokens naive_proposal(const Tokens& context, int width) {
  const Match match = naive_match(context);
  if (match.length == 0) return {};
  const size_t count =
      std::min(static_cast<size_t>(std::max(width, 0)), context.size() - match.source);
  if (count < 2) return {};
  const auto first = context.begin() + static_cast<std::ptrdiff_t>(match.source);
  return {first, first + static_cast<std::ptrdiff_t>(count)};
}

// Tokens that occur nowhere else in a test.
Tokens fresh(int count) {
  static int32_t next = 1'000'000;
  Tokens tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), next);
  next += count;
  return tokens;
}

Tokens joined(std::initializer_list<Tokens> parts) {
  Tokens all;
  for (const Tokens& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

PromptLookup after(const Tokens& context) {
  PromptLookup lookup;
  lookup.append(std::span(context).first(context.size() - 1));
  lookup.commit(std::span(context).last(1));
  return lookup;
}

// A context that always has a proposal, wherever the rounds are: a loop of 40 tokens.
Tokens round_loop(int position, int count) {
  Tokens tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = (position + i) % 40;
  return tokens;
}

class Loop {
 public:
  Loop() {
    lookup.append(round_loop(0, 200));
    next({});
  }
  void next(Verdict verdict) {
    lookup.commit(round_loop(position_, 1), verdict);
    ++position_;
  }
  bool speaks() const { return !lookup.proposal(false, kAny).empty(); }
  size_t width(bool alone) const { return lookup.proposal(alone, kAny).size(); }
  PromptLookup lookup;

 private:
  int position_ = 200;
};

TEST(PromptLookup, CopiesWhatFollowedTheLongestMatch) {
  const Tokens text = fresh(10);
  const Tokens tail = fresh(20);
  const Tokens other = fresh(20);
  // The older place matches 10 tokens, the newer one 9.
  const Tokens shorter = {text.begin() + 1, text.end()};
  const Tokens context = joined({text, tail, fresh(3), shorter, other, fresh(5), text});
  const PromptLookup lookup = after(context);
  EXPECT_EQ(lookup.matched(), 10);
  EXPECT_EQ(lookup.proposal(false, kAny), (Tokens{tail[0], tail[1], tail[2]}));
}

TEST(PromptLookup, PrefersTheNewestAmongEquals) {
  const Tokens text = fresh(9);
  const Tokens tail = fresh(5);
  const PromptLookup lookup = after(joined({text, fresh(9), text, tail, text}));
  EXPECT_EQ(lookup.proposal(false, kAny), (Tokens{tail[0], tail[1], tail[2]}));
}

TEST(PromptLookup, LooksSixtyFourTokensBackAndNoFurther) {
  const Tokens text = fresh(70);
  const Tokens shorter = {text.begin() + 6, text.end()};
  const Tokens tail = fresh(5);
  // The older place matches 70, the newer 64: they count as equal.
  const PromptLookup lookup = after(joined({text, fresh(9), shorter, tail, text}));
  EXPECT_EQ(lookup.matched(), 64);
  EXPECT_EQ(lookup.proposal(false, 2), (Tokens{tail[0], tail[1]}));
}

TEST(PromptLookup, EntersAtEightTokens) {
  const Tokens text = fresh(8);
  EXPECT_EQ(after(joined({text, fresh(5), text})).matched(), 8);
  const Tokens seven = {text.begin() + 1, text.end()};
  const PromptLookup lookup = after(joined({text, fresh(5), fresh(1), seven}));
  EXPECT_EQ(lookup.matched(), 0);
  EXPECT_TRUE(lookup.proposal(true, kAny).empty());
}

TEST(PromptLookup, ProposesTwoTokensOrNone) {
  const PromptLookup lookup = after(joined({fresh(3), round_loop(0, 90)}));
  EXPECT_EQ(lookup.proposal(false, 2).size(), 2U);
  for (const int most : {1, 0, -1}) EXPECT_TRUE(lookup.proposal(false, most).empty());
  // A place that one token follows is passed over for an older one that two follow.
  const PromptLookup equal = after(Tokens(12, 7));
  EXPECT_EQ(equal.matched(), 10);
  EXPECT_EQ(equal.proposal(false, kAny), (Tokens{7, 7}));
}

TEST(PromptLookup, HasNothingBeforeTheFirstCommitAndInShortContexts) {
  PromptLookup lookup;
  EXPECT_TRUE(lookup.proposal(true, kAny).empty());
  lookup.append(round_loop(0, 200));
  EXPECT_TRUE(lookup.proposal(true, kAny).empty());
  PromptLookup empty;
  for (int i = 0; i < 9; ++i) {
    empty.commit(Tokens{1});
    EXPECT_EQ(empty.matched(), 0);
  }
  empty.commit(Tokens{1});
  EXPECT_EQ(empty.matched(), 8);
}

TEST(PromptLookup, RampGrowsAloneWhileAllLands) {
  Loop loop;
  EXPECT_EQ(loop.width(true), 3U);
  for (const size_t width : {7U, 15U, 15U}) {
    const int drafted = static_cast<int>(loop.width(true));
    loop.next({.drafted = drafted, .accepted = drafted, .alone = true});
    EXPECT_EQ(loop.width(true), width);
    EXPECT_EQ(loop.width(false), 3U);
  }
  EXPECT_EQ(loop.lookup.proposal(true, 9).size(), 9U);
  loop.next({});  // not put to the test: nothing changes
  EXPECT_EQ(loop.width(true), 15U);
  loop.next({.drafted = 3, .accepted = 2, .alone = false});  // nor in company
  EXPECT_EQ(loop.width(true), 15U);
  loop.next({.drafted = 15, .accepted = 14, .alone = true});
  EXPECT_EQ(loop.width(true), 3U);
  loop.next({.drafted = 3, .accepted = 3, .alone = false});
  EXPECT_EQ(loop.width(true), 3U);
}

TEST(PromptLookup, FourMissesInARowSilenceSixteenRounds) {
  for (const bool alone : {false, true}) {
    Loop loop;
    for (int turn = 0; turn < 2; ++turn) {  // and the count begins anew after the silence
      for (int miss = 0; miss < 4; ++miss) {
        ASSERT_TRUE(loop.speaks());
        loop.next({.drafted = 3, .accepted = 0, .alone = alone});
      }
      for (int round = 0; round < 16; ++round) {
        ASSERT_FALSE(loop.speaks()) << round;
        loop.next({});
      }
    }
    EXPECT_TRUE(loop.speaks());
  }
}

TEST(PromptLookup, OneAcceptedTokenBreaksTheRowOfMisses) {
  Loop loop;
  for (int round = 0; round < 40; ++round) {
    loop.next({.drafted = 3, .accepted = round % 4 == 3 ? 1 : 0});
    if (round % 3 == 0) loop.next({});  // a round without a proposal neither counts nor clears
    ASSERT_TRUE(loop.speaks());
  }
}

// Trap T39: the depth rule probes for a copy before the plan asks for it.
TEST(PromptLookup, AskingChangesNothing) {
  Loop asked;
  Loop left;
  for (int round = 0; round < 200; ++round) {
    for (int ask = 0; ask < 20; ++ask) asked.lookup.proposal(ask % 2 == 0, ask);
    ASSERT_EQ(asked.lookup.proposal(true, kAny), left.lookup.proposal(true, kAny));
    ASSERT_EQ(asked.lookup.proposal(true, kAny), asked.lookup.proposal(true, kAny));
    const int drafted = static_cast<int>(left.width(true));
    const Verdict verdict = {
        .drafted = drafted, .accepted = round % 9 < 3 ? drafted : 0, .alone = true};
    asked.next(verdict);
    left.next(verdict);
  }
}

TEST(PromptLookup, LooksAtTheNewestSixtyFourPlaces) {
  const Tokens marker = fresh(8);
  const Tokens text = joined({fresh(12), marker});
  const Tokens tail = fresh(4);
  // Some of the 64 may go to places that share no more than a bucket.
  for (const int newer : {40, 64}) {
    Tokens context = joined({text, tail});
    for (int i = 0; i < newer; ++i) context = joined({context, fresh(4), marker, fresh(3)});
    const PromptLookup lookup = after(joined({context, text}));
    EXPECT_EQ(lookup.matched(), newer == 40 ? 20 : 8);
  }
}

// Each would take minutes if a token or a proposal cost as much as the context is long.
TEST(PromptLookup, StaysFastInLongContexts) {
  const Tokens equal(100'000, 7);
  Tokens markers;  // places that match 8 tokens, none of them 64
  const Tokens marker = fresh(8);
  for (int i = 0; i < 10'000; ++i) {
    markers.insert(markers.end(), marker.begin(), marker.end());
    markers.push_back(i + 10);
    markers.push_back(i + 11);
  }
  for (const Tokens& prompt : {equal, markers}) {
    PromptLookup lookup;
    lookup.append(prompt);
    for (int round = 0; round < 2000; ++round) {
      lookup.commit(std::span(prompt).subspan(static_cast<size_t>(round) * 10, 8));
      ASSERT_FALSE(lookup.proposal(false, kAny).empty());
    }
    PromptLookup one_by_one;
    for (size_t i = 0; i < prompt.size(); ++i) one_by_one.commit(std::span(prompt).subspan(i, 1));
    EXPECT_GE(one_by_one.memory_bytes(), prompt.size() * 12);
  }
}

TEST(PromptLookup, TakesAtMostTwentyFourBytesPerToken) {
  PromptLookup bulk;
  PromptLookup grown;
  for (int size = 1; size < 3000; ++size) {
    grown.commit(Tokens{size});
    EXPECT_LE(grown.memory_bytes(), static_cast<size_t>(size) * 24 + 256);
  }
  bulk.append(fresh(65'537));
  EXPECT_LE(bulk.memory_bytes(), 65'537U * 24);
}

// Short contexts of few ids, where everything matches somewhere, or long ones of blocks and short
// loops that come back. Neither has as many as 64 places with the same last tokens.
Tokens random_context() {
  const int kind = *rc::gen::inRange(0, 3);
  if (kind == 0) {
    const int32_t ids = *rc::gen::inRange(1, 4);
    const int size = *rc::gen::inRange(1, 70);
    Tokens context(static_cast<size_t>(size));
    for (int32_t& token : context) token = *rc::gen::inRange(0, ids);
    return context;
  }
  std::vector<Tokens> blocks;
  for (int block = 0; block < 4; ++block) {
    const int length = *rc::gen::element(3, 7, 8, 9, 20, 63, 64, 65, 80);
    const int period = kind == 1 ? 1000 : *rc::gen::element(1, 2, 5, 1000);
    Tokens tokens;
    for (int i = 0; i < std::min(length, period == 1000 ? length : 12); ++i) {
      tokens.push_back(block * 100 + i % period);
    }
    blocks.push_back(std::move(tokens));
  }
  Tokens context;
  const int parts = *rc::gen::inRange(1, 14);
  for (int part = 0; part < parts; ++part) {
    const Tokens& block = blocks[static_cast<size_t>(*rc::gen::inRange(0, 4))];
    const auto from = static_cast<std::ptrdiff_t>(*rc::gen::element(0, 0, 1, 2));
    context.insert(context.end(), block.begin() + from, block.end());
    if (*rc::gen::inRange(0, 3) == 0) context.push_back(5000 + part);
  }
  return context;
}

TEST(PromptLookup, AgreesWithANaiveSearch) {
  int found = 0;
  const bool passed = rc::check("naive", [&found] {
    const Tokens context = random_context();
    PromptLookup lookup;
    const size_t prompt = std::min(context.size(), static_cast<size_t>(*rc::gen::inRange(0, 200)));
    for (size_t done = 0; done < prompt;) {
      const size_t chunk = std::min(prompt - done, static_cast<size_t>(*rc::gen::inRange(1, 90)));
      lookup.append(std::span(context).subspan(done, chunk));
      done += chunk;
    }
    for (size_t done = prompt; done < context.size();) {
      const size_t run =
          std::min(context.size() - done, static_cast<size_t>(*rc::gen::inRange(1, 5)));
      lookup.commit(std::span(context).subspan(done, run));
      done += run;
      const Tokens so_far(context.begin(), context.begin() + static_cast<std::ptrdiff_t>(done));
      RC_ASSERT(lookup.matched() == naive_match(so_far).length);
      for (const int most : {0, 1, 2, 3, 20}) {
        const Tokens expected = naive_proposal(so_far, std::min(most, 3));
        RC_ASSERT(lookup.proposal(false, most) == expected);
        RC_ASSERT(lookup.proposal(true, most) == expected);
      }
      found += lookup.matched() > 0 ? 1 : 0;
    }
  });
  EXPECT_TRUE(passed);
  EXPECT_GT(found, 100);
}

}  // namespace
}  // namespace flashlane::scheduler
