// The layers with state as test cases: DeltaNet, n-gram layer, attention. Caches lie in shuffled
// pages, each state's in its own.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/paging.h"
#include "tests/kernels/test_cases.h"

namespace flashlane::kernels::test {
namespace {

struct Rows {
  Batch batch;
  std::vector<Segment> segments;
  std::vector<int32_t> tokens;
};

Rows make_rows(Role role, const std::vector<LayerSegment>& parts) {
  Rows rows;
  rows.batch.role = role;
  for (const LayerSegment& part : parts) {
    rows.segments.push_back(
        {rows.batch.row_count, part.row_count, part.start_position, part.pending_rows});
    rows.batch.row_count += part.row_count;
  }
  rows.tokens.resize(static_cast<size_t>(rows.batch.row_count));
  rows.batch.tokens = rows.tokens;
  rows.batch.segments = rows.segments;
  return rows;
}

// Columns [at, at + width) of every row, as one array.
std::vector<float> columns(const float* in, int rows, int stride, int at, int width) {
  std::vector<float> result;
  for (int row = 0; row < rows; ++row) {
    result.insert(result.end(), in + row * stride + at, in + row * stride + at + width);
  }
  return result;
}

void put_columns(float* out, int rows, int stride, int at, int width, const float* from) {
  for (int row = 0; row < rows; ++row) {
    std::copy_n(from + row * width, width, out + row * stride + at);
  }
}

class GdnCase final : public LayerCase {
 public:
  GdnCase(std::string name, const GdnWeights& sizes, Random random)
      : name_(std::move(name)), w_(sizes) {
    w_.eps = 1e-6F;
    w_.conv = store_.floats(random.values(w_.channels() * w_.taps, -0.5F, 0.5F));
    w_.a_log = store_.floats(random.values(w_.value_heads, -1, 1));
    w_.dt_bias = store_.floats(random.values(w_.value_heads, -1, 1));
    w_.norm_gain = store_.floats(random.values(w_.value_dim, 0.5F, 1.5F));
  }
  std::string name() const override { return name_; }
  int in_width() const override { return w_.channels() + values() + 2 * w_.value_heads; }
  int out_width() const override { return values(); }

  LayerState new_state(Random&) override {
    LayerState state;
    state.recurrent.resize(static_cast<size_t>(w_.value_heads * w_.key_dim * w_.value_dim));
    state.history.resize(static_cast<size_t>((w_.taps - 1 + kMaxWindow) * w_.channels()));
    state.keys.resize(static_cast<size_t>(kMaxWindow * w_.key_heads * w_.key_dim));
    state.deltas.resize(static_cast<size_t>(kMaxWindow * values()));
    state.decays.resize(static_cast<size_t>(kMaxWindow * w_.value_heads));
    return state;
  }

  void run(Ops& ops, float* out, const float* in, Role role,
           const std::vector<LayerSegment>& parts) override {
    const Rows rows = make_rows(role, parts);
    const int count = rows.batch.row_count;
    const auto take = [&](int at, int width) { return columns(in, count, in_width(), at, width); };
    const auto qkv = take(0, w_.channels());
    const auto z = take(w_.channels(), values());
    const auto b = take(w_.channels() + values(), w_.value_heads);
    const auto a = take(w_.channels() + values() + w_.value_heads, w_.value_heads);
    std::vector<GdnState> states;
    for (const LayerSegment& part : parts) states.push_back(view(*part.state));
    ops.gdn_step(out, qkv.data(), z.data(), b.data(), a.data(), rows.batch, states, w_);
  }

  std::vector<float> snapshot(Ops& ops, LayerState& state, int pending_rows, int) override {
    ops.settle_gdn(view(state), pending_rows, w_);
    std::vector<float> result = state.recurrent;
    result.insert(result.end(), state.history.begin(),
                  state.history.begin() + (w_.taps - 1) * w_.channels());
    return result;
  }

 private:
  int values() const { return w_.value_heads * w_.value_dim; }
  static GdnState view(LayerState& s) {
    return {s.recurrent.data(), s.history.data(), s.keys.data(), s.deltas.data(), s.decays.data()};
  }
  std::string name_;
  GdnWeights w_;
  Store store_;
};

class PleCase final : public LayerCase {
 public:
  PleCase(std::string name, const PleWeights& sizes, Random random)
      : name_(std::move(name)), w_(sizes) {
    w_.eps = 1e-6F;
    w_.key_gain = store_.floats(random.values(wide(), 0.5F, 1.5F));
    w_.query_gain = store_.floats(random.values(wide(), 0.5F, 1.5F));
    w_.conv_gain = store_.floats(random.values(wide(), 0.5F, 1.5F));
    w_.conv = store_.floats(random.values(wide() * w_.taps, -0.5F, 0.5F));
  }
  std::string name() const override { return name_; }
  int in_width() const override { return 2 * wide() + w_.hidden; }
  int out_width() const override { return 2 * wide(); }

  LayerState new_state(Random&) override {
    LayerState state;
    state.history.resize(static_cast<size_t>((w_.history() + kMaxWindow) * wide()));
    return state;
  }

