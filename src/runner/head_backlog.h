// HeadBacklog: wide rows of one sequence that the MTP head has not taken in yet. A sequence that
// asks for no drafts leaves its rows here, so that a plain step costs nothing of the head; before
// it drafts again, or when the backlog is full, they go in together. The rows are consecutive and
// end where the sequence's committed rows end. Nothing is allocated after construction.
#pragma once

#include <cstring>

#include "base/check.h"
#include "scheduler/step_plan.h"
#include "tensor/buffer.h"

namespace flashlane::runner {

class HeadBacklog {
 public:
  static constexpr int kMostRows = scheduler::kMostWaitingRows;

  HeadBacklog(int capacity, int wide)
      : capacity_(capacity), wide_(wide), rows_(bytes(capacity, wide)) {}
  static size_t bytes(int capacity, int wide) {
    return static_cast<size_t>(capacity) * static_cast<size_t>(wide) * sizeof(float);
  }

  int first() const { return first_; }  // position of the first row
  int count() const { return count_; }
  int end() const { return first_ + count_; }
  bool has_room(int count) const { return count_ + count <= capacity_; }

  void clear() { count_ = 0; }
  // Forgets the rows from `position` on.
  void cut(int position) {
    if (position < end()) count_ = position < first_ ? 0 : position - first_;
  }
  // `count` rows from `position` on, [count, wide]; they follow the ones that are here.
  void add(int position, const float* rows, int count) {
    CHECK(has_room(count));
    if (count_ == 0) first_ = position;
    CHECK_EQ(position, end());
    std::memcpy(row(count_), rows, bytes(count, wide_));
    count_ += count;
  }
  // All of them to `to`, [count(), wide]; none are left.
  void take(float* to) {
    std::memcpy(to, row(0), bytes(count_, wide_));
    count_ = 0;
  }

 private:
  float* row(int index) {
    return rows_.as<float>() + static_cast<size_t>(index) * static_cast<size_t>(wide_);
  }

  int capacity_;
  int wide_;
  int first_ = 0;
  int count_ = 0;
  Buffer rows_;
};

}  // namespace flashlane::runner
