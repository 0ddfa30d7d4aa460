// IdSet: which ids of 0 ≤ id < size are members. Members come and go, and the lowest and the
// highest are found, in a step for each factor of 64 in the size: 64 ids stand in a word, and each
// level above says which words of the level below it hold any. Only the constructor allocates.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace flashlane::memory {

class IdSet {
 public:
  // All ids are members at first; size ≥ 1.
  explicit IdSet(int size);

  int size() const { return size_; }
  int count() const { return count_; }
  bool contains(int id) const;
  void insert(int id) noexcept;  // one that is no member
  void remove(int id) noexcept;  // a member
  int lowest() const;            // of a set that has any
  int highest() const;
  // The first of `count` ids in a row that are all members, of all such rows the highest; count
  // ≥ 1. Looks at every word at most once for each gap.
  std::optional<int> highest_run(int count) const;
  // That the levels and the count say the same.
  void check() const;

 private:
  // The highest id below `end` that is a member, or that is none; -1 without one.
  int last_below(int end, bool member) const;

  int size_;
  int count_;
  std::vector<std::vector<uint64_t>> levels_;  // ids first; the last has one word
};

}  // namespace flashlane::memory
