#include "tests/sim/page_account.h"

#include <fmt/format.h>

#include <algorithm>

namespace flashlane::sim {
namespace {

constexpr int kMostOvertaken = 16;

}  // namespace

PageAccount::PageAccount(const scheduler::SchedulerOptions& options)
    : sessions_(!options.sessions.empty()),
      runs_only_(options.pool.form() == memory::PoolLayout::StateForm::kRun),
      pages_(scheduler::pool_pages(options)),
      page_rows_(options.pool.page_rows()),
      state_pages_(options.pool.state_pages()),
      window_rows_(options.pool.window_rows()),
      owners_(static_cast<size_t>(pages_), 0) {}

void PageAccount::submitted(uint64_t id, int rows) {
  const int table_rows = rows + window_rows_;
  holds_[id] = {.need = state_pages_ + (table_rows + page_rows_ - 1) / page_rows_};
}

int PageAccount::available() const {
  int left = pages_;
  for (const auto& [id, hold] : holds_) left -= hold.runs ? hold.need : 0;
  return left;
}

std::string PageAccount::started(uint64_t id) {
  Hold& own = holds_.at(id);
  overtook_ = false;
  if (sessions_) {
    own.runs = true;
    return {};
  }
  const int left = available();
  if (own.need > left) {
    return fmt::format("{} is promised {} pages of {}", id, own.need, left);
  }
  overtook_ = false;
  for (auto& [other, hold] : holds_) {
    if (other >= id) break;
    if (hold.runs) continue;
    if (!runs_only_ && hold.need <= left) {
      return fmt::format("{} starts before {}, which fits as well", id, other);
    }
    overtook_ = true;
    if (++hold.overtaken > kMostOvertaken) {
      return fmt::format("{} was overtaken {} times", other, hold.overtaken);
    }
  }
  own.runs = true;
  return {};
}

bool PageAccount::has(uint64_t id, int32_t page) const {
  const auto found = holds_.find(id);
  if (found == holds_.end()) return false;
  const Hold& hold = found->second;
  for (const auto* pages : {&hold.state, &hold.table, &hold.arriving}) {
    if (std::find(pages->begin(), pages->end(), page) != pages->end()) return true;
  }
  return false;
}

std::string PageAccount::claim(uint64_t id, const std::vector<int32_t>& pages) {
  for (const int32_t page : pages) {
    if (page < 0 || page >= pages_) return fmt::format("page {} of {}", page, pages_);
    uint64_t& owner = owners_[static_cast<size_t>(page)];
    if (owner != id && has(owner, page)) {
      return fmt::format("page {} of {} goes to {}", page, owner, id);
    }
    owner = id;
  }
  return {};
}

std::string PageAccount::planned(const scheduler::Segment& segment) {
  const uint64_t id = segment.sequence.value;
  Hold& hold = holds_.at(id);
  if (segment.start_position == 0) {
    hold.state = segment.state_pages;
    hold.table.clear();
    if (static_cast<int>(hold.state.size()) != state_pages_) {
      return fmt::format("{} state pages of {}", hold.state.size(), state_pages_);
    }
  } else if (!segment.state_pages.empty()) {
    return fmt::format("sequence {} gets state pages again", id);
  }
  for (const auto* pages : {&segment.state_pages, &segment.new_pages}) {
    std::string problem = claim(id, *pages);
    if (!problem.empty()) return problem;
  }
  hold.table.insert(hold.table.end(), segment.new_pages.begin(), segment.new_pages.end());
  std::vector<int32_t> all = hold.state;
  all.insert(all.end(), hold.table.begin(), hold.table.end());
  std::sort(all.begin(), all.end());
  if (std::adjacent_find(all.begin(), all.end()) != all.end()) {
    return fmt::format("sequence {} has a page twice", id);
  }
  if (!sessions_ && static_cast<int>(all.size()) > hold.need) {
    return fmt::format("sequence {} has {} pages, promised {}", id, all.size(), hold.need);
  }
  const int rows = segment.start_position + static_cast<int>(segment.tokens.size()) +
                   std::max(0, segment.draft_depth - 1);
  if (static_cast<int>(hold.table.size()) * page_rows_ < rows) {
    return fmt::format("{} rows of sequence {} on {} pages", rows, id, hold.table.size());
  }
  return {};
}

// As the segment would be that runs all these rows.
std::string PageAccount::planned(const scheduler::Restore& restore) {
  return planned(scheduler::Segment{.sequence = restore.sequence,
                                    .tokens = restore.tokens,
                                    .state_pages = restore.state_pages,
                                    .new_pages = restore.new_pages});
}

std::string PageAccount::planned(const scheduler::Move& move) {
  const uint64_t id = move.sequence.value;
  Hold& hold = holds_.at(id);
  if (move.state_pages.size() != hold.state.size() || move.pages.size() != hold.table.size()) {
    return fmt::format("{} moves {} and {} pages to {} and {}", id, hold.state.size(),
                       hold.table.size(), move.state_pages.size(), move.pages.size());
  }
  for (const auto* pages : {&move.state_pages, &move.pages}) {
    for (const int32_t page : *pages) {
      if (has(id, page)) return fmt::format("{} moves to page {}, where it is", id, page);
    }
    std::string problem = claim(id, *pages);
    if (!problem.empty()) return problem;
    hold.arriving.insert(hold.arriving.end(), pages->begin(), pages->end());
  }
  return {};
}

void PageAccount::moved(const scheduler::Move& move, bool worked) {
  const auto found = holds_.find(move.sequence.value);
  if (found == holds_.end()) return;
  found->second.arriving.clear();
  if (!worked) return;
  found->second.state = move.state_pages;
  found->second.table = move.pages;
}

void PageAccount::ended(uint64_t id) {
  holds_.erase(id);
}

std::string PageAccount::waiting(bool slot_is_free) const {
  if (!slot_is_free || sessions_) return {};
  const int left = available();
  if (runs_only_ && left < pages_) return {};
  for (const auto& [id, hold] : holds_) {
    if (hold.runs) continue;
    if (hold.need <= left) return fmt::format("{} waits for a slot and pages that are free", id);
    if (hold.overtaken == kMostOvertaken) return {};
  }
  return {};
}

std::string PageAccount::at_end(const memory::PoolUsage& usage,
                                const scheduler::SessionUsage& sessions) {
  if (sessions.free != sessions.sessions) {
    return fmt::format("{} of {} sessions are free in the end", sessions.free, sessions.sessions);
  }
  if (sessions.sessions > 0) return {};
  if (usage.free == usage.pages && usage.promised == 0) return {};
  return fmt::format("{} of {} pages are free in the end, {} promised", usage.free, usage.pages,
                     usage.promised);
}

}  // namespace flashlane::sim
