// Each rule of the kept states by itself: what is found, where marks lie, who goes first, and what
// happens to pages that a step in flight uses.
#include "memory/prompt_cache.h"

#include <gtest/gtest.h>

#include <initializer_list>

namespace flashlane::memory {
namespace {

using Tokens = std::vector<int32_t>;
using Marks = std::vector<int>;

// `count` tokens of the text with this number; different texts differ from the first token on.
Tokens text(int number, int count) {
  Tokens tokens(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) tokens[static_cast<size_t>(i)] = 1'000'000 * number + i;
  return tokens;
}

Tokens operator+(Tokens a, const Tokens& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Room for `entries` states of up to 64 tokens.
PromptCacheOptions room_for(int entries) {
  return {.pages = 3 * entries, .page_rows = 64, .state_pages = 2};
}

// Keeps the whole text's state, a token behind it being left to do.
EntryId keep(PromptCache* cache, const Tokens& tokens) {
  const auto kept = cache->keep(tokens + Tokens{0}, static_cast<int>(tokens.size()));
  EXPECT_TRUE(kept);
  if (!kept) return {};
  cache->settle(kept->entry);
  cache->check();
  return kept->entry;
}

bool holds(const PromptCache& cache, const Tokens& tokens) {
  const auto found = cache.find(tokens + Tokens{0});
  return found.entry && found.position == static_cast<int>(tokens.size());
}

// A prompt as it is served: resumes, keeps what the marks say. Its places: the system prefix's end,
// and where the last user message begins.
struct Served {
  int resumed = 0;
  Marks marks;
};

Served serve(PromptCache* cache, const Tokens& prompt, Marks wanted) {
  const auto found = cache->find(prompt);
  Served served{found.position, cache->marks(prompt, wanted, found)};
  if (found.entry) {
    cache->pin(*found.entry);
    cache->unpin(*found.entry);
    cache->resumed(*found.entry);
  } else {
    cache->missed();
  }
  for (const int mark : served.marks) {
    if (const auto kept = cache->keep(prompt, mark)) cache->settle(kept->entry);
  }
  cache->check();
  return served;
}

PromptCacheOptions large() {
  return {.pages = 1000, .page_rows = 64, .state_pages = 2};
}

TEST(PromptCache, OffKeepsNothingAndSaysSo) {
  PromptCache cache({});
  EXPECT_TRUE(cache.off());
  const Tokens prompt = text(1, 900);
  const auto found = cache.find(prompt);
  EXPECT_FALSE(found.entry);
  EXPECT_EQ(found.miss, Miss::kOff);
  EXPECT_EQ(cache.marks(prompt, Marks{600}, found), Marks{});
  EXPECT_FALSE(cache.keep(prompt, 600));
  EXPECT_EQ(cache.usage(), PromptCacheUsage{});
  cache.clear();
  cache.check();
}

TEST(PromptCache, AnEntryTakesItsStateAndWholePagesOfRows) {
  const PromptCache cache({.pages = 100, .page_rows = 64, .state_pages = 18});
  EXPECT_EQ(cache.entry_pages(1), 19);
  EXPECT_EQ(cache.entry_pages(64), 19);
  EXPECT_EQ(cache.entry_pages(65), 20);
  EXPECT_EQ(cache.entry_pages(640), 28);
}

TEST(PromptCache, SettledEntriesByTheirLastUse) {
  PromptCache cache(room_for(4));
  const EntryId first = keep(&cache, text(1, 10));
  const EntryId second = keep(&cache, text(2, 10));
  const EntryId third = keep(&cache, text(3, 10));
  cache.pin(first);
  cache.unpin(first);
  cache.resumed(first);
  ASSERT_TRUE(cache.keep(text(4, 10), 9));  // being copied
  EXPECT_EQ(cache.by_use(), (std::vector<EntryId>{second, third, first}));
  const std::span<const int32_t> tokens = cache.tokens(second);
  EXPECT_EQ(Tokens(tokens.begin(), tokens.end()), text(2, 10));
  cache.drop(third);
  EXPECT_EQ(cache.by_use(), (std::vector<EntryId>{second, first}));
}

TEST(PromptCache, FirstPromptsMissByName) {
  PromptCache cache(large());
  EXPECT_EQ(cache.find(text(1, 40)).miss, Miss::kEmpty);
  keep(&cache, text(2, 30));
  EXPECT_EQ(cache.find(text(1, 40)).miss, Miss::kDiffers);
  // Shares a beginning, but not up to a kept state.
  const auto found = cache.find(text(2, 20) + text(3, 20));
  EXPECT_EQ(found.miss, Miss::kDiffers);
  EXPECT_EQ(found.first_difference, 20);
  keep(&cache, text(2, 10) + text(9, 10));  // stands behind the closest one
  EXPECT_EQ(cache.find(text(2, 20) + text(3, 20)).first_difference, 20);
  EXPECT_EQ(cache.find({}).miss, Miss::kDiffers);
}

TEST(PromptCache, ANextTurnResumesAtTheEndOfTheTurnBefore) {
  PromptCache cache(large());
  const Tokens first = text(1, 600) + text(2, 400);
  EXPECT_EQ(serve(&cache, first, {600, 600}).marks, (Marks{600, 999}));
  const Tokens second = first + text(3, 500) + text(4, 300);
  const Served next = serve(&cache, second, {600, 1500});
  EXPECT_EQ(next.resumed, 999);
  EXPECT_EQ(next.marks, (Marks{1500, 1799}));
  const Served third = serve(&cache, second + text(5, 700), {600, 1900});
  EXPECT_EQ(third.resumed, 1799);
  EXPECT_EQ(third.marks, (Marks{1900, 2499})) << "the one before the user's words stands anyhow";
  EXPECT_EQ(cache.usage().hits, 2);
  EXPECT_EQ(cache.usage().misses, 1);
  EXPECT_EQ(cache.usage().kept, 6);
}

TEST(PromptCache, AnEditedTurnResumesBeforeIt) {
  PromptCache cache(large());
  const Tokens history = text(1, 600) + text(2, 400) + text(3, 500);
  serve(&cache, history + text(4, 800), {600, 1500});
  const Tokens edited = history + text(4, 300) + text(5, 600);
  const auto found = cache.find(edited);
  EXPECT_EQ(found.position, 1500);
  EXPECT_EQ(found.first_difference, 1800);
  EXPECT_EQ(serve(&cache, edited, {600, 1500}).marks, (Marks{1800, 2399}));
  const Served again = serve(&cache, history + text(4, 300) + text(6, 600), {600, 1500});
  EXPECT_EQ(again.resumed, 1800) << "where edits part was kept";
}

TEST(PromptCache, ARewindResumesAtTheTurnsEndThatIsLeft) {
  PromptCache cache(large());
  const Tokens first = text(1, 1000);
  serve(&cache, first, {0});
  serve(&cache, first + text(2, 1000), {1400});
  serve(&cache, first + text(2, 1000) + text(3, 1000), {2400});
  EXPECT_EQ(cache.find(first + text(2, 400) + text(9, 10)).position, 1400);
  EXPECT_EQ(cache.find(first + text(9, 400)).position, 999);
  EXPECT_EQ(cache.find(first + text(2, 1000) + text(9, 5)).position, 1999);
}

TEST(PromptCache, AResendResumesOneTokenBeforeItsEndAndKeepsNothing) {
  PromptCache cache(large());
  const Tokens prompt = text(1, 1000);
  serve(&cache, prompt, {600});
  const PromptCacheUsage before = cache.usage();
  const Served again = serve(&cache, prompt, {600});
  EXPECT_EQ(again.resumed, 999);
  EXPECT_EQ(again.marks, Marks{});
  EXPECT_EQ(cache.usage().used_pages, before.used_pages);
  EXPECT_FALSE(cache.keep(prompt, 999));
  EXPECT_EQ(cache.usage().refused, 0);
  EXPECT_EQ(cache.find(prompt).first_difference, 999);
  // A state of the whole prompt leaves no row whose output could be drawn from.
  keep(&cache, prompt);
  EXPECT_EQ(cache.find(prompt).position, 999);
  EXPECT_EQ(cache.find(prompt).first_difference, 1000);
}

TEST(PromptCache, ShortPromptsAreKeptToo) {
  PromptCache cache(large());
  const Tokens prompt = text(1, 12) + text(2, 28);
  EXPECT_EQ(serve(&cache, prompt, {12, 12}).marks, (Marks{12, 39}));
  EXPECT_EQ(serve(&cache, prompt, {12, 12}).resumed, 39);
  EXPECT_EQ(serve(&cache, text(1, 12) + text(3, 28), {12, 12}).resumed, 12);
  EXPECT_EQ(cache.marks(text(4, 1), {}, {}), Marks{}) << "one token leaves nothing to keep";
  EXPECT_EQ(cache.marks(text(4, 2), {}, {}), Marks{1});
  EXPECT_EQ(cache.marks({}, Marks{5}, {}), Marks{});
}

TEST(PromptCache, MarksKeepTheirDistance) {
  PromptCache cache(large());
  const Tokens prompt = text(1, 2000);
  const auto marks = [&](Marks wanted, int resumed, int difference) {
    PromptCache::Lookup found;
    found.position = resumed;
    found.first_difference = difference;
    return cache.marks(prompt, wanted, found);
  };
  EXPECT_EQ(marks({256, 512, 1000}, 0, 0), (Marks{256, 512, 1000, 1999}));
  EXPECT_EQ(marks({255, 1000}, 0, 0), (Marks{1000, 1999})) << "too near to the beginning";
  EXPECT_EQ(marks({600, 855, 856, 1200}, 0, 0), (Marks{600, 856, 1200, 1999}));
  EXPECT_EQ(marks({745, 1000}, 0, 0), (Marks{1000, 1999})) << "too near to the last message";
  EXPECT_EQ(marks({744, 1000}, 0, 0), (Marks{744, 1000, 1999}));
  EXPECT_EQ(marks({1744, 100}, 0, 0), (Marks{100, 1999})) << "too near to the end";
  EXPECT_EQ(marks({1743, 100}, 0, 0), (Marks{100, 1743, 1999}));
  EXPECT_EQ(marks({1990}, 1980, 0), (Marks{1990, 1999})) << "these stand whatever is near";
  EXPECT_EQ(marks({600, 1000}, 345, 0), (Marks{1000, 1999})) << "too near to the place resumed";
  EXPECT_EQ(marks({600, 1000}, 344, 0), (Marks{600, 1000, 1999}));
  EXPECT_EQ(marks({600, 1500}, 0, 855), (Marks{600, 1500, 1999})) << "the wanted ones go first";
  EXPECT_EQ(marks({600, 1500}, 0, 856), (Marks{600, 856, 1500, 1999}));
  EXPECT_EQ(marks({600, 1000}, 1000, 1500), (Marks{1500, 1999})) << "only above the place resumed";
  EXPECT_EQ(marks({-3, 2000}, 0, 2000), (Marks{1999})) << "only inside the prompt";
  EXPECT_EQ(marks({}, 0, 700), (Marks{700, 1999}));
}

TEST(PromptCache, MarksLeaveOutWhatIsKept) {
  PromptCache cache(large());
  const Tokens prompt = text(1, 2000);
  keep(&cache, text(1, 600));
  // As after a restore that failed: the prompt begins at 0, the other entry is still there.
  EXPECT_EQ(cache.marks(prompt, Marks{600, 1000}, {}), (Marks{1000, 1999}));
  EXPECT_EQ(cache.marks(text(2, 2000), Marks{600, 1000}, {}), (Marks{600, 1000, 1999}));
  const auto copying = cache.keep(prompt, 1000);
  ASSERT_TRUE(copying);
  EXPECT_EQ(cache.marks(prompt, Marks{600, 1000}, {}), (Marks{1000, 1999})) << "it may yet fail";
}

TEST(PromptCache, MarksLieOnTheGrid) {
  PromptCache cache({.pages = 100, .page_rows = 64, .state_pages = 2, .grid = 64});
  const Tokens prompt = text(1, 1000);
  EXPECT_EQ(cache.marks(prompt, Marks{400, 700}, {}), (Marks{384, 640, 960}));
  PromptCache::Lookup found;
  found.position = 640;
  EXPECT_EQ(cache.marks(prompt, Marks{400, 700}, found), Marks{960});
  EXPECT_EQ(cache.marks(text(1, 64), {}, {}), Marks{});
  EXPECT_EQ(cache.marks(text(1, 65), {}, {}), Marks{64});
  EXPECT_DEATH(static_cast<void>(cache.keep(prompt, 700)), "grid");
}

TEST(PromptCache, WhatItsOwnConversationLeftBehindGoesFirst) {
  PromptCache cache(room_for(4));
  const Tokens talk = text(1, 20);
  keep(&cache, text(2, 20));  // the least recently used
  keep(&cache, talk);
  keep(&cache, talk + text(3, 20));
  keep(&cache, talk + text(3, 20) + text(4, 20));
  keep(&cache, text(5, 20));
  EXPECT_FALSE(holds(cache, talk));
  keep(&cache, text(6, 20));
  EXPECT_FALSE(holds(cache, talk + text(3, 20)));
  EXPECT_TRUE(holds(cache, text(2, 20)));
  keep(&cache, text(7, 20));
  EXPECT_FALSE(holds(cache, text(2, 20))) << "now nobody is left behind";
  EXPECT_TRUE(holds(cache, talk + text(3, 20) + text(4, 20)));
  EXPECT_EQ(cache.usage().evicted, 3);
}

TEST(PromptCache, AmongThoseLeftBehindTheLeastRecentlyUsedGoesFirst) {
  PromptCache cache(room_for(4));
  const EntryId first = keep(&cache, text(1, 20));
  keep(&cache, text(1, 40));
  keep(&cache, text(2, 20));
  keep(&cache, text(2, 40));
  cache.resumed(first);
  keep(&cache, text(3, 20));
  EXPECT_FALSE(holds(cache, text(2, 20)));
  keep(&cache, text(4, 20));
  EXPECT_FALSE(holds(cache, text(1, 20)));
  EXPECT_TRUE(holds(cache, text(1, 40)));
}

TEST(PromptCache, WhatConversationsShareIsNotLeftBehind) {
  PromptCache cache(room_for(4));
  keep(&cache, text(1, 20));
  keep(&cache, text(1, 20) + text(2, 20));
  keep(&cache, text(1, 20) + text(3, 20));
  keep(&cache, text(1, 20) + text(3, 30));
  keep(&cache, text(4, 20));
  EXPECT_TRUE(holds(cache, text(1, 20)));
  EXPECT_FALSE(holds(cache, text(1, 20) + text(3, 20))) << "this one's conversation moved on";
}

TEST(PromptCache, OnlyALaterKeptEntryLeavesOthersBehind) {
  PromptCache cache(room_for(3));
  keep(&cache, text(2, 20));
  keep(&cache, text(1, 40));
  keep(&cache, text(1, 20));
  keep(&cache, text(3, 20));
  EXPECT_FALSE(holds(cache, text(2, 20))) << "the least recently used of all";
  EXPECT_TRUE(holds(cache, text(1, 20)));
  // A copy in flight leaves nobody behind either: it may fail.
  PromptCache other(room_for(3));
  keep(&other, text(2, 20));
  keep(&other, text(1, 20));
  ASSERT_TRUE(other.keep(text(1, 41), 40));
  keep(&other, text(3, 20));
  EXPECT_FALSE(holds(other, text(2, 20)));
  EXPECT_TRUE(holds(other, text(1, 20)));
}

TEST(PromptCache, UseAndRepetitionRefresh) {
  PromptCache cache(room_for(3));
  const EntryId first = keep(&cache, text(1, 20));
  keep(&cache, text(2, 20));
  keep(&cache, text(3, 20));
  cache.resumed(first);
  EXPECT_FALSE(cache.keep(text(2, 21), 20)) << "the same tokens are kept already";
  keep(&cache, text(4, 20));
  EXPECT_FALSE(holds(cache, text(3, 20)));
  keep(&cache, text(5, 20));
  EXPECT_FALSE(holds(cache, text(1, 20)));
  keep(&cache, text(6, 20));
  EXPECT_FALSE(holds(cache, text(2, 20)));
  EXPECT_EQ(cache.usage().refused, 0);
  EXPECT_EQ(cache.usage().hits, 1);
}

TEST(PromptCache, OneLargeEntryTakesTheRoomOfSeveral) {
  PromptCache cache(room_for(3));
  for (const int number : {1, 2, 3}) keep(&cache, text(number, 64));
  keep(&cache, text(4, 65));
  EXPECT_EQ(cache.usage().evicted, 2) << "four pages, where each holds three";
  EXPECT_TRUE(holds(cache, text(3, 64)));
  EXPECT_EQ(cache.usage().used_pages, 7);
}

TEST(PromptCache, PinnedEntriesStayAndARefusalEvictsNobody) {
  PromptCache cache(room_for(2));
  const EntryId first = keep(&cache, text(1, 20));
  const EntryId second = keep(&cache, text(2, 20));
  cache.pin(first);
  cache.pin(first);
  EXPECT_FALSE(cache.keep(text(3, 66), 65)) << "four pages, three could be had";
  EXPECT_TRUE(holds(cache, text(2, 20)));
  cache.pin(second);
  EXPECT_FALSE(cache.keep(text(3, 21), 20));
  EXPECT_EQ(cache.usage().refused, 2);
  cache.unpin(first);
  EXPECT_FALSE(cache.keep(text(3, 21), 20)) << "pins are counted";
  cache.unpin(first);
  keep(&cache, text(3, 20));
  EXPECT_FALSE(holds(cache, text(1, 20)));
  // Now the least recently used one is pinned: the other goes.
  keep(&cache, text(4, 20));
  EXPECT_TRUE(holds(cache, text(2, 20)));
  EXPECT_FALSE(holds(cache, text(3, 20)));
  EXPECT_EQ(cache.usage().evicted, 2);
}

TEST(PromptCache, WhatNeverFitsIsRefused) {
  PromptCache cache(room_for(2));
  keep(&cache, text(1, 20));
  EXPECT_FALSE(cache.keep(text(2, 400), 257)) << "seven pages of six";
  EXPECT_EQ(cache.usage().refused, 1);
  EXPECT_TRUE(holds(cache, text(1, 20)));
  keep(&cache, text(2, 256));
  EXPECT_EQ(cache.usage().used_pages, 6);
}

TEST(PromptCache, ACopyInFlightIsNeitherFoundNorEvicted) {
  PromptCache cache(room_for(1));
  const auto kept = cache.keep(text(1, 21), 20);
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->pages, (std::vector<PageId>{0, 1, 2}));
  EXPECT_EQ(cache.find(text(1, 21)).miss, Miss::kEmpty);
  EXPECT_FALSE(cache.keep(text(1, 21), 20)) << "is being kept already";
  EXPECT_EQ(cache.usage().refused, 0);
  EXPECT_FALSE(cache.keep(text(2, 21), 20));
  EXPECT_EQ(cache.usage().refused, 1);
  EXPECT_EQ(cache.usage().kept, 0);
  cache.settle(kept->entry);
  EXPECT_TRUE(holds(cache, text(1, 20)));
  EXPECT_EQ(cache.usage().kept, 1);
  const auto pages = cache.pages(kept->entry);
  EXPECT_EQ(std::vector<PageId>(pages.begin(), pages.end()), kept->pages);
}

TEST(PromptCache, AnotherEntryGoesBeforeAnOlderCopyInFlight) {
  PromptCache cache(room_for(2));
  const auto copying = cache.keep(text(1, 21), 20);
  ASSERT_TRUE(copying);
  keep(&cache, text(2, 20));
  keep(&cache, text(3, 20));
  EXPECT_FALSE(holds(cache, text(2, 20)));
  cache.settle(copying->entry);
  EXPECT_TRUE(holds(cache, text(1, 20)));
}

TEST(PromptCache, ADroppedCopyGivesItsPagesBack) {
  PromptCache cache(room_for(1));
  const auto kept = cache.keep(text(1, 21), 20);
  ASSERT_TRUE(kept);
  cache.drop(kept->entry);
  cache.drop(kept->entry);
  cache.drop(EntryId{99});
  cache.check();
  EXPECT_EQ(cache.usage(), (PromptCacheUsage{.pages = 3}));
  EXPECT_EQ(cache.find(text(1, 21)).miss, Miss::kEmpty);
  EXPECT_EQ(cache.keep(text(2, 21), 20)->pages, kept->pages);
}

TEST(PromptCache, AFailedRestoreDropsItsEntryButNotUnderAnother) {
  PromptCache cache(room_for(1));
  const EntryId id = keep(&cache, text(1, 20));
  cache.pin(id);  // two sequences restore it in one step
  cache.pin(id);
  cache.failed(id);
  cache.unpin(id);
  EXPECT_FALSE(holds(cache, text(1, 20)));
  EXPECT_EQ(cache.find(text(1, 21)).miss, Miss::kEmpty);
  EXPECT_EQ(cache.usage().used_pages, 3) << "the other one still reads them";
  EXPECT_FALSE(cache.keep(text(1, 21), 20));
  EXPECT_EQ(cache.usage().refused, 1);
  cache.resumed(id);
  cache.unpin(id);
  cache.unpin(id);
  cache.check();
  EXPECT_EQ(cache.usage().used_pages, 0);
  EXPECT_EQ(cache.usage().hits, 1);
  EXPECT_EQ(cache.usage().failed, 1);
  keep(&cache, text(1, 20));
}

TEST(PromptCache, WhatWasDroppedIsKeptAnewBesideItsOldPages) {
  PromptCache cache(room_for(2));
  const EntryId old = keep(&cache, text(1, 20));
  cache.pin(old);
  cache.failed(old);
  const EntryId anew = keep(&cache, text(1, 20));
  EXPECT_NE(anew, old);
  EXPECT_EQ(cache.find(text(1, 21)).entry, anew);
  EXPECT_EQ(cache.usage().entries, 2);
  cache.unpin(old);
  cache.check();
  EXPECT_EQ(cache.find(text(1, 21)).entry, anew);
  EXPECT_EQ(cache.usage().used_pages, 3);
}

TEST(PromptCache, ClearingSparesPagesInFlight) {
  PromptCache cache(room_for(4));
  keep(&cache, text(1, 20));
  const EntryId pinned = keep(&cache, text(2, 20));
  cache.pin(pinned);
  const auto settled = cache.keep(text(3, 21), 20);
  const auto dropped = cache.keep(text(4, 21), 20);
  ASSERT_TRUE(settled && dropped);
  cache.clear();
  cache.check();
  EXPECT_EQ(cache.usage().used_pages, 9);
  EXPECT_EQ(cache.find(text(1, 21)).miss, Miss::kEmpty);
  cache.settle(settled->entry);
  EXPECT_EQ(cache.find(text(3, 21)).miss, Miss::kEmpty);
  cache.drop(dropped->entry);
  cache.unpin(pinned);
  cache.check();
  EXPECT_EQ(cache.usage().used_pages, 0);
  EXPECT_EQ(cache.usage().kept, 2) << "what was counted stays, what was dropped was not kept";
}

TEST(PromptCache, TokensTakeFourBytesEach) {
  PromptCache cache(large());
  EXPECT_EQ(cache.token_bytes(), 0U);
  keep(&cache, text(1, 8000));
  keep(&cache, text(1, 500));
  EXPECT_EQ(cache.token_bytes(), 4U * 8500);
}

TEST(PromptCache, MisuseAborts) {
  PromptCache cache(room_for(2));
  const auto copying = cache.keep(text(1, 21), 20);
  ASSERT_TRUE(copying);
  EXPECT_DEATH(cache.pin(copying->entry), "kept");
  EXPECT_DEATH(cache.pin(EntryId{7}), "index");
  EXPECT_DEATH(cache.settle(EntryId{7}), "index");
  cache.settle(copying->entry);
  EXPECT_DEATH(cache.settle(copying->entry), "copying");
  EXPECT_DEATH(cache.unpin(copying->entry), "pins");
  EXPECT_DEATH(static_cast<void>(cache.pages(EntryId{7})), "index");
  EXPECT_DEATH(static_cast<void>(cache.keep(text(2, 20), 21)), "position");
  EXPECT_DEATH(static_cast<void>(cache.keep(text(2, 20), 0)), "position");
  EXPECT_DEATH(PromptCache({.pages = 4}), "page_rows");
}

}  // namespace
}  // namespace flashlane::memory
