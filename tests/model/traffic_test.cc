// TrafficCounter against sums made here another way: from the sizes of the file's own tensors by
// name, from sets of what each forward reported, and from positions written out by hand.
#include "model/traffic.h"

#include <map>
#include <set>

#include "format/safetensors.h"
#include "tests/model/harness.h"

namespace flashlane::model {
namespace {

const char* const kFolder = FLASHLANE_SOURCE_DIR "/tests/fixtures/micro_a";

// The model of that folder: 4 DeltaNet and 2 sparse layers, 2 n-gram layers, all tensors bf16.
constexpr size_t kLayers = 6;
constexpr size_t kExperts = 10, kTopExperts = 3;
constexpr size_t kEmbeddingRow = 64 * 2;
constexpr size_t kNgramRows = 2 * 4 * 16 * 2;  // layers, heads, values, bytes
constexpr size_t kKvRow = 2 * 2 * 32 * 4;      // key and value, heads, values, bytes of f32
constexpr size_t kIndexRow = 32 * 4;
constexpr int kBlock = 4, kBudget = 8;

// Hands everything on to the counter and keeps the ids.
class Recorder final : public Probe {
 public:
  explicit Recorder(const Model& model) : counter(model.weights(), DType::kF32) {}
  void begin(const kernels::Batch& batch) override { counter.begin(batch); }
  void floats(std::string_view name, const float* values, int rows, int width) override {
    counter.floats(name, values, rows, width);
  }
  void ints(std::string_view name, const int32_t* values, int rows, int width) override {
    counter.ints(name, values, rows, width);
    if (name.ends_with("_experts")) {
      experts[std::string(name)] = {values, values + static_cast<int64_t>(rows) * width};
    } else if (name.ends_with("_block_counts")) {
      counts.assign(values, values + rows);
    } else if (name.ends_with("_blocks")) {
      auto& of_layer = blocks[std::string(name)];
      for (const int count : counts) {
        of_layer.emplace_back(values, values + count);
        values += width;
      }
    }
  }
  size_t distinct_experts() const {
    size_t count = 0;
    for (const auto& [name, ids] : experts) count += ids.size();
    return count;
  }
  TrafficCounter counter;
  std::map<std::string, std::set<int32_t>> experts;              // by layer
  std::map<std::string, std::vector<std::set<int32_t>>> blocks;  // by sparse layer and row
  std::vector<int32_t> counts;
};

class TrafficTest : public testing::Test {
 protected:
  TrafficTest() : model_(load_for_test(kFolder, "reference")), harness_(*model_) {
    auto opened = format::SafetensorsFile::open(std::string(kFolder) + "/model.safetensors");
    EXPECT_TRUE(opened.ok());
    for (const std::string& name : (*opened)->names()) {
      const TensorView& view = *(*opened)->find(name);
      const bool matrix = view.rank == 2 && name.find("ngram_embedding") == std::string::npos;
      const bool mtp = name.starts_with("mtp.");
      if (name == "lm_head.weight") {
        head_ = view.bytes();
      } else if (view.rank == 3 && name.find("experts") != std::string::npos) {
        (mtp ? mtp_bank_ : bank_) += view.bytes();
      } else if (matrix && name.find("embed_tokens") == std::string::npos) {
        (mtp ? mtp_dense_ : dense_) += view.bytes();
      }
    }
  }

  static std::vector<int32_t> tokens(int count, int seed = 1) {
    std::vector<int32_t> ids;
    ids.reserve(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) ids.push_back((i * 37 + seed * 101 + i * i) % 320);
    return ids;
  }
  size_t trunk_expert() const { return bank_ / kLayers / kExperts; }

