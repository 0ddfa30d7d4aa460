// Sparse attention: cache writes, block selection, attention over the row's own keys.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/elementary.h"
#include "kernels/paging.h"
#include "kernels/reference/reference_ops.h"

namespace flashlane::kernels::reference {
namespace {

// Mean of the block's raw keys as stored, then norm and rotation at its first position.
void write_pooled_key(const KvPages& pages, const int32_t* table, int block,
                      const AttentionWeights& w) {
  std::vector<float> mean(static_cast<size_t>(w.index_dim));
  std::vector<float> raw(static_cast<size_t>(w.index_dim));
  for (int t = 0; t < w.block_tokens; ++t) {
    load_cache_row(
        cache_row(pages, table, pages.index_offset, 0, block * w.block_tokens + t, w.index_dim),
        pages.dtype, raw.data(), w.index_dim);
    for (size_t d = 0; d < mean.size(); ++d) mean[d] += raw[d];
  }
  for (float& value : mean) value /= static_cast<float>(w.block_tokens);
  rms_norm(mean.data(), mean.data(), w.index_key_gain, w.index_dim, w.eps);
  rotate(mean.data(), w.rotary_dims, block * w.block_tokens, w.inverse_frequency);
  store_cache_row(pooled_row(pages, table, block, w.block_tokens, w.index_dim), pages.dtype,
                  mean.data(), w.index_dim);
}

}  // namespace

void ReferenceOps::attention_prepare(float* query_gate, float* key, const float* value,
                                     float* index, const Batch& batch, const KvView& cache,
                                     const AttentionWeights& w) {
  const KvPages& pages = cache.pages;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const int32_t* table = cache.tables[s];
    for (int i = 0; i < segment.row_count; ++i) {
      const int64_t row = segment.first_row + i;
      const int position = segment.start_position + i;
      for (int h = 0; h < w.heads; ++h) {
        float* q = query_gate + (row * w.heads + h) * 2 * w.head_dim;
        rms_norm(q, q, w.query_gain, w.head_dim, w.eps);
        rotate(q, w.rotary_dims, position, w.inverse_frequency);
      }
      for (int h = 0; h < w.kv_heads; ++h) {
        float* k = key + (row * w.kv_heads + h) * w.head_dim;
        rms_norm(k, k, w.key_gain, w.head_dim, w.eps);
        rotate(k, w.rotary_dims, position, w.inverse_frequency);
        store_cache_row(cache_row(pages, table, pages.key_offset, h, position, w.head_dim),
                        pages.dtype, k, w.head_dim);
        store_cache_row(cache_row(pages, table, pages.value_offset, h, position, w.head_dim),
                        pages.dtype, value + (row * w.kv_heads + h) * w.head_dim, w.head_dim);
      }
      float* indexer = index + row * (w.index_heads + 1) * w.index_dim;
      for (int h = 0; h < w.index_heads; ++h) {
        float* q = indexer + h * w.index_dim;
        rms_norm(q, q, w.index_query_gain, w.index_dim, w.eps);
        rotate(q, w.rotary_dims, position, w.inverse_frequency);
      }
      store_cache_row(cache_row(pages, table, pages.index_offset, 0, position, w.index_dim),
                      pages.dtype, indexer + w.index_heads * w.index_dim, w.index_dim);
      if ((position + 1) % w.block_tokens == 0) {
        write_pooled_key(pages, table, position / w.block_tokens, w);
      }
    }
  }
}

