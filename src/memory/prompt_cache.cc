// Entries stand in the order of their tokens, each with the number of tokens that it shares with
// the one before it. So one pass over them, comparing a token of the prompt at most once more than
// there are entries, tells what the prompt shares with each of them (walk); the rest follows from
// numbers.
#include "memory/prompt_cache.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <utility>

#include "base/check.h"

namespace flashlane::memory {
namespace {

size_t shared_tokens(std::span<const int32_t> a, std::span<const int32_t> b, size_t from = 0) {
  const size_t most = std::min(a.size(), b.size());
  while (from < most && a[from] == b[from]) ++from;
  return from;
}

// Whether a mark lies less than the gap from the place.
bool near(int mark, int place, int gap) {
  return std::abs(mark - place) < gap;
}

}  // namespace

PromptCache::PromptCache(PromptCacheOptions options)
    : options_(options),
      free_(static_cast<size_t>(std::max(options.pages, 0))),
      free_count_(options.pages) {
  CHECK_GE(options_.pages, 0);
  CHECK_GE(options_.grid, 1);
  CHECK_GE(options_.least_gap, 0);
  if (!off()) {
    CHECK_GE(options_.page_rows, 1);
    CHECK_GE(options_.state_pages, 0);
  }
  // Taken from the end: the lowest come first.
  for (int i = 0; i < options_.pages; ++i) free_[static_cast<size_t>(i)] = options_.pages - 1 - i;
}

int PromptCache::entry_pages(int position) const {
  CHECK(!off());
  CHECK_GE(position, 1);
  return options_.state_pages + (position - 1) / options_.page_rows + 1;
}

// Calls visit(index, tokens that the entry shares with these) for all entries in order. Where the
// text before shares more with the next entry than with `tokens`, or less, the lesser of both is
// what the two share; only where it shares equally much can they go on further together.
template <typename Visit>
void PromptCache::walk(std::span<const int32_t> tokens, Visit visit) const {
  size_t shared = 0;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    shared = entry.shared == shared ? shared_tokens(tokens, entry.tokens, shared)
                                    : std::min(shared, entry.shared);
    visit(i, shared);
  }
}

PromptCache::Lookup PromptCache::find(std::span<const int32_t> prompt) const {
  Lookup found;
  found.miss = off() ? Miss::kOff : Miss::kEmpty;
  walk(prompt, [&](size_t index, size_t shared) {
    const Entry& entry = entries_[index];
    if (!entry.kept()) return;
    if (!found.entry) found.miss = Miss::kDiffers;
    found.first_difference = std::max(found.first_difference, static_cast<int>(shared));
    if (shared < entry.size() || shared == prompt.size()) return;
    // Beginnings of one text come in the order of their lengths: the last is the longest.
    found.entry = entry.id;
    found.position = static_cast<int>(shared);
    found.miss = Miss::kNone;
  });
  return found;
}

std::vector<int> PromptCache::marks(std::span<const int32_t> prompt, std::span<const int> wanted,
                                    const Lookup& found) const {
  if (off()) return {};
  CHECK_LE(prompt.size(), size_t{std::numeric_limits<int>::max()});
  const int size = static_cast<int>(prompt.size());
  std::vector<int> marks;
  const auto add = [&](int place, bool apart) {
    const int mark = place - place % options_.grid;
    if (mark <= found.position || mark >= size) return;
    const auto too_near = [&](int other) { return near(mark, other, options_.least_gap); };
    if (apart && (too_near(found.position) || std::any_of(marks.begin(), marks.end(), too_near))) {
      return;
    }
    if (std::find(marks.begin(), marks.end(), mark) == marks.end()) marks.push_back(mark);
  };
  add(size - 1, false);
  if (!wanted.empty()) {
    add(wanted.back(), false);
    for (const int place : wanted.first(wanted.size() - 1)) add(place, true);
  }
  add(found.first_difference, true);
  // Only after a lookup that is not followed can there be any; they still kept others away.
  walk(prompt, [&](size_t index, size_t shared) {
    const Entry& entry = entries_[index];
    if (entry.kept() && shared == entry.size()) std::erase(marks, static_cast<int>(shared));
  });
  std::sort(marks.begin(), marks.end());
  return marks;
}

