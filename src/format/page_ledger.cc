// Ranges that touch are kept as one, so the pages that a new range completes are those of the
// merged range under it.
#include "format/page_ledger.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"

namespace flashlane::format {
namespace {

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t round_down(size_t offset) {
  return offset / page_bytes() * page_bytes();
}
size_t round_up_page(size_t offset) {
  return round_down(offset + page_bytes() - 1);
}

}  // namespace

PageLedger::Pages PageLedger::whole_pages(size_t begin, size_t end) const {
  const size_t last = end == mapping_.size() ? round_up_page(end) : round_down(end);
  return {round_up_page(begin), last};
}

void PageLedger::drop(size_t begin, size_t end) {
  CHECK(begin <= end && end <= mapping_.size());
  if (begin == end) return;
  size_t merged_begin = begin;
  size_t merged_end = end;
  auto next = dropped_.upper_bound(begin);
  if (next != dropped_.begin()) {
    const auto before = std::prev(next);
    if (before->second >= begin) next = before;
  }
  while (next != dropped_.end() && next->first <= end) {
    merged_begin = std::min(merged_begin, next->first);
    merged_end = std::max(merged_end, next->second);
    next = dropped_.erase(next);
  }
  dropped_.emplace(merged_begin, merged_end);

  const Pages whole = whole_pages(merged_begin, merged_end);
  const size_t from = std::max(whole.begin, round_down(begin));
  const size_t to = std::min(whole.end, round_up_page(end));
  if (from >= to) return;
  auto* address = const_cast<std::byte*>(mapping_.data()) + from;
  // A hint: when it is refused the pages stay, and the system may still reclaim a file's.
  (void)::madvise(address, to - from, MADV_DONTNEED);
}

void PageLedger::need(size_t begin, size_t end) {
  CHECK(begin <= end && end <= mapping_.size());
  if (begin == end) return;
  auto next = dropped_.upper_bound(begin);
  if (next != dropped_.begin()) --next;
  while (next != dropped_.end() && next->first < end) {
    const auto [old_begin, old_end] = *next;
    if (old_end <= begin) {
      ++next;
      continue;
    }
    next = dropped_.erase(next);
    if (old_begin < begin) dropped_.emplace(old_begin, begin);
    if (old_end > end) dropped_.emplace(end, old_end);
  }
}

size_t PageLedger::dropped_page_bytes() const {
  size_t bytes = 0;
  for (const auto& [begin, end] : dropped_) {
    const Pages whole = whole_pages(begin, end);
    if (whole.end > whole.begin) bytes += whole.end - whole.begin;
  }
  return bytes;
}

}  // namespace flashlane::format
