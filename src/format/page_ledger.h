// PageLedger: which bytes of a memory mapping are no longer needed, so that whole pages that nobody
// needs go back to the system. A page goes once the last byte on it is dropped, whichever tensors
// share it; bytes that are needed again are taken out of the ledger first.
#pragma once

#include <cstddef>
#include <map>
#include <span>

namespace flashlane::format {

class PageLedger {
 public:
  PageLedger() = default;
  // The mapping begins on a page; its last page is whole even when its bytes end before.
  explicit PageLedger(std::span<const std::byte> mapping) : mapping_(mapping) {}

  // Nobody needs [begin, end) (offsets) now. Pages given back read as the file again, or as zeros.
  void drop(size_t begin, size_t end);
  // Somebody needs it again.
  void need(size_t begin, size_t end);

  // Bytes of the whole pages that the ledger holds for given back.
  size_t dropped_page_bytes() const;

 private:
  struct Pages {
    size_t begin = 0;
    size_t end = 0;
  };
  Pages whole_pages(size_t begin, size_t end) const;

  std::span<const std::byte> mapping_;
  std::map<size_t, size_t> dropped_;  // begin → end; neither overlapping nor touching
};

}  // namespace flashlane::format
