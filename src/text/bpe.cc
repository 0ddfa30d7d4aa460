// Short words scan for the lowest rank (few steps, no allocation); long ones keep a heap over a
// linked list. Both give the same ids: at one position a spelling has one split into two symbols.
#include "text/bpe.h"

#include <bit>
#include <limits>
#include <queue>

#include "base/check.h"

namespace flashlane::text {
namespace {

constexpr size_t kShortWord = 40;
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

uint64_t pair_key(int32_t left, int32_t right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

size_t pair_hash(uint64_t key) {
  key ^= key >> 33;
  key *= 0xFF51AFD7ED558CCDull;
  key ^= key >> 33;
  key *= 0xC4CEB9FE1A85EC53ull;
  return static_cast<size_t>(key ^ key >> 33);
}

struct Symbol {
  int32_t id = -1;  // -1 once merged into the symbol before it
  int32_t previous = -1;
  int32_t next = -1;
};

struct Candidate {
  int32_t rank = 0;
  int32_t position = 0;
  int32_t merged = 0;
  bool operator>(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

MergeTable::MergeTable(size_t expected) : slots_(std::bit_ceil(expected * 2 + 2)) {}

void MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = pair_key(left, right);
  size_t slot = pair_hash(key) & (slots_.size() - 1);
  while (slots_[slot].merge.rank >= 0 && slots_[slot].key != key) {
    slot = (slot + 1) & (slots_.size() - 1);
  }
  if (slots_[slot].merge.rank < 0) ++used_;
  CHECK_LE(used_ * 2, slots_.size());
  slots_[slot] = {key, merge};
}

MergeTable::Merge MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key = pair_key(left, right);
  size_t slot = pair_hash(key) & (slots_.size() - 1);
  while (slots_[slot].merge.rank >= 0) {
    if (slots_[slot].key == key) return slots_[slot].merge;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  return {};
}

void Bpe::encode(std::string_view word, std::vector<int32_t>& out) const {
  if (word.size() <= kShortWord) {
    encode_short(word, out);
  } else {
    encode_long(word, out);
  }
}

void Bpe::encode_short(std::string_view word, std::vector<int32_t>& out) const {
  std::array<int32_t, kShortWord> ids;
  std::array<MergeTable::Merge, kShortWord> merges;  // of symbols i and i + 1
  size_t count = word.size();
  for (size_t i = 0; i < count; ++i) ids[i] = byte_ids_[static_cast<uint8_t>(word[i])];
  for (size_t i = 0; i + 1 < count; ++i) merges[i] = merges_.find(ids[i], ids[i + 1]);
  while (count > 1) {
    size_t best = 0;
    int32_t best_rank = kNoRank;
    for (size_t i = 0; i + 1 < count; ++i) {
      if (merges[i].rank >= 0 && merges[i].rank < best_rank) {
        best_rank = merges[i].rank;
        best = i;
      }
    }
    if (best_rank == kNoRank) break;
    ids[best] = merges[best].merged;
    for (size_t i = best + 1; i + 1 < count; ++i) {
      ids[i] = ids[i + 1];
      merges[i] = merges[i + 1];
    }
    --count;
    if (best + 1 < count) merges[best] = merges_.find(ids[best], ids[best + 1]);
    if (best > 0) merges[best - 1] = merges_.find(ids[best - 1], ids[best]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<ptrdiff_t>(count));
}

void Bpe::encode_long(std::string_view word, std::vector<int32_t>& out) const {
  CHECK_LT(word.size(), size_t{std::numeric_limits<int32_t>::max()});
  const auto count = static_cast<int32_t>(word.size());
  std::vector<Symbol> symbols(word.size());
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto symbol = [&](int32_t at) -> Symbol& { return symbols[static_cast<size_t>(at)]; };
  const auto offer = [&](int32_t at) {
    if (at < 0 || symbol(at).next < 0) return;
    const auto merge = merges_.find(symbol(at).id, symbol(symbol(at).next).id);
    if (merge.rank >= 0) queue.push({merge.rank, at, merge.merged});
  };
  for (int32_t i = 0; i < count; ++i) {
    symbol(i) = {byte_ids_[static_cast<uint8_t>(word[static_cast<size_t>(i)])], i - 1,
                 i + 1 < count ? i + 1 : -1};
  }
  for (int32_t i = 0; i < count; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbol(top.position);
    if (left.id < 0 || left.next < 0) continue;
    Symbol& right = symbol(left.next);
    // An entry is stale unless the pair still spells the same token.
    if (merges_.find(left.id, right.id).merged != top.merged) continue;
    left.id = top.merged;
    right.id = -1;
    left.next = right.next;
    if (left.next >= 0) symbol(left.next).previous = top.position;
    offer(left.previous);
    offer(top.position);
  }
  for (int32_t at = 0; at >= 0; at = symbol(at).next) out.push_back(symbol(at).id);
}

}  // namespace flashlane::text
