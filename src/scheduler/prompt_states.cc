#include "scheduler/prompt_states.h"

#include <algorithm>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

// Long prompts leave a state every so many tokens, or at the end of every chunk if those are
// longer, so that one that changes late need not begin anew.
constexpr int kKeptEvery = 2048;

}  // namespace

PromptStates::PromptStates(const memory::PromptCacheOptions& options, int prefill_chunk)
    : cache_(options), kept_every_(std::max(kKeptEvery, prefill_chunk)) {}

void PromptStates::admit(std::span<const int32_t> prompt, std::span<const int> wanted,
                         PromptStatesOfOne& own) {
  if (cache_.off()) return;
  const memory::PromptCache::Lookup found = cache_.find(prompt);
  own.miss = found.miss;
  own.first_difference = found.first_difference;
  own.resumes = found.entry;
  if (found.entry) {
    cache_.pin(*found.entry);
    own.cached = found.position;
  } else {
    cache_.missed();
  }
  std::vector<int> places;
  for (int place = kept_every_; place < static_cast<int>(prompt.size()); place += kept_every_) {
    places.push_back(place);
  }
  // Those of the client first where two are too near to each other, and the last one last.
  if (!wanted.empty()) {
    places.insert(places.begin(), wanted.begin(), wanted.end() - 1);
    places.push_back(wanted.back());
  } else if (!places.empty()) {
    places.push_back(places.back());
  }
  own.marks = cache_.marks(prompt, places, found);
}

Restore PromptStates::restore(std::span<const int32_t> prompt, const PromptStatesOfOne& own) const {
  CHECK(own.resumes.has_value());
  const std::span<const memory::PageId> pages = cache_.pages(*own.resumes);
  Restore restore;
  restore.tokens.assign(prompt.begin(), prompt.begin() + own.cached);
  restore.kept_pages.assign(pages.begin(), pages.end());
  return restore;
}

void PromptStates::restored(PromptStatesOfOne& own, bool worked) {
  CHECK(own.resumes.has_value());
  cache_.unpin(*own.resumes);
  if (worked) {
    cache_.resumed(*own.resumes);
  } else {
    cache_.failed(*own.resumes);
    own.cached = 0;
  }
  own.resumes.reset();
}

int PromptStates::most_rows(const PromptStatesOfOne& own, int prefilled, int left) {
  const auto next = std::upper_bound(own.marks.begin(), own.marks.end(), prefilled);
  return next == own.marks.end() ? left : std::min(left, *next - prefilled);
}

void PromptStates::keep(std::span<const int32_t> prompt, PromptStatesOfOne& own, Segment& segment) {
  const int end = segment.start_position + static_cast<int>(segment.tokens.size());
  if (!std::binary_search(own.marks.begin(), own.marks.end(), end)) return;
  auto kept = cache_.keep(prompt, end);
  if (!kept) return;
  own.copying = kept->entry;
  segment.keep_pages = std::move(kept->pages);
}

void PromptStates::kept(PromptStatesOfOne& own, bool worked) {
  if (!own.copying) return;
  if (worked) {
    cache_.settle(*own.copying);
  } else {
    cache_.failed(*own.copying);
  }
  own.copying.reset();
}

void PromptStates::let_go(PromptStatesOfOne& own) noexcept {
  if (own.resumes) cache_.unpin(*own.resumes);
  if (own.copying) cache_.drop(*own.copying);
  own.resumes.reset();
  own.copying.reset();
}

}  // namespace flashlane::scheduler
