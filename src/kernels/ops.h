// Ops: every step of the model between two weight reads, one method each; a backend implements all
// of them or is not a backend. Destinations come first, weights last; all activations are f32 and
// row-major [row_count, width]; no destination overlaps an input unless the method says so.
//
// The row rule (docs/row_rule.md is normative): an output row depends only on its own input row,
// its own sequence's state, the weights and compile-time constants. Never on the number of rows,
// its place among them, its neighbours, page ids, or the thread count. Reductions have one fixed
// order per weight shape, attention goes over the row's own keys in ascending order, experts are
// summed in ascending id, ties in every argmax and top-k go to the lower index.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/result.h"
#include "kernels/batch.h"
#include "kernels/layers.h"
#include "kernels/matrix.h"
#include "tensor/buffer.h"

namespace flashlane::kernels {

struct BackendInfo {
  std::string name;         // "reference", "cpu", "cuda"
  std::string isa;          // "scalar", "avx2", "sm_90", …: part of the promise of equal bits
  std::string activations;  // "f32" or "bf16": what enters matrix products
  int threads = 1;
  int prompt_grid = 1;    // a prompt may be cut at multiples of this
  int prompt_rows = 512;  // of a step, where nobody says how many
  DType default_kv_dtype = DType::kF32;
};

// The largest shapes that will be asked for, so that a backend allocates once, at load.
struct OpsLimits {
  int rows = 0;        // of any forward
  int64_t widest = 0;  // the longest row of any activation, the vocabulary excluded
  int vocabulary = 0;
  int context = 0;  // most positions of a sequence
  int experts = 0;
  int top_experts = 0;
  int gdn_head_dim = 0;  // the wider of keys and values
  int expert_width = 0;  // the wider of routed and shared
  int expert_input = 0;  // columns of an expert's input
  int low_rank = 0;
  int heads = 0, head_dim = 0;  // of attention
  int block_tokens = 4;
  int block_budget = 0;
};

struct SampleParams {
  float temperature = 0;  // 0 = greedy
  int top_k = 0;          // 0 = no cut
  float top_p = 1;        // 1 = no cut
  float min_p = 0;        // 0 = no cut
  uint64_t seed = 0;
  // Of tokens that came before; these values change nothing (penalties.h).
  float presence_penalty = 0;
  float frequency_penalty = 0;
  float repetition_penalty = 1;  // above 0
};

struct SampleRow {
  SampleParams params;
  int64_t position = 0;  // absolute position of the token being drawn
  // What the penalties look at: the sequence's tokens up to the row, of which the first `prompt`
  // are no reply, and behind them those that were drafted and are not among its rows yet.
  std::span<const int32_t> context = {};
  std::span<const int32_t> ahead = {};
  int prompt = 0;
};

struct TokenLogprob {
  int32_t token = 0;
  float logprob = 0;
};

// Which complete blocks each row attends to. counts[row] of them, ascending, at blocks[row *
// stride].
struct Selection {
  int32_t* blocks = nullptr;  // [row_count, stride]
  int32_t* counts = nullptr;  // [row_count]
  int stride = 0;             // ≥ block_budget
};

// One of several products of the same input rows. out: [row_count, rows of the weight].
struct Projection {
  float* out = nullptr;
  const Matrix* weight = nullptr;
};

class Ops {
 public:
  virtual ~Ops() = default;
  virtual const BackendInfo& info() const = 0;
  // Where activations, states, caches and weights in f32 have to lie; tokens, ids of n-gram rows,
  // segments, page tables and what sample gives are the host's for all backends.
  virtual Memory& memory() { return host_memory(); }

  // Load time. reserve once, before any step; prepare once per matrix that `project` or a fused
  // step will read. A prepared matrix is the backend's own copy: the bytes it was made from may go.
  // Either prepare, or begin_prepare and then prepare_part until all rows were given once, so that
  // a large bank's bytes need never be there all at once.
  virtual Status reserve(const OpsLimits& limits) = 0;
  virtual Status begin_prepare(Matrix& matrix) = 0;
  virtual void prepare_part(const Matrix& matrix, const MatrixPart& part) = 0;
  Status prepare(Matrix& matrix) {
    RETURN_IF_ERROR(begin_prepare(matrix));
    prepare_part(matrix, {0, matrix.count, 0, matrix.rows});
    return {};
  }
  // The bytes that reserve, and begin_prepare of a matrix of this shape and layout, will hold; no
  // weight is read.
  virtual size_t reserved_bytes(const OpsLimits& limits) const = 0;
  virtual size_t prepared_bytes(const Matrix& matrix) const = 0;

  // A backend that makes rows by their rule itself takes draw_part instead of prepare_part, to the
  // same bits, and never reads the matrix's bytes. `room` is for rows on their way: it may make it
  // larger, and whoever calls keeps it from part to part.
  virtual bool draws_rows() const { return false; }
  virtual Status draw_part(const Matrix& /*matrix*/, const MatrixPart& /*part*/,
                           const DrawnRows& /*drawn*/, Buffer& /*room*/) {
    UNREACHABLE();
  }

  // streams[row, c, :] = table[tokens[row], :] for each of `copies` streams. Tokens are in range.
  virtual void embed(float* streams, std::span<const int32_t> tokens, int copies,
                     const Matrix& table) = 0;

  // out[row, :] = concatenation over heads of table row rows[row, head].
  virtual void ngram_embed(float* out, std::span<const int64_t> rows, int row_count,
                           const NgramTable& table) = 0;

