// Preparing weights: every byte is wanted before it is read and dropped after, few are there at a
// time, what is looked up by row stays, and a model that would not fit is refused before anything
// is made.
#include "model/prepare.h"

#include <gtest/gtest.h>

#include <map>

#include "model/forward.h"
#include "model/load.h"
#include "tests/model/weights_fixture.h"

namespace flashlane::model {
namespace {

// Passes on to a synthetic source and keeps count of what is wanted and not dropped, by address.
class CountingSource final : public format::TensorSource {
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
