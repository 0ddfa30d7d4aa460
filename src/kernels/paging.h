// Addresses inside pages (batch.h says how a page is laid out), and loads and stores of cache rows
// in their dtype. Every backend's kernels find K/V rows through these and nothing else.
#pragma once

#include <cstring>

#include "base/check.h"
#include "kernels/batch.h"

namespace flashlane::kernels {

// Row `row` of a plane of `width` values a row; `plane` 0 unless there is one per K/V head.
inline std::byte* cache_row(const KvPages& pages, const int32_t* table, size_t offset, int plane,
                            int row, int width) {
  const int page = row / pages.page_rows;
  const int in_page = row - page * pages.page_rows;
  const size_t index = (static_cast<size_t>(plane) * static_cast<size_t>(pages.page_rows) +
                        static_cast<size_t>(in_page)) *
                       static_cast<size_t>(width);
  return pages.base + static_cast<size_t>(table[page]) * pages.page_bytes + offset +
         index * dtype_bytes(pages.dtype);
}

// The pooled key of block `block`: block_tokens rows of a page share one.
inline std::byte* pooled_row(const KvPages& pages, const int32_t* table, int block,
                             int block_tokens, int width) {
  const int blocks_per_page = pages.page_rows / block_tokens;
  const int page = block / blocks_per_page;
  const int in_page = block - page * blocks_per_page;
  return pages.base + static_cast<size_t>(table[page]) * pages.page_bytes + pages.pooled_offset +
         static_cast<size_t>(in_page) * static_cast<size_t>(width) * dtype_bytes(pages.dtype);
}

inline void store_cache_row(std::byte* row, DType dtype, const float* values, int width) {
  if (dtype == DType::kF32) {
    std::memcpy(row, values, static_cast<size_t>(width) * sizeof(float));
    return;
  }
  CHECK(dtype == DType::kBf16);
  auto* out = reinterpret_cast<uint16_t*>(row);
  for (int i = 0; i < width; ++i) out[i] = float_to_bf16(values[i]);
}

inline void load_cache_row(const std::byte* row, DType dtype, float* values, int width) {
  if (dtype == DType::kF32) {
    std::memcpy(values, row, static_cast<size_t>(width) * sizeof(float));
    return;
  }
  CHECK(dtype == DType::kBf16);
  const auto* in = reinterpret_cast<const uint16_t*>(row);
  for (int i = 0; i < width; ++i) values[i] = bf16_to_float(in[i]);
}

}  // namespace flashlane::kernels
