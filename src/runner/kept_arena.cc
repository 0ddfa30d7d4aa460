#include "runner/kept_arena.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"

namespace flashlane::runner {

void KeptArena::read(std::span<const memory::PageId> pages, int index, int rows,
                     std::span<std::byte> out) const {
  CHECK_EQ(out.size(), storage_.pool.page_bytes());
  const std::byte* from = page(pages[static_cast<size_t>(index)]);
  std::vector<std::byte> brought;  // where it is not the host's own
  if (memory_ != &host_memory()) {
    brought.resize(out.size());
    memory_->copy(brought.data(), from, out.size());
    from = brought.data();
  }
  const int state_pages = storage_.pool.state_pages();
  if (index >= state_pages) {
    const int first = (index - state_pages) * storage_.rows.page_rows;
    const int count = std::clamp(rows - first, 0, storage_.rows.page_rows);
    return model::copy_rows(shape_, storage_.rows, from, count, out.data());
  }
  std::memset(out.data(), 0, out.size());
  // A piece of a state on consecutive pages may go on in the next one.
  const size_t begin = static_cast<size_t>(index) * out.size();
  const size_t end = begin + out.size();
  const memory::Packing& packing = storage_.pool.packing();
  for (size_t i = 0; i < packing.places.size(); ++i) {
    const memory::PiecePlace& place = packing.places[i];
    const size_t start = static_cast<size_t>(place.page) * out.size() + place.offset;
    const size_t first = std::max(start, begin);
    const size_t last = std::min(start + storage_.piece_bytes[i], end);
    if (first < last) {
      std::memcpy(out.data() + (first - begin), from + (first - begin), last - first);
    }
  }
}

void KeptArena::write(memory::PageId to, std::span<const std::byte> in) {
  CHECK_EQ(in.size(), storage_.pool.page_bytes());
  memory_->copy(page(to), in.data(), in.size());
}

}  // namespace flashlane::runner