  // out[row, :] = weight · x[row, :] for each projection.  x: [row_count, cols]. Weights of one
  // input are given together, so that a backend starts them as one step.
  virtual void project(std::span<const Projection> projections, const float* x, int row_count) = 0;
  void project(float* out, const float* x, int row_count, const Matrix& weight) {
    Projection one;
    one.out = out;
    one.weight = &weight;
    project({&one, 1}, x, row_count);
  }

  // Hyper-connection read: mixed [row_count, hidden]; inject [row_count, streams], not written when
  // the weights have none. streams: [row_count, streams, hidden].
  virtual void hyper_read(float* mixed, float* inject, const float* streams, int row_count,
                          const HyperWeights& weights) = 0;

  // streams[row, c, :] += inject[row, c] * y[row, :].
  virtual void hyper_write(float* streams, const float* inject, const float* y, int row_count,
                           int stream_count, int hidden) = 0;

  // The n-gram layer after its projections: adds to streams. key: [row_count, streams*hidden],
  // value: [row_count, hidden]. When `added` is not null it receives what is added.
  virtual void ple_inject(float* streams, float* added, const float* key, const float* value,
                          const Batch& batch, std::span<const PleState> states,
                          const PleWeights& weights) = 0;

  // The whole DeltaNet step after its projections: convolution, normalised keys, state update, read
  // out, gated norm. qkv: [row_count, channels], z: [row_count, value_heads*value_dim], b and a:
  // [row_count, value_heads]; out: [row_count, value_heads*value_dim].
  virtual void gdn_step(float* out, const float* qkv, const float* z, const float* b,
                        const float* a, const Batch& batch, std::span<const GdnState> states,
                        const GdnWeights& weights) = 0;

  // Norms, rotation and cache writes of an attention layer. query_gate: [row_count, heads, 2,
  // head_dim] (query then gate); queries are normalised and rotated in place, gates untouched. key,
  // value: [row_count, kv_heads, head_dim]; index: [row_count, index_heads + 1, index_dim] (index
  // queries, normalised and rotated in place, then the raw key). Writes keys, values, raw index
  // keys and the pooled key of every block that these rows complete.
  virtual void attention_prepare(float* query_gate, float* key, const float* value, float* index,
                                 const Batch& batch, const KvView& cache,
                                 const AttentionWeights& weights) = 0;

  // Scores complete blocks for each row and keeps the best block_budget (all, when no more exist),
  // higher score first, then lower block; the result is sorted ascending.
  virtual void select_blocks(const Selection& selection, const float* index, const Batch& batch,
                             const KvView& cache, const AttentionWeights& weights) = 0;

  // Attention over the selected blocks and the tail, then the output gate.
  // out: [row_count, heads, head_dim].
  virtual void sparse_attend(float* out, const float* query_gate, const Selection& selection,
                             const Batch& batch, const KvView& cache,
                             const AttentionWeights& weights) = 0;

  // Router: the top experts of each row, best first, ties to the lower id, and their weights.
  // ids, gates: [row_count, top_experts].
  virtual void route(int32_t* ids, float* gates, const float* x, int row_count,
                     const MoeWeights& weights) = 0;

  // Routed experts summed in ascending id, plus the gated shared expert. No row names an expert
  // twice. out: [row_count, hidden].
  virtual void experts(float* out, const float* x, const int32_t* ids, const float* gates,
                       int row_count, const MoeWeights& weights) = 0;

  // The MTP head's input streams: fc_hidden · norm(wide)[c] + fc_embedding · norm(embedding).
  // out, wide: [row_count, streams, hidden]; embedding: [row_count, hidden].
  virtual void mtp_fuse(float* out, const float* wide, const float* embedding, int row_count,
                        const MtpWeights& weights) = 0;

  // tokens[i] = the token drawn from logits row i (greedy: the argmax), a pure function of the
  // row's logits, parameters and position (E6).
  virtual void sample(int32_t* tokens, const float* logits, std::span<const SampleRow> rows,
                      int vocabulary) = 0;

  // Natural logarithms of one row's softmax, of the logits as the model gives them: no temperature,
  // no cuts, no penalties. best: the most probable tokens, as many as there is room for, ties to
  // the lower id. of_tokens: the tokens are given, their logarithms are filled in.
  virtual void log_probabilities(std::span<TokenLogprob> best, std::span<TokenLogprob> of_tokens,
                                 const float* logits, int vocabulary) = 0;

  // Applies a sequence's pending rows, so that the state stands alone (before a copy, a move or a
  // snapshot). After it, pending_rows is 0.
  virtual void settle_gdn(const GdnState& state, int pending_rows, const GdnWeights& weights) = 0;
  virtual void settle_ple(const PleState& state, int pending_rows, const PleWeights& weights) = 0;
};

// The plain scalar f32 backend: the oracle. It runs on the calling thread alone.
std::unique_ptr<Ops> make_reference_ops();

// The vectorised backend. isa: "auto" or a level's name; a level that the CPU lacks is refused,
// naming what it has.
Result<std::unique_ptr<Ops>> make_cpu_ops(std::string_view isa, int threads);

// On the first GPU. Refused where there is none, or the build has no CUDA. A patient one waits at
// the end of each op, for tests that look at once at what it wrote.
// threads: of the host, at most, for rows of tables that it keeps.
Result<std::unique_ptr<Ops>> make_cuda_ops(int threads, bool patient = false);

// The instruction levels of this CPU that the cpu backend knows, lowest first.
std::string available_isa_levels();

}  // namespace flashlane::kernels
