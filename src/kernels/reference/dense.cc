// Embeddings, matrix products, hyper-connections, the MTP head's input: everything that looks at
// one row alone.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/keyed_random.h"
#include "kernels/elementary.h"
#include "kernels/ngram_row.h"
#include "kernels/reference/reference_ops.h"

namespace flashlane::kernels {

std::unique_ptr<Ops> make_reference_ops() {
  return std::make_unique<reference::ReferenceOps>();
}

namespace reference {

float dot(const float* a, const float* b, int64_t count) {
  float sums[8] = {};
  int64_t i = 0;
  for (; i + 8 <= count; i += 8) {
    for (int lane = 0; lane < 8; ++lane) sums[lane] += a[i + lane] * b[i + lane];
  }
  for (int lane = 0; i < count; ++i, ++lane) sums[lane] += a[i] * b[i];
  return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

void rms_norm(float* out, const float* x, const float* gain, int count, float eps) {
  const float mean = dot(x, x, count) / static_cast<float>(count);
  const float scale = 1.0F / std::sqrt(mean + eps);
  for (int i = 0; i < count; ++i) out[i] = x[i] * scale * gain[i];
}

void rotate(float* x, int rotary_dims, int position, const float* inverse_frequency) {
  const int half = rotary_dims / 2;
  for (int i = 0; i < half; ++i) {
    // The angle is an f32 product, as in the model's own implementations.
    const float angle = static_cast<float>(position) * inverse_frequency[i];
    double sine;
    double cosine;
    sincos_f64(static_cast<double>(angle), &sine, &cosine);
    const float s = static_cast<float>(sine);
    const float c = static_cast<float>(cosine);
    const float first = x[i];
    const float second = x[i + half];
    x[i] = first * c - second * s;
    x[i + half] = second * c + first * s;
  }
}

ReferenceOps::ReferenceOps() {
  info_.name = "reference";
  info_.isa = "scalar";
  info_.activations = "f32";
  info_.threads = 1;
  info_.prompt_grid = 1;
  info_.default_kv_dtype = DType::kF32;
}

Status ReferenceOps::reserve(const OpsLimits& limits) {
  sampler_.reserve(limits.vocabulary);
  return {};
}

Status ReferenceOps::begin_prepare(Matrix& matrix) {
  matrix.packed = static_cast<int>(prepared_.size());
  prepared_.emplace_back(static_cast<size_t>(matrix.count * matrix.rows * matrix.cols));
  return {};
}

void ReferenceOps::prepare_part(const Matrix& matrix, const MatrixPart& part) {
  for (int64_t index = part.first; index < part.first + part.count; ++index) {
    for (int64_t row = part.first_row; row < part.first_row + part.row_count; ++row) {
      dequantize_row(matrix, index, row, const_cast<float*>(weight_row(matrix, index, row)));
    }
  }
}

size_t ReferenceOps::reserved_bytes(const OpsLimits& limits) const {
  return SamplerScratch::bytes(limits.vocabulary);
}

size_t ReferenceOps::prepared_bytes(const Matrix& matrix) const {
  return static_cast<size_t>(matrix.count * matrix.rows * matrix.cols) * sizeof(float);
}

const float* ReferenceOps::weight_row(const Matrix& matrix, int64_t index, int64_t row) const {
  CHECK(matrix.packed >= 0 && matrix.packed < static_cast<int>(prepared_.size()));
  return prepared_[static_cast<size_t>(matrix.packed)].data() +
         (index * matrix.rows + row) * matrix.cols;
}

void ReferenceOps::multiply(float* out, const float* x, const Matrix& weight, int64_t index) const {
  for (int64_t n = 0; n < weight.rows; ++n) {
    out[n] = dot(weight_row(weight, index, n), x, weight.cols);
  }
}

void ReferenceOps::embed(float* streams, std::span<const int32_t> tokens, int copies,
                         const Matrix& table) {
  for (const int32_t token : tokens) {
    dequantize_row(table, 0, token, streams);
    for (int c = 1; c < copies; ++c) {
      std::copy_n(streams, table.cols, streams + c * table.cols);
    }
    streams += copies * table.cols;
  }
}

void ReferenceOps::ngram_embed(float* out, std::span<const int64_t> rows, int row_count,
                               const NgramTable& table) {
  CHECK_EQ(rows.size(), static_cast<size_t>(row_count) * static_cast<size_t>(table.heads));
  for (const int64_t row : rows) {
    ngram_table_row(table, row, out);
    out += table.row_width;
  }
}

void ReferenceOps::project(std::span<const Projection> projections, const float* x, int row_count) {
  for (const Projection& projection : projections) {
    const Matrix& weight = *projection.weight;
    // Weight row outermost, so that each is read once for all rows.
    for (int64_t n = 0; n < weight.rows; ++n) {
      const float* w = weight_row(weight, 0, n);
      for (int64_t row = 0; row < row_count; ++row) {
        projection.out[row * weight.rows + n] = dot(w, x + row * weight.cols, weight.cols);
      }
    }
  }
}

void ReferenceOps::hyper_read(float* mixed, float* inject, const float* streams, int row_count,
                              const HyperWeights& weights) {
  const int hidden = weights.hidden;
  const int count = weights.streams;
  const int wide = count * hidden;
  const float inverse = 1.0F / static_cast<float>(count);
  std::vector<float> normed(static_cast<size_t>(wide));
  std::vector<float> low(static_cast<size_t>(weights.low_rank));
  std::vector<float> gates(static_cast<size_t>(wide));
  for (int row = 0; row < row_count; ++row) {
    const float* r = streams + static_cast<int64_t>(row) * wide;
    for (int c = 0; c < count; ++c) {
      rms_norm(&normed[static_cast<size_t>(c * hidden)], r + c * hidden, weights.gain + c * hidden,
               hidden, weights.eps);
    }
    multiply(low.data(), normed.data(), weights.down);
    for (float& value : low) value = silu_f32(value * inverse);
    multiply(gates.data(), low.data(), weights.up);
    float* out = mixed + static_cast<int64_t>(row) * hidden;
    for (int d = 0; d < hidden; ++d) {
      float sum = 0;
      for (int c = 0; c < count; ++c) {
        const auto i = static_cast<size_t>(c * hidden + d);
        sum += sigmoid_f32(gates[i]) * normed[i];
      }
      out[d] = sum * inverse;
    }
    if (weights.inject.empty()) continue;
    float* u = inject + static_cast<int64_t>(row) * count;
    multiply(u, normed.data(), weights.inject);
    for (int c = 0; c < count; ++c) u[c] = 2.0F * sigmoid_f32(u[c] * inverse);
  }
}

void ReferenceOps::hyper_write(float* streams, const float* inject, const float* y, int row_count,
                               int stream_count, int hidden) {
  for (int row = 0; row < row_count; ++row) {
    for (int c = 0; c < stream_count; ++c) {
      for (int d = 0; d < hidden; ++d) {
        streams[(static_cast<int64_t>(row) * stream_count + c) * hidden + d] +=
            inject[row * stream_count + c] * y[static_cast<int64_t>(row) * hidden + d];
      }
    }
  }
}

void ReferenceOps::mtp_fuse(float* out, const float* wide, const float* embedding, int row_count,
                            const MtpWeights& weights) {
  const int hidden = weights.hidden;
  const int width = weights.streams * hidden;
  std::vector<float> normed(static_cast<size_t>(width));
  std::vector<float> normed_embedding(static_cast<size_t>(hidden));
  std::vector<float> projected(static_cast<size_t>(hidden));
  for (int row = 0; row < row_count; ++row) {
    rms_norm(normed_embedding.data(), embedding + static_cast<int64_t>(row) * hidden,
             weights.embedding_gain, hidden, weights.eps);
    multiply(projected.data(), normed_embedding.data(), weights.embedding_projection);
    rms_norm(normed.data(), wide + static_cast<int64_t>(row) * width, weights.hidden_gain, width,
             weights.eps);
    for (int c = 0; c < weights.streams; ++c) {
      float* stream = out + static_cast<int64_t>(row) * width + c * hidden;
      multiply(stream, normed.data() + c * hidden, weights.hidden_projection);
      for (int d = 0; d < hidden; ++d) stream[d] += projected[static_cast<size_t>(d)];
    }
  }
}

void ReferenceOps::sample(int32_t* tokens, const float* logits, std::span<const SampleRow> rows,
                          int vocabulary) {
  for (size_t i = 0; i < rows.size(); ++i) {
    tokens[i] =
        sample_token(logits + i * static_cast<size_t>(vocabulary), vocabulary, rows[i], sampler_);
  }
}

void ReferenceOps::log_probabilities(std::span<TokenLogprob> best,
                                     std::span<TokenLogprob> of_tokens, const float* logits,
                                     int vocabulary) {
  kernels::log_probabilities(best, of_tokens, logits, vocabulary, sampler_);
}

}  // namespace reference
}  // namespace flashlane::kernels
