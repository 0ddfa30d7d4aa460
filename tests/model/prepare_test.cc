// Preparing weights: every byte is wanted before it is read and dropped after, few are there at a
// time, what is looked up by row stays, and a model that would not fit is refused before anything
// is made.
#include "model/prepare.h"

#include <gtest/gtest.h>

#include <map>

#include "kernels/reference/reference_ops.h"
#include "model/forward.h"
#include "model/load.h"
#include "model/synth_values.h"
#include "model/synthetic_source.h"
#include "tensor/affine.h"
#include "tests/model/weights_fixture.h"

namespace flashlane::model {
namespace {

// Passes on to a synthetic source and keeps count of what is wanted and not dropped, by address.
class CountingSource final : public ComputedTableSource {
 public:
  explicit CountingSource(const std::string& text, bool tied = false) {
    const SynthSpec spec = *parse_synth(text);
    shape_ = *synthetic_shape(spec.shape, spec.layers);
    shape_.tie_embeddings = tied;
    source_ = *make_synthetic(spec, shape_, 2);
  }
  const TensorView* find(std::string_view name) const override { return source_->find(name); }
  std::vector<std::string> names() const override { return source_->names(); }
  std::string description() const override { return source_->description(); }
  const ComputedTable* computed_table(int layer) const override {
    return synthetic().computed_table(layer);
  }
  std::optional<kernels::DrawnRows> drawn_rows(const kernels::Matrix& matrix) const override {
    return synthetic().drawn_rows(matrix);
  }
  // Uncounted.
  const ComputedTableSource& synthetic() const {
    return dynamic_cast<const ComputedTableSource&>(*source_);
  }
  void want(std::span<const format::ByteRange> ranges) const override {
    source_->want(ranges);
    for (const format::ByteRange& range : ranges) {
      held_[range.data] = range.bytes;
      now_ += range.bytes;
    }
    most_ = std::max(most_, now_);
  }
  void drop(std::span<const format::ByteRange> ranges) const override {
    source_->drop(ranges);
    for (const format::ByteRange& range : ranges) {
      dropped_ += range.bytes;
      const auto found = held_.find(range.data);
      if (found == held_.end()) continue;  // scales and biases are not wanted by name
      now_ -= found->second;
      held_.erase(found);
    }
  }
  void advise(std::span<const format::ByteRange> ranges, format::Advice advice) const override {
    for (const format::ByteRange& range : ranges) advised_.push_back({range, advice});
  }
  bool file_backed() const override { return in_files; }

  struct Advised {
    format::ByteRange range;
    format::Advice advice;
  };
  bool in_files = false;
  ModelShape shape_;
  mutable std::map<const std::byte*, size_t> held_;
  mutable size_t now_ = 0;
  mutable size_t most_ = 0;
  mutable size_t dropped_ = 0;
  mutable std::vector<Advised> advised_;

