// The kept states against a naive model, event by event: random conversations that branch, are
// rewound and sent again, with copies and restores that are in flight, come back, fail or are
// dropped. The model compares whole texts for every answer and has no order, no sharing, no pages
// in lists; what it can't say (which page ids) is only checked against what it knows to be free.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

#include "memory/prompt_cache.h"

namespace flashlane::memory {
namespace {

using Tokens = std::vector<int32_t>;
using Marks = std::vector<int>;

bool begins(const Tokens& text, const Tokens& beginning) {
  return beginning.size() <= text.size() &&
         std::equal(beginning.begin(), beginning.end(), text.begin());
}

Tokens beginning_of(const Tokens& text, int count) {
  return {text.begin(), text.begin() + count};
}

struct Model {
  struct Entry {
    EntryId id;
    Tokens tokens;
    std::vector<PageId> pages;
    uint64_t last_use = 0;
    int pins = 0;
    bool copying = false;
    bool leaving = false;
  };

  explicit Model(PromptCacheOptions o) : options(o) {
    for (PageId page = 0; page < o.pages; ++page) free.insert(page);
    counts.pages = o.pages;
  }

  static bool kept(const Entry& entry) { return !entry.copying && !entry.leaving; }
  static bool in_use(const Entry& entry) { return entry.copying || entry.pins > 0; }
  int entry_pages(int position) const {
    int pages = options.state_pages;
    for (int row = 0; row < position; row += options.page_rows) ++pages;
    return pages;
  }

  PromptCache::Lookup find(const Tokens& prompt) const {
    PromptCache::Lookup found;
    found.miss = options.pages == 0 ? Miss::kOff : Miss::kEmpty;
    for (const Entry& entry : entries) {
      if (!kept(entry)) continue;
      if (found.miss == Miss::kEmpty) found.miss = Miss::kDiffers;
      int shared = 0;
      while (begins(prompt, beginning_of(entry.tokens, shared))) {
        if (++shared > static_cast<int>(entry.tokens.size())) break;
      }
      found.first_difference = std::max(found.first_difference, shared - 1);
      const int position = static_cast<int>(entry.tokens.size());
      if (begins(prompt, entry.tokens) && entry.tokens.size() < prompt.size() &&
          position > found.position) {
        found.entry = entry.id;
        found.position = position;
      }
    }
    if (found.entry) found.miss = Miss::kNone;
    return found;
  }

  Marks marks(const Tokens& prompt, const Marks& wanted, const PromptCache::Lookup& found) const {
    if (options.pages == 0) return {};
    const auto legal = [&](int mark) {
      return mark > found.position && mark < static_cast<int>(prompt.size());
    };
    const auto floored = [&](int place) { return place / options.grid * options.grid; };
    std::set<int> chosen;
    Marks others = wanted;
    if (!others.empty()) {
      if (legal(floored(others.back()))) chosen.insert(floored(others.back()));
      others.pop_back();
    }
    const int end = floored(static_cast<int>(prompt.size()) - 1);
    if (legal(end)) chosen.insert(end);
    others.push_back(found.first_difference);
    for (const int place : others) {
      const int mark = floored(place);
      bool apart = legal(mark) && mark - found.position >= options.least_gap;
      for (const int other : chosen) {
        apart = apart && std::max(mark, other) - std::min(mark, other) >= options.least_gap;
      }
      if (apart) chosen.insert(mark);
    }
    Marks marks;
    for (const int mark : chosen) {
      const bool is_kept = std::any_of(entries.begin(), entries.end(), [&](const Entry& entry) {
        return kept(entry) && entry.tokens == beginning_of(prompt, mark);
      });
      if (!is_kept) marks.push_back(mark);
    }
    return marks;
  }

  std::vector<const Entry*> extensions(const Entry& entry) const {
    std::vector<const Entry*> longer;
    for (const Entry& other : entries) {
      if (kept(other) && other.tokens.size() > entry.tokens.size() &&
          begins(other.tokens, entry.tokens)) {
        longer.push_back(&other);
      }
    }
    return longer;
  }

  bool extended_later(const Entry& entry) const {
    const auto longer = extensions(entry);
    return std::any_of(longer.begin(), longer.end(),
                       [&](const Entry* other) { return other->id.value > entry.id.value; });
  }

  bool shared(const Entry& entry) const {
    const auto longer = extensions(entry);
    for (const Entry* a : longer) {
      for (const Entry* b : longer) {
        if (!begins(a->tokens, b->tokens) && !begins(b->tokens, a->tokens)) return true;
      }
    }
    return false;
  }

