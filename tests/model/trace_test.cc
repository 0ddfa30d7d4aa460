// Values inside the network against an independent implementation's traces (tests/fixtures), on the
// reference backend, for the bundled model and for one of other sizes, so that hard-coded sizes
// show.
#include <cmath>
#include <map>
#include <numeric>
#include <set>

#include "format/safetensors.h"
#include "tests/model/harness.h"
#include "tests/support/tensor_values.h"

namespace flashlane::model {
namespace {

constexpr double kStreamTolerance = 1e-3;  // stated in the fixtures' README; 5e-5 is usual

class Recorder : public Probe {
 public:
  void floats(std::string_view name, const float* values, int rows, int width) override {
    auto& record = floats_[std::string(name)];
    record.first = width;
    record.second.assign(values, values + static_cast<int64_t>(rows) * width);
  }
  void ints(std::string_view name, const int32_t* values, int rows, int width) override {
    auto& record = ints_[std::string(name)];
    record.first = width;
    record.second.assign(values, values + static_cast<int64_t>(rows) * width);
  }
  std::map<std::string, std::pair<int, std::vector<float>>, std::less<>> floats_;
  std::map<std::string, std::pair<int, std::vector<int32_t>>, std::less<>> ints_;
};

struct Trace {
  std::string model;
  std::string file;
};

std::string fixture(const std::string& name) {
  return std::string(FLASHLANE_SOURCE_DIR) + "/tests/fixtures/" + name;
}

std::vector<int32_t> ints_of(const format::TensorSource& source, const std::string& name) {
  const TensorView* view = source.find(name);
  EXPECT_NE(view, nullptr) << name;
  if (view == nullptr) return {};
  return values_of<int32_t>(*view);
}

class TraceTest : public testing::TestWithParam<Trace> {
 protected:
  void SetUp() override {
    model_ =
        load_for_test(GetParam().model == "nano" ? "nano" : fixture(GetParam().model), "reference");
    auto opened = format::SafetensorsFile::open(fixture(GetParam().file));
    ASSERT_TRUE(opened.ok()) << opened.error().message;
    file_ = std::move(opened).value();
    tokens_ = ints_of(*file_, "tokens");
  }

  // Compares rows `positions` of what was recorded with the trace's rows.
  void compare(const Recorder& recorder, const std::string& name, const std::string& as,
               const std::vector<int32_t>& positions) {
    const TensorView* golden = file_->find(name);
    ASSERT_NE(golden, nullptr) << name;
    const auto width = static_cast<size_t>(golden->dim(1));
    double worst = 0;
    if (golden->dtype == DType::kI32) {
      const auto found = recorder.ints_.find(as);
      ASSERT_NE(found, recorder.ints_.end()) << as;
      ASSERT_EQ(static_cast<size_t>(found->second.first), width) << name;
      const auto expected = values_of<int32_t>(*golden);
      for (size_t i = 0; i < positions.size(); ++i) {
        for (size_t c = 0; c < width; ++c) {
          EXPECT_EQ(expected[i * width + c],
                    found->second.second[static_cast<size_t>(positions[i]) * width + c])
              << name << " position " << positions[i];
        }
      }
      ++compared_;
      return;
    }
    const auto found = recorder.floats_.find(as);
    ASSERT_NE(found, recorder.floats_.end()) << as;
    ASSERT_EQ(static_cast<size_t>(found->second.first), width) << name;
    const auto values = values_of<float>(*golden);
    for (size_t i = 0; i < positions.size(); ++i) {
      for (size_t c = 0; c < width; ++c) {
        const double ours = static_cast<double>(
            found->second.second[static_cast<size_t>(positions[i]) * width + c]);
        worst = std::max(worst, std::fabs(ours - static_cast<double>(values[i * width + c])));
      }
    }
    EXPECT_LE(worst, kStreamTolerance) << name;
    ++compared_;
  }