 private:
  std::shared_ptr<const format::TensorSource> source_;
};

struct Prepared {
  std::shared_ptr<CountingSource> source;
  std::unique_ptr<Weights> weights;
  std::unique_ptr<kernels::Ops> ops;
  WeightMemory planned;
};

Prepared prepare(const std::string& text, const std::string& backend) {
  Prepared p;
  p.source = std::make_shared<CountingSource>(text);
  p.weights = *load_weights(p.source->shape_, p.source);
  p.ops = *make_ops({backend, "auto", 2});
  p.planned = weight_memory(*p.weights, *p.ops);
  EXPECT_TRUE(p.ops->reserve(ops_limits(p.source->shape_, 16, 64)).ok());
  EXPECT_TRUE(prepare_weights(*p.weights, *p.ops).ok());
  return p;
}

TEST(Prepare, HoldsAPartAtATimeAndKeepsTheTables) {
  for (const char* backend : {"reference", "cpu"}) {
    const Prepared p = prepare("nano,format=q4g32,ngram=stored", backend);
    // Left: the codes of the embedding and of the n-gram shards.
    size_t kept = 0;
    const auto keep = [&](const kernels::Matrix& table) {
      kept += static_cast<size_t>(table.rows) * table.row_bytes();
      EXPECT_TRUE(p.source->held_.contains(table.data));
    };
    keep(p.weights->embedding);
    const kernels::NgramTable& table = p.weights->ple[0].table;
    for (int i = 0; i < table.shard_count; ++i) keep(table.shards[i]);
    EXPECT_EQ(p.source->now_, kept) << backend;
    EXPECT_LE(p.source->most_, kept + p.planned.part_bytes) << backend;
    EXPECT_GT(p.source->dropped_, p.weights->stored_bytes / 2);
    for (const kernels::Matrix* matrix : kernel_matrices(*p.weights)) {
      EXPECT_EQ(matrix->data, nullptr) << "a prepared matrix has no bytes of its own";
      EXPECT_GE(matrix->packed, 0);
    }
    EXPECT_EQ(p.planned.tables_bytes, p.weights->embedding.stored_bytes() + p.weights->ngram_bytes);
    EXPECT_FALSE(p.planned.tables_in_files);
  }
}

TEST(Prepare, ATiedHeadLeavesTheEmbeddingAlone) {
  for (const char* backend : {"reference", "cpu"}) {
    auto source = std::make_shared<CountingSource>("tiny,ngram=stored", true);
    const ModelShape& tied = source->shape_;
    auto weights = *load_weights(tied, source);
    auto ops = *make_ops({backend, "auto", 1});
    size_t reported = 0;
    ASSERT_TRUE(prepare_weights(*weights, *ops, [&](size_t bytes) { reported += bytes; }).ok());
    EXPECT_EQ(weights->head.data, nullptr);
    ASSERT_NE(weights->embedding.data, nullptr);
    std::vector<float> row(static_cast<size_t>(tied.hidden));
    kernels::dequantize_row(weights->embedding, 0, 3, row.data());
    EXPECT_EQ(row[5], synthetic_value("model.language_model.embed_tokens.weight", 0, 128,
                                      (uint64_t{3} * 128) + 5));
    // Progress ends at what was announced.
    EXPECT_EQ(reported, weights->stored_bytes + weights->ngram_bytes);
  }
}

// Stands for memory that is not the host's.
class ApartMemory final : public Memory {
 public:
  std::byte* allocate(size_t bytes) override { return host_memory().allocate(bytes); }
  void release(std::byte* pointer) noexcept override { host_memory().release(pointer); }
  void copy(void* to, const void* from, size_t bytes) override {
    host_memory().copy(to, from, bytes);
  }
  void zero(void* to, size_t bytes) override { host_memory().zero(to, bytes); }
};

// A backend that draws: it makes each row that it is asked for by the rule, and compares it with
// what the source makes.
class DrawingOps final : public kernels::reference::ReferenceOps {
 public:
  explicit DrawingOps(const format::TensorSource& source) : source_(source) {}
  Memory& memory() override { return memory_; }
  bool draws_rows() const override { return true; }
  Status draw_part(const kernels::Matrix& matrix, const kernels::MatrixPart& part,
                   const kernels::DrawnRows& drawn, Buffer& /*room*/) override {
    for (int64_t index = part.first; index < part.first + part.count; ++index) {
      for (int64_t row = part.first_row; row < part.first_row + part.row_count; ++row) {
        compare(matrix, drawn, index * matrix.stride_rows + row);
      }
    }
    rows_[matrix.packed] += part.count * part.row_count;
    return {};
  }
  std::map<int, int64_t> rows_;  // drawn, by matrix
  int different_ = 0;