void ReferenceOps::select_blocks(const Selection& selection, const float* index, const Batch& batch,
                                 const KvView& cache, const AttentionWeights& w) {
  const float scale = 1.0F / std::sqrt(static_cast<float>(w.index_dim));
  std::vector<float> pooled(static_cast<size_t>(w.index_dim));
  std::vector<float> scores;
  std::vector<int32_t> order;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    for (int i = 0; i < segment.row_count; ++i) {
      const int64_t row = segment.first_row + i;
      const int blocks = (segment.start_position + i + 1) / w.block_tokens;
      order.resize(static_cast<size_t>(blocks));
      for (int b = 0; b < blocks; ++b) order[static_cast<size_t>(b)] = b;
      if (blocks > w.block_budget) {
        scores.resize(static_cast<size_t>(blocks));
        for (int b = 0; b < blocks; ++b) {
          load_cache_row(pooled_row(cache.pages, cache.tables[s], b, w.block_tokens, w.index_dim),
                         cache.pages.dtype, pooled.data(), w.index_dim);
          float sum = 0;
          for (int h = 0; h < w.index_heads; ++h) {
            const float* q = index + (row * (w.index_heads + 1) + h) * w.index_dim;
            sum += std::max(0.0F, dot(q, pooled.data(), w.index_dim));
          }
          scores[static_cast<size_t>(b)] = sum * scale;
        }
        std::sort(order.begin(), order.end(), [&](int32_t x, int32_t y) {
          const float sx = scores[static_cast<size_t>(x)];
          const float sy = scores[static_cast<size_t>(y)];
          return sx != sy ? sx > sy : x < y;
        });
        order.resize(static_cast<size_t>(w.block_budget));
        std::sort(order.begin(), order.end());
      }
      CHECK_LE(static_cast<int>(order.size()), selection.stride);
      std::copy(order.begin(), order.end(), selection.blocks + row * selection.stride);
      selection.counts[row] = static_cast<int32_t>(order.size());
    }
  }
}

void ReferenceOps::sparse_attend(float* out, const float* query_gate, const Selection& selection,
                                 const Batch& batch, const KvView& cache,
                                 const AttentionWeights& w) {
  const KvPages& pages = cache.pages;
  const float scale = 1.0F / std::sqrt(static_cast<float>(w.head_dim));
  const int group = w.heads / w.kv_heads;
  std::vector<int> visible;
  std::vector<float> weights;
  std::vector<float> cached(static_cast<size_t>(w.head_dim));
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const int32_t* table = cache.tables[s];
    for (int i = 0; i < segment.row_count; ++i) {
      const int64_t row = segment.first_row + i;
      const int tokens = segment.start_position + i + 1;
      visible.clear();
      for (int b = 0; b < selection.counts[row]; ++b) {
        const int first = selection.blocks[row * selection.stride + b] * w.block_tokens;
        for (int t = 0; t < w.block_tokens; ++t) visible.push_back(first + t);
      }
      for (int t = tokens / w.block_tokens * w.block_tokens; t < tokens; ++t) visible.push_back(t);
      weights.resize(visible.size());
      for (int h = 0; h < w.heads; ++h) {
        const float* q = query_gate + (row * w.heads + h) * 2 * w.head_dim;
        const float* gate = q + w.head_dim;
        float highest = -std::numeric_limits<float>::infinity();
        for (size_t t = 0; t < visible.size(); ++t) {
          load_cache_row(
              cache_row(pages, table, pages.key_offset, h / group, visible[t], w.head_dim),
              pages.dtype, cached.data(), w.head_dim);
          weights[t] = dot(q, cached.data(), w.head_dim) * scale;
          highest = std::max(highest, weights[t]);
        }
        float total = 0;
        for (float& weight : weights) {
          weight = exp_f32(weight - highest);
          total += weight;
        }
        float* y = out + (row * w.heads + h) * w.head_dim;
        std::fill_n(y, w.head_dim, 0.0F);
        for (size_t t = 0; t < visible.size(); ++t) {
          load_cache_row(
              cache_row(pages, table, pages.value_offset, h / group, visible[t], w.head_dim),
              pages.dtype, cached.data(), w.head_dim);
          for (int d = 0; d < w.head_dim; ++d) y[d] += weights[t] * cached[static_cast<size_t>(d)];
        }
        for (int d = 0; d < w.head_dim; ++d) y[d] = y[d] / total * sigmoid_f32(gate[d]);
      }
    }
  }
}

}  // namespace flashlane::kernels::reference
