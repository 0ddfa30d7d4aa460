// HeadBacklog: wide rows of one sequence that the MTP head has not taken in yet. A sequence that
// asks for no drafts leaves its rows here, so that a plain step costs nothing of the head; before
// it drafts again, or when the backlog is full, they go in together. The rows are consecutive and
// end where the sequence's committed rows end. They lie in blocks of memory that somebody else
// owns, pieces of the sequence's state.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "base/int_math.h"
#include "scheduler/step_plan.h"
#include "tensor/memory.h"

namespace flashlane::runner {

class HeadBacklog {
 public:
  static constexpr int kMostRows = scheduler::kMostWaitingRows;
  static constexpr int kBlockRows = 16;

  // Place it before anything is added.
  HeadBacklog(int capacity, int wide, Memory& memory)
      : memory_(&memory),
        capacity_(capacity),
        wide_(wide),
        blocks_(static_cast<size_t>(block_count(capacity))) {}

  static int block_count(int capacity) { return div_ceil(capacity, kBlockRows); }
  static size_t block_bytes(int wide) { return bytes(kBlockRows, wide); }

  // Empty, in these blocks, block_count of block_bytes each.
  void place(std::span<std::byte* const> blocks) {
    CHECK_EQ(blocks.size(), blocks_.size());
    std::transform(blocks.begin(), blocks.end(), blocks_.begin(),
                   [](std::byte* block) { return reinterpret_cast<float*>(block); });
    count_ = 0;
  }

  // The same rows, in other blocks that hold them now.
  void move_to(std::span<std::byte* const> blocks) {
    const int count = count_;
    place(blocks);
    count_ = count;
  }

  int first() const { return first_; }  // position of the first row
  int count() const { return count_; }
  int end() const { return first_ + count_; }
  bool has_room(int count) const { return count_ + count <= capacity_; }

  // Forgets the rows from `position` on.
  void cut(int position) {
    if (position < end()) count_ = position < first_ ? 0 : position - first_;
  }
  // `count` rows from `position` on, [count, wide]; they follow the ones that are here.
  void add(int position, const float* rows, int count) {
    CHECK(has_room(count));
    if (count_ == 0) first_ = position;
    CHECK_EQ(position, end());
    for (int i = 0; i < count; ++i) {
      const size_t at = static_cast<size_t>(i) * static_cast<size_t>(wide_);
      memory_->copy(row(count_ + i), rows + at, bytes(1, wide_));
    }
    count_ += count;
  }
  // All of them to `to`, [count(), wide]; none are left.
  void take(float* to) {
    for (int done = 0; done < count_; done += kBlockRows) {
      const int rows = std::min(kBlockRows, count_ - done);
      const size_t at = static_cast<size_t>(done) * static_cast<size_t>(wide_);
      memory_->copy(to + at, row(done), bytes(rows, wide_));
    }
    count_ = 0;
  }

 private:
  static size_t bytes(int rows, int wide) {
    return static_cast<size_t>(rows) * static_cast<size_t>(wide) * sizeof(float);
  }
  float* row(int index) {
    const auto in_block = static_cast<size_t>(index % kBlockRows);
    return blocks_[static_cast<size_t>(index / kBlockRows)] + in_block * static_cast<size_t>(wide_);
  }

  Memory* memory_;
  int capacity_;
  int wide_;
  int first_ = 0;
  int count_ = 0;
  std::vector<float*> blocks_;
};

}  // namespace flashlane::runner