  // Chosen blocks of the queries that the trace holds: all, unless block_rows says which.
  void compare_blocks(const Recorder& recorder, const std::string& golden_name,
                      const std::string& prefix) {
    const TensorView* golden = file_->find(golden_name);
    if (golden == nullptr) return;
    const auto& [stride, blocks] = recorder.ints_.at(prefix + "blocks");
    const auto& counts = recorder.ints_.at(prefix + "block_counts").second;
    std::vector<int32_t> queries(counts.size());
    std::iota(queries.begin(), queries.end(), 0);
    if (file_->find("block_rows") != nullptr) queries = ints_of(*file_, "block_rows");
    ASSERT_EQ(static_cast<size_t>(golden->dim(0)), queries.size()) << golden_name;
    int different = 0;
    for (int64_t row = 0; row < golden->dim(0); ++row) {
      const auto query = static_cast<size_t>(queries[static_cast<size_t>(row)]);
      ASSERT_LT(query, counts.size()) << golden_name;
      std::set<int32_t> ours;
      for (int i = 0; i < counts[query]; ++i) {
        ours.insert(blocks[query * static_cast<size_t>(stride) + static_cast<size_t>(i)]);
      }
      std::set<int32_t> theirs;
      for (int64_t b = 0; b < golden->dim(1); ++b) {
        if (golden->as<uint8_t>()[row * golden->dim(1) + b] != 0)
          theirs.insert(static_cast<int32_t>(b));
      }
      different += ours != theirs ? 1 : 0;
    }
    EXPECT_EQ(different, 0) << golden_name;
    ++compared_;
  }

  std::unique_ptr<Model> model_;
  std::unique_ptr<format::SafetensorsFile> file_;
  std::vector<int32_t> tokens_;
  int compared_ = 0;
};

bool is_blocks(const std::string& name) {
  return name.ends_with("_blocks");
}

TEST_P(TraceTest, EveryStageAgrees) {
  Harness harness(*model_, 1024);
  TestSequence sequence(*model_, 1024);
  Recorder trunk;
  harness.prompt(sequence, tokens_, &trunk);
  const std::vector<float> wide = harness.wide();
  const auto positions = ints_of(*file_, "positions");
  for (const std::string& name : file_->names()) {
    if (name == "final_mixed") compare(trunk, name, name, positions);
    if (!name.starts_with("layer")) continue;
    if (is_blocks(name)) {
      compare_blocks(trunk, name, name.substr(0, name.size() - 6));
    } else {
      compare(trunk, name, name, positions);
    }
  }
  // The draft head with true inputs: rows 0..T-2 pair position i's streams with token i+1.
  Recorder head;
  const auto width = static_cast<size_t>(model_->shape().wide());
  harness.mtp(sequence, 0, {wide.begin(), wide.end() - static_cast<std::ptrdiff_t>(width)},
              {tokens_.begin() + 1, tokens_.end()}, kernels::Role::kPrompt, &head);
  const auto mtp_positions = ints_of(*file_, "mtp_positions");
  for (const char* name : {"mtp_fused", "mtp_streams", "mtp_mixed", "mtp_experts"}) {
    compare(head, name, name, mtp_positions);
  }
  compare_blocks(head, "mtp_blocks", "mtp_");
  EXPECT_GE(compared_, model_->shape().layers * 6 + 8);
}

std::string trace_name(const testing::TestParamInfo<Trace>& trace) {
  return trace.param.model + std::to_string(trace.index);
}

INSTANTIATE_TEST_SUITE_P(Fixtures, TraceTest,
                         testing::Values(Trace{"micro_a", "micro_a/trace_t60.safetensors"},
                                         Trace{"nano", "nano/trace_short.safetensors"}),
                         trace_name);
INSTANTIATE_TEST_SUITE_P(Slow, TraceTest,
                         testing::Values(Trace{"nano", "nano/trace_long700.safetensors"}),
                         trace_name);

}  // namespace
}  // namespace flashlane::model
