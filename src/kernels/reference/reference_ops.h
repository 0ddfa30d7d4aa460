// ReferenceOps: every op in the plainest scalar f32, one loop a formula, on the calling thread. It
// is the oracle that the fixtures hold to their float32 row and other backends are compared with;
// it is never optimised beyond dequantising each matrix once at load.
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "kernels/sampler.h"

namespace flashlane::kernels::reference {

class ReferenceOps : public Ops {
 public:
  ReferenceOps();
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
  // Row `row` of matrix `index` of a prepared bank, as floats.
  const float* weight_row(const Matrix& matrix, int64_t index, int64_t row) const;
  // out[n] = weight row n of matrix `index` · x, for every row of the weight.
  void multiply(float* out, const float* x, const Matrix& weight, int64_t index = 0) const;

  BackendInfo info_;
  std::vector<std::vector<float>> prepared_;  // one per Matrix::packed
  SamplerScratch sampler_;
};

// Sum of a[i] * b[i] in eight partial sums, added pairwise: one fixed order for every length.
float dot(const float* a, const float* b, int64_t count);

// out = x * (mean(x²) + eps)^(-1/2) * gain over `count` values.
void rms_norm(float* out, const float* x, const float* gain, int count, float eps);

// Rotates the first 2*half dims of x in place: pair i couples dims i and i + half (spec 3.7).
void rotate(float* x, int rotary_dims, int position, const float* inverse_frequency);

}  // namespace flashlane::kernels::reference
