// Byte-pair merges of one word: always the lowest rank, leftmost first, in n log n time. Immutable
// once built, so many threads may merge at once.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace flashlane::text {

class MergeTable {
 public:
  struct Merge {
    int32_t rank = -1;  // -1: the pair does not merge
    int32_t merged = -1;
  };
  explicit MergeTable(size_t expected = 0);
  // A pair that is given twice keeps the later rank, as the usual readers of such files do.
  void insert(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const;

 private:
  struct Slot {
    uint64_t key = ~uint64_t{0};
    Merge merge;
  };
  std::vector<Slot> slots_;  // a power of two, at most half full
  size_t used_ = 0;
};

class Bpe {
 public:
  Bpe() = default;
  Bpe(const std::array<int32_t, 256>& byte_ids, MergeTable merges)
      : byte_ids_(byte_ids), merges_(std::move(merges)) {}
  // Appends the ids of `word`, any bytes.
  void encode(std::string_view word, std::vector<int32_t>& out) const;

 private:
  void encode_short(std::string_view word, std::vector<int32_t>& out) const;
  void encode_long(std::string_view word, std::vector<int32_t>& out) const;

  std::array<int32_t, 256> byte_ids_{};
  MergeTable merges_;
};

}  // namespace flashlane::text
