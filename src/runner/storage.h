// What a sequence's storage is made of, in numbers: rows in pages by the page table, and the pieces
// of its state, each placed in one of its state pages. Everything a sequence owns on the device is
// one of the two; nothing lies outside the pool (P5).
#pragma once

#include <cstddef>
#include <vector>

#include "base/result.h"
#include "memory/pool_layout.h"
#include "model/state.h"

namespace flashlane::runner {

using StateForm = memory::PoolLayout::StateForm;

struct Storage {
  model::StateLayout rows;          // of a page; and the model's pieces
  std::vector<size_t> piece_bytes;  // the model's, then the blocks of the head's backlog
  memory::PoolLayout pool;
};

// kInvalidArgument for page rows that are no multiple of the model's block, or with pieces of which
// one is wider than a page: the error names the piece and the least page rows that hold it.
Result<Storage> make_storage(const model::ModelShape& shape, DType kv_dtype, int page_rows,
                             StateForm form, int backlog_rows);

// The least page rows at which each piece of a sequence fits one page.
int least_page_rows(const model::ModelShape& shape, DType kv_dtype);
// Those, but not below 256.
int default_page_rows(const model::ModelShape& shape, DType kv_dtype);

}  // namespace flashlane::runner
