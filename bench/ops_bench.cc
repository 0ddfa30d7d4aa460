// One benchmark per op of the cpu backend at the bundled model's shape, with 6-bit weights in
// groups of 64, and matrix products at the true model's sizes. Arguments: rows, threads. Counters:
// rows per second; for products also weight bytes read as packed and multiply-adds per second.
//
//     build/release/ops_bench --benchmark_filter=Project
#include <benchmark/benchmark.h>

#include <cmath>
#include <deque>
#include <vector>

#include "base/check.h"
#include "base/keyed_random.h"
#include "kernels/ops.h"

namespace flashlane::kernels {
namespace {

constexpr int kHidden = 384;
constexpr int kStreams = 4;
constexpr int kWide = kStreams * kHidden;
constexpr int kMostRows = 128;

// A backend, and weights that live as long as it does.
class Bench {
 public:
  explicit Bench(benchmark::State& state) : rows_(static_cast<int>(state.range(0))) {
    auto ops = make_cpu_ops("auto", static_cast<int>(state.range(1)));
    CHECK(ops.ok());
    ops_ = std::move(*ops);
    OpsLimits limits;
    limits.rows = kMostRows;
    limits.widest = 12288;
    limits.vocabulary = 8192;
    limits.context = 8192;
    limits.top_experts = 4;
    limits.expert_width = 128;
    limits.expert_input = 2560;
    limits.low_rank = 64;
    CHECK(ops_->reserve(limits).ok());
  }

  Ops& ops() { return *ops_; }
  int rows() const { return rows_; }

  float* floats(int64_t count, float low = -1, float high = 1) {
    auto& values = floats_.emplace_back(static_cast<size_t>(count));
    for (float& value : values) {
      value = low + (high - low) * static_cast<float>(next() >> 40) * 0x1p-24F;
    }
    return values.data();
  }

  Matrix affine(int64_t count, int64_t rows, int64_t cols, int bits = 6, int group = 64) {
    Matrix m;
    m.layout = Layout::kAffine;
    m.bits = bits;
    m.group = group;
    m.rows = rows;
    m.cols = cols;
    m.count = count;
    m.stride_rows = rows;
    auto& codes = words_.emplace_back(static_cast<size_t>(count * rows) * m.row_bytes() / 8 + 1);
    for (uint64_t& word : codes) word = next();
    const float step = 1.0F / (std::sqrt(static_cast<float>(cols)) * static_cast<float>(1 << bits));
    m.data = reinterpret_cast<const std::byte*>(codes.data());
    m.scales = constants(count * rows * cols / group, step);
    m.biases = constants(count * rows * cols / group, step * -0.5F * static_cast<float>(1 << bits));
    CHECK(ops_->prepare(m).ok());
    return m;
  }

  void count_rows(benchmark::State& state) const {
    state.counters["rows"] =
        benchmark::Counter(rows_, benchmark::Counter::kIsIterationInvariantRate);
  }

 private:
  uint64_t next() {
    seed_ += kGoldenGamma;
    return mix64(seed_);
  }
  const std::byte* constants(int64_t count, float value) {
    auto& values = halves_.emplace_back(static_cast<size_t>(count), float_to_bf16(value));
    return reinterpret_cast<const std::byte*>(values.data());
  }

