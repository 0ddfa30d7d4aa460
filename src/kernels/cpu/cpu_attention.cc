// Sparse attention: cache writes, block selection, attention over the row's own keys. The softmax
// goes over the row's visible tokens in ascending order in steps of kKeyChunk tokens, counted from
// the row's own first one, with a running maximum: a function of the row's keys alone.
#include <algorithm>
#include <cmath>
#include <functional>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/elementary.h"
#include "kernels/paging.h"

namespace flashlane::kernels::cpu {
namespace {

constexpr int kMostRotary = 512;    // rotary dims: sines of one position stand on the stack
constexpr int kMostIndexDim = 512;  // one pooled key likewise
constexpr int kMostGroup = 256;     // query heads of one key-value head

// Sines and cosines of one position, computed once for all heads of a row.
struct Rotation {
  float sine[kMostRotary / 2];
  float cosine[kMostRotary / 2];
  int half;

  Rotation(int position, const AttentionWeights& w) : half(w.rotary_dims / 2) {
    for (int i = 0; i < half; ++i) {
      // The angle is an f32 product, as in the model's own implementations.
      const float angle = static_cast<float>(position) * w.inverse_frequency[i];
      double s;
      double c;
      sincos_f64(static_cast<double>(angle), &s, &c);
      sine[i] = static_cast<float>(s);
      cosine[i] = static_cast<float>(c);
    }
  }

  void apply(float* x) const {
    for (int i = 0; i < half; ++i) {
      const float first = x[i];
      const float second = x[i + half];
      x[i] = first * cosine[i] - second * sine[i];
      x[i + half] = second * cosine[i] + first * sine[i];
    }
  }
};

// Mean of the block's raw keys as stored, then norm and rotation at its first position.
void write_pooled_key(const LevelKernels& kernels, const KvPages& pages, const int32_t* table,
                      int block, const AttentionWeights& w) {
  float mean[kMostIndexDim] = {};
  float raw[kMostIndexDim];
  const int first = block * w.block_tokens;
  for (int t = 0; t < w.block_tokens; ++t) {
    load_cache_row(cache_row(pages, table, pages.index_offset, 0, first + t, w.index_dim),
                   pages.dtype, raw, w.index_dim);
    for (int d = 0; d < w.index_dim; ++d) mean[d] += raw[d];
  }
  for (int d = 0; d < w.index_dim; ++d) mean[d] /= static_cast<float>(w.block_tokens);
  kernels.rms_norm(mean, mean, w.index_key_gain, w.index_dim, w.eps);
  Rotation(first, w).apply(mean);
  store_cache_row(pooled_row(pages, table, block, w.block_tokens, w.index_dim), pages.dtype, mean,
                  w.index_dim);
}

size_t segment_of(const Batch& batch, int row) {
  const auto after = std::upper_bound(
      batch.segments.begin(), batch.segments.end(), row,
      [](int wanted, const Segment& segment) { return wanted < segment.first_row; });
  return static_cast<size_t>(after - batch.segments.begin()) - 1;
}

// The visible tokens of one row in ascending order: selected blocks, then the tail.
class VisibleTokens {
 public:
  VisibleTokens(const int32_t* blocks, int count, int block_tokens, int tokens)
      : blocks_(blocks),
        selected_(count * block_tokens),
        block_tokens_(block_tokens),
        tail_(tokens / block_tokens * block_tokens),
        count_(selected_ + tokens - tail_) {}

  int count() const { return count_; }
  int operator[](int i) const {
    if (i >= selected_) return tail_ + i - selected_;
    return blocks_[i / block_tokens_] * block_tokens_ + i % block_tokens_;
  }

