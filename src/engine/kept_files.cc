#include "engine/kept_files.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

namespace flashlane::engine {

using runner::Snapshots;
using scheduler::Scheduler;

KeptFiles::KeptFiles(std::shared_ptr<Snapshots> snapshots, std::shared_ptr<Bell> bell,
                     int least_gain, Report report)
    : snapshots_(std::move(snapshots)),
      least_gain_(least_gain),
      report_(std::move(report)),
      worker_(snapshots_ == nullptr ? nullptr
                                    : std::make_unique<FileWorker>(snapshots_, std::move(bell))) {}

void KeptFiles::tell(const std::string& line) const {
  if (report_) report_(line);
}

// The last used are chosen first and put in last, so that they are the last used here too.
void KeptFiles::restore(Scheduler& scheduler, StepDevice& device) {
  if (worker_ == nullptr || !snapshots_->outlives_process()) return;
  int damaged = 0;
  const std::vector<Snapshots::Entry> entries = snapshots_->list(damaged);
  const memory::PromptCache& cache = scheduler.kept_states();
  int room = cache.usage().pages - cache.usage().used_pages;
  std::vector<const Snapshots::Entry*> chosen;
  for (const Snapshots::Entry& entry : entries) {
    if (cache.entry_pages(static_cast<int>(entry.tokens.size())) != entry.pages) continue;
    if (entry.pages > room) continue;
    room -= entry.pages;
    chosen.push_back(&entry);
  }
  for (size_t i = chosen.size(); i-- > 0;) load_now(scheduler, device, *chosen[i]);
  tell(fmt::format("restored {} of {} kept states from {}{}", restored_, entries.size(),
                   snapshots_->directory(),
                   damaged > 0 ? fmt::format("; {} damaged files were removed", damaged) : ""));
}

// One that does not fit the context of this server stays where it is.
void KeptFiles::load_now(Scheduler& scheduler, StepDevice& device, const Snapshots::Entry& entry) {
  auto kept = scheduler.adopt_state(entry.tokens);
  if (!kept) return;
  const UnderWay job{entry, kept->entry, std::move(kept->pages), true};
  loaded(scheduler, job, snapshots_->load(entry, [&](int first, std::span<std::byte> pages) {
    copy(job, device, first, pages);
    return true;
  }));
  restored_ += stored_.contains(job.id.value) ? 1 : 0;
}

void KeptFiles::copy(const UnderWay& job, StepDevice& device, int first,
                     std::span<std::byte> pages) const {
  const size_t page_bytes = snapshots_->page_bytes();
  for (int i = first; !pages.empty(); ++i, pages = pages.subspan(page_bytes)) {
    const std::span<std::byte> page = pages.first(page_bytes);
    if (job.load) {
      device.write_kept(job.pages[static_cast<size_t>(i)], page);
    } else {
      device.read_kept(job.pages, i, static_cast<int>(job.entry.tokens.size()), page);
    }
  }
}

void KeptFiles::loaded(Scheduler& scheduler, const UnderWay& job, const Status& status) {
  scheduler.settle_state(job.id, status.ok());
  if (status.ok()) {
    stored_.insert(job.id.value);
  } else if (status.error().code != ErrorCode::kCancelled) {
    tell(status.error().message);
    // What can't be read now may be read by another process; only what is damaged goes.
    const bool damaged = status.error().code == ErrorCode::kInvalidArgument;
    damaged ? snapshots_->remove(job.entry) : snapshots_->forget(job.entry.path);
  }
}

void KeptFiles::turn(Scheduler& scheduler, StepDevice& device) {
  if (!under_way_) return;
  worker_->serve(
      [&](int first, std::span<std::byte> pages) { copy(*under_way_, device, first, pages); });
  if (const std::optional<Status> done = worker_->take_result()) take_in(scheduler, *done);
}

void KeptFiles::take_in(Scheduler& scheduler, const Status& done) {
  const UnderWay job = *std::exchange(under_way_, std::nullopt);
  if (job.load) {
    loaded(scheduler, job, done);
    read_back_ += done.ok() ? 1 : 0;
    return;
  }
  scheduler.release_state(job.id);
  count_saved(done);
  if (done.ok() || done.error().code != ErrorCode::kCancelled) return;
  stored_.erase(job.id.value);  // written again later, from its beginning
  looked_at_ = -1;
}

void KeptFiles::give_up(Scheduler& scheduler) {
  if (!under_way_) return;
  worker_->give_up();
  take_in(scheduler, *worker_->take_result());
}

bool KeptFiles::ready(Scheduler& scheduler, std::span<const int32_t> prompt) {
  if (worker_ == nullptr || prompt.empty()) return true;
  const memory::PromptCache& cache = scheduler.kept_states();
  const auto file = snapshots_->find(prompt.first(prompt.size() - 1));
  if (!file) return true;
  const auto size = static_cast<int>(file->tokens.size());
  if (size < cache.find(prompt).position + least_gain_) return true;
  if (cache.entry_pages(size) != file->pages) return true;
  if (under_way_ && under_way_->load) return false;
  give_up(scheduler);  // writing can wait
  auto kept = scheduler.adopt_state(file->tokens);
  if (!kept) return true;
  under_way_ = UnderWay{*file, kept->entry, std::move(kept->pages), true};
  worker_->start({.load = true, .entry = *file});
  return false;
}

KeptFiles::UnderWay KeptFiles::saving(const memory::PromptCache& cache, memory::EntryId id) {
  const std::span<const int32_t> tokens = cache.tokens(id);
  const std::span<const memory::PageId> pages = cache.pages(id);
  return {.entry = {.path = {},
                    .tokens = {tokens.begin(), tokens.end()},
                    .pages = static_cast<int>(pages.size())},
          .id = id,
          .pages = {pages.begin(), pages.end()},
          .load = false};
}

void KeptFiles::save_next(Scheduler& scheduler) {
  if (worker_ == nullptr || under_way_) return;
  const memory::PromptCache& cache = scheduler.kept_states();
  if (cache.usage().kept == looked_at_) return;
  std::set<uint64_t> stored;
  std::optional<memory::EntryId> next;
  for (const memory::EntryId id : cache.by_use()) {
    if (stored_.contains(id.value)) {
      stored.insert(id.value);
    } else if (!next) {
      next = id;
    }
  }
  stored_ = std::move(stored);  // those that were evicted are forgotten
  if (!next) {
    looked_at_ = cache.usage().kept;
    return;
  }
  under_way_ = saving(cache, *next);
  stored_.insert(next->value);
  scheduler.hold_state(*next);
  worker_->start({.load = false, .entry = under_way_->entry});
}

// A disk that is full says so once, until something could be written again.
void KeptFiles::count_saved(const Status& status) {
  if (status.ok()) {
    ++saved_;
    told_.reset();
  } else if (status.error().code != ErrorCode::kCancelled && told_ != status.error().code) {
    told_ = status.error().code;
    tell(fmt::format("a kept state was not written: {}", status.error().message));
  }
}

void KeptFiles::finish(Scheduler& scheduler, StepDevice& device, bool save) {
  if (worker_ == nullptr) return;
  give_up(scheduler);
  if (!save || !snapshots_->outlives_process()) return;
  const memory::PromptCache& cache = scheduler.kept_states();
  for (const memory::EntryId id : cache.by_use()) save_now(cache, id, device);
}

void KeptFiles::save_now(const memory::PromptCache& cache, memory::EntryId id, StepDevice& device) {
  const UnderWay job = saving(cache, id);
  const bool first = stored_.insert(id.value).second;
  const Status saved = snapshots_->save(job.entry.tokens, job.entry.pages,
                                        [&](int from, std::span<std::byte> pages) {
                                          copy(job, device, from, pages);
                                          return true;
                                        });
  if (first) count_saved(saved);
}

}  // namespace flashlane::engine