  // What the cache did about the state of these tokens must be what it had to do.
  void keep(const Tokens& tokens, const std::optional<PromptCache::Kept>& kept) {
    const int need = entry_pages(static_cast<int>(tokens.size()));
    size_t reachable = free.size();
    for (Entry& entry : entries) {
      if (!entry.leaving && entry.tokens == tokens) {
        EXPECT_FALSE(kept);
        entry.last_use = ++clock;
        return;
      }
      if (!in_use(entry)) reachable += entry.pages.size();
    }
    if (options.pages == 0 || reachable < static_cast<size_t>(need)) {
      EXPECT_FALSE(kept);
      if (options.pages > 0) ++counts.refused;
      return;
    }
    while (free.size() < static_cast<size_t>(need)) evict();
    ASSERT_TRUE(kept);
    EXPECT_GT(kept->entry.value, last_id);
    EXPECT_EQ(kept->pages.size(), static_cast<size_t>(need));
    for (const PageId page : kept->pages) EXPECT_EQ(free.erase(page), 1U) << "page " << page;
    last_id = kept->entry.value;
    entries.push_back({.id = kept->entry,
                       .tokens = tokens,
                       .pages = kept->pages,
                       .last_use = ++clock,
                       .pins = 0,
                       .copying = true});
  }

  void evict() {
    const Entry* oldest = nullptr;
    const Entry* victim = nullptr;  // the oldest left behind, if any
    for (const Entry& entry : entries) {
      if (in_use(entry)) continue;
      if (oldest == nullptr || entry.last_use < oldest->last_use) oldest = &entry;
      if (!extended_later(entry) || shared(entry)) continue;
      if (victim == nullptr || entry.last_use < victim->last_use) victim = &entry;
    }
    ASSERT_NE(oldest, nullptr);
    if (victim != nullptr && victim != oldest) {
      ++left_behind;
      if (extended_later(*oldest)) ++spared;
    }
    ++counts.evicted;
    erase((victim != nullptr ? victim : oldest)->id);
  }

  Entry* entry_of(EntryId id) {
    for (Entry& entry : entries) {
      if (entry.id == id) return &entry;
    }
    return nullptr;
  }

  void erase(EntryId id) {
    const Entry* entry = entry_of(id);
    free.insert(entry->pages.begin(), entry->pages.end());
    entries.erase(entries.begin() + (entry - entries.data()));
  }

  void leave(EntryId id) {
    Entry* entry = entry_of(id);
    if (entry == nullptr) return;
    entry->leaving = true;
    if (!in_use(*entry)) erase(id);
  }

  PromptCacheUsage usage() const {
    PromptCacheUsage usage = counts;
    usage.used_pages = options.pages - static_cast<int>(free.size());
    usage.entries = static_cast<int>(entries.size());
    return usage;
  }

  PromptCacheOptions options;
  std::vector<Entry> entries;
  std::set<PageId> free;
  uint64_t clock = 0;
  uint64_t last_id = 0;
  PromptCacheUsage counts;
  int64_t left_behind = 0;  // evictions that were not of the least recently used
  int64_t spared = 0;       // of them, those where that one was extended too, but is shared
};

class World {
 public:
  World(PromptCacheOptions options, uint64_t seed)
      : cache_(options), model_(options), random_(seed) {}

  void event() {
    switch (below(12)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return keep();
      case 4:
      case 5:
        return copy_ends();
      case 6:
      case 7:
        return restore();
      case 8:
      case 9:
        return restore_ends();
      case 10:
        return leave();
      default:
        return lookup();
    }
  }

  void compare() {
    cache_.check();
    ASSERT_EQ(cache_.usage(), model_.usage());
    size_t bytes = 0;
    for (const Model::Entry& entry : model_.entries) {
      const auto pages = cache_.pages(entry.id);
      ASSERT_TRUE(std::equal(pages.begin(), pages.end(), entry.pages.begin(), entry.pages.end()));
      bytes += sizeof(int32_t) * entry.tokens.size();
    }
    ASSERT_EQ(cache_.token_bytes(), bytes);
    ASSERT_LE(bytes, sizeof(int32_t) * static_cast<size_t>(model_.options.pages) *
                         static_cast<size_t>(model_.options.page_rows));
  }

  const PromptCache& cache() const { return cache_; }
  const std::vector<int64_t>& answers() const { return answers_; }
  const Model& model() const { return model_; }
  int64_t failed_beside_others() const { return failed_beside_others_; }

