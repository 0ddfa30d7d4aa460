// Making the backend, its memory, and the ops that are no more than lookups, adds and draws.
#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <utility>

#include "base/int_math.h"
#include "kernels/ngram_row.h"

namespace flashlane::kernels {
namespace cpu {
namespace {

struct ReservedSizes {
  size_t scratch = 0;
  size_t gdn_copy = 0;  // of each worker
  size_t scores = 0;    // of each worker
};

ReservedSizes reserved_sizes(const OpsLimits& limits, bool pairs) {
  // Bytes of one row in the hungriest ops; each piece may be padded to 64 bytes. Wide values: four
  // of the widest with their group sums (hyper-connections, the n-gram layer, the MTP head).
  const int64_t slots = limits.top_experts + 1;
  // Shaped rows have sums, and bf16 copies at some levels.
  const int64_t extra = pairs ? 2 : 16;  // a half or a sixteenth
  const int64_t wide = 4 * (limits.widest + limits.widest / extra + 64);
  // Levels that want rows evenly spaced have a copy of an expert's inputs for each of its rows,
  // twice when gate and up differ in format.
  const int64_t copies = pairs ? 2 * slots * (limits.expert_input * 3 / 2 + 64) : 0;
  const int64_t expert =
      copies + slots * (3 * limits.expert_width + limits.expert_width / extra + 128);
  const int64_t low = 2 * (limits.low_rank + limits.low_rank / extra + 64);
  const int64_t inputs = (slots + 32) * static_cast<int64_t>(sizeof(InputRow));
  const int64_t row_bytes = (wide + expert + low) * 4 + inputs;
  const int blocks = limits.context / limits.block_tokens + 1;
  return {.scratch = static_cast<size_t>(limits.rows * row_bytes + limits.widest * 8) + 16384,
          .gdn_copy = static_cast<size_t>(limits.widest / 2 * kGdnColumns) * sizeof(float),
          .scores = static_cast<size_t>(blocks) * 2 * sizeof(float)};
}

}  // namespace

CpuOps::CpuOps(const LevelKernels& kernels, int threads) : kernels_(kernels), pool_(threads) {
  info_.name = "cpu";
  info_.isa = kernels.name;
  info_.activations = "bf16";
  info_.threads = threads;
  info_.prompt_grid = 1;
  info_.default_kv_dtype = DType::kBf16;
}

Status CpuOps::reserve(const OpsLimits& limits) {
  if (limits.rows < 1 || limits.widest < 1 || limits.context < 1 || limits.block_tokens < 1) {
    return invalid(
        "limits of {} rows, {} values a row, {} positions and blocks of {} can't be "
        "reserved",
        limits.rows, limits.widest, limits.context, limits.block_tokens);
  }
  limits_ = limits;
  const ReservedSizes sizes = reserved_sizes(limits, kernels_.pairs);
  scratch_.reserve(sizes.scratch);
  workers_.clear();
  workers_.resize(static_cast<size_t>(pool_.threads()));
  for (Worker& worker : workers_) {
    worker.gdn_copy = Buffer(sizes.gdn_copy);
    worker.scores = Buffer(sizes.scores);
    worker.sampler.reserve(limits.vocabulary);
  }
  return {};
}

size_t CpuOps::reserved_bytes(const OpsLimits& limits) const {
  const ReservedSizes sizes = reserved_sizes(limits, kernels_.pairs);
  const size_t worker = sizes.gdn_copy + sizes.scores + SamplerScratch::bytes(limits.vocabulary);
  return sizes.scratch + static_cast<size_t>(pool_.threads()) * worker;
}

Status CpuOps::begin_prepare(Matrix& matrix) {
  ASSIGN_OR_RETURN(PackedMatrix packed, shape_packed(matrix));
  packed.allocate();
  matrix.packed = static_cast<int>(packed_.size());
  packed_.push_back(std::move(packed));
  return {};
}

void CpuOps::prepare_part(const Matrix& matrix, const MatrixPart& part) {
  CHECK(matrix.packed >= 0 && static_cast<size_t>(matrix.packed) < packed_.size());
  pack_part(packed_[static_cast<size_t>(matrix.packed)], matrix, part, pool_);
}

size_t CpuOps::prepared_bytes(const Matrix& matrix) const {
  const Result<PackedMatrix> packed = shape_packed(matrix);
  return packed.ok() ? packed->bytes() : 0;
}

const PackedMatrix& CpuOps::packed(const Matrix& matrix) const {
  CHECK(matrix.packed >= 0 && static_cast<size_t>(matrix.packed) < packed_.size());
  return packed_[static_cast<size_t>(matrix.packed)];
}

void CpuOps::begin(int row_count) {
  CHECK_GE(row_count, 0);
  CHECK_LE(row_count, limits_.rows);
  scratch_.clear();
}

void CpuOps::embed(float* streams, std::span<const int32_t> tokens, int copies,
                   const Matrix& table) {
  const int64_t width = table.cols;
  for_rows(static_cast<int>(tokens.size()), width, [&](int row) {
    float* first = streams + static_cast<int64_t>(row) * copies * width;
    dequantize_row(table, 0, tokens[static_cast<size_t>(row)], first);
    for (int c = 1; c < copies; ++c) std::copy_n(first, width, first + c * width);
  });
}

void CpuOps::ngram_embed(float* out, std::span<const int64_t> rows, int row_count,
                         const NgramTable& table) {
  CHECK_EQ(rows.size(), static_cast<size_t>(row_count) * static_cast<size_t>(table.heads));
  for_rows(row_count, static_cast<int64_t>(table.heads) * table.row_width * 4, [&](int row) {
    for (int head = 0; head < table.heads; ++head) {
      const int64_t at = static_cast<int64_t>(row) * table.heads + head;
      ngram_table_row(table, rows[static_cast<size_t>(at)], out + at * table.row_width);
    }
  });
}

void CpuOps::hyper_write(float* streams, const float* inject, const float* y, int row_count,
                         int stream_count, int hidden) {
  for_rows(row_count, static_cast<int64_t>(stream_count) * hidden / 8, [&](int row) {
    const float* source = y + static_cast<int64_t>(row) * hidden;
    for (int c = 0; c < stream_count; ++c) {
      const int64_t at = static_cast<int64_t>(row) * stream_count + c;
      kernels_.add_scaled(streams + at * hidden, source, inject[at], hidden);
    }
  });
}

void CpuOps::sample(int32_t* tokens, const float* logits, std::span<const SampleRow> rows,
                    int vocabulary) {
  CHECK_LE(vocabulary, limits_.vocabulary);
  pool_.run(static_cast<int>(rows.size()), [&](int row, int worker) {
    const auto i = static_cast<size_t>(row);
    tokens[i] = sample_token(logits + i * static_cast<size_t>(vocabulary), vocabulary, rows[i],
                             workers_[static_cast<size_t>(worker)].sampler);
  });
}

void CpuOps::log_probabilities(std::span<TokenLogprob> best, std::span<TokenLogprob> of_tokens,
                               const float* logits, int vocabulary) {
  CHECK_LE(vocabulary, limits_.vocabulary);
  kernels::log_probabilities(best, of_tokens, logits, vocabulary, workers_.front().sampler);
}

}  // namespace cpu

Result<std::unique_ptr<Ops>> make_cpu_ops(std::string_view isa, int threads) {
  constexpr int kMostThreads = 1024;
  if (threads < 1 || threads > kMostThreads) {
    return invalid("{} threads: 1 to {} are possible", threads, kMostThreads);
  }
  ASSIGN_OR_RETURN(const cpu::LevelKernels* kernels, cpu::find_level(isa));
  return std::unique_ptr<Ops>(std::make_unique<cpu::CpuOps>(*kernels, threads));
}

}  // namespace flashlane::kernels
