#include "engine/kept_files.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

namespace flashlane::engine {

KeptFiles::KeptFiles(std::shared_ptr<const runner::Snapshots> snapshots, Report report)
    : snapshots_(std::move(snapshots)), report_(std::move(report)) {}

void KeptFiles::tell(const std::string& line) const {
  if (report_) report_(line);
}

// The last used are chosen first and put in last, so that they are the last used here too.
void KeptFiles::restore(scheduler::Scheduler& scheduler, StepDevice& device) {
  if (snapshots_ == nullptr || scheduler.kept_states().off()) return;
  int damaged = 0;
  const std::vector<runner::Snapshots::Entry> entries = snapshots_->list(damaged);
  const memory::PromptCache& cache = scheduler.kept_states();
  int room = cache.usage().pages - cache.usage().used_pages;
  std::vector<const runner::Snapshots::Entry*> chosen;
  for (const runner::Snapshots::Entry& entry : entries) {
    if (cache.entry_pages(static_cast<int>(entry.tokens.size())) != entry.pages) continue;
    if (entry.pages > room) continue;
    room -= entry.pages;
    chosen.push_back(&entry);
  }
  for (size_t i = chosen.size(); i-- > 0;) load(scheduler, device, *chosen[i]);
  tell(fmt::format("restored {} of {} kept states from {}{}", restored_, entries.size(),
                   snapshots_->directory(),
                   damaged > 0 ? fmt::format("; {} damaged files were removed", damaged) : ""));
}

// One that does not fit the context of this server stays where it is.
void KeptFiles::load(scheduler::Scheduler& scheduler, StepDevice& device,
                     const runner::Snapshots::Entry& entry) {
  const auto kept = scheduler.adopt_state(entry.tokens);
  if (!kept) return;
  const Status loaded = snapshots_->load(entry, [&](int index, std::span<const std::byte> page) {
    device.write_kept(kept->pages[static_cast<size_t>(index)], page);
  });
  scheduler.settle_state(kept->entry, loaded.ok());
  if (loaded.ok()) {
    stored_.insert(kept->entry.value);
    ++restored_;
  } else {
    tell(loaded.error().message);
    runner::Snapshots::remove(entry);
  }
}

bool KeptFiles::save_one(const scheduler::Scheduler& scheduler, StepDevice& device) {
  if (snapshots_ == nullptr) return false;
  const memory::PromptCache& cache = scheduler.kept_states();
  std::set<uint64_t> stored;
  std::optional<memory::EntryId> next;  // the last used one without a file
  for (const memory::EntryId id : cache.by_use()) {
    if (stored_.contains(id.value)) {
      stored.insert(id.value);
    } else {
      next = id;
    }
  }
  stored_ = std::move(stored);  // those that were evicted are forgotten
  if (!next) return false;
  save(cache, *next, device);
  return true;
}

void KeptFiles::save_all(const scheduler::Scheduler& scheduler, StepDevice& device) {
  if (snapshots_ == nullptr) return;
  const memory::PromptCache& cache = scheduler.kept_states();
  for (const memory::EntryId id : cache.by_use()) save(cache, id, device);
}

void KeptFiles::save(const memory::PromptCache& cache, memory::EntryId id, StepDevice& device) {
  const std::span<const int32_t> tokens = cache.tokens(id);
  const std::span<const memory::PageId> pages = cache.pages(id);
  const int rows = static_cast<int>(tokens.size());
  const bool first = stored_.insert(id.value).second;
  const Status saved = snapshots_->save(
      tokens, static_cast<int>(pages.size()),
      [&](int index, std::span<std::byte> page) { device.read_kept(pages, index, rows, page); });
  if (!first) return;
  saved_ += saved.ok() ? 1 : 0;
  if (!saved.ok()) tell(saved.error().message);
}

}  // namespace flashlane::engine