std::optional<PromptCache::Kept> PromptCache::keep(std::span<const int32_t> prompt, int position) {
  CHECK_GE(position, 1);
  CHECK_LE(static_cast<size_t>(position), prompt.size());
  CHECK_EQ(position % options_.grid, 0);
  if (off()) return std::nullopt;
  const std::span<const int32_t> tokens = prompt.first(static_cast<size_t>(position));
  Entry* same = nullptr;
  walk(tokens, [&](size_t index, size_t shared) {
    Entry& entry = entries_[index];
    if (shared == tokens.size() && entry.size() == shared && !entry.leaving) same = &entry;
  });
  if (same != nullptr) {
    same->last_use = ++clock_;
    return std::nullopt;
  }
  const int need = entry_pages(position);
  if (!make_room(need)) {
    ++counts_.refused;
    return std::nullopt;
  }
  std::vector<PageId> pages;
  pages.reserve(static_cast<size_t>(need));
  while (static_cast<int>(pages.size()) < need) {
    pages.push_back(free_[static_cast<size_t>(--free_count_)]);
  }
  const EntryId id = insert(tokens, pages);
  return Kept{.entry = id, .pages = std::move(pages)};
}

void PromptCache::settle(EntryId id) {
  const size_t index = index_of(id);
  CHECK_LT(index, entries_.size());
  CHECK(entries_[index].copying);
  entries_[index].copying = false;
  if (entries_[index].leaving) {
    erase(index);
  } else {
    ++counts_.kept;
  }
}

void PromptCache::drop(EntryId id) noexcept {
  const size_t index = index_of(id);
  if (index == entries_.size()) return;
  // Who drops an entry that is being copied says by it that the copy is over.
  entries_[index].copying = false;
  leave(index);
}

void PromptCache::pin(EntryId id) {
  const size_t index = index_of(id);
  CHECK_LT(index, entries_.size());
  CHECK(entries_[index].kept());
  ++entries_[index].pins;
}

void PromptCache::unpin(EntryId id) noexcept {
  const size_t index = index_of(id);
  if (index == entries_.size()) return;
  Entry& entry = entries_[index];
  CHECK_GT(entry.pins, 0);
  --entry.pins;
  if (entry.leaving && !entry.in_use()) erase(index);
}

void PromptCache::resumed(EntryId id) {
  ++counts_.hits;
  const size_t index = index_of(id);
  // Another restore of it may have failed in the same step: then there is nothing to refresh.
  if (index < entries_.size()) entries_[index].last_use = ++clock_;
}

void PromptCache::missed() {
  ++counts_.misses;
}

void PromptCache::failed(EntryId id) noexcept {
  ++counts_.failed;
  drop(id);
}

std::span<const PageId> PromptCache::pages(EntryId id) const {
  const size_t index = index_of(id);
  CHECK_LT(index, entries_.size());
  return entries_[index].pages;
}

std::span<const int32_t> PromptCache::tokens(EntryId id) const {
  const size_t index = index_of(id);
  CHECK_LT(index, entries_.size());
  return entries_[index].tokens;
}

std::vector<EntryId> PromptCache::by_use() const {
  std::vector<const Entry*> kept;
  for (const Entry& entry : entries_) {
    if (entry.kept()) kept.push_back(&entry);
  }
  std::sort(kept.begin(), kept.end(),
            [](const Entry* a, const Entry* b) { return a->last_use < b->last_use; });
  std::vector<EntryId> ids;
  ids.reserve(kept.size());
  for (const Entry* entry : kept) ids.push_back(entry->id);
  return ids;
}

PromptCacheUsage PromptCache::usage() const {
  PromptCacheUsage usage = counts_;
  usage.pages = options_.pages;
  usage.used_pages = options_.pages - free_count_;
  usage.entries = static_cast<int>(entries_.size());
  return usage;
}

size_t PromptCache::token_bytes() const {
  size_t bytes = 0;
  for (const Entry& entry : entries_) bytes += entry.tokens.capacity() * sizeof(int32_t);
  return bytes;
}

void PromptCache::clear() noexcept {
  for (size_t i = entries_.size(); i-- > 0;) leave(i);
}

size_t PromptCache::index_of(EntryId id) const noexcept {
  const auto is_it = [&](const Entry& entry) { return entry.id == id; };
  return static_cast<size_t>(std::find_if(entries_.begin(), entries_.end(), is_it) -
                             entries_.begin());
}

// All or nothing: nobody is evicted for a copy that does not fit afterwards.
bool PromptCache::make_room(int pages) {
  int64_t reachable = free_count_;
  for (const Entry& entry : entries_) {
    if (!entry.in_use()) reachable += static_cast<int64_t>(entry.pages.size());
  }
  if (reachable < pages) return false;
  while (free_count_ < pages) {
    erase(victim());
    ++counts_.evicted;
  }
  return true;
}

size_t PromptCache::victim() const {
  size_t chosen = entries_.size();
  bool chosen_outgrown = false;
  for (size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].in_use()) continue;
    const bool older =
        chosen == entries_.size() || entries_[i].last_use < entries_[chosen].last_use;
    if (chosen_outgrown && !older) continue;
    const bool is_outgrown = outgrown(i);
    if (is_outgrown != chosen_outgrown ? is_outgrown : older) {
      chosen = i;
      chosen_outgrown = is_outgrown;
    }
  }
  CHECK_LT(chosen, entries_.size());
  return chosen;
}

