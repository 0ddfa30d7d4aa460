// PromptStates: how prompts use what is kept of earlier ones (H4). A sequence that is admitted goes
// on from the longest kept beginning of its prompt, in a step that only restores, and leaves copies
// of its own states at its marks, each with the chunk of the prompt that ends there. Whatever fails
// costs time and no bit: a restore that fails makes the prompt start at 0, a copy that fails keeps
// nothing. Whoever holds an entry here lets go of it: restored, kept, or let_go.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "memory/prompt_cache.h"
#include "scheduler/step_plan.h"

namespace flashlane::scheduler {

// Of one sequence.
struct PromptStatesOfOne {
  std::optional<memory::EntryId> resumes = {};  // pinned, and the restore has not come back
  std::optional<memory::EntryId> copying = {};  // by the chunk in flight
  std::vector<int> marks = {};                  // still to come, ascending
  int cached = 0;                               // rows that were restored
  memory::Miss miss = memory::Miss::kOff;
  int first_difference = 0;  // tokens shared with the closest kept prompt
};

class PromptStates {
 public:
  PromptStates(const memory::PromptCacheOptions& options, int prefill_chunk);

  // Looks the prompt up; `wanted` are places in it that its client would have kept, the one before
  // the last user message last.
  void admit(std::span<const int32_t> prompt, std::span<const int> wanted, PromptStatesOfOne& own);
  // The restore that the sequence waits for; its pages are the caller's to add.
  Restore restore(std::span<const int32_t> prompt, const PromptStatesOfOne& own) const;
  void restored(PromptStatesOfOne& own, bool worked);

  // Most rows of a chunk that begins at `prefilled`: it ends at the next mark.
  static int most_rows(const PromptStatesOfOne& own, int prefilled, int left);
  // If the chunk ends at a mark, has its state copied.
  void keep(std::span<const int32_t> prompt, PromptStatesOfOne& own, Segment& segment);
  void kept(PromptStatesOfOne& own, bool worked);
  // The sequence leaves, or its step failed: nothing of it is in flight any more.
  void let_go(PromptStatesOfOne& own) noexcept;

  memory::PromptCacheUsage usage() const { return cache_.usage(); }
  // For states that come from another process, or go there.
  memory::PromptCache& cache() { return cache_; }
  void check() const { cache_.check(); }

 private:
  memory::PromptCache cache_;
  int kept_every_;
};

}  // namespace flashlane::scheduler