 private:
  const int32_t* blocks_;
  int selected_;
  int block_tokens_;
  int tail_;
  int count_;
};

}  // namespace

void CpuOps::attention_prepare(float* query_gate, float* key, const float* value, float* index,
                               const Batch& batch, const KvView& cache, const AttentionWeights& w) {
  begin(batch.row_count);
  CHECK_LE(w.rotary_dims, kMostRotary);
  CHECK_LE(w.index_dim, kMostIndexDim);
  const KvPages& pages = cache.pages;
  const int64_t width = (w.heads + w.kv_heads) * w.head_dim;
  for_rows(batch.row_count, width, [&](int row) {
    const size_t s = segment_of(batch, row);
    const Segment& segment = batch.segments[s];
    const int32_t* table = cache.tables[s];
    const int position = segment.start_position + row - segment.first_row;
    const Rotation rotation(position, w);
    for (int h = 0; h < w.heads; ++h) {
      float* q = query_gate + (static_cast<int64_t>(row) * w.heads + h) * 2 * w.head_dim;
      kernels_.rms_norm(q, q, w.query_gain, w.head_dim, w.eps);
      rotation.apply(q);
    }
    for (int h = 0; h < w.kv_heads; ++h) {
      const int64_t at = (static_cast<int64_t>(row) * w.kv_heads + h) * w.head_dim;
      kernels_.rms_norm(key + at, key + at, w.key_gain, w.head_dim, w.eps);
      rotation.apply(key + at);
      store_cache_row(cache_row(pages, table, pages.key_offset, h, position, w.head_dim),
                      pages.dtype, key + at, w.head_dim);
      store_cache_row(cache_row(pages, table, pages.value_offset, h, position, w.head_dim),
                      pages.dtype, value + at, w.head_dim);
    }
    float* indexer = index + static_cast<int64_t>(row) * (w.index_heads + 1) * w.index_dim;
    for (int h = 0; h < w.index_heads; ++h) {
      float* q = indexer + static_cast<int64_t>(h) * w.index_dim;
      kernels_.rms_norm(q, q, w.index_query_gain, w.index_dim, w.eps);
      rotation.apply(q);
    }
    store_cache_row(cache_row(pages, table, pages.index_offset, 0, position, w.index_dim),
                    pages.dtype, indexer + static_cast<int64_t>(w.index_heads) * w.index_dim,
                    w.index_dim);
  });
  // All raw keys are stored; now the blocks that these rows complete.
  for_rows(batch.row_count, 4 * w.index_dim, [&](int row) {
    const size_t s = segment_of(batch, row);
    const Segment& segment = batch.segments[s];
    const int position = segment.start_position + row - segment.first_row;
    if ((position + 1) % w.block_tokens != 0) return;
    write_pooled_key(kernels_, pages, cache.tables[s], position / w.block_tokens, w);
  });
}

void CpuOps::select_blocks(const Selection& selection, const float* index, const Batch& batch,
                           const KvView& cache, const AttentionWeights& w) {
  CHECK_LE(batch.row_count, limits_.rows);
  CHECK_LE(w.block_budget, selection.stride);
  const bool bf16 = cache.pages.dtype == DType::kBf16;
  const float scale = 1.0F / std::sqrt(static_cast<float>(w.index_dim));
  const int most_blocks = limits_.context / limits_.block_tokens + 1;
  pool_.run(batch.row_count, [&](int row, int worker) {
    const size_t s = segment_of(batch, row);
    const Segment& segment = batch.segments[s];
    const int tokens = segment.start_position + row - segment.first_row + 1;
    const int blocks = tokens / w.block_tokens;
    int32_t* chosen = selection.blocks + static_cast<int64_t>(row) * selection.stride;
    selection.counts[row] = std::min(blocks, w.block_budget);
    if (blocks <= w.block_budget) {
      for (int b = 0; b < blocks; ++b) chosen[b] = b;
      return;
    }
    CHECK_LE(blocks, most_blocks);
    auto* scores = workers_[static_cast<size_t>(worker)].scores.as<float>();
    const float* queries = index + static_cast<int64_t>(row) * (w.index_heads + 1) * w.index_dim;
    for (int first = 0; first < blocks; first += kKeyChunk) {
      const int count = std::min(kKeyChunk, blocks - first);
      const std::byte* keys[kKeyChunk];
      for (int i = 0; i < count; ++i) {
        keys[i] = pooled_row(cache.pages, cache.tables[s], first + i, w.block_tokens, w.index_dim);
      }
      float sums[kKeyChunk] = {};
      for (int h = 0; h < w.index_heads; ++h) {
        float dots[kKeyChunk];
        kernels_.key_dots(dots, queries + static_cast<int64_t>(h) * w.index_dim, keys, count,
                          w.index_dim, bf16);
        // A NaN counts as nothing, so that scores have one order.
        for (int i = 0; i < count; ++i) sums[i] += dots[i] > 0 ? dots[i] : 0.0F;
      }
      for (int i = 0; i < count; ++i) scores[first + i] = sums[i] * scale;
    }
    // Everything above the budget-th score is in; of its equals, the lowest blocks fill the rest.
    float* ordered = scores + most_blocks;
    std::copy_n(scores, blocks, ordered);
    float* edge = ordered + w.block_budget - 1;
    std::nth_element(ordered, edge, ordered + blocks, std::greater<float>());
    const float threshold = *edge;
    const auto above = std::count_if(ordered, edge, [&](float x) { return x > threshold; });
    auto equals = w.block_budget - static_cast<int>(above);
    int taken = 0;
    for (int b = 0; b < blocks && taken < w.block_budget; ++b) {
      const bool equal = scores[b] == threshold;
      if (scores[b] > threshold || (equal && equals > 0)) {
        if (equal) --equals;
        chosen[taken++] = b;
      }
    }
    CHECK_EQ(taken, w.block_budget);
  });
}

void CpuOps::sparse_attend(float* out, const float* query_gate, const Selection& selection,
                           const Batch& batch, const KvView& cache, const AttentionWeights& w) {
  CHECK_LE(batch.row_count, limits_.rows);
  const KvPages& pages = cache.pages;
  const bool bf16 = pages.dtype == DType::kBf16;
  const float scale = 1.0F / std::sqrt(static_cast<float>(w.head_dim));
  const int group = w.heads / w.kv_heads;
  CHECK_LE(group, kMostGroup);
  pool_.run(batch.row_count * w.kv_heads, [&](int task, int) {
    const int row = task / w.kv_heads;
    const int kv_head = task % w.kv_heads;
    const size_t s = segment_of(batch, row);
    const Segment& segment = batch.segments[s];
    const int tokens = segment.start_position + row - segment.first_row + 1;
    const VisibleTokens visible(selection.blocks + static_cast<int64_t>(row) * selection.stride,
                                selection.counts[row], w.block_tokens, tokens);
    const int64_t first_head = static_cast<int64_t>(row) * w.heads + kv_head * group;
    const float* queries = query_gate + first_head * 2 * w.head_dim;
    float* results = out + first_head * w.head_dim;
    float highest[kMostGroup];
    float totals[kMostGroup] = {};
    std::fill_n(results, static_cast<int64_t>(group) * w.head_dim, 0.0F);
    for (int first = 0; first < visible.count(); first += kKeyChunk) {
      const int count = std::min(kKeyChunk, visible.count() - first);
      const std::byte* keys[kKeyChunk];
      const std::byte* values[kKeyChunk];
      for (int i = 0; i < count; ++i) {
        const int token = visible[first + i];
        keys[i] = cache_row(pages, cache.tables[s], pages.key_offset, kv_head, token, w.head_dim);
        values[i] =
            cache_row(pages, cache.tables[s], pages.value_offset, kv_head, token, w.head_dim);
      }
      for (int h = 0; h < group; ++h) {
        float scores[kKeyChunk];
        kernels_.key_dots(scores, queries + static_cast<int64_t>(h) * 2 * w.head_dim, keys, count,
                          w.head_dim, bf16);
        float most = first == 0 ? scores[0] * scale : highest[h];
        for (int i = 0; i < count; ++i) {
          scores[i] *= scale;
          most = std::max(most, scores[i]);
        }
        const float rescale = first == 0 ? 0.0F : exp_f32(highest[h] - most);
        highest[h] = most;
        totals[h] = totals[h] * rescale + kernels_.exp_sum(scores, count, most);
        kernels_.weigh_values(results + static_cast<int64_t>(h) * w.head_dim, rescale, scores,
                              values, count, w.head_dim, bf16);
      }
    }
    for (int h = 0; h < group; ++h) {
      float* y = results + static_cast<int64_t>(h) * w.head_dim;
      for (int d = 0; d < w.head_dim; ++d) y[d] /= totals[h];
      kernels_.apply_gate(y, queries + (static_cast<int64_t>(h) * 2 + 1) * w.head_dim, w.head_dim,
                          false);
    }
  });
}

}  // namespace flashlane::kernels::cpu