  void run(Ops& ops, float* out, const float* in, Role role,
           const std::vector<LayerSegment>& parts) override {
    const Rows rows = make_rows(role, parts);
    const int count = rows.batch.row_count;
    auto streams = columns(in, count, in_width(), 0, wide());
    const auto key = columns(in, count, in_width(), wide(), wide());
    const auto value = columns(in, count, in_width(), 2 * wide(), w_.hidden);
    std::vector<float> added(streams.size());
    std::vector<PleState> states;
    for (const LayerSegment& part : parts) states.push_back({part.state->history.data()});
    ops.ple_inject(streams.data(), added.data(), key.data(), value.data(), rows.batch, states, w_);
    put_columns(out, count, out_width(), 0, wide(), streams.data());
    put_columns(out, count, out_width(), wide(), wide(), added.data());
  }

  std::vector<float> snapshot(Ops& ops, LayerState& state, int pending_rows, int) override {
    ops.settle_ple({state.history.data()}, pending_rows, w_);
    return {state.history.begin(), state.history.begin() + w_.history() * wide()};
  }

 private:
  int wide() const { return w_.streams * w_.hidden; }
  std::string name_;
  PleWeights w_;
  Store store_;
};

class AttentionCase final : public LayerCase {
 public:
  AttentionCase(std::string name, const AttentionWeights& sizes, const CacheForm& form,
                Random random)
      : name_(std::move(name)), w_(sizes), free_order_(random.next()) {
    w_.eps = 1e-6F;
    w_.query_gain = store_.floats(random.values(w_.head_dim, 0.5F, 1.5F));
    w_.key_gain = store_.floats(random.values(w_.head_dim, 0.5F, 1.5F));
    w_.index_query_gain = store_.floats(random.values(w_.index_dim, 0.5F, 1.5F));
    w_.index_key_gain = store_.floats(random.values(w_.index_dim, 0.5F, 1.5F));
    w_.inverse_frequency = store_.floats(random.values(w_.rotary_dims / 2, 0.01F, 1));
    const auto unit = dtype_bytes(form.dtype);
    const auto rows = static_cast<size_t>(form.page_rows);
    const size_t plane = rows * static_cast<size_t>(w_.kv_heads * w_.head_dim) * unit;
    const size_t index = rows * static_cast<size_t>(w_.index_dim) * unit;
    pages_.page_rows = form.page_rows;
    pages_.dtype = form.dtype;
    pages_.value_offset = plane;
    pages_.index_offset = 2 * plane;
    pages_.pooled_offset = 2 * plane + index;
    pages_.page_bytes =
        (2 * plane + index + index / static_cast<size_t>(w_.block_tokens) + 63) / 64 * 64;
    constexpr int kStates = 40;
    const int pages = kStates * pages_per_state();
    pool_.resize(static_cast<size_t>(pages) * pages_.page_bytes);
    // Rubbish everywhere: nothing may be read that was not written.
    std::memset(pool_.data(), 0xff, pool_.size());
    pages_.base = pool_.data();
    for (int page = 0; page < pages; ++page) free_.push_back(page);
    for (size_t i = free_.size(); i > 1; --i) {
      std::swap(free_[i - 1], free_[static_cast<size_t>(free_order_.below(static_cast<int>(i)))]);
    }
  }
  std::string name() const override { return name_; }
  int in_width() const override { return queries() + 2 * keys() + indexes(); }
  int out_width() const override { return w_.heads * w_.head_dim + 1 + w_.block_budget; }

  LayerState new_state(Random&) override {
    LayerState state;
    for (int i = 0; i < pages_per_state(); ++i) {
      CHECK(!free_.empty());
      state.table.push_back(free_.back());
      free_.pop_back();
    }
    return state;
  }

  void run(Ops& ops, float* out, const float* in, Role role,
           const std::vector<LayerSegment>& parts) override {
    const Rows rows = make_rows(role, parts);
    const int count = rows.batch.row_count;
    auto query = columns(in, count, in_width(), 0, queries());
    auto key = columns(in, count, in_width(), queries(), keys());
    const auto value = columns(in, count, in_width(), queries() + keys(), keys());
    auto index = columns(in, count, in_width(), queries() + 2 * keys(), indexes());
    std::vector<const int32_t*> tables;
    for (const LayerSegment& part : parts) tables.push_back(part.state->table.data());
    const KvView cache = {pages_, tables};
    const int stride = w_.block_budget + 1;
    std::vector<int32_t> blocks(static_cast<size_t>(count * stride), -1);
    std::vector<int32_t> counts(static_cast<size_t>(count));
    const Selection selection = {blocks.data(), counts.data(), stride};
    const int attended = w_.heads * w_.head_dim;
    std::vector<float> result(static_cast<size_t>(count * attended));
    ops.attention_prepare(query.data(), key.data(), value.data(), index.data(), rows.batch, cache,
                          w_);
    ops.select_blocks(selection, index.data(), rows.batch, cache, w_);
    ops.sparse_attend(result.data(), query.data(), selection, rows.batch, cache, w_);
    for (int row = 0; row < count; ++row) {
      out = std::copy_n(&result[static_cast<size_t>(row * attended)], attended, out);
      const int chosen = counts[static_cast<size_t>(row)];
      *out++ = static_cast<float>(chosen);
      for (int b = 0; b < w_.block_budget; ++b) {
        const int32_t block = blocks[static_cast<size_t>(row * stride + b)];
        *out++ = b < chosen ? static_cast<float>(block) : -1.0F;
      }
    }
  }