 private:
  void compare(const kernels::Matrix& matrix, const kernels::DrawnRows& drawn, int64_t row) {
    const auto cols = static_cast<size_t>(matrix.cols);
    const auto at = static_cast<size_t>(row);
    const format::ByteRange stored{matrix.data + at * matrix.row_bytes(), matrix.row_bytes()};
    source_.want({&stored, 1});
    std::vector<float> values(cols);
    std::vector<std::byte> bytes(stored.bytes);
    const kernels::DrawRule& rule = drawn.rule;
    draw_values(rule.hash, {rule.scale, rule.offset},
                (static_cast<uint64_t>(drawn.first_row) + at) * cols, values);
    if (matrix.layout == kernels::Layout::kBf16) {
      for (size_t k = 0; k < cols; ++k) {
        const uint16_t word = float_to_bf16(values[k]);
        std::memcpy(bytes.data() + 2 * k, &word, 2);
      }
    } else {
      const size_t scale_bytes = matrix.scale_row_bytes();
      std::vector<uint8_t> codes(cols);
      std::vector<uint16_t> scales(scale_bytes / 2);
      std::vector<uint16_t> biases(scale_bytes / 2);
      affine_quantize_row(values, matrix.bits, matrix.group, codes, scales, biases);
      affine_pack(codes, matrix.bits, bytes);
      const auto same = [&](const std::byte* data, const std::vector<uint16_t>& made) {
        return std::memcmp(data + at * scale_bytes, made.data(), scale_bytes) == 0;
      };
      if (!same(matrix.scales, scales) || !same(matrix.biases, biases)) ++different_;
    }
    if (std::memcmp(stored.data, bytes.data(), stored.bytes) != 0) ++different_;
    source_.drop({&stored, 1});
  }

