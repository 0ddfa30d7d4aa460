// Random weights, backends, and the ops over rows without state.
#include "tests/kernels/test_cases.h"

#include <fmt/format.h>
#include <cstdlib>

#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/keyed_random.h"
#include "tensor/affine.h"

namespace flashlane::kernels::test {

uint64_t Random::next() {
  state_ += kGoldenGamma;
  return mix64(state_);
}

float Random::uniform(float low, float high) {
  return low + (high - low) * (static_cast<float>(next() >> 40) * 0x1p-24F);
}

std::vector<float> Random::values(int64_t count, float low, float high) {
  std::vector<float> result(static_cast<size_t>(count));
  for (float& value : result) value = uniform(low, high);
  return result;
}

std::vector<float> Random::bf16_values(int64_t count, float low, float high) {
  std::vector<float> result = values(count, low, high);
  for (float& value : result) value = round_to_bf16(value);
  return result;
}

std::vector<Format> all_formats() {
  std::vector<Format> formats = {
      {"f32", Layout::kF32}, {"bf16", Layout::kBf16}, {"f16", Layout::kF16}};
  for (const int bits : {2, 3, 4, 5, 6, 8}) {
    for (const int group : {32, 64, 128}) {
      formats.push_back(
          {fmt::format("q{}g{}", bits, group), Layout::kAffine, bits, group, DType::kBf16});
    }
  }
  formats.push_back({"q4g32f16", Layout::kAffine, 4, 32, DType::kF16});
  formats.push_back({"q8g64f32", Layout::kAffine, 8, 64, DType::kF32});
  return formats;
}

Format format_named(const std::string& name) {
  for (const Format& format : all_formats()) {
    if (format.name == name) return format;
  }
  UNREACHABLE();
}

const float* Store::floats(std::vector<float> values) {
  floats_.push_back(std::move(values));
  return floats_.back().data();
}

namespace {

void put_float(std::byte* at, DType dtype, float value) {
  if (dtype == DType::kF32) {
    std::memcpy(at, &value, sizeof(value));
    return;
  }
  const uint16_t bits = dtype == DType::kBf16 ? float_to_bf16(value) : float_to_f16(value);
  std::memcpy(at, &bits, sizeof(bits));
}

DType value_dtype(Layout layout) {
  if (layout == Layout::kF32) return DType::kF32;
  return layout == Layout::kF16 ? DType::kF16 : DType::kBf16;
}

}  // namespace

Matrix Store::matrix(Random& random, const Format& format, int64_t count, int64_t rows,
                     int64_t cols, int64_t gap) {
  Matrix matrix;
  matrix.layout = format.layout;
  matrix.bits = format.bits;
  matrix.group = format.group;
  matrix.scale_dtype = format.scale_dtype;
  matrix.rows = rows;
  matrix.cols = cols;
  matrix.count = count;
  matrix.stride_rows = rows + gap;
  const auto stored_rows = static_cast<size_t>(count * matrix.stride_rows);
  const float limit = 0.5F / std::sqrt(static_cast<float>(cols));
  // Bytes start off any alignment, as in a mapped file.
  const auto bytes = [&](size_t size) {
    bytes_.emplace_back(size + 1);
    return bytes_.back().data() + 1;
  };
  std::byte* data = bytes(stored_rows * matrix.row_bytes());
  matrix.data = data;
  if (format.layout != Layout::kAffine) {
    const DType dtype = value_dtype(format.layout);
    for (size_t i = 0; i < stored_rows * static_cast<size_t>(cols); ++i) {
      put_float(data + i * dtype_bytes(dtype), dtype, random.uniform(-limit, limit));
    }
    return matrix;
  }
  std::byte* scales = bytes(stored_rows * matrix.scale_row_bytes());
  std::byte* biases = bytes(stored_rows * matrix.scale_row_bytes());
  matrix.scales = scales;
  matrix.biases = biases;
  const int codes_count = 1 << format.bits;
  std::vector<uint8_t> codes(static_cast<size_t>(cols));
  for (size_t row = 0; row < stored_rows; ++row) {
    for (uint8_t& code : codes) code = static_cast<uint8_t>(random.below(codes_count));
    affine_pack(codes, format.bits, {data + row * matrix.row_bytes(), matrix.row_bytes()});
  }
  const size_t scale_bytes = dtype_bytes(format.scale_dtype);
  for (size_t i = 0; i < stored_rows * matrix.scale_row_bytes() / scale_bytes; ++i) {
    const float step = random.uniform(0.5F, 2.0F) * limit / static_cast<float>(codes_count);
    const float middle = step * static_cast<float>(codes_count) / 2;
    put_float(scales + i * scale_bytes, format.scale_dtype, i % 2 == 0 ? step : -step);
    put_float(biases + i * scale_bytes, format.scale_dtype, i % 2 == 0 ? -middle : middle);
  }
  return matrix;
}

std::vector<Backend> backends() {
  const auto reserved = [](std::unique_ptr<Ops> ops) {
    OpsLimits limits;
    limits.rows = 70;
    limits.widest = 2048;
    limits.vocabulary = 300;
    limits.context = 256;
    limits.top_experts = 4;
    limits.expert_width = 512;
    limits.expert_input = 512;
    limits.low_rank = 320;
    limits.block_tokens = 2;
    CHECK(ops->reserve(limits).ok());
    return ops;
  };
  std::vector<Backend> result;
  result.push_back({"reference", [=](int) { return reserved(make_reference_ops()); }, false});
  for (const std::string level : {"avx2", "avx512", "avx512_bf16", "amx"}) {
    if (!make_cpu_ops(level, 1).ok()) continue;
    result.push_back({fmt::format("cpu_{}", level),
                      [=](int threads) {
                        auto ops = make_cpu_ops(level, threads);
                        CHECK(ops.ok());
                        return reserved(std::move(*ops));
                      },
                      true});
  }
  // Who asks for the tests of a GPU does not want them without one.
  const char* wanted = std::getenv("TEST_BACKEND");
  const bool needed = wanted != nullptr && std::string_view(wanted) == "cuda";
  if (needed || make_cuda_ops(1).ok()) {
    result.push_back(
        {"cuda", [=](int threads) { return reserved(std::move(*make_cuda_ops(threads, true))); },
         false});
  }
  return result;
}

namespace {

HyperWeights hyper_weights(Ops& ops, Store& store, Random& random, const Format& format,
                           const RowSizes& s, bool with_inject) {
  const int wide = s.streams * s.hidden;
  HyperWeights w;
  w.streams = s.streams;
  w.hidden = s.hidden;
  w.low_rank = s.low_rank;
  w.eps = 1e-6F;
  w.gain = store.floats(random.values(wide, 0.5F, 1.5F));
  w.down = store.matrix(random, format, 1, s.low_rank, wide);
  w.up = store.matrix(random, format, 1, wide, s.low_rank);
  CHECK(ops.prepare(w.down).ok() && ops.prepare(w.up).ok());
  if (with_inject) {
    w.inject = store.matrix(random, format, 1, s.streams, wide);
    CHECK(ops.prepare(w.inject).ok());
  }
  return w;
}

MoeWeights moe_weights(Ops& ops, Store& store, Random& random, const Format& format,
                       const RowSizes& s) {
  MoeWeights w;
  w.hidden = s.hidden;
  w.experts = s.experts;
  w.top_experts = s.top_experts;
  w.width = s.width;
  w.shared_width = s.shared_width;
  w.router = store.matrix(random, format, 1, s.experts, s.hidden);
  w.gate = store.matrix(random, format, s.experts, s.width, s.hidden, s.width);
  w.up = store.matrix(random, format, s.experts, s.width, s.hidden);
  w.down = store.matrix(random, format, s.experts, s.hidden, s.width);
  w.shared_gate = store.matrix(random, format, 1, s.shared_width, s.hidden);
  w.shared_up = store.matrix(random, format, 1, s.shared_width, s.hidden);
  w.shared_down = store.matrix(random, format, 1, s.hidden, s.shared_width);
  w.shared_router = store.matrix(random, format, 1, 1, s.hidden);
  for (Matrix* matrix : {&w.router, &w.gate, &w.up, &w.down, &w.shared_gate, &w.shared_up,
                         &w.shared_down, &w.shared_router}) {
    CHECK(ops.prepare(*matrix).ok());
  }
  return w;
}

RowOp project_op(Ops& ops, Store& store, Random& random, const Format& format, const RowSizes& s) {
  Matrix weight = store.matrix(random, format, 1, s.outputs, s.hidden);
  CHECK(ops.prepare(weight).ok());
  return {"project", s.hidden, s.outputs, [weight](Ops& o, float* out, const float* in, int rows) {
            o.project(out, in, rows, weight);
          }};
}

RowOp hyper_op(const char* name, const HyperWeights& w) {
  const int injects = w.inject.empty() ? 0 : w.streams;
  return {name, w.streams * w.hidden, w.hidden + injects,
          [w, injects](Ops& o, float* out, const float* in, int rows) {
            std::vector<float> mixed(static_cast<size_t>(rows * w.hidden));
            std::vector<float> inject(static_cast<size_t>(rows * w.streams));
            o.hyper_read(mixed.data(), inject.data(), in, rows, w);
            for (int row = 0; row < rows; ++row, out += w.hidden + injects) {
              std::copy_n(&mixed[static_cast<size_t>(row * w.hidden)], w.hidden, out);
              std::copy_n(&inject[static_cast<size_t>(row * w.streams)], injects, out + w.hidden);
            }
          }};
}

// In: streams, inject, y.
RowOp write_op(const RowSizes& s) {
  const int wide = s.streams * s.hidden;
  return {"hyper_write", wide + s.streams + s.hidden, wide,
          [=](Ops& o, float* out, const float* in, int rows) {
            std::vector<float> inject;
            std::vector<float> y;
            for (int row = 0; row < rows; ++row, in += wide + s.streams + s.hidden) {
              std::copy_n(in, wide, out + row * wide);
              inject.insert(inject.end(), in + wide, in + wide + s.streams);
              y.insert(y.end(), in + wide + s.streams, in + wide + s.streams + s.hidden);
            }
            o.hyper_write(out, inject.data(), y.data(), rows, s.streams, s.hidden);
          }};
}

RowOp moe_op(const MoeWeights& w) {
  // Out: ids, gates, sum.
  return {w.renormalize ? "moe" : "moe_plain_softmax", w.hidden, 2 * w.top_experts + w.hidden,
          [w](Ops& o, float* out, const float* in, int rows) {
            const int top = w.top_experts;
            std::vector<int32_t> ids(static_cast<size_t>(rows * top));
            std::vector<float> gates(static_cast<size_t>(rows * top));
            std::vector<float> sum(static_cast<size_t>(rows * w.hidden));
            o.route(ids.data(), gates.data(), in, rows, w);
            o.experts(sum.data(), in, ids.data(), gates.data(), rows, w);
            for (int row = 0; row < rows; ++row) {
              for (int k = 0; k < top; ++k) {
                *out++ = static_cast<float>(ids[static_cast<size_t>(row * top + k)]);
              }
              out = std::copy_n(&gates[static_cast<size_t>(row * top)], top, out);
              out = std::copy_n(&sum[static_cast<size_t>(row * w.hidden)], w.hidden, out);
            }
          }};
}

RowOp fuse_op(Ops& ops, Store& store, Random& random, const Format& format, const RowSizes& s) {
  const int wide = s.streams * s.hidden;
  MtpWeights w;
  w.streams = s.streams;
  w.hidden = s.hidden;
  w.eps = 1e-6F;
  w.embedding_gain = store.floats(random.values(s.hidden, 0.5F, 1.5F));
  w.hidden_gain = store.floats(random.values(wide, 0.5F, 1.5F));
  w.embedding_projection = store.matrix(random, format, 1, s.hidden, s.hidden);
  w.hidden_projection = store.matrix(random, format, 1, s.hidden, s.hidden);
  CHECK(ops.prepare(w.embedding_projection).ok() && ops.prepare(w.hidden_projection).ok());
  return {"mtp_fuse", wide + s.hidden, wide, [=](Ops& o, float* out, const float* in, int rows) {
            std::vector<float> streams;
            std::vector<float> embedding;
            for (int row = 0; row < rows; ++row, in += wide + s.hidden) {
              streams.insert(streams.end(), in, in + wide);
              embedding.insert(embedding.end(), in + wide, in + wide + s.hidden);
            }
            o.mtp_fuse(out, streams.data(), embedding.data(), rows, w);
          }};
}

// The input's bits pick the token and the table rows: one float each.
RowOp lookup_op(Store& store, Random& random, const Format& format, const RowSizes& s) {
  constexpr int kHeads = 2;
  const Matrix table = store.matrix(random, format, 1, 50, s.hidden);
  auto shards = std::make_shared<std::vector<Matrix>>();
  shards->push_back(store.matrix(random, format, 1, 20, s.hidden));
  shards->push_back(store.matrix(random, format, 1, 30, s.hidden));
  auto starts = std::make_shared<std::vector<int64_t>>(std::vector<int64_t>{0, 20, 50});
  const int out_width = s.hidden * (s.streams + kHeads);
  return {"embed_and_ngram", 3, out_width, [=](Ops& o, float* out, const float* in, int rows) {
            NgramTable ngrams;
            ngrams.row_width = s.hidden;
            ngrams.heads = kHeads;
            ngrams.shards = shards->data();
            ngrams.shard_starts = starts->data();
            ngrams.shard_count = 2;
            std::vector<int32_t> tokens;
            std::vector<int64_t> ids;
            for (int i = 0; i < rows * 3; ++i) {
              const int id = static_cast<int>(std::fabs(in[i]) * 1e4F) % 50;
              if (i % 3 == 0) {
                tokens.push_back(id);
              } else {
                ids.push_back(id);
              }
            }
            const int wide = s.streams * s.hidden;
            std::vector<float> embedded(static_cast<size_t>(rows * wide));
            std::vector<float> grams(static_cast<size_t>(rows * kHeads * s.hidden));
            o.embed(embedded.data(), tokens, s.streams, table);
            o.ngram_embed(grams.data(), ids, rows, ngrams);
            for (int row = 0; row < rows; ++row) {
              out = std::copy_n(&embedded[static_cast<size_t>(row * wide)], wide, out);
              out = std::copy_n(&grams[static_cast<size_t>(row * kHeads * s.hidden)],
                                kHeads * s.hidden, out);
            }
          }};
}

// In: logits, then three floats that pick the parameters.
RowOp sample_op() {
  constexpr int kVocabulary = 300;
  return {"sample", kVocabulary + 3, 1, [](Ops& o, float* out, const float* in, int rows) {
            std::vector<float> logits;
            std::vector<SampleRow> params(static_cast<size_t>(rows));
            for (SampleRow& row : params) {
              logits.insert(logits.end(), in, in + kVocabulary);
              in += kVocabulary;
              row.params.temperature = in[0] < 0 ? 0.0F : 0.7F;
              row.params.top_k = in[1] < 0 ? 0 : 20;
              row.params.top_p = in[2] < 0 ? 1.0F : 0.9F;
              row.params.seed = static_cast<uint64_t>(std::fabs(in[1]) * 1e6F);
              row.position = static_cast<int64_t>(std::fabs(in[2]) * 1e3F);
              in += 3;
            }
            std::vector<int32_t> tokens(static_cast<size_t>(rows));
            o.sample(tokens.data(), logits.data(), params, kVocabulary);
            for (const int32_t token : tokens) *out++ = static_cast<float>(token);
          }};
}

}  // namespace

std::vector<RowOp> row_ops(Ops& ops, Store& store, const Format& format, const RowSizes& sizes,
                           uint64_t seed) {
  Random random(seed);
  std::vector<RowOp> result;
  result.push_back(project_op(ops, store, random, format, sizes));
  result.push_back(hyper_op("hyper_read", hyper_weights(ops, store, random, format, sizes, true)));
  result.push_back(
      hyper_op("final_mixer", hyper_weights(ops, store, random, format, sizes, false)));
  result.push_back(write_op(sizes));
  MoeWeights moe = moe_weights(ops, store, random, format, sizes);
  result.push_back(moe_op(moe));
  moe.renormalize = false;
  result.push_back(moe_op(moe));
  result.push_back(fuse_op(ops, store, random, format, sizes));
  result.push_back(lookup_op(store, random, format, sizes));
  result.push_back(sample_op());
  return result;
}

}  // namespace flashlane::kernels::test
