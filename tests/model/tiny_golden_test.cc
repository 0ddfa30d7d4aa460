// The deterministic tiny model against every golden value of its specification (float64 values of
// an independent implementation): logits, residual sums, states, block picks, experts and MTP
// chains.
#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "kernels/paging.h"
#include "kernels/sampler.h"
#include "tests/model/harness.h"

namespace flashlane::model {
namespace {

const std::vector<int32_t> kTokens = {424, 10,  236, 292, 203, 446, 420, 500, 201, 1,   333,
                                      279, 82,  356, 491, 133, 90,  189, 428, 85,  500, 144,
                                      446, 369, 36,  404, 216, 230, 433, 478, 222, 251};

struct LogitRow {
  int position;
  int argmax;
  double max;
  std::array<double, 4> first;
  double sum;
  double squares;
};

const LogitRow kTrunk[] = {
    {0,
     256,
     1.28687100,
     {0.37199717, -0.49983491, 0.18882116, -0.04140778},
     5.25546158,
     78.95134059},
    {1,
     257,
     1.00983659,
     {-0.17492600, -0.60574538, -0.31002179, -0.29143234},
     -5.18601857,
     71.19349262},
    {7,
     448,
     1.32331249,
     {0.06269312, -0.49111918, 0.54267673, -0.02310396},
     -6.94282909,
     82.22095750},
    {8,
     48,
     1.48076922,
     {-0.84744249, 0.44003321, 0.19184864, -0.26802735},
     -4.55974260,
     79.00087821},
    {18,
     93,
     1.32262016,
     {0.18262782, -0.21918165, 0.22098840, -0.48468473},
     7.56770163,
     85.88059510},
    {19,
     165,
     1.16109955,
     {0.84790194, 0.58072414, 0.15793686, 0.17324013},
     -6.82452151,
     74.06944278},
    {23,
     302,
     1.11089737,
     {-0.10444998, 0.52687182, -0.06235460, -0.13658721},
     -5.61870398,
     79.22057727},
    {31,
     445,
     1.23454308,
     {-0.12198627, -0.24143149, -0.17339413, 0.18809232},
     -13.62975888,
     78.71067550},
};

const LogitRow kMtp[] = {
    {30,
     276,
     1.08593118,
     {0.15472797, -0.03553136, 0.02777732, 0.73401455},
     -2.89772900,
     82.42047918},
    {31,
     350,
     1.02280355,
     {-0.37968663, -0.43832648, -0.30021968, -0.63063835},
     1.79240327,
     84.93546009},
    {32,
     328,
     1.33171468,
     {-0.18436824, -0.68910331, -0.12967798, -0.30703147},
     -7.72581585,
     79.27571431},
    {33,
     266,
     1.25969993,
     {-0.03949037, -0.29722433, 0.24047477, -0.62055607},
     -12.14961017,
     76.10460478},
};

void expect_row(const float* logits, int vocabulary, const LogitRow& golden, double tolerance) {
  SCOPED_TRACE("position " + std::to_string(golden.position));
  EXPECT_EQ(kernels::argmax(logits, vocabulary), golden.argmax);
  EXPECT_NEAR(logits[golden.argmax], golden.max, tolerance);
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(logits[i], golden.first[i], tolerance);
  double sum = 0;
  double squares = 0;
  for (int i = 0; i < vocabulary; ++i) {
    sum += static_cast<double>(logits[i]);
    squares += static_cast<double>(logits[i]) * static_cast<double>(logits[i]);
  }
  EXPECT_NEAR(sum, golden.sum, 10 * tolerance);
  EXPECT_NEAR(squares, golden.squares, 10 * tolerance);
}

// Keeps every reported value by name.
class Recorder : public Probe {
 public:
  void floats(std::string_view name, const float* values, int rows, int width) override {
    floats_[std::string(name)].assign(values, values + static_cast<int64_t>(rows) * width);
  }
  void ints(std::string_view name, const int32_t* values, int rows, int width) override {
    ints_[std::string(name)].assign(values, values + static_cast<int64_t>(rows) * width);
  }
  const std::vector<float>& f(const std::string& name) { return floats_.at(name); }
  const std::vector<int32_t>& i(const std::string& name) { return ints_.at(name); }