  std::vector<float> snapshot(Ops&, LayerState& state, int, int positions) override {
    std::vector<float> result;
    const auto load = [&](const std::byte* row, int width) {
      const size_t at = result.size();
      result.resize(at + static_cast<size_t>(width));
      load_cache_row(row, pages_.dtype, &result[at], width);
    };
    const int32_t* table = state.table.data();
    for (int p = 0; p < positions; ++p) {
      for (int h = 0; h < w_.kv_heads; ++h) {
        load(cache_row(pages_, table, pages_.key_offset, h, p, w_.head_dim), w_.head_dim);
        load(cache_row(pages_, table, pages_.value_offset, h, p, w_.head_dim), w_.head_dim);
      }
      load(cache_row(pages_, table, pages_.index_offset, 0, p, w_.index_dim), w_.index_dim);
    }
    for (int b = 0; b < positions / w_.block_tokens; ++b) {
      load(pooled_row(pages_, table, b, w_.block_tokens, w_.index_dim), w_.index_dim);
    }
    return result;
  }

 private:
  int queries() const { return w_.heads * 2 * w_.head_dim; }
  int keys() const { return w_.kv_heads * w_.head_dim; }
  int indexes() const { return (w_.index_heads + 1) * w_.index_dim; }
  // Rejected rows may lie beyond the last kept position.
  int pages_per_state() const {
    return (kMostPositions + kMaxWindow + pages_.page_rows - 1) / pages_.page_rows;
  }
  std::string name_;
  AttentionWeights w_;
  Random free_order_;
  Store store_;
  KvPages pages_;
  std::vector<std::byte> pool_;
  std::vector<int32_t> free_;
};

GdnWeights gdn_sizes(int key_heads, int value_heads, int key_dim, int value_dim, int taps,
                     Gate gate) {
  GdnWeights w;
  w.key_heads = key_heads;
  w.value_heads = value_heads;
  w.key_dim = key_dim;
  w.value_dim = value_dim;
  w.taps = taps;
  w.output_gate = gate;
  return w;
}

PleWeights ple_sizes(int streams, int hidden, int taps, int dilation) {
  PleWeights w;
  w.streams = streams;
  w.hidden = hidden;
  w.taps = taps;
  w.dilation = dilation;
  return w;
}

AttentionWeights attention_sizes(int heads, int kv_heads, int head_dim, int rotary, int index_heads,
                                 int index_dim, int block_tokens, int budget) {
  AttentionWeights w;
  w.heads = heads;
  w.kv_heads = kv_heads;
  w.head_dim = head_dim;
  w.rotary_dims = rotary;
  w.index_heads = index_heads;
  w.index_dim = index_dim;
  w.block_tokens = block_tokens;
  w.block_budget = budget;
  return w;
}

}  // namespace

std::vector<std::unique_ptr<LayerCase>> layer_cases(uint64_t seed, const CacheForm& form) {
  Random random(seed);
  // Each case's weights have their own seed, so that the form of the cache changes none of them.
  const auto fork = [&] { return Random(random.next()); };
  std::vector<std::unique_ptr<LayerCase>> cases;
  cases.push_back(
      std::make_unique<GdnCase>("gdn_round", gdn_sizes(2, 6, 32, 64, 4, Gate::kSigmoid), fork()));
  cases.push_back(
      std::make_unique<GdnCase>("gdn_odd", gdn_sizes(1, 2, 20, 53, 3, Gate::kSilu), fork()));
  cases.push_back(std::make_unique<PleCase>("ple_round", ple_sizes(4, 64, 4, 3), fork()));
  cases.push_back(std::make_unique<PleCase>("ple_odd", ple_sizes(3, 21, 3, 2), fork()));
  // 20 blocks of 4: more keys than one softmax step, and sparse from position 83 on.
  cases.push_back(std::make_unique<AttentionCase>(
      "attention_round", attention_sizes(4, 2, 64, 16, 2, 32, 4, 20), form, fork()));
  cases.push_back(std::make_unique<AttentionCase>(
      "attention_odd", attention_sizes(6, 3, 24, 8, 3, 20, 2, 5), form, fork()));
  // The true shape's heads, which some backends have kernels of their own for.
  cases.push_back(std::make_unique<AttentionCase>(
      "attention_true", attention_sizes(24, 2, 256, 64, 4, 128, 4, 40), form, fork()));
  cases.push_back(
      std::make_unique<GdnCase>("gdn_true", gdn_sizes(1, 3, 128, 128, 4, Gate::kSigmoid), fork()));
  return cases;
}

}  // namespace flashlane::kernels::test
