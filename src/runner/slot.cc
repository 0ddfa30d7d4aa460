// The two directions of a slot, forward and back, in terms of kept rows.
#include "runner/slot.h"

#include <algorithm>

#include "base/check.h"

namespace flashlane::runner {
namespace {

size_t history_rows(int context) {
  return static_cast<size_t>(context + kernels::kMaxWindow);
}

}  // namespace

Slot::Slot(const model::ModelShape& shape, const Storage& storage, std::byte* pool,
           memory::PageId null_page, int context, int backlog_rows, Memory& memory)
    : shape_(shape),
      storage_(storage),
      pool_(pool),
      memory_(&memory),
      null_page_(null_page),
      pieces_(storage.piece_bytes.size()),
      state_pages_(static_cast<size_t>(storage.pool.state_pages())),
      page_table_(static_cast<size_t>(table_pages(storage, context)), null_page),
      backlog_(backlog_rows, shape.wide(), memory) {
  history_.reserve(history_rows(context));
  state_.gdn.reserve(static_cast<size_t>(shape.delta_layers()));
  state_.ple.reserve(shape.ple_layers.size());
  state_.page_table = page_table_.data();
}

int Slot::table_pages(const Storage& storage, int context) {
  return storage.pool.pages_for(context + kernels::kMaxWindow);
}

size_t Slot::bytes(const Storage& storage, int context) {
  return history_rows(context) * sizeof(int32_t) +
         static_cast<size_t>(table_pages(storage, context) + storage.pool.state_pages()) *
             sizeof(memory::PageId) +
         storage.piece_bytes.size() * sizeof(std::byte*);
}

// Where the pieces lie in these pages.
void Slot::point_at(std::span<const memory::PageId> state_pages) {
  const memory::Packing& packing = storage_.pool.packing();
  CHECK_EQ(static_cast<int>(state_pages.size()), packing.pages);
  std::copy(state_pages.begin(), state_pages.end(), state_pages_.begin());
  for (size_t i = 0; i < pieces_.size(); ++i) {
    const memory::PiecePlace& place = packing.places[i];
    const auto page = static_cast<size_t>(state_pages[static_cast<size_t>(place.page)]);
    pieces_[i] = pool_ + page * storage_.pool.page_bytes() + place.offset;
  }
  model::bind_state(state_, shape_, std::span(pieces_).first(storage_.rows.pieces.size()));
}

void Slot::open(std::span<const memory::PageId> state_pages, SlotProgress& progress) {
  point_at(state_pages);
  for (size_t i = 0; i < pieces_.size(); ++i) {
    memory_->zero(pieces_[i], storage_.piece_bytes[i]);
  }
  backlog_.place(std::span(pieces_).subspan(storage_.rows.pieces.size()));
  std::fill(page_table_.begin(), page_table_.end(), null_page_);
  state_.pending_rows = 0;
  history_.clear();
  progress = {};
}

void Slot::move_to(std::span<const memory::PageId> state_pages,
                   std::span<const memory::PageId> pages, SlotProgress& progress) {
  CHECK_EQ(static_cast<int>(pages.size()), progress.mapped_pages);
  point_at(state_pages);
  backlog_.move_to(std::span(pieces_).subspan(storage_.rows.pieces.size()));
  std::copy(pages.begin(), pages.end(), page_table_.begin());
}

void Slot::map(std::span<const memory::PageId> pages, SlotProgress& progress) {
  const auto mapped = static_cast<size_t>(progress.mapped_pages);
  CHECK_LE(mapped + pages.size(), page_table_.size());
  std::copy(pages.begin(), pages.end(), page_table_.begin() + static_cast<std::ptrdiff_t>(mapped));
  progress.mapped_pages += static_cast<int>(pages.size());
}

void Slot::resume(std::span<const int32_t> tokens, bool has_head, SlotProgress& progress) {
  CHECK(history_.empty() && !tokens.empty() && tokens.size() <= history_.capacity());
  history_.assign(tokens.begin(), tokens.end());
  progress.length = static_cast<int>(tokens.size());
  progress.window_start = -1;
  if (!has_head) return;
  backlog_.add(progress.length - 1, state_.last_wide, 1);
  progress.mtp_length = progress.length;
}

void Slot::begin(int start, std::span<const int32_t> tokens, SlotProgress& progress) {
  CHECK_LE(start, progress.length);
  if (start < progress.length) {
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