 private:
  int below(int most) { return static_cast<int>(random_() % static_cast<uint64_t>(most)); }

  // Of few tokens, so that texts share beginnings of all lengths: a text of before, cut somewhere,
  // and more behind it; sometimes cut nowhere, or with nothing behind.
  Tokens prompt() {
    Tokens text =
        texts_.empty() ? Tokens{} : texts_[static_cast<size_t>(below(kTexts)) % texts_.size()];
    if (below(3) == 0) text.resize(static_cast<size_t>(below(static_cast<int>(text.size()) + 1)));
    const int more = below(2) == 0 ? below(3) : below(20);
    for (int i = 0; i < more; ++i) text.push_back(below(5) == 0 ? 1 + below(2) : 0);
    if (text.size() > kLongest) text.resize(static_cast<size_t>(1 + below(12)));
    if (text.empty()) text.push_back(below(3));
    if (texts_.size() < kTexts) {
      texts_.push_back(text);
    } else {
      texts_[static_cast<size_t>(below(kTexts))] = text;
    }
    return text;
  }

  PromptCache::Lookup find(const Tokens& prompt) {
    const auto found = cache_.find(prompt);
    const auto expected = model_.find(prompt);
    EXPECT_EQ(found.entry, expected.entry);
    EXPECT_EQ(found.position, expected.position);
    EXPECT_EQ(found.miss, expected.miss);
    EXPECT_EQ(found.first_difference, expected.first_difference);
    answers_.push_back(found.position);
    return found;
  }

  void lookup() {
    const Tokens text = prompt();
    const int size = static_cast<int>(text.size());
    auto found = find(text);
    if (below(4) == 0) found.entry = {}, found.position = 0;  // a lookup that is not followed
    Marks wanted;
    for (int count = below(4); count > 0; --count) wanted.push_back(below(size + 3));
    if (below(2) == 0) std::sort(wanted.begin(), wanted.end());
    EXPECT_EQ(cache_.marks(text, wanted, found), model_.marks(text, wanted, found));
    if (!found.entry) cache_.missed(), ++model_.counts.misses;
  }

  void keep() {
    if (copies_.size() == kMostInFlight) return copy_ends();
    const Tokens text = prompt();
    const int grid = model_.options.grid;
    const int position = (1 + below(static_cast<int>(text.size()))) / grid * grid;
    if (position == 0) return;
    const auto kept = cache_.keep(text, position);
    model_.keep(beginning_of(text, position), kept);
    if (kept) copies_.push_back(kept->entry);
    answers_.push_back(kept ? kept->pages.front() : -1);
  }

  void copy_ends() {
    if (copies_.empty()) return;
    const EntryId id = take(&copies_);
    Model::Entry* entry = model_.entry_of(id);
    const int how = below(12);
    if (how > 1) {
      cache_.settle(id);
      if (entry != nullptr && !entry->leaving) ++model_.counts.kept;
    } else if (how == 1) {
      cache_.drop(id);
    } else {
      cache_.failed(id);
      ++model_.counts.failed;
    }
    entry->copying = false;
    if (how <= 1 || entry->leaving) model_.leave(id);
  }

  void restore() {
    if (restores_.size() == kMostInFlight) return restore_ends();
    const auto found = find(prompt());
    if (!found.entry) return;
    cache_.pin(*found.entry);
    ++model_.entry_of(*found.entry)->pins;
    restores_.push_back(*found.entry);
  }

  void restore_ends() {
    if (restores_.empty()) return;
    const EntryId id = take(&restores_);
    Model::Entry* entry = model_.entry_of(id);
    ASSERT_NE(entry, nullptr) << "pinned";
    if (below(8) > 0) {
      cache_.resumed(id);
      ++model_.counts.hits;
      entry->last_use = ++model_.clock;
    } else {
      cache_.failed(id);
      ++model_.counts.failed;
      entry->leaving = true;
    }
    cache_.unpin(id);
    --entry->pins;
    if (entry->leaving) {
      if (entry->pins > 0) ++failed_beside_others_;
      model_.leave(id);
    }
  }

  void leave() {
    if (below(3) > 0) return lookup();
    if (below(60) == 0) {
      cache_.clear();
      std::vector<EntryId> ids;
      for (const Model::Entry& entry : model_.entries) ids.push_back(entry.id);
      for (const EntryId id : ids) model_.leave(id);
    } else if (!model_.entries.empty()) {
      const auto& entry = model_.entries[static_cast<size_t>(below(1000)) % model_.entries.size()];
      if (entry.copying) return;
      const EntryId id = entry.id;
      cache_.drop(id);
      model_.leave(id);
    } else {
      cache_.drop(EntryId{model_.last_id + 1});
      cache_.unpin(EntryId{model_.last_id + 1});
    }
  }

