// CpuOps: the vectorised, multi-threaded backend. Activations are rounded to bf16 where they enter
// a matrix product and are f32 everywhere else; sums are f32 in one fixed order. Prompt and decode
// rows share every instruction, so a prompt may be cut anywhere, and no bit depends on the number
// of rows, threads or the instruction level. Steps allocate nothing after reserve().
#pragma once

#include <deque>
#include <vector>

#include "kernels/cpu/level.h"
#include "kernels/cpu/packed_matrix.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/sampler.h"

namespace flashlane::kernels::cpu {

// Input rows of one width, shaped for each format that a stage's matrices have.
struct RowInputs {
  static constexpr int kMostFormats = 5;  // gate, up, their shared twins, and its router

  const float* source = nullptr;  // [rows, cols]
  int count = 0;
  int64_t cols = 0;
  const int32_t* source_rows = nullptr;  // [count]: where row i is in the source; null: at i
  int formats = 0;
  PanelFormat format[kMostFormats] = {};
  InputRow* rows[kMostFormats] = {};  // [count] each
};

class CpuOps final : public Ops {
 public:
  CpuOps(const LevelKernels& kernels, int threads);
  const BackendInfo& info() const override { return info_; }
  Status reserve(const OpsLimits& limits) override;
  Status begin_prepare(Matrix& matrix) override;
  void prepare_part(const Matrix& matrix, const MatrixPart& part) override;
  size_t reserved_bytes(const OpsLimits& limits) const override;
  size_t prepared_bytes(const Matrix& matrix) const override;

  void embed(float* streams, std::span<const int32_t> tokens, int copies,
             const Matrix& table) override;
  void ngram_embed(float* out, std::span<const int64_t> rows, int row_count,
                   const NgramTable& table) override;
  using Ops::project;
  void project(std::span<const Projection> projections, const float* x, int row_count) override;
  void hyper_read(float* mixed, float* inject, const float* streams, int row_count,
                  const HyperWeights& weights) override;
  void hyper_write(float* streams, const float* inject, const float* y, int row_count,
                   int stream_count, int hidden) override;
  void ple_inject(float* streams, float* added, const float* key, const float* value,
                  const Batch& batch, std::span<const PleState> states,
                  const PleWeights& weights) override;
  void gdn_step(float* out, const float* qkv, const float* z, const float* b, const float* a,
                const Batch& batch, std::span<const GdnState> states,
                const GdnWeights& weights) override;
  void attention_prepare(float* query_gate, float* key, const float* value, float* index,
                         const Batch& batch, const KvView& cache,
                         const AttentionWeights& weights) override;
  void select_blocks(const Selection& selection, const float* index, const Batch& batch,
                     const KvView& cache, const AttentionWeights& weights) override;
  void sparse_attend(float* out, const float* query_gate, const Selection& selection,
                     const Batch& batch, const KvView& cache,
                     const AttentionWeights& weights) override;
  void route(int32_t* ids, float* gates, const float* x, int row_count,
             const MoeWeights& weights) override;
  void experts(float* out, const float* x, const int32_t* ids, const float* gates, int row_count,
               const MoeWeights& weights) override;
  void mtp_fuse(float* out, const float* wide, const float* embedding, int row_count,
                const MtpWeights& weights) override;
  void sample(int32_t* tokens, const float* logits, std::span<const SampleRow> rows,
              int vocabulary) override;
  void log_probabilities(std::span<TokenLogprob> best, std::span<TokenLogprob> of_tokens,
                         const float* logits, int vocabulary) override;
  void settle_gdn(const GdnState& state, int pending_rows, const GdnWeights& weights) override;
  void settle_ple(const PleState& state, int pending_rows, const PleWeights& weights) override;

 private:
  // What one worker needs for itself.
  struct Worker {
    Buffer gdn_copy;  // [key_dim, kGdnColumns] floats
    Buffer scores;    // [2, blocks of the longest context] floats
    SamplerScratch sampler;
  };
  struct ExpertPlan;

  void begin(int row_count);
  const PackedMatrix& packed(const Matrix& matrix) const;

  // Runs body(row) for every row, in parallel when `work` per row (about nanoseconds) pays for it.
  template <typename Body>
  void for_rows(int row_count, int64_t work, const Body& body);

  // The rows as this matrix takes them, shaped when its format is first asked for.
  const InputRow* shaped(RowInputs& inputs, const PackedMatrix& matrix);
  // Each projection of these rows, all in one stage.
  void multiply(std::span<const Projection> projections, RowInputs& inputs);
  void multiply(float* out, RowInputs& inputs, const Matrix& weight) {
    Projection one;
    one.out = out;
    one.weight = &weight;
    multiply({&one, 1}, inputs);
  }

  void plan_experts(ExpertPlan& plan, const int32_t* ids, const float* gates, int row_count,
                    const MoeWeights& weights);
  void expert_hidden_tile(const ExpertPlan& plan, int task, const MoeWeights& weights);
  void expert_output_tile(const ExpertPlan& plan, float* out, int row_count, int tile,
                          const MoeWeights& weights);

  BackendInfo info_;
  const LevelKernels& kernels_;
  ThreadPool pool_;
  std::deque<PackedMatrix> packed_;  // by Matrix::packed
  OpsLimits limits_;
  Scratch scratch_;
  std::vector<Worker> workers_;
};

// A parallel stage costs about this much to start and end, in nanoseconds of work.
inline constexpr int64_t kStageNanoseconds = 4000;

template <typename Body>
void CpuOps::for_rows(int row_count, int64_t work, const Body& body) {
  // A few tasks a thread, so that an uneven start evens out.
  const int most = 4 * pool_.threads();
  const bool shared = row_count > 1 && row_count * work > kStageNanoseconds;
  const int tasks = shared ? (row_count < most ? row_count : most) : 1;
  pool_.run(tasks, [&](int task, int) {
    const int64_t first = static_cast<int64_t>(row_count) * task / tasks;
    const int64_t end = static_cast<int64_t>(row_count) * (task + 1) / tasks;
    for (int64_t row = first; row < end; ++row) body(static_cast<int>(row));
  });
}

}  // namespace flashlane::kernels::cpu
