// KeptArena: the memory of kept states, pages like the pool's. A copy of a state stands on whole
// pages, its state pages first, so what lies beside it there is whatever the pool had; who carries
// a copy out of the process gets it without that.
#pragma once

#include <cstddef>
#include <span>

#include "memory/page_id.h"
#include "model/shape.h"
#include "runner/storage.h"
#include "tensor/buffer.h"

namespace flashlane::runner {

class KeptArena {
 public:
  // `shape` and `storage` outlive it.
  KeptArena(const model::ModelShape& shape, const Storage& storage, int pages,
            Memory& memory = host_memory())
      : shape_(shape),
        storage_(storage),
        memory_(&memory),
        bytes_(static_cast<size_t>(pages) * storage.pool.page_bytes(), memory) {}

  std::byte* page(memory::PageId page) {
    return bytes_.data() + static_cast<size_t>(page) * storage_.pool.page_bytes();
  }
  const std::byte* page(memory::PageId page) const {
    return bytes_.data() + static_cast<size_t>(page) * storage_.pool.page_bytes();
  }

  // Page number `index` of a state of so many rows on `pages`, zero where nothing of it lies.
  void read(std::span<const memory::PageId> pages, int index, int rows,
            std::span<std::byte> out) const;
  void write(memory::PageId to, std::span<const std::byte> in);

 private:
  const model::ModelShape& shape_;
  const Storage& storage_;
  Memory* memory_;
  Buffer bytes_;
};

}  // namespace flashlane::runner
