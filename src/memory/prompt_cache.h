// PromptCache: which states of prompts are kept, where, and which go first (H4). A kept state is a
// copy of a sequence's state at one position of its prompt, on pages of an arena of its own; here
// are only its tokens and the ids of its pages, whoever copies reads and writes the pages. A copy
// is reserved when the step that makes it is planned (keep) and can be found once that step came
// back (settle). Pages that a step in flight reads or writes are given to nobody else, whatever
// happens to their entry meanwhile. All answers follow from the calls so far: no clock, no
// addresses, no hashes, tokens are compared themselves.
//
// A lookup costs a comparison per token of the prompt and one per entry, however long the
// beginnings that entries share: some 10 µs with 1,000 entries of 8,000 tokens. An eviction looks
// at numbers of every entry, at worst of every pair. An entry's tokens take 4 bytes each, so all
// together no more than 4 bytes per row of the arena.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory/page_id.h"

namespace flashlane::memory {

// Never used twice; later entries have higher ones.
struct EntryId {
  uint64_t value = 0;
  friend bool operator==(EntryId, EntryId) = default;
};

// Why a prompt begins at 0.
enum class Miss : uint8_t {
  kNone,     // it does not: it resumes
  kOff,      // nothing is ever kept
  kEmpty,    // nothing is kept now
  kDiffers,  // no kept prompt shares its beginning up to a kept state
};

struct PromptCacheOptions {
  int pages = 0;  // of the arena; 0 = off
  int page_rows = 0;
  int state_pages = 0;  // that an entry needs beside those of its rows
  int grid = 1;         // states can be kept at multiples of this; 1 = anywhere
  int least_gap = 256;  // tokens between marks that are not worth a state otherwise
};

struct PromptCacheUsage {
  int pages = 0;
  int used_pages = 0;
  int entries = 0;  // that hold pages, also those being copied and those that are gone but in use
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t kept = 0;     // copies that came back
  int64_t evicted = 0;  // to make room
  int64_t refused = 0;  // copies that no room could be made for
  int64_t failed = 0;   // copies and restores
  friend bool operator==(const PromptCacheUsage&, const PromptCacheUsage&) = default;
};

class PromptCache {
 public:
  explicit PromptCache(PromptCacheOptions options);

  bool off() const { return options_.pages == 0; }
  int entry_pages(int position) const;

  struct Lookup {
    std::optional<EntryId> entry;
    int position = 0;  // rows that need not be made again
    Miss miss = Miss::kNone;
    int first_difference = 0;  // tokens that the prompt shares with the closest kept one
  };
  // The longest settled entry that is a beginning of the prompt and leaves at least one row of it.
  Lookup find(std::span<const int32_t> prompt) const;

  // Where states of this prompt should be kept, ascending: the wanted places, the place where it
  // first differs from what is kept, and the prompt's end − 1; all floored to the grid, above what
  // `found` resumes and inside the prompt, without those that are kept already. The last of
  // `wanted` is the place before the last user message: like the prompt's end it stands whatever is
  // near; the others only `least_gap` or more from all other marks and from the place resumed, and
  // where two are too near to each other the wanted ones go first, in their order.
  std::vector<int> marks(std::span<const int32_t> prompt, std::span<const int> wanted,
                         const Lookup& found) const;

  struct Kept {
    EntryId entry;
    std::vector<PageId> pages;
  };
  // Pages for a copy of the state at `position`, a multiple of the grid. Makes room if it must:
  // first go entries whose own conversation moved on, that is, a later, longer entry extends them
  // and no two that differ from each other do; else, and among those, the least recently used.
  // Entries in use by a step stay. Nothing when the room can't be made, which is counted and evicts
  // nobody, or when the same tokens are kept or being kept already, which only refreshes them.
  std::optional<Kept> keep(std::span<const int32_t> prompt, int position);
  // The copy's step came back; or its entry vanishes. Drop takes any entry, and unknown ones.
  void settle(EntryId id);
  void drop(EntryId id) noexcept;

  // Counted. From the plan of a restore until its step came back its entry is not evicted, and its
  // pages stay even if it is dropped. Only settled entries are pinned; unknown ones are unpinned.
  void pin(EntryId id);
  void unpin(EntryId id) noexcept;

  void resumed(EntryId id);          // a restore worked: a hit, and the entry was used now
  void missed();                     // a prompt began at 0
  void failed(EntryId id) noexcept;  // its restore or copy failed: counts, and drops it

  // In order; valid until the next call that is not const.
  std::span<const PageId> pages(EntryId id) const;
  std::span<const int32_t> tokens(EntryId id) const;
  // Settled ones, least recently used first.
  std::vector<EntryId> by_use() const;
  PromptCacheUsage usage() const;
  size_t token_bytes() const;
  // Drops all entries; what was counted stays.
  void clear() noexcept;
  // That every page is in exactly one place and all that is stored agrees, by CHECK; slow.
  void check() const;

 private:
  // Sorted by tokens, a beginning before what extends it, so that the extensions of an entry follow
  // it at once, and two neighbours share at least as much as anything else does across them.
  struct Entry {
    EntryId id;
    std::vector<int32_t> tokens;  // up to the position
    std::vector<PageId> pages;
    uint64_t last_use = 0;
    size_t shared = 0;  // tokens in common with the entry before; 0 for the first
    int pins = 0;
    bool copying = false;  // until settled
    bool leaving = false;  // dropped, but a step still uses its pages

    size_t size() const { return tokens.size(); }
    bool in_use() const { return copying || pins > 0; }
    bool kept() const { return !copying && !leaving; }
  };

  template <typename Visit>
  void walk(std::span<const int32_t> tokens, Visit visit) const;
  size_t index_of(EntryId id) const noexcept;
  bool make_room(int pages);
  size_t victim() const;
  bool outgrown(size_t index) const;
  EntryId insert(std::span<const int32_t> tokens, std::vector<PageId> pages);
  void leave(size_t index) noexcept;
  void erase(size_t index) noexcept;

  PromptCacheOptions options_;
  std::vector<Entry> entries_;
  // The first free_count_ are free; of full length always, so that giving back allocates nothing.
  std::vector<PageId> free_;
  int free_count_ = 0;
  uint64_t clock_ = 0;
  uint64_t last_id_ = 0;
  PromptCacheUsage counts_;  // only what is counted over time
};

}  // namespace flashlane::memory