// Whether the entry's own conversation moved on. What extends it stands behind it; if each of those
// extends the one before, they are one conversation, and if two part ways, several share the entry.
bool PromptCache::outgrown(size_t index) const {
  const Entry& entry = entries_[index];
  size_t longest = index;
  size_t shared = entry.size();  // by the longest so far and the entry at hand
  bool by_later = false;
  for (size_t i = index + 1; i < entries_.size() && entries_[i].shared >= entry.size(); ++i) {
    shared = std::min(shared, entries_[i].shared);
    if (!entries_[i].kept()) continue;
    if (shared < entries_[longest].size()) return false;
    longest = i;
    shared = entries_[i].size();
    by_later = by_later || entries_[i].id.value > entry.id.value;
  }
  return by_later;
}

EntryId PromptCache::insert(std::span<const int32_t> tokens, std::vector<PageId> pages) {
  size_t place = 0;
  size_t shared_before = 0;
  size_t shared_after = 0;
  walk(tokens, [&](size_t index, size_t shared) {
    const Entry& entry = entries_[index];
    const bool before =
        shared == entry.size() || (shared < tokens.size() && entry.tokens[shared] < tokens[shared]);
    if (before) {
      place = index + 1;
      shared_before = shared;
    } else if (index == place) {
      shared_after = shared;
    }
  });
  const EntryId id{++last_id_};
  entries_.insert(entries_.begin() + static_cast<std::ptrdiff_t>(place),
                  Entry{.id = id,
                        .tokens = {tokens.begin(), tokens.end()},
                        .pages = std::move(pages),
                        .last_use = ++clock_,
                        .shared = shared_before,
                        .copying = true});
  if (place + 1 < entries_.size()) entries_[place + 1].shared = shared_after;
  return id;
}

// Out of sight at once; its pages come back when no step uses them.
void PromptCache::leave(size_t index) noexcept {
  entries_[index].leaving = true;
  if (!entries_[index].in_use()) erase(index);
}

void PromptCache::erase(size_t index) noexcept {
  const Entry& entry = entries_[index];
  for (size_t i = entry.pages.size(); i-- > 0;) {
    free_[static_cast<size_t>(free_count_++)] = entry.pages[i];
  }
  if (index + 1 < entries_.size()) {
    size_t& shared = entries_[index + 1].shared;
    shared = std::min(shared, entry.shared);
  }
  entries_.erase(entries_.begin() + static_cast<std::ptrdiff_t>(index));
}

void PromptCache::check() const {
  std::vector<int> places(static_cast<size_t>(options_.pages), 0);
  const auto count = [&](PageId page) {
    CHECK_GE(page, 0);
    CHECK_LT(page, options_.pages);
    ++places[static_cast<size_t>(page)];
  };
  CHECK_EQ(free_.size(), places.size());
  CHECK_GE(free_count_, 0);
  CHECK_LE(free_count_, options_.pages);
  for (int i = 0; i < free_count_; ++i) count(free_[static_cast<size_t>(i)]);
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    for (const PageId page : entry.pages) count(page);
    CHECK_EQ(entry.pages.size(), static_cast<size_t>(entry_pages(static_cast<int>(entry.size()))));
    CHECK_EQ(entry.size() % static_cast<size_t>(options_.grid), size_t{0});
    CHECK_GE(entry.pins, 0);
    CHECK(!entry.copying || entry.pins == 0);
    CHECK(!entry.leaving || entry.in_use());
    CHECK_GE(entry.id.value, 1U);
    CHECK_LE(entry.id.value, last_id_);
    CHECK_LE(entry.last_use, clock_);
    if (i == 0) {
      CHECK_EQ(entry.shared, size_t{0});
      continue;
    }
    const Entry& before = entries_[i - 1];
    CHECK_EQ(entry.shared, shared_tokens(before.tokens, entry.tokens));
    const bool same = entry.shared == before.size() && entry.shared == entry.size();
    CHECK(!same || before.leaving || entry.leaving);
    CHECK(
        entry.shared == before.size() ||
        (entry.shared < entry.size() && before.tokens[entry.shared] < entry.tokens[entry.shared]));
    for (size_t j = 0; j < i; ++j) {
      CHECK(entries_[j].id != entry.id);
      CHECK_NE(entries_[j].last_use, entry.last_use);
    }
  }
  for (const int place : places) CHECK_EQ(place, 1);
}

}  // namespace flashlane::memory