  int rows_;
  std::unique_ptr<Ops> ops_;
  uint64_t seed_ = 1;
  std::deque<std::vector<float>> floats_;
  std::deque<std::vector<uint64_t>> words_;
  std::deque<std::vector<uint16_t>> halves_;
};

// One sequence, at this position.
struct OneSegment {
  OneSegment(Role role, int rows, int position)
      : segment{0, rows, position, 0}, tokens(static_cast<size_t>(rows)) {
    batch = {role, rows, tokens, {&segment, 1}};
  }
  Segment segment;
  std::vector<int32_t> tokens;
  Batch batch;
};

Role role_of(int rows) {
  return rows <= kMaxWindow ? Role::kDecode : Role::kPrompt;
}

// Extra arguments: outputs, inputs, bits, group.
void Project(benchmark::State& state) {
  Bench bench(state);
  const int64_t outputs = state.range(2);
  const int64_t inputs = state.range(3);
  const Matrix weight = bench.affine(1, outputs, inputs, static_cast<int>(state.range(4)),
                                     static_cast<int>(state.range(5)));
  const float* x = bench.floats(bench.rows() * inputs);
  float* out = bench.floats(bench.rows() * outputs);
  for (auto _ : state) bench.ops().project(out, x, bench.rows(), weight);
  bench.count_rows(state);
  const double bytes_per_weight = weight.bits <= 4 ? 0.5 : 1.0;
  const double weights = static_cast<double>(outputs) * static_cast<double>(inputs);
  const double bytes = weights * (bytes_per_weight + 4.0 / weight.group);
  state.counters["bytes"] =
      benchmark::Counter(bytes, benchmark::Counter::kIsIterationInvariantRate);
  state.counters["madds"] =
      benchmark::Counter(weights * bench.rows(), benchmark::Counter::kIsIterationInvariantRate);
}

void HyperRead(benchmark::State& state) {
  Bench bench(state);
  HyperWeights w;
  w.streams = kStreams;
  w.hidden = kHidden;
  w.low_rank = 64;
  w.eps = 1e-6F;
  w.gain = bench.floats(kWide, 0.5F, 1.5F);
  w.down = bench.affine(1, w.low_rank, kWide);
  w.up = bench.affine(1, kWide, w.low_rank);
  w.inject = bench.affine(1, kStreams, kWide);
  const float* streams = bench.floats(bench.rows() * kWide);
  float* mixed = bench.floats(bench.rows() * kHidden);
  float* inject = bench.floats(bench.rows() * kStreams);
  for (auto _ : state) bench.ops().hyper_read(mixed, inject, streams, bench.rows(), w);
  bench.count_rows(state);
}

void HyperWrite(benchmark::State& state) {
  Bench bench(state);
  float* streams = bench.floats(bench.rows() * kWide);
  const float* inject = bench.floats(bench.rows() * kStreams, -1e-6F, 1e-6F);
  const float* y = bench.floats(bench.rows() * kHidden);
  for (auto _ : state) {
    bench.ops().hyper_write(streams, inject, y, bench.rows(), kStreams, kHidden);
  }
  bench.count_rows(state);
}

void GdnStep(benchmark::State& state) {
  Bench bench(state);
  GdnWeights w;
  w.key_heads = 2;
  w.value_heads = 6;
  w.key_dim = 128;
  w.value_dim = 128;
  w.taps = 4;
  w.eps = 1e-6F;
  w.conv = bench.floats(w.channels() * w.taps);
  w.a_log = bench.floats(w.value_heads);
  w.dt_bias = bench.floats(w.value_heads);
  w.norm_gain = bench.floats(w.value_dim, 0.5F, 1.5F);
  const int64_t rows = bench.rows();
  const int64_t values = w.value_heads * w.value_dim;
  const GdnState layer = {bench.floats(values * w.key_dim, 0, 0),
                          bench.floats((w.taps - 1 + kMaxWindow) * w.channels()),
                          bench.floats(kMaxWindow * w.key_heads * w.key_dim),
                          bench.floats(kMaxWindow * values),
                          bench.floats(int64_t{kMaxWindow} * w.value_heads)};
  const float* qkv = bench.floats(rows * w.channels());
  const float* z = bench.floats(rows * values);
  const float* b = bench.floats(rows * w.value_heads);
  const float* a = bench.floats(rows * w.value_heads);
  float* out = bench.floats(rows * values);
  const OneSegment one(role_of(bench.rows()), bench.rows(), 0);
  for (auto _ : state) {
    bench.ops().gdn_step(out, qkv, z, b, a, one.batch, {&layer, 1}, w);
  }
  bench.count_rows(state);
}

void PleInject(benchmark::State& state) {
  Bench bench(state);
  PleWeights w;
  w.streams = kStreams;
  w.hidden = kHidden;
  w.taps = 4;
  w.dilation = 3;
  w.eps = 1e-6F;
  w.key_gain = bench.floats(kWide, 0.5F, 1.5F);
  w.query_gain = bench.floats(kWide, 0.5F, 1.5F);
  w.conv_gain = bench.floats(kWide, 0.5F, 1.5F);
  w.conv = bench.floats(kWide * w.taps);
  const PleState layer = {bench.floats(int64_t{w.history() + kMaxWindow} * kWide)};
  float* streams = bench.floats(bench.rows() * kWide);
  const float* key = bench.floats(bench.rows() * kWide);
  const float* value = bench.floats(bench.rows() * kHidden, -1e-3F, 1e-3F);
  const OneSegment one(role_of(bench.rows()), bench.rows(), 0);
  for (auto _ : state) {
    bench.ops().ple_inject(streams, nullptr, key, value, one.batch, {&layer, 1}, w);
  }
  bench.count_rows(state);
}

// Attention at a position where 2,048 tokens lie in the cache and 64 blocks are chosen.
struct Attention {
  explicit Attention(Bench& bench, int rows)
      : one(role_of(rows), rows, 2048),
        blocks(static_cast<size_t>(rows) * 64),
        counts(blocks.size()) {
    w.heads = 4;
    w.kv_heads = 2;
    w.head_dim = 256;
    w.rotary_dims = 64;
    w.index_heads = 2;
    w.index_dim = 128;
    w.block_tokens = 4;
    w.block_budget = 64;
    w.eps = 1e-6F;
    w.query_gain = bench.floats(w.head_dim, 0.5F, 1.5F);
    w.key_gain = bench.floats(w.head_dim, 0.5F, 1.5F);
    w.index_query_gain = bench.floats(w.index_dim, 0.5F, 1.5F);
    w.index_key_gain = bench.floats(w.index_dim, 0.5F, 1.5F);
    w.inverse_frequency = bench.floats(w.rotary_dims / 2, 0, 1);
    constexpr size_t kPageRows = 256;
    constexpr size_t kPages = 10;
    view.pages.page_rows = kPageRows;
    view.pages.dtype = DType::kBf16;
    view.pages.value_offset = kPageRows * 2 * 256 * 2;
    view.pages.index_offset = 2 * view.pages.value_offset;
    view.pages.pooled_offset = view.pages.index_offset + kPageRows * 128 * 2;
    view.pages.page_bytes = view.pages.pooled_offset + kPageRows / 4 * 128 * 2;
    pool.resize(kPages * view.pages.page_bytes / 2);
    uint64_t seed = 0;
    for (uint16_t& bits : pool) {
      seed += kGoldenGamma;
      bits = float_to_bf16(static_cast<float>(mix64(seed) >> 40) * 0x1p-24F - 0.5F);
    }
    view.pages.base = reinterpret_cast<std::byte*>(pool.data());
    for (int32_t page = 0; page < static_cast<int32_t>(kPages); ++page) table.push_back(page);
    tables = {table.data()};
    view.tables = tables;
    selection = {blocks.data(), counts.data(), 64};
    query = bench.floats(int64_t{rows} * w.heads * 2 * w.head_dim);
    key = bench.floats(int64_t{rows} * w.kv_heads * w.head_dim);
    value = bench.floats(int64_t{rows} * w.kv_heads * w.head_dim);
    index = bench.floats(int64_t{rows} * (w.index_heads + 1) * w.index_dim);
    out = bench.floats(int64_t{rows} * w.heads * w.head_dim);
  }
  OneSegment one;
  AttentionWeights w;
  KvView view;
  std::vector<uint16_t> pool;
  std::vector<int32_t> table;
  std::vector<const int32_t*> tables;
  std::vector<int32_t> blocks, counts;
  Selection selection;
  float *query, *key, *value, *index, *out;
};

void AttentionPrepare(benchmark::State& state) {
  Bench bench(state);
  Attention a(bench, bench.rows());
  for (auto _ : state) {
    bench.ops().attention_prepare(a.query, a.key, a.value, a.index, a.one.batch, a.view, a.w);
  }
  bench.count_rows(state);
}

void SelectBlocks(benchmark::State& state) {
  Bench bench(state);
  Attention a(bench, bench.rows());
  for (auto _ : state) {
    bench.ops().select_blocks(a.selection, a.index, a.one.batch, a.view, a.w);
  }
  bench.count_rows(state);
}

void SparseAttend(benchmark::State& state) {
  Bench bench(state);
  Attention a(bench, bench.rows());
  bench.ops().select_blocks(a.selection, a.index, a.one.batch, a.view, a.w);
  for (auto _ : state) {
    bench.ops().sparse_attend(a.out, a.query, a.selection, a.one.batch, a.view, a.w);
  }
  bench.count_rows(state);
}

void RouteAndExperts(benchmark::State& state) {
  Bench bench(state);
  MoeWeights w;
  w.hidden = kHidden;
  w.experts = 16;
  w.top_experts = 4;
  w.width = 128;
  w.shared_width = 128;
  w.router = bench.affine(1, w.experts, kHidden);
  w.gate = bench.affine(w.experts, w.width, kHidden);
  w.up = bench.affine(w.experts, w.width, kHidden);
  w.down = bench.affine(w.experts, kHidden, w.width);
  w.shared_gate = bench.affine(1, w.shared_width, kHidden);
  w.shared_up = bench.affine(1, w.shared_width, kHidden);
  w.shared_down = bench.affine(1, kHidden, w.shared_width);
  w.shared_router = bench.affine(1, 1, kHidden);
  const float* x = bench.floats(bench.rows() * kHidden);
  float* out = bench.floats(bench.rows() * kHidden);
  std::vector<int32_t> ids(static_cast<size_t>(bench.rows()) * 4);
  std::vector<float> gates(ids.size());
  for (auto _ : state) {
    bench.ops().route(ids.data(), gates.data(), x, bench.rows(), w);
    bench.ops().experts(out, x, ids.data(), gates.data(), bench.rows(), w);
  }
  bench.count_rows(state);
}

void MtpFuse(benchmark::State& state) {
  Bench bench(state);
  MtpWeights w;
  w.streams = kStreams;
  w.hidden = kHidden;
  w.eps = 1e-6F;
  w.embedding_gain = bench.floats(kHidden, 0.5F, 1.5F);
  w.hidden_gain = bench.floats(kWide, 0.5F, 1.5F);
  w.embedding_projection = bench.affine(1, kHidden, kHidden);
  w.hidden_projection = bench.affine(1, kHidden, kHidden);
  const float* wide = bench.floats(bench.rows() * kWide);
  const float* embedding = bench.floats(bench.rows() * kHidden);
  float* out = bench.floats(bench.rows() * kWide);
  for (auto _ : state) bench.ops().mtp_fuse(out, wide, embedding, bench.rows(), w);
  bench.count_rows(state);
}

void Embed(benchmark::State& state) {
  Bench bench(state);
  const Matrix table = bench.affine(1, 8192, kHidden);
  std::vector<int32_t> tokens(static_cast<size_t>(bench.rows()));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 37 % 8192);
  float* out = bench.floats(bench.rows() * kWide);
  for (auto _ : state) bench.ops().embed(out, tokens, kStreams, table);
  bench.count_rows(state);
}

void Sample(benchmark::State& state) {
  Bench bench(state);
  const float* logits = bench.floats(int64_t{bench.rows()} * 8192, -5, 5);
  std::vector<SampleRow> rows(static_cast<size_t>(bench.rows()));
  for (SampleRow& row : rows) {
    row.params.temperature = 0.7F;
    row.params.top_k = 20;
    row.params.top_p = 0.95F;
  }
  std::vector<int32_t> tokens(rows.size());
  for (auto _ : state) bench.ops().sample(tokens.data(), logits, rows, 8192);
  bench.count_rows(state);
}

// Behind a reply of 4,096 tokens.
void SamplePenalised(benchmark::State& state) {
  Bench bench(state);
  const float* logits = bench.floats(int64_t{bench.rows()} * 8192, -5, 5);
  std::vector<int32_t> context(4096);
  for (size_t i = 0; i < context.size(); ++i) context[i] = static_cast<int32_t>(i * i % 8192);
  std::vector<SampleRow> rows(static_cast<size_t>(bench.rows()));
  for (SampleRow& row : rows) {
    row.params.frequency_penalty = 0.5F;
    row.context = context;
  }
  std::vector<int32_t> tokens(rows.size());
  for (auto _ : state) bench.ops().sample(tokens.data(), logits, rows, 8192);
  bench.count_rows(state);
}

// One row's, with twenty alternatives.
void LogProbabilities(benchmark::State& state) {
  Bench bench(state);
  const float* logits = bench.floats(8192, -5, 5);
  std::vector<TokenLogprob> best(20);
  std::vector<TokenLogprob> own(1);
  for (auto _ : state) bench.ops().log_probabilities(best, own, logits, 8192);
}

void rows_and_threads(benchmark::internal::Benchmark* bench) {
  for (const int threads : {1, 2}) {
    for (const int rows : {1, 4, 16, kMostRows}) bench->Args({rows, threads});
  }
  bench->UseRealTime();
}

void product_shapes(benchmark::internal::Benchmark* bench) {
  struct Size {
    int64_t outputs, inputs, bits, group;
  };
  const Size sizes[] = {
      {1280, 384, 6, 64},    // nano: DeltaNet inputs
      {8192, 384, 6, 64},    // nano: head
      {10240, 2560, 6, 64},  // true: DeltaNet inputs
      {10240, 2560, 4, 32},  // the same, 4-bit
      {320, 10240, 4, 32},   // true: hyper-connection, down
      {10240, 320, 4, 32},   // true: hyper-connection, up
      {2560, 6144, 4, 32},   // true: mixer output
  };
  for (const Size& size : sizes) {
    for (const int rows : {1, 4, 16, kMostRows}) {
      bench->Args({rows, 2, size.outputs, size.inputs, size.bits, size.group});
    }
  }
  bench->UseRealTime();
}

BENCHMARK(Project)->Apply(product_shapes);
BENCHMARK(HyperRead)->Apply(rows_and_threads);
BENCHMARK(HyperWrite)->Apply(rows_and_threads);
BENCHMARK(GdnStep)->Apply(rows_and_threads);
BENCHMARK(PleInject)->Apply(rows_and_threads);
BENCHMARK(AttentionPrepare)->Apply(rows_and_threads);
BENCHMARK(SelectBlocks)->Apply(rows_and_threads);
BENCHMARK(SparseAttend)->Apply(rows_and_threads);
BENCHMARK(RouteAndExperts)->Apply(rows_and_threads);
BENCHMARK(MtpFuse)->Apply(rows_and_threads);
BENCHMARK(Embed)->Apply(rows_and_threads);
BENCHMARK(Sample)->Apply(rows_and_threads);
BENCHMARK(SamplePenalised)->Apply(rows_and_threads);
BENCHMARK(LogProbabilities)->Args({1, 1});

}  // namespace
}  // namespace flashlane::kernels

BENCHMARK_MAIN();