  std::unique_ptr<Model> model_;
  Harness harness_;
  size_t dense_ = 0, bank_ = 0, mtp_dense_ = 0, mtp_bank_ = 0, head_ = 0;
};

// Bytes of the states for one segment: `written` records, `read` of the window before.
size_t state_bytes(size_t rows, size_t written, size_t read) {
  const size_t recurrent = 4 * 32 * 32, record = 2 * 32 + 4 * 32 + 4, channels = 256;
  const size_t delta = 2 * recurrent + record * (written + read) + (3 + rows) * channels;
  const size_t ngram = (2 * 3 + rows) * 192;
  return 4 * (4 * delta + 2 * ngram);
}

TEST_F(TrafficTest, OneDecodeRowReadsEveryMatrixOnceAndTheTopExperts) {
  TestSequence sequence(*model_, 64);
  harness_.prompt(sequence, tokens(9));
  Recorder recorder(*model_);
  harness_.run(kernels::Role::kDecode, {{&sequence, tokens(1)}}, &recorder);
  const Traffic traffic = recorder.counter.take();
  EXPECT_EQ(traffic.weight_bytes, dense_ + head_ + kEmbeddingRow + kNgramRows);
  EXPECT_EQ(traffic.expert_bytes, kLayers * kTopExperts * trunk_expert());
  EXPECT_EQ(traffic.state_bytes, state_bytes(1, 1, 0));
  // Ten positions, within the budget, so nothing is scored; one row is written.
  EXPECT_EQ(traffic.kv_bytes, 2 * ((10 + 1) * kKvRow + kIndexRow));
  EXPECT_EQ(traffic.experts_per_layer(), kTopExperts);
  EXPECT_EQ(traffic.bytes(),
            traffic.weight_bytes + traffic.expert_bytes + traffic.state_bytes + traffic.kv_bytes);
  EXPECT_EQ(recorder.counter.take().bytes(), 0U);
}

TEST_F(TrafficTest, BeyondTheBudgetTheBestBlocksAreReadAndAllPooledKeysScored) {
  TestSequence sequence(*model_, 64);
  harness_.prompt(sequence, tokens(49));
  Recorder recorder(*model_);
  harness_.run(kernels::Role::kDecode, {{&sequence, tokens(1)}}, &recorder);
  // 50 positions: 12 complete blocks and a tail of two.
  EXPECT_EQ(recorder.counter.take().kv_bytes,
            2 * ((kBudget * kBlock + 2 + 1) * kKvRow + (12 + 1) * kIndexRow));
}

TEST_F(TrafficTest, AChainCountsDistinctExpertsAndPositions) {
  constexpr int kPrompt = 49;
  constexpr int kRows = 7;
  TestSequence sequence(*model_, 80);
  harness_.prompt(sequence, tokens(kPrompt));
  harness_.window(sequence, tokens(5, 2), 3);
  Recorder recorder(*model_);
  const int start = kPrompt + 3;
  harness_.run(kernels::Role::kDecode, {{&sequence, tokens(kRows, 3)}}, &recorder);
  const Traffic traffic = recorder.counter.take();
  EXPECT_GT(recorder.distinct_experts(), kLayers * kTopExperts);
  EXPECT_EQ(traffic.expert_bytes, recorder.distinct_experts() * trunk_expert());
  EXPECT_EQ(static_cast<size_t>(traffic.trunk_experts), recorder.distinct_experts());
  EXPECT_EQ(traffic.trunk_layers, static_cast<int64_t>(kLayers));
  EXPECT_EQ(traffic.weight_bytes, dense_ + head_ + kRows * (kEmbeddingRow + kNgramRows));
  EXPECT_EQ(traffic.state_bytes, state_bytes(kRows, kRows, 2));
  size_t positions = 0;
  ASSERT_EQ(recorder.blocks.size(), 2U);
  for (const auto& [layer, rows] : recorder.blocks) {
    std::set<int> visible;
    for (int i = 0; i < kRows; ++i) {
      for (const int block : rows[static_cast<size_t>(i)]) {
        for (int t = 0; t < kBlock; ++t) visible.insert(block * kBlock + t);
      }
      const int seen = start + i + 1;
      for (int at = seen / kBlock * kBlock; at < seen; ++at) visible.insert(at);
    }
    positions += visible.size();
  }
  const size_t complete = (start + kRows) / kBlock;
  EXPECT_EQ(traffic.kv_bytes,
            (positions + 2 * kRows) * kKvRow + 2 * (complete + kRows) * kIndexRow);
}

TEST_F(TrafficTest, StreamsShareWeightsAndNotStates) {
  TestSequence first(*model_, 64, 64, 0);
  TestSequence second(*model_, 64, 64, 2);
  harness_.prompt(first, tokens(9, 1));
  harness_.prompt(second, tokens(9, 5));
  Recorder recorder(*model_);
  harness_.run(kernels::Role::kDecode, {{&first, tokens(1, 1)}, {&second, tokens(1, 7)}},
               &recorder);
  const Traffic traffic = recorder.counter.take();
  EXPECT_EQ(traffic.weight_bytes, dense_ + head_ + 2 * (kEmbeddingRow + kNgramRows));
  EXPECT_EQ(traffic.expert_bytes, recorder.distinct_experts() * trunk_expert());
  EXPECT_EQ(traffic.state_bytes, 2 * state_bytes(1, 1, 0));
  EXPECT_EQ(traffic.kv_bytes, 2 * 2 * ((10 + 1) * kKvRow + kIndexRow));
}

TEST_F(TrafficTest, ADraftStepReadsTheHeadAlone) {
  TestSequence sequence(*model_, 64);
  harness_.prompt(sequence, tokens(9));
  Recorder recorder(*model_);
  harness_.mtp(sequence, 8, harness_.wide_row(8), tokens(1), kernels::Role::kDecode, &recorder);
  const Traffic traffic = recorder.counter.take();
  EXPECT_EQ(traffic.weight_bytes, mtp_dense_ + head_ + kEmbeddingRow);
  EXPECT_EQ(traffic.expert_bytes, kTopExperts * (mtp_bank_ / kExperts));
  EXPECT_EQ(traffic.state_bytes, 0U);
  EXPECT_EQ(traffic.kv_bytes, (9 + 1) * kKvRow + kIndexRow);
  EXPECT_EQ(traffic.experts_per_layer(), kTopExperts);
}

TEST_F(TrafficTest, APromptKeepsNoRecords) {
  constexpr int kRows = 20;
  TestSequence sequence(*model_, 64);
  Recorder recorder(*model_);
  harness_.prompt(sequence, tokens(kRows), &recorder);
  const Traffic traffic = recorder.counter.take();
  EXPECT_EQ(traffic.state_bytes, state_bytes(kRows, 0, 0));
  EXPECT_EQ(traffic.expert_bytes, recorder.distinct_experts() * trunk_expert());
  EXPECT_EQ(traffic.kv_bytes, 2 * ((kRows + kRows) * kKvRow + kRows * kIndexRow));
}

}  // namespace
}  // namespace flashlane::model