 private:
  std::map<std::string, std::vector<float>> floats_;
  std::map<std::string, std::vector<int32_t>> ints_;
};

class TinyGolden : public testing::Test {
 protected:
  TinyGolden()
      : model_(load_for_test("synth:tiny,format=bf16", "reference")),
        harness_(*model_),
        sequence_(*model_, 128) {}
  int vocabulary() const { return model_->shape().vocabulary; }

  std::unique_ptr<Model> model_;
  Harness harness_;
  TestSequence sequence_;
};

constexpr double kTolerance = 2e-5;  // f32 against float64; the specification allows 1e-4

TEST_F(TinyGolden, TrunkLogits) {
  const auto logits = harness_.prompt(sequence_, kTokens);
  for (const LogitRow& golden : kTrunk) {
    expect_row(&logits[static_cast<size_t>(golden.position * vocabulary())], vocabulary(), golden,
               kTolerance);
  }
}

TEST_F(TinyGolden, ResidualSquaresAfterEachStage) {
  Recorder recorder;
  harness_.prompt(sequence_, kTokens, &recorder);
  const int wide = model_->shape().wide();
  const auto squares = [&](const std::vector<float>& values, int row) {
    double sum = 0;
    for (int i = 0; i < wide; ++i) {
      const double v = values[static_cast<size_t>(row * wide + i)];
      sum += v * v;
    }
    return sum;
  };
  const double first[] = {194.621936, 286.934380, 286.755872, 291.154892,
                          297.884787, 310.945192, 411.168841, 414.872214};
  const double last[] = {250.374056, 457.858679, 583.569917, 586.373763,
                         616.546035, 722.324484, 808.432833, 810.590187};
  for (int layer = 0; layer < 8; ++layer) {
    const auto& streams = recorder.f("layer" + std::to_string(layer) + "_streams");
    EXPECT_NEAR(squares(streams, 0), first[layer], 1e-3) << layer;
    EXPECT_NEAR(squares(streams, 31), last[layer], 1e-3) << layer;
  }
  // After the n-gram layer: the streams of layer 0 plus what it adds.
  auto injected = recorder.f("layer0_streams");
  const auto& added = recorder.f("layer1_ple_out");
  for (size_t i = 0; i < injected.size(); ++i) injected[i] += added[i];
  EXPECT_NEAR(squares(injected, 0), 219.120412, 1e-3);
  EXPECT_NEAR(squares(injected, 31), 327.282666, 1e-3);
  const auto& final_streams = recorder.f("layer7_streams");
  const double start[] = {-0.24103205, 0.13718989, 2.39915795, 0.92950758};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(final_streams[static_cast<size_t>(31 * wide) + i], start[i], kTolerance);
  }
}

TEST_F(TinyGolden, BlockStagesAtPositionZero) {
  Recorder recorder;
  harness_.prompt(sequence_, kTokens, &recorder);
  const struct {
    int layer;
    double values[6];
  } golden[] = {
      {0, {0.55541674, 0.82348701, -0.39554273, 0.22254170, 0.92912859, -0.03076534}},
      {1, {0.07638647, 1.02225686, 0.15884716, 0.15782892, 1.06253382, 0.06572871}},
      {3, {0.26723002, 1.10770171, -0.28817690, 0.06778310, 1.04229401, 0.05878780}},
  };
  const char* stages[] = {"attn_read", "attn_inject", "mixer_out",
                          "mlp_read",  "mlp_inject",  "moe_out"};
  for (const auto& row : golden) {
    for (size_t i = 0; i < 6; ++i) {
      const std::string name = "layer" + std::to_string(row.layer) + "_" + stages[i];
      EXPECT_NEAR(recorder.f(name)[0], row.values[i], kTolerance) << name;
    }
  }
}

TEST_F(TinyGolden, StateBlocksExpertsAndNgramRows) {
  Recorder recorder;
  harness_.prompt(sequence_, kTokens, &recorder);
  const float* state = sequence_.state.gdn[0].recurrent;
  EXPECT_NEAR(state[0], -0.001102091, 1e-6);
  EXPECT_NEAR(state[1], 0.007676203, 1e-6);
  EXPECT_NEAR(state[2], 0.004547740, 1e-6);

  const int stride = model_->shape().block_budget();
  const auto picks = [&](int layer) {
    const std::string prefix = "layer" + std::to_string(layer) + "_";
    const auto& blocks = recorder.i(prefix + "blocks");
    const int count = recorder.i(prefix + "block_counts")[31];
    return std::vector<int32_t>(blocks.begin() + 31 * stride, blocks.begin() + 31 * stride + count);
  };
  EXPECT_EQ(picks(3), (std::vector<int32_t>{0, 3, 6, 7}));
  EXPECT_EQ(picks(7), (std::vector<int32_t>{1, 4, 6, 7}));

  const std::vector<int32_t> experts[] = {{3, 5, 6, 15},  {4, 9, 13, 0}, {2, 11, 0, 3},
                                          {5, 6, 9, 8},   {0, 1, 13, 2}, {8, 15, 12, 0},
                                          {10, 14, 5, 3}, {8, 7, 2, 11}};
  for (int layer = 0; layer < 8; ++layer) {
    const auto& ids = recorder.i("layer" + std::to_string(layer) + "_experts");
    EXPECT_EQ(std::vector<int32_t>(ids.begin() + 31 * 4, ids.begin() + 32 * 4), experts[layer])
        << layer;
  }
  const auto& rows = recorder.i("layer1_ngram_rows");
  const std::map<int, std::vector<int32_t>> golden = {
      {0, {978, 2016, 2034, 3433}}, {1, {792, 1235, 2905, 3861}}, {2, {78, 1313, 2376, 3149}},
      {7, {817, 1909, 2531, 3507}}, {8, {872, 1865, 2449, 3175}}, {9, {496, 1646, 2163, 3071}}};
  for (const auto& [position, expected] : golden) {
    EXPECT_EQ(std::vector<int32_t>(rows.begin() + position * 4, rows.begin() + position * 4 + 4),
              expected);
  }
}

// The scores themselves, from what the layer left in the cache: spec 3.8 restated.
TEST_F(TinyGolden, BlockScores) {
  Recorder recorder;
  harness_.prompt(sequence_, kTokens, &recorder);
  const ModelShape& shape = model_->shape();
  const std::vector<double> golden[] = {
      {2.980718, 0.265275, 0.309043, 3.157503, 1.747457, 0.309518, 2.865353, 2.133423},
      {1.579895, 2.011871, 0.618807, 0.009216, 2.860442, 1.189217, 2.123442, 2.153182}};
  for (int i = 0; i < 2; ++i) {
    const auto pages = kv_pages(sequence_.layout, harness_.pool(), i);
    const auto& index = recorder.f("layer" + std::to_string(i * 4 + 3) + "_index");
    const float* queries =
        &index[static_cast<size_t>(31 * (shape.index_heads + 1) * shape.index_dim)];
    for (int b = 0; b < 8; ++b) {
      const auto* pooled = reinterpret_cast<const float*>(kernels::pooled_row(
          pages, sequence_.table.data(), b, shape.index_block, shape.index_dim));
      double score = 0;
      for (int h = 0; h < shape.index_heads; ++h) {
        double dot = 0;
        for (int d = 0; d < shape.index_dim; ++d)
          dot += static_cast<double>(queries[h * shape.index_dim + d]) *
                 static_cast<double>(pooled[d]);
        score += std::max(0.0, dot);
      }
      EXPECT_NEAR(score / std::sqrt(shape.index_dim), golden[i][static_cast<size_t>(b)], 2e-5)
          << i << " " << b;
    }
  }
}

TEST_F(TinyGolden, MtpRowsAndChain) {
  harness_.prompt(sequence_, kTokens);
  const std::vector<float> trunk = harness_.wide();
  const auto wide = static_cast<size_t>(model_->shape().wide());
  const std::vector<float> absorbed(trunk.begin(), trunk.end() - static_cast<std::ptrdiff_t>(wide));
  const auto absorbed_logits = harness_.mtp(
      sequence_, 0, absorbed, {kTokens.begin() + 1, kTokens.end()}, kernels::Role::kPrompt);
  expect_row(&absorbed_logits[static_cast<size_t>(30 * vocabulary())], vocabulary(), kMtp[0],
             kTolerance);
  std::vector<float> input(trunk.end() - static_cast<std::ptrdiff_t>(wide), trunk.end());
  int32_t token = 445;
  for (int i = 1; i < 4; ++i) {
    const auto logits = harness_.mtp(sequence_, 30 + i, input, {token}, kernels::Role::kDecode);
    expect_row(logits.data(), vocabulary(), kMtp[i], kTolerance);
    token = kMtp[i].argmax;
    input = harness_.wide_row(0);
  }
}

}  // namespace
}  // namespace flashlane::model
