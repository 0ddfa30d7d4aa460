#include "runner/storage.h"

#include <algorithm>
#include <string>

#include "base/int_math.h"
#include "kernels/batch.h"
#include "runner/head_backlog.h"

namespace flashlane::runner {
namespace {

constexpr int kMostPageRows = 1 << 16;

// The model's pieces, then the backlog's blocks.
std::vector<size_t> pieces_of(const model::StateLayout& layout, int wide, int backlog_rows) {
  std::vector<size_t> bytes;
  bytes.reserve(layout.pieces.size());
  for (const model::StatePiece& piece : layout.pieces) bytes.push_back(piece.bytes);
  bytes.insert(bytes.end(), static_cast<size_t>(HeadBacklog::block_count(backlog_rows)),
               HeadBacklog::block_bytes(wide));
  return bytes;
}

}  // namespace

int least_page_rows(const model::ModelShape& shape, DType kv_dtype) {
  const model::StateLayout least = model::make_state_layout(shape, kv_dtype, shape.index_block);
  if (least.kv_layers.empty()) return shape.index_block;
  const std::vector<size_t> pieces = pieces_of(least, shape.wide(), HeadBacklog::kMostRows);
  const size_t largest = *std::max_element(pieces.begin(), pieces.end());
  // Layers are padded at a page's end, so a page of twice the rows is at most twice as large.
  int rows = memory::smallest_page_rows(largest, least.page_bytes, shape.index_block);
  while (model::make_state_layout(shape, kv_dtype, rows).page_bytes < largest) {
    rows += shape.index_block;
  }
  return rows;
}

int default_page_rows(const model::ModelShape& shape, DType kv_dtype) {
  constexpr int kUsual = 256;
  return std::max(round_up(kUsual, shape.index_block), least_page_rows(shape, kv_dtype));
}

Result<Storage> make_storage(const model::ModelShape& shape, DType kv_dtype, int page_rows,
                             StateForm form, int backlog_rows) {
  if (page_rows < 1 || page_rows > kMostPageRows || page_rows % shape.index_block != 0) {
    return invalid("page_rows is {}; it must be a multiple of {} up to {}", page_rows,
                   shape.index_block, kMostPageRows);
  }
  Storage storage;
  storage.rows = model::make_state_layout(shape, kv_dtype, page_rows);
  if (storage.rows.kv_layers.empty()) {
    return error(ErrorCode::kUnsupported,
                 "the model has no attention layer, so pages hold nothing");
  }
  storage.piece_bytes = pieces_of(storage.rows, shape.wide(), backlog_rows);
  auto pool = memory::PoolLayout::make({.page_rows = page_rows,
                                        .page_bytes = storage.rows.page_bytes,
                                        .piece_bytes = storage.piece_bytes,
                                        .form = form,
                                        .window_rows = kernels::kMaxWindow});
  if (!pool.ok()) {
    return invalid("page_rows is {}, a page of {} bytes: {}; the least page rows are {}", page_rows,
                   storage.rows.page_bytes, pool.error().message, least_page_rows(shape, kv_dtype));
  }
  storage.pool = std::move(pool).value();
  return storage;
}

}  // namespace flashlane::runner