  EntryId take(std::vector<EntryId>* ids) {
    const size_t index = static_cast<size_t>(below(1000)) % ids->size();
    const EntryId id = (*ids)[index];
    ids->erase(ids->begin() + static_cast<std::ptrdiff_t>(index));
    return id;
  }

  static constexpr int kTexts = 12;
  static constexpr size_t kLongest = 70;
  static constexpr size_t kMostInFlight = 3;  // of either kind; more would fill the arena

  PromptCache cache_;
  Model model_;
  std::mt19937_64 random_;
  std::vector<Tokens> texts_;
  std::vector<EntryId> copies_;    // in flight
  std::vector<EntryId> restores_;  // in flight, an entry once for each
  std::vector<int64_t> answers_;
  int64_t failed_beside_others_ = 0;  // restores, with another of the same entry in flight
};

const PromptCacheOptions kOptions[] = {
    {.pages = 60, .page_rows = 8, .state_pages = 2, .grid = 1, .least_gap = 6},
    {.pages = 70, .page_rows = 4, .state_pages = 0, .grid = 4, .least_gap = 9},
    {.pages = 9, .page_rows = 16, .state_pages = 1, .grid = 1, .least_gap = 0},
    {.pages = 200, .page_rows = 1, .state_pages = 5, .grid = 3, .least_gap = 4},
};

void follow_the_model(int events, int seeds) {
  PromptCacheUsage sum;
  int64_t left_behind = 0;
  int64_t spared = 0;
  int64_t failed_beside_others = 0;
  for (int seed = 0; seed < seeds; ++seed) {
    for (const PromptCacheOptions& options : kOptions) {
      World world(options, static_cast<uint64_t>(seed));
      for (int i = 0; i < events; ++i) {
        world.event();
        world.compare();
        if (::testing::Test::HasFailure()) {
          FAIL() << "seed " << seed << ", " << options.pages << " pages, event " << i;
        }
      }
      const PromptCacheUsage usage = world.cache().usage();
      sum.hits += usage.hits;
      sum.misses += usage.misses;
      sum.kept += usage.kept;
      sum.evicted += usage.evicted;
      sum.refused += usage.refused;
      sum.failed += usage.failed;
      left_behind += world.model().left_behind;
      spared += world.model().spared;
      failed_beside_others += world.failed_beside_others();
    }
  }
  // What has to have happened for this to have tested anything, in a share of the events.
  const int64_t all =
      static_cast<int64_t>(events) * seeds * static_cast<int64_t>(std::size(kOptions));
  EXPECT_GT(sum.hits, all / 50);
  EXPECT_GT(sum.misses, all / 100);
  EXPECT_GT(sum.kept, all / 20);
  EXPECT_GT(sum.evicted, all / 50);
  EXPECT_GT(sum.refused, all / 500);
  EXPECT_GT(sum.failed, all / 50);
  EXPECT_GT(left_behind, all / 100);
  EXPECT_GT(spared, all / 1000);
  EXPECT_GT(failed_beside_others, all / 1000);
}

TEST(PromptCacheModel, AnswersAsTheModelDoes) {
  follow_the_model(2'500, 4);
}

TEST(SlowPromptCacheModel, AnswersAsTheModelDoes) {
  follow_the_model(50'000, 5);
}

TEST(PromptCacheModel, TheSameCallsGiveTheSameAnswers) {
  World one(kOptions[0], 11);
  World two(kOptions[0], 11);
  World other(kOptions[0], 12);
  for (int i = 0; i < 2'000; ++i) {
    one.event();
    other.event();
  }
  for (int i = 0; i < 2'000; ++i) two.event();
  EXPECT_EQ(one.answers(), two.answers());
  EXPECT_NE(one.answers(), other.answers());
  EXPECT_EQ(one.cache().usage(), two.cache().usage());
}

TEST(PromptCacheModel, ACopyOfTheCacheIsAnother) {
  World world(kOptions[0], 5);
  for (int i = 0; i < 500; ++i) world.event();
  const PromptCacheUsage before = world.cache().usage();
  ASSERT_GT(before.entries, 0);
  PromptCache copy = world.cache();
  copy.clear();
  copy.check();
  EXPECT_NE(copy.usage(), before);
  world.compare();
  EXPECT_EQ(world.cache().usage(), before);
}

}  // namespace
}  // namespace flashlane::memory
