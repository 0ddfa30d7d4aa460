// The two directions of a slot, forward and back, in terms of kept rows.
#include "runner/slot.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"

namespace flashlane::runner {
namespace {

size_t history_rows(int context) {
  return static_cast<size_t>(context + kernels::kMaxWindow);
}

}  // namespace

Slot::Slot(const model::ModelShape& shape, const model::StateLayout& layout, int context,
           int first_page, int backlog_rows)
    : pieces_(layout.pieces_bytes),
      page_table_(static_cast<size_t>(pages(layout, context))),
      backlog_(backlog_rows, shape.wide()) {
  std::iota(page_table_.begin(), page_table_.end(), first_page);
  history_.reserve(history_rows(context));
  state_ = model::bind_state(shape, layout, pieces_.data(), page_table_.data());
}

// Chained drafts run ahead of the committed rows, hence the window beyond the context.
int Slot::pages(const model::StateLayout& layout, int context) {
  return layout.pages_for(context + kernels::kMaxWindow);
}

size_t Slot::bytes(const model::ModelShape& shape, const model::StateLayout& layout, int context,
                   int backlog_rows) {
  return layout.pieces_bytes + HeadBacklog::bytes(backlog_rows, shape.wide()) +
         history_rows(context) * sizeof(int32_t) +
         static_cast<size_t>(pages(layout, context)) * sizeof(int32_t);
}

void Slot::open(int start, std::span<const int32_t> tokens, SlotProgress& progress) {
  CHECK_LE(start, progress.length);
  if (start == 0) {
    std::memset(pieces_.data(), 0, pieces_.bytes());
    state_.pending_rows = 0;
    progress = {};
    backlog_.clear();
  } else if (start < progress.length) {
    CHECK(progress.window_start >= 0 && start > progress.window_start);
    state_.pending_rows = start - progress.window_start;
    progress.length = start;
    progress.mtp_length = std::min(progress.mtp_length, start);
    backlog_.cut(start);
  }
  history_.resize(static_cast<size_t>(start));
  CHECK_LE(history_.size() + tokens.size(), history_.capacity());
  history_.insert(history_.end(), tokens.begin(), tokens.end());
}

void Slot::commit_prompt(SlotProgress& progress) {
  state_.pending_rows = 0;
  progress.length = static_cast<int>(history_.size());
  progress.window_start = -1;
}

void Slot::commit_window(int start, int kept, SlotProgress& progress) {
  CHECK(kept >= 1 && start + kept <= static_cast<int>(history_.size()));
  history_.resize(static_cast<size_t>(start + kept));
  state_.pending_rows = kept;
  progress.length = start + kept;
  progress.window_start = start;
}

}  // namespace flashlane::runner
