#include "kernels/cuda/cuda_ops.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/int_math.h"
#include "kernels/cuda/dense.h"
#include "kernels/gpu.h"
#include "kernels/ngram_row.h"

namespace flashlane::kernels {
namespace cuda {
namespace {

constexpr size_t kAlignment = 256;

Segments segments_of(const Batch& batch) {
  CHECK_LE(batch.segments.size(), static_cast<size_t>(kMostSegments));
  Segments segments;
  segments.count = static_cast<int>(batch.segments.size());
  std::copy(batch.segments.begin(), batch.segments.end(), segments.of);
  return segments;
}

// What an op sends: a row of a table for each token.
size_t staging_bytes(const OpsLimits& limits) {
  return static_cast<size_t>(limits.rows) * static_cast<size_t>(limits.widest) * sizeof(float);
}

// More share no more of the machine's memory.
constexpr int kMostHostThreads = 8;

}  // namespace

CudaOps::CudaOps(int threads, bool patient)
    : patient_(patient),
      memory_(cuda_memory()),
      staging_(memory_),
      host_threads_(std::min(threads, kMostHostThreads)) {
  info_.name = "cuda";
  info_.isa = first_gpu().value().architecture;
  info_.activations = "bf16";
  info_.threads = 1;
  info_.prompt_grid = 1;
  info_.prompt_rows = 4096;  // so that an expert has some of them, and is read once for all
  info_.default_kv_dtype = DType::kBf16;
}

CudaOps::~CudaOps() = default;

Status CudaOps::reserve(const OpsLimits& limits) {
  if (limits.top_experts > kMostTopExperts) {
    return error(ErrorCode::kUnsupported, "backend cuda: {} experts a token, at most {}",
                 limits.top_experts, kMostTopExperts);
  }
  if (limits.experts > kMostExperts) {
    return error(ErrorCode::kUnsupported, "backend cuda: {} experts, at most {}", limits.experts,
                 kMostExperts);
  }
  if (limits.gdn_head_dim > kMostGdnHeadDim) {
    return error(ErrorCode::kUnsupported,
                 "backend cuda: heads of {} in linear attention, at most {}", limits.gdn_head_dim,
                 kMostGdnHeadDim);
  }
  staging_.reserve(staging_bytes(limits));
  scratch_.emplace_back(reserved_bytes(limits) - staging_bytes(limits), memory_);
  sampler_.reserve(limits.vocabulary);
  host_rows_.reserve(static_cast<size_t>(limits.vocabulary));
  return {};
}

// What is sent, and the most that one op takes of the scratch: the experts of a prompt's rows, a
// few rows of the widest kind, the scores of a long context's blocks, or the parts of a decode
// step's attention.
size_t CudaOps::reserved_bytes(const OpsLimits& limits) const {
  const auto rows = static_cast<size_t>(limits.rows);
  const auto pairs = rows * static_cast<size_t>(limits.top_experts);
  // Of a row of x as products take it: bf16, and two sums a step.
  const auto packed = [](int64_t cols) {
    return static_cast<size_t>(div_ceil<int64_t>(cols, kStepCols) * (kStepCols / 2 + 2));
  };
  const auto of_expert = static_cast<size_t>(2 * limits.expert_width + limits.expert_input + 1);
  const size_t of_experts = pairs * (of_expert + packed(limits.expert_width)) +
                            rows * (of_expert + packed(limits.expert_input)) + 4096;
  const size_t of_rows =
      rows * (static_cast<size_t>(3 * limits.widest + limits.low_rank) + packed(limits.widest));
  const size_t of_blocks = rows * static_cast<size_t>(limits.context / limits.block_tokens + 1);
  AttentionWeights attention;
  attention.heads = limits.heads;
  attention.head_dim = limits.head_dim;
  attention.block_tokens = limits.block_tokens;
  attention.block_budget = limits.block_budget;
  const auto of_attention = static_cast<size_t>(
      sparse_attend_scratch_floats(std::min(limits.rows, kMaxWindow), attention));
  // Sums of slices that are kept apart where a forward has few rows (product_many.cu); where it may
  // have many, what is counted for those is more.
  constexpr int kManyRows = 512;
  constexpr size_t kPartFloats = 4 << 20;
  const size_t of_parts = limits.rows < kManyRows ? kPartFloats : 0;
  return (std::max({of_experts, of_rows, of_blocks, of_attention}) + of_parts) * sizeof(float) +
         16 * kAlignment + staging_bytes(limits);
}

void CudaOps::launched() {
  CHECK_CUDA(cudaGetLastError());
  if (patient_) memory_.wait();
}

float* CudaOps::scratch(int64_t floats) {
  const size_t bytes = round_up(static_cast<size_t>(floats) * sizeof(float), kAlignment);
  if (scratch_.empty() || scratch_used_ + bytes > scratch_.back().bytes()) {
    const size_t before = scratch_.empty() ? 0 : scratch_.back().bytes();
    scratch_.emplace_back(std::max(2 * before, scratch_used_ + bytes), memory_);
    scratch_used_ = 0;
  }
  float* place = reinterpret_cast<float*>(scratch_.back().data() + scratch_used_);
  scratch_used_ += bytes;
  return place;
}

void CudaOps::multiply(float* out, const float* x, int row_count, const Matrix& weight) {
  multiply({.weight = prepared(weight), .x = x, .out = out, .row_count = row_count});
}

void CudaOps::multiply(const Product& product) {
  launch_product(memory_.stream(), product, scratch(product_room_floats(product)));
}

void CudaOps::multiply_few(const FewProducts& products) {
  launch_few_rows(memory_.stream(), products, scratch(few_room_floats(products)));
}

// row(i) for each row of a table on the host, by several threads where there are many.
template <typename Row>
void CudaOps::fetch_rows(size_t count, const Row& row) {
  constexpr size_t kRowsOfTurn = 256;  // those of a decode step are not worth waking anybody
  host_threads_.run(static_cast<int>(div_ceil(count, kRowsOfTurn)), [&](int turn, int) {
    const size_t first = static_cast<size_t>(turn) * kRowsOfTurn;
    for (size_t i = first; i < std::min(first + kRowsOfTurn, count); ++i) row(i);
  });
}

void CudaOps::embed(float* streams, std::span<const int32_t> tokens, int copies,
                    const Matrix& table) {
  const Launches launches(*this);
  const auto cols = static_cast<size_t>(table.cols);
  const Staging::Place place = staging_.take(tokens.size() * cols * sizeof(float));
  auto* rows = reinterpret_cast<float*>(place.host);
  fetch_rows(tokens.size(),
             [&](size_t i) { dequantize_row(table, 0, tokens[i], rows + i * cols); });
  staging_.send(place);
  launch_spread(memory_.stream(), streams, reinterpret_cast<const float*>(place.device),
                static_cast<int>(tokens.size()), copies, static_cast<int>(table.cols));
}

void CudaOps::ngram_embed(float* out, std::span<const int64_t> rows, int row_count,
                          const NgramTable& table) {
  const Launches launches(*this);
  CHECK_EQ(rows.size(), static_cast<size_t>(row_count) * static_cast<size_t>(table.heads));
  const auto width = static_cast<size_t>(table.row_width);
  const Staging::Place place = staging_.take(rows.size() * width * sizeof(float));
  auto* values = reinterpret_cast<float*>(place.host);
  fetch_rows(rows.size(), [&](size_t i) { ngram_table_row(table, rows[i], values + i * width); });
  CHECK_CUDA(cudaMemcpyAsync(out, place.host, place.bytes, cudaMemcpyDefault, memory_.stream()));
}

void CudaOps::project(std::span<const Projection> projections, const float* x, int row_count) {
  const Launches launches(*this);
  FewProducts together;
  together.row_count = row_count;
  const bool room = projections.size() <= static_cast<size_t>(kMostFewEntries);
  for (const Projection& projection : projections) {
    if (!room) break;
    together.add({.weight = prepared(*projection.weight), .x = x, .out = projection.out});
  }
  if (room && can_launch_few(together)) return multiply_few(together);
  std::vector<Product> of_x;
  for (const Projection& projection : projections) {
    of_x.push_back({.weight = prepared(*projection.weight),
                    .x = x,
                    .out = projection.out,
                    .row_count = row_count});
  }
  multiply_all(of_x);
}

void CudaOps::hyper_read(float* mixed, float* inject, const float* streams, int row_count,
                         const HyperWeights& weights) {
  const Launches launches(*this);
  const int64_t rows = row_count;
  const int64_t wide = int64_t{weights.streams} * weights.hidden;
  const float share = 1.0F / static_cast<float>(weights.streams);
  cudaStream_t stream = memory_.stream();
  float* normed = scratch(rows * wide);
  if (hyper_read_few(mixed, inject, streams, normed, row_count, weights)) return;
  // A stream is a chunk of the sums where it has whole steps.
  const int chunks = weights.hidden % kStepCols == 0 ? weights.streams : 1;
  std::vector<Product> of_normed;
  const auto add = [&](float* out, const Matrix& weight) {
    of_normed.push_back({.weight = prepared(weight),
                         .x = normed,
                         .out = out,
                         .row_count = row_count,
                         .chunks = chunks});
  };
  float* low = scratch(rows * weights.low_rank);
  float* gates = scratch(rows * wide);
  launch_norms(stream, normed, streams, weights.gain, rows * weights.streams, weights.streams,
               weights.hidden, weights.eps);
  add(low, weights.down);
  if (!weights.inject.empty()) add(inject, weights.inject);
  multiply_all(of_normed);
  launch_scaled_silu(stream, low, rows * weights.low_rank, share);
  multiply(gates, low, row_count, weights.up);
  launch_mix(stream, mixed, gates, normed, row_count, weights.streams, weights.hidden);
  if (!weights.inject.empty()) launch_inject(stream, inject, rows * weights.streams, share);
}

// A decode step's, in two launches, behind the norms where there are many rows; false where the
// weights don't allow it.
bool CudaOps::hyper_read_few(float* mixed, float* inject, const float* streams, float* normed,
                             int row_count, const HyperWeights& weights) {
  if (row_count > kFewRows || weights.hidden % kStepCols != 0) return false;
  const int64_t rows = row_count;
  const int chunks = weights.streams;
  const bool normed_there = row_count > kNormedRows;
  float* low = scratch(chunks * rows * weights.low_rank);
  float* inject_parts = scratch(chunks * rows * weights.streams);
  FewProducts down;
  FewProducts up;
  down.row_count = up.row_count = row_count;
  down.hyper.streams = up.hyper.streams = weights.streams;
  down.hyper.hidden = up.hyper.hidden = weights.hidden;
  down.hyper.normed = up.hyper.normed = normed;
  if (!normed_there) down.hyper.from = streams;
  down.hyper.gain = weights.gain;
  down.hyper.eps = weights.eps;
  const float* x = normed_there ? normed : nullptr;
  down.add({.weight = prepared(weights.down), .x = x, .out = low, .chunks = chunks});
  if (!weights.inject.empty()) {
    down.add({.weight = prepared(weights.inject), .x = x, .out = inject_parts, .chunks = chunks});
    up.hyper.inject_parts = inject_parts;
    up.hyper.inject = inject;
  }
  up.hyper.low = low;
  up.add({.weight = prepared(weights.up), .out = mixed, .epilogue = Epilogue::kMix});
  if (!can_launch_few(down) || !can_launch_few(up)) return false;
  if (normed_there) {
    launch_norms(memory_.stream(), normed, streams, weights.gain, rows * weights.streams,
                 weights.streams, weights.hidden, weights.eps);
  }
  multiply_few(down);
  multiply_few(up);
  return true;
}

void CudaOps::hyper_write(float* streams, const float* inject, const float* y, int row_count,
                          int stream_count, int hidden) {
  const Launches launches(*this);
  launch_hyper_write(memory_.stream(), streams, inject, y, row_count, stream_count, hidden);
}

void CudaOps::ple_inject(float* streams, float* added, const float* key, const float* value,
                         const Batch& batch, std::span<const PleState> states,
                         const PleWeights& weights) {
  const Launches launches(*this);
  const Segments segments = segments_of(batch);
  CHECK_EQ(states.size(), batch.segments.size());
  PleStates own;
  std::copy(states.begin(), states.end(), own.of);
  launch_ple_inject(memory_.stream(), streams, added, key, value, batch.role, batch.row_count,
                    segments, own, weights, scratch(ple_scratch_floats(batch.row_count, weights)));
}

void CudaOps::gdn_step(float* out, const float* qkv, const float* z, const float* b, const float* a,
                       const Batch& batch, std::span<const GdnState> states,
                       const GdnWeights& weights) {
  const Launches launches(*this);
  const Segments segments = segments_of(batch);
  CHECK_EQ(states.size(), batch.segments.size());
  GdnStates own;
  std::copy(states.begin(), states.end(), own.of);
  launch_gdn_step(memory_.stream(), out, qkv, z, b, a, batch.role, batch.row_count, segments, own,
                  weights, scratch(gdn_scratch_floats(batch.row_count, weights)));
}

// The pages that rows of this forward may name. What was sent stays until it differs.
const int32_t* CudaOps::table_on_device(const int32_t* table, int pages) {
  Table& own = tables_[table];
  const auto count = static_cast<size_t>(pages);
  if (own.sent.size() >= count && std::equal(table, table + pages, own.sent.begin())) {
    return own.device.as<int32_t>();
  }
  if (own.device.bytes() < count * sizeof(int32_t)) {
    own.device = Buffer(round_up(2 * count * sizeof(int32_t), kAlignment), memory_);
  }
  own.sent.assign(table, table + pages);
  const Staging::Place place = staging_.take(count * sizeof(int32_t));
  std::memcpy(place.host, table, place.bytes);
  CHECK_CUDA(cudaMemcpyAsync(own.device.data(), place.host, place.bytes, cudaMemcpyHostToDevice,
                             memory_.stream()));
  return own.device.as<int32_t>();
}

CacheView CudaOps::view(const Batch& batch, const KvView& cache) {
  CacheView view;
  view.pages = cache.pages;
  for (size_t s = 0; s < batch.segments.size(); ++s) {
    const Segment& segment = batch.segments[s];
    const int rows = segment.start_position + segment.row_count;
    view.tables[s] = table_on_device(cache.tables[s],
                                     (rows + cache.pages.page_rows - 1) / cache.pages.page_rows);
  }
  return view;
}

void CudaOps::attention_prepare(float* query_gate, float* key, const float* value, float* index,
                                const Batch& batch, const KvView& cache,
                                const AttentionWeights& weights) {
  const Launches launches(*this);
  launch_attention_prepare(memory_.stream(), query_gate, key, value, index, batch.row_count,
                           segments_of(batch), view(batch, cache), weights);
}

void CudaOps::select_blocks(const Selection& selection, const float* index, const Batch& batch,
                            const KvView& cache, const AttentionWeights& weights) {
  const Launches launches(*this);
  int longest = 0;
  for (const Segment& segment : batch.segments) {
    longest = std::max(longest, segment.start_position + segment.row_count);
  }
  const int most_blocks = longest / weights.block_tokens;
  float* scores = most_blocks > weights.block_budget
                      ? scratch(int64_t{batch.row_count} * most_blocks)
                      : nullptr;
  launch_select_blocks(memory_.stream(), selection.blocks, selection.counts, selection.stride,
                       index, batch.row_count, most_blocks, segments_of(batch), view(batch, cache),
                       weights, reinterpret_cast<uint32_t*>(scores));
}

void CudaOps::sparse_attend(float* out, const float* query_gate, const Selection& selection,
                            const Batch& batch, const KvView& cache,
                            const AttentionWeights& weights) {
  const Launches launches(*this);
  launch_sparse_attend(memory_.stream(), out, query_gate, selection.blocks, selection.counts,
                       selection.stride, batch.row_count, segments_of(batch), view(batch, cache),
                       weights, scratch(sparse_attend_scratch_floats(batch.row_count, weights)));
}

void CudaOps::route(int32_t* ids, float* gates, const float* x, int row_count,
                    const MoeWeights& weights) {
  const Launches launches(*this);
  float* logits = scratch(int64_t{row_count} * weights.experts);
  multiply(logits, x, row_count, weights.router);
  launch_route(memory_.stream(), ids, gates, logits, row_count, weights.experts,
               weights.top_experts, weights.renormalize);
}

void CudaOps::experts(float* out, const float* x, const int32_t* ids, const float* gates,
                      int row_count, const MoeWeights& weights) {
  const Launches launches(*this);
  const int64_t rows = row_count;
  const int64_t pairs = rows * weights.top_experts;
  ExpertRows values;
  values.gated = scratch(pairs * weights.width);
  values.routed = scratch(pairs * weights.hidden);
  values.shared_gated = scratch(rows * weights.shared_width);
  values.shared = scratch(rows * weights.hidden);
  values.shared_weight = scratch(rows);
  if (!experts_few(values, x, ids, row_count, weights)) {
    experts_many(values, x, ids, row_count, weights);
  }
  launch_sum_experts(memory_.stream(), out, values.routed, ids, gates, values.shared,
                     values.shared_weight, row_count, weights.top_experts, weights.hidden);
}

// A decode step's: all that reads x in one launch, all that reads what came of it in another;
// false where the weights don't allow it.
bool CudaOps::experts_few(const ExpertRows& values, const float* x, const int32_t* ids,
                          int row_count, const MoeWeights& weights) {
  const int top = weights.top_experts;
  FewProducts up;
  FewProducts down;
  up.row_count = down.row_count = row_count;
  up.ids = down.ids = ids;
  up.top = down.top = top;
  up.keeps_next_back = down.ids_before = true;
  up.add({.weight = prepared(weights.gate),
          .second = prepared(weights.up),
          .x = x,
          .out = values.gated,
          .epilogue = Epilogue::kGated,
          .listed = true,
          .pairs_per_row = top});
  up.add({.weight = prepared(weights.shared_gate),
          .second = prepared(weights.shared_up),
          .x = x,
          .out = values.shared_gated,
          .epilogue = Epilogue::kGated});
  up.add({.weight = prepared(weights.shared_router), .x = x, .out = values.shared_weight});
  down.add(
      {.weight = prepared(weights.down), .x = values.gated, .out = values.routed, .listed = true});
  down.add(
      {.weight = prepared(weights.shared_down), .x = values.shared_gated, .out = values.shared});
  if (!can_launch_few(up) || !can_launch_few(down)) return false;
  multiply_few(up);
  multiply_few(down);
  return true;
}

void CudaOps::multiply_all(std::span<Product> products) {
  int64_t floats = 0;
  for (const Product& product : products) floats = std::max(floats, product.many_room_floats());
  float* room = scratch(floats);
  bool packed = false;
  for (Product& product : products) {
    product.room = room;
    product.x_is_packed = packed;
    multiply(product);
    packed = packed || product.packs_x();
  }
}

void CudaOps::experts_many(const ExpertRows& values, const float* x, const int32_t* ids,
                           int row_count, const MoeWeights& weights) {
  cudaStream_t stream = memory_.stream();
  const int top = weights.top_experts;
  const int pairs = row_count * top;
  auto* starts = reinterpret_cast<int32_t*>(scratch(weights.experts + 1));
  auto* list = reinterpret_cast<int32_t*>(scratch(pairs));
  launch_expert_lists(stream, starts, list, ids, pairs, weights.experts);
  std::vector<Product> of_x;
  // Returns where up's values go, if they are not in one product with gate's.
  const auto add_gated = [&](const Product& to, const Matrix& up) -> float* {
    Product& gate = of_x.emplace_back(to);
    gate.x = x;
    gate.gated = true;
    gate.second = prepared(up);
    if (gate.fuses()) return nullptr;
    gate.second = {};
    Product other = gate;
    other.weight = prepared(up);
    other.out = scratch(int64_t{gate.row_count} * gate.weight.rows);
    return of_x.emplace_back(other).out;
  };
  const float* up = add_gated({.weight = prepared(weights.gate),
                               .out = values.gated,
                               .row_count = pairs,
                               .lists = {starts, list, top}},
                              weights.up);
  const float* shared_up = add_gated(
      {.weight = prepared(weights.shared_gate), .out = values.shared_gated, .row_count = row_count},
      weights.shared_up);
  of_x.push_back({.weight = prepared(weights.shared_router),
                  .x = x,
                  .out = values.shared_weight,
                  .row_count = row_count});
  multiply_all(of_x);
  if (up != nullptr) launch_gated(stream, values.gated, up, int64_t{pairs} * weights.width);
  if (shared_up != nullptr) {
    launch_gated(stream, values.shared_gated, shared_up, int64_t{row_count} * weights.shared_width);
  }
  multiply({.weight = prepared(weights.down),
            .x = values.gated,
            .out = values.routed,
            .row_count = pairs,
            .lists = {starts, list, 1}});
  multiply(values.shared, values.shared_gated, row_count, weights.shared_down);
}

void CudaOps::mtp_fuse(float* out, const float* wide, const float* embedding, int row_count,
                       const MtpWeights& weights) {
  const Launches launches(*this);
  const int64_t rows = row_count;
  const int width = weights.streams * weights.hidden;
  cudaStream_t stream = memory_.stream();
  float* normed = scratch(rows * width);
  float* normed_embedding = scratch(rows * weights.hidden);
  float* projected = scratch(rows * weights.hidden);
  launch_norms(stream, normed_embedding, embedding, weights.embedding_gain, rows, 1, weights.hidden,
               weights.eps);
  multiply(projected, normed_embedding, row_count, weights.embedding_projection);
  launch_norms(stream, normed, wide, weights.hidden_gain, rows, 1, width, weights.eps);
  multiply(out, normed, row_count * weights.streams, weights.hidden_projection);
  launch_add_to_streams(stream, out, projected, row_count, weights.streams, weights.hidden);
}

const float* CudaOps::rows_on_host(const float* rows, int64_t count) {
  host_rows_.resize(static_cast<size_t>(count));
  memory_.copy(host_rows_.data(), rows, host_rows_.size() * sizeof(float));
  return host_rows_.data();
}

// The largest of each row comes from the device; whoever draws otherwise has its row's logits
// brought here, for the one sampler of all backends.
void CudaOps::sample(int32_t* tokens, const float* logits, std::span<const SampleRow> rows,
                     int vocabulary) {
  if (rows.empty()) return;
  const Launches launches(*this);
  const auto plain = [](const SampleParams& params) {
    return !(params.temperature > 0) && params.presence_penalty == 0 &&
           params.frequency_penalty == 0 && params.repetition_penalty == 1;
  };
  if (std::any_of(rows.begin(), rows.end(), [&](const SampleRow& r) { return plain(r.params); })) {
    auto* best = reinterpret_cast<int32_t*>(scratch(static_cast<int64_t>(rows.size())));
    float* parts = scratch(static_cast<int64_t>(rows.size()) * kArgmaxFloats);
    launch_argmax(memory_.stream(), best, logits, static_cast<int>(rows.size()), vocabulary, parts);
    memory_.copy(tokens, best, rows.size() * sizeof(int32_t));
  }
  for (size_t i = 0; i < rows.size(); ++i) {
    if (plain(rows[i].params)) continue;
    const float* own = rows_on_host(logits + i * static_cast<size_t>(vocabulary), vocabulary);
    tokens[i] = sample_token(own, vocabulary, rows[i], sampler_);
  }
}

void CudaOps::log_probabilities(std::span<TokenLogprob> best, std::span<TokenLogprob> of_tokens,
                                const float* logits, int vocabulary) {
  kernels::log_probabilities(best, of_tokens, rows_on_host(logits, vocabulary), vocabulary,
                             sampler_);
}

void CudaOps::settle_gdn(const GdnState& state, int pending_rows, const GdnWeights& weights) {
  const Launches launches(*this);
  launch_settle_gdn(memory_.stream(), state, pending_rows, weights);
}

void CudaOps::settle_ple(const PleState& state, int pending_rows, const PleWeights& weights) {
  const Launches launches(*this);
  launch_settle_ple(memory_.stream(), state, pending_rows, weights);
}

}  // namespace cuda

constexpr int kLeastMajor = 8;  // compute capability

std::optional<Gpu> first_gpu() {
  cudaDeviceProp properties = {};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  return Gpu{.name = properties.name,
             .architecture = fmt::format("sm_{}{}", properties.major, properties.minor),
             .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
}

std::optional<size_t> free_gpu_memory() {
  size_t free = 0;
  size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    (void)cudaGetLastError();
    return std::nullopt;
  }
  return free;
}

Result<std::unique_ptr<Ops>> make_cuda_ops(int threads, bool patient) {
  int devices = 0;
  const cudaError_t found = cudaGetDeviceCount(&devices);
  if (found != cudaSuccess || devices == 0) {
    return error(ErrorCode::kNotFound, "backend cuda: no GPU can be used here: {}",
                 found == cudaSuccess ? "there is none" : cudaGetErrorString(found));
  }
  cudaDeviceProp properties = {};
  if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess || properties.major < kLeastMajor) {
    return error(ErrorCode::kUnsupported, "backend cuda: the GPU is of sm_{}{}, it needs sm_{}0",
                 properties.major, properties.minor, kLeastMajor);
  }
  return std::unique_ptr<Ops>(std::make_unique<cuda::CudaOps>(threads, patient));
}

}  // namespace flashlane::kernels
