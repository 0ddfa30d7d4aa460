#include "memory/id_set.h"

#include <bit>

#include "base/check.h"

namespace flashlane::memory {
namespace {

constexpr size_t kBits = 64;

uint64_t bit(size_t index) {
  return uint64_t{1} << (index % kBits);
}

}  // namespace

IdSet::IdSet(int size) : size_(size), count_(size) {
  CHECK_GE(size, 1);
  auto members = static_cast<size_t>(size);
  do {
    std::vector<uint64_t> words((members + kBits - 1) / kBits, ~uint64_t{0});
    // What lies past the end is no member.
    if (members % kBits != 0) words.back() = bit(members) - 1;
    members = words.size();
    levels_.push_back(std::move(words));
  } while (members > 1);
}

bool IdSet::contains(int id) const {
  CHECK(id >= 0 && id < size_);
  const auto index = static_cast<size_t>(id);
  return (levels_.front()[index / kBits] & bit(index)) != 0;
}

void IdSet::insert(int id) noexcept {
  CHECK(!contains(id));
  auto index = static_cast<size_t>(id);
  for (std::vector<uint64_t>& words : levels_) {
    uint64_t& word = words[index / kBits];
    const bool known_above = word != 0;
    word |= bit(index);
    if (known_above) break;
    index /= kBits;
  }
  ++count_;
}

void IdSet::remove(int id) noexcept {
  CHECK(contains(id));
  auto index = static_cast<size_t>(id);
  for (std::vector<uint64_t>& words : levels_) {
    uint64_t& word = words[index / kBits];
    word &= ~bit(index);
    if (word != 0) break;
    index /= kBits;
  }
  --count_;
}

int IdSet::lowest() const {
  CHECK_GE(count_, 1);
  size_t index = 0;
  for (size_t level = levels_.size(); level-- > 0;) {
    index = index * kBits + static_cast<size_t>(std::countr_zero(levels_[level][index]));
  }
  return static_cast<int>(index);
}

int IdSet::highest() const {
  CHECK_GE(count_, 1);
  size_t index = 0;
  for (size_t level = levels_.size(); level-- > 0;) {
    const auto above = static_cast<size_t>(std::countl_zero(levels_[level][index]));
    index = index * kBits + kBits - 1 - above;
  }
  return static_cast<int>(index);
}

std::optional<int> IdSet::highest_run(int count) const {
  CHECK_GE(count, 1);
  int end = size_;
  while (end >= count) {
    const int last = last_below(end, true);
    if (last + 1 < count) break;
    const int gap = last_below(last, false);
    if (last - gap >= count) return last - count + 1;
    end = gap;
  }
  return std::nullopt;
}

int IdSet::last_below(int end, bool member) const {
  if (end <= 0) return -1;
  const std::vector<uint64_t>& words = levels_.front();
  const uint64_t flip = member ? 0 : ~uint64_t{0};
  const auto last = static_cast<size_t>(end) - 1;
  size_t index = last / kBits;
  uint64_t word = (words[index] ^ flip) & (~uint64_t{0} >> (kBits - 1 - last % kBits));
  while (word == 0) {
    if (index == 0) return -1;
    word = words[--index] ^ flip;
  }
  const auto above = static_cast<size_t>(std::countl_zero(word));
  return static_cast<int>(index * kBits + kBits - 1 - above);
}

void IdSet::check() const {
  int members = 0;
  for (const uint64_t word : levels_.front()) members += std::popcount(word);
  CHECK_EQ(members, count_);
  auto below = static_cast<size_t>(size_);  // bits that a level has a use for
  for (size_t level = 0; level < levels_.size(); ++level) {
    const std::vector<uint64_t>& words = levels_[level];
    if (below % kBits != 0) CHECK_EQ(words.back() & ~(bit(below) - 1), uint64_t{0});
    below = words.size();
    if (level + 1 == levels_.size()) break;
    for (size_t i = 0; i < words.size(); ++i) {
      CHECK_EQ((levels_[level + 1][i / kBits] & bit(i)) != 0, words[i] != 0);
    }
  }
}

}  // namespace flashlane::memory
