// CudaOps: every op on one GPU, as launches on one stream; the calling thread waits only where it
// needs a result (sample, log_probabilities). Pointers to floats and ids are the device's (or host
// memory that the device can read); spans of tokens, segments, states and page tables are the
// host's and travel with the launches.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/cuda/cuda_memory.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/product.h"
#include "kernels/ops.h"
#include "kernels/sampler.h"
#include "tensor/buffer.h"

namespace flashlane::kernels::cuda {

class CudaOps final : public Ops {
 public:
  CudaOps(int threads, bool patient);
  ~CudaOps() override;

  const BackendInfo& info() const override { return info_; }
  Memory& memory() override { return memory_; }
  Status reserve(const OpsLimits& limits) override;
  Status begin_prepare(Matrix& matrix) override;
  void prepare_part(const Matrix& matrix, const MatrixPart& part) override;
  size_t reserved_bytes(const OpsLimits& limits) const override;
  size_t prepared_bytes(const Matrix& matrix) const override;
  bool draws_rows() const override { return true; }
  Status draw_part(const Matrix& matrix, const MatrixPart& part, const DrawnRows& drawn,
                   Buffer& room) override;

  void embed(float* streams, std::span<const int32_t> tokens, int copies,
             const Matrix& table) override;
  void ngram_embed(float* out, std::span<const int64_t> rows, int row_count,
                   const NgramTable& table) override;
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
  // Of one op: finds out at its end whether all launches were taken, and waits if that is wanted.
  struct Launches {
    explicit Launches(CudaOps& ops) : ops_(ops) { ops.scratch_used_ = 0; }
    ~Launches() { ops_.launched(); }
    Launches(const Launches&) = delete;
    Launches& operator=(const Launches&) = delete;
    CudaOps& ops_;
  };

  // A page table as the device has it, and what it was sent.
  struct Table {
    std::vector<int32_t> sent;
    Buffer device;
  };

  // What a layer's experts give, [pairs or rows, width or hidden].
  struct ExpertRows {
    float *gated = nullptr, *routed = nullptr;
    float *shared_gated = nullptr, *shared = nullptr, *shared_weight = nullptr;
  };

  const DeviceMatrix& prepared(const Matrix& matrix) const;
  // Rows on the device as they are stored, one behind the other, to their prepared places.
  void pack_rows(const Matrix& matrix, const MatrixPart& part, const std::byte* values,
                 const std::byte* scales, const std::byte* biases);
  bool hyper_read_few(float* mixed, float* inject, const float* streams, float* normed,
                      int row_count, const HyperWeights& weights);
  bool experts_few(const ExpertRows& values, const float* x, const int32_t* ids, int row_count,
                   const MoeWeights& weights);
  void experts_many(const ExpertRows& values, const float* x, const int32_t* ids, int row_count,
                    const MoeWeights& weights);
  // Of one x, with as many rows and columns of it, which is packed once.
  void multiply_all(std::span<Product> products);
  void multiply(float* out, const float* x, int row_count, const Matrix& weight);
  void multiply(const Product& product);
  void multiply_few(const FewProducts& products);
  template <typename Row>
  void fetch_rows(size_t count, const Row& row);
  // Floats of the scratch, one behind the other within an op.
  float* scratch(int64_t floats);
  void launched();
  const float* rows_on_host(const float* rows, int64_t count);
  const int32_t* table_on_device(const int32_t* table, int pages);
  CacheView view(const Batch& batch, const KvView& cache);

  bool patient_;
  BackendInfo info_;
  CudaMemory& memory_;
  Staging staging_;
  std::vector<DeviceMatrix> matrices_;
  std::vector<Buffer> matrix_bytes_;
  std::vector<Buffer> scratch_;  // the last is in use; those before it may be by steps under way
  size_t scratch_used_ = 0;
  std::unordered_map<const int32_t*, Table> tables_;
  cpu::ThreadPool host_threads_;
  std::vector<float> host_rows_;
  SamplerScratch sampler_;
};

}  // namespace flashlane::kernels::cuda