  const format::TensorSource& source_;
  ApartMemory memory_;
};

TEST(Prepare, WhatABackendDrawsIsNeverWanted) {
  for (const char* text : {"tiny,seed=7", "tiny,layers=4,format=q6g64,ngram=stored"}) {
    const auto source = std::make_shared<CountingSource>(text);
    DrawingOps ops(source->synthetic());
    auto weights = *load_weights(source->shape_, source);
    std::vector<int64_t> rows;
    for (const kernels::Matrix* matrix : kernel_matrices(*weights)) {
      rows.push_back(matrix->count * matrix->rows);
    }
    const WeightMemory planned = weight_memory(*weights, ops);
    EXPECT_EQ(planned.anonymous_bytes(), planned.copies_bytes + planned.vectors_bytes);
    EXPECT_EQ(planned.host_bytes(), planned.tables_bytes);
    source->most_ = 0;
    size_t reported = 0;
    ASSERT_TRUE(prepare_weights(*weights, ops, [&](size_t bytes) { reported += bytes; }).ok());
    EXPECT_EQ(ops.different_, 0) << text;
    EXPECT_EQ(reported, weights->stored_bytes + weights->ngram_bytes);
    ASSERT_EQ(ops.rows_.size(), rows.size());
    for (const kernels::Matrix* matrix : kernel_matrices(*weights)) {
      EXPECT_EQ(matrix->data, nullptr);
      EXPECT_EQ(ops.rows_[matrix->packed], rows[static_cast<size_t>(matrix->packed)]);
    }
    // Tables alone, as values or codes.
    size_t kept = static_cast<size_t>(weights->embedding.rows) * weights->embedding.row_bytes();
    for (int i = 0; !weights->ple[0].table.computed && i < weights->ple[0].table.shard_count; ++i) {
      const kernels::Matrix& shard = weights->ple[0].table.shards[i];
      kept += static_cast<size_t>(shard.rows) * shard.row_bytes();
    }
    EXPECT_EQ(source->most_, kept);
    EXPECT_EQ(source->now_, kept);
  }
}

TEST(Prepare, ATiedHeadIsNotDrawn) {
  const auto source = std::make_shared<CountingSource>("tiny", true);
  DrawingOps ops(source->synthetic());
  auto weights = *load_weights(source->shape_, source);
  ASSERT_TRUE(prepare_weights(*weights, ops).ok());
  EXPECT_FALSE(ops.rows_.contains(weights->head.packed));
  EXPECT_EQ(ops.different_, 0);
}

TEST(Prepare, SmallTablesInFilesAreReadWhole) {
  auto source = std::make_shared<CountingSource>("tiny,ngram=stored");
  source->in_files = true;
  auto weights = *load_weights(source->shape_, source);
  auto ops = *make_ops({"cpu", "auto", 1});
  EXPECT_TRUE(weight_memory(*weights, *ops).tables_in_files);
  ASSERT_TRUE(prepare_weights(*weights, *ops).ok());
  EXPECT_FALSE(weights->ple[0].rows_ahead);
  size_t bytes = 0;
  for (const auto& advised : source->advised_) {
    EXPECT_EQ(advised.advice, format::Advice::kSoon);
    bytes += advised.range.bytes;
  }
  EXPECT_EQ(bytes, weights->ngram_bytes);
}

// A forward asks for exactly the rows that it then reads, codes, scales and biases of each.
TEST(Prepare, AForwardAsksForItsRowsAhead) {
  Prepared p = prepare("tiny,ngram=stored,format=q4g32", "cpu");
  PleLayer& ple = p.weights->ple[0];
  ple.rows_ahead = true;
  const kernels::NgramTable table = ple.table;
  const NgramHash hash = ple.hash;
  const ModelShape shape = p.source->shape_;
  const StateLayout layout = make_state_layout(shape, DType::kBf16, 64);
  Buffer pieces(layout.pieces_bytes);
  Buffer pool(layout.page_bytes);
  const int32_t page = 0;
  SequenceState state = bind_state(shape, layout, pieces.data(), &page);
  Activations act(shape, 16);
  Model model(std::move(p.weights), std::move(p.ops));
  const std::vector<int32_t> tokens = {3, 141, 59, 26, 5};
  const std::vector<kernels::Segment> segments = {
      {.first_row = 0, .row_count = 5, .start_position = 0}};
  const std::vector<SegmentInput> inputs = {{&state, tokens}};
  p.source->advised_.clear();
  model.forward(act, {kernels::Role::kPrompt, 5, tokens, segments}, inputs, layout, pool.data());

  std::vector<int64_t> rows(tokens.size() * static_cast<size_t>(hash.heads()));
  hash.rows(tokens, 0, rows);
  ASSERT_EQ(p.source->advised_.size(), 3 * rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    int shard = 0;
    while (rows[i] >= table.shard_starts[shard + 1]) ++shard;
    const kernels::Matrix& matrix = table.shards[shard];
    const auto in_shard = static_cast<size_t>(rows[i] - table.shard_starts[shard]);
    const auto* asked = &p.source->advised_[3 * i];
    EXPECT_EQ(asked[0].range.data, matrix.data + in_shard * matrix.row_bytes());
    EXPECT_EQ(asked[0].range.bytes, matrix.row_bytes());
    EXPECT_EQ(asked[1].range.data, matrix.scales + in_shard * matrix.scale_row_bytes());
    EXPECT_EQ(asked[2].range.data, matrix.biases + in_shard * matrix.scale_row_bytes());
    EXPECT_EQ(asked[2].advice, format::Advice::kSoon);
  }
}

TEST(Prepare, WhatDoesNotFitIsRefusedWithTheBytes) {
  LoadOptions options;
  options.backend = {"cpu", "auto", 1};
  options.context = 64;
  options.max_rows = 16;
  options.more_bytes = 1000;
  const ModelLocation location = *locate_model("synth:nano,format=bf16");
  const ModelMemory memory = *model_memory(location, options.backend, 16, 64);
  const size_t needed = memory.anonymous_bytes() + 1000;
  EXPECT_GT(memory.anonymous_bytes(), size_t{80} << 20);
  size_t prepared = 0;
  options.peak_bytes = &prepared;
  options.available_bytes = needed - 1;
  const auto refused = load_model(location, options);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, ErrorCode::kNoCapacity);
  EXPECT_EQ(refused.error().message,
            fmt::format("synth:nano,format=bf16: it needs {} bytes, but only {} bytes of memory "
                        "are available",
                        needed, needed - 1));
  EXPECT_EQ(prepared, 0U) << "something was made";
  options.available_bytes = needed;
  EXPECT_TRUE(load_model(location, options).ok());
  EXPECT_GT(prepared, memory.weights.copies_bytes);
}

// The numbers of the documentation: as packed, 4-bit codes take half a byte and wider ones a whole.
TEST(Prepare, TrueLayersTakeWhatTheyTake) {
  const auto gib = [](const std::string& text) {
    const ModelLocation location = *locate_model("synth:true," + text);
    const auto memory = model_memory(location, {"cpu", "auto", 2}, 512, 4096);
    return static_cast<double>(memory->anonymous_bytes()) / (1 << 30);
  };
  EXPECT_LT(gib("layers=8,format=q4g32"), 16.5);
  EXPECT_GT(gib("layers=8,format=q4g32"), 14.0);
  EXPECT_LT(gib("layers=4,format=q8g64"), 15.5);
}

}  // namespace
}  // namespace flashlane::model
