// The cpu and cuda backends against the reference. Where nothing but the order of f32 sums differs,
// the bound is a few units in the last place of the sums; where an intermediate is rounded to bf16
// before a product (design 6), it is a small part of bf16's 2^-8. Inputs of products are bf16
// values, so that the first rounding is exact. Errors are relative to the largest value of the row.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "tests/kernels/test_cases.h"

namespace flashlane::kernels::test {
namespace {

constexpr double kSumOrder = 4e-6;  // other order of the same f32 sums
constexpr double kRounded = 6e-3;   // an intermediate in bf16
constexpr double kGated = 5e-4;     // likewise, but it only moves a sigmoid in front of f32 values

float largest(const float* x, int count) {
  float most = 0;
  for (int i = 0; i < count; ++i) most = std::max(most, std::fabs(x[i]));
  return most;
}

// The largest difference of a row relative to its largest value; infinity for NaN.
double row_error(const float* got, const float* want, int count) {
  double worst = 0;
  for (int i = 0; i < count; ++i) {
    const double difference = std::fabs(double{got[i]} - double{want[i]});
    if (!(difference <= 1e30)) return INFINITY;
    worst = std::max(worst, difference);
  }
  return worst / std::max(1e-20, double{largest(want, count)});
}

std::vector<Backend> all_but_the_reference() {
  std::vector<Backend> all = backends();
  all.erase(all.begin());
  return all;
}

constexpr int kRows = 9;

void check_row_parity(const Backend& backend, const Format& format, const RowSizes& sizes,
                      std::map<std::string, double>& worst) {
  const auto reference = backends()[0].make(1);
  const auto ops = backend.make(2);
  Store reference_store;
  Store store;
  const auto expected = row_ops(*reference, reference_store, format, sizes, 21);
  const auto cases = row_ops(*ops, store, format, sizes, 21);
  for (size_t i = 0; i < cases.size(); ++i) {
    const RowOp& op = cases[i];
    Random random(500 + i);
    const auto in = random.bf16_values(int64_t{kRows} * op.in_width, -2, 2);
    std::vector<float> want(static_cast<size_t>(kRows * op.out_width));
    std::vector<float> got(want.size());
    expected[i].run(*reference, want.data(), in.data(), kRows);
    op.run(*ops, got.data(), in.data(), kRows);
    for (int row = 0; row < kRows; ++row) {
      const float* w = &want[static_cast<size_t>(row * op.out_width)];
      const float* g = &got[static_cast<size_t>(row * op.out_width)];
      int skipped = 0;
      if (op.name.starts_with("moe")) {
        // The choice of experts is discrete, and the same.
        for (int k = 0; k < sizes.top_experts; ++k) {
          ASSERT_EQ(g[k], w[k]) << backend.name << " " << format.name << " row " << row;
        }
        skipped = sizes.top_experts;
        const double gates = row_error(g + skipped, w + skipped, sizes.top_experts);
        EXPECT_LE(gates, kSumOrder) << backend.name << " " << format.name;
        skipped *= 2;
      }
      double& most = worst[op.name];
      most = std::max(most, row_error(g + skipped, w + skipped, op.out_width - skipped));
    }
  }
}

void expect_row_bounds(const std::map<std::string, double>& worst) {
  const std::map<std::string, double> bounds = {
      {"project", kSumOrder},     {"hyper_read", kGated}, {"final_mixer", kGated},
      {"hyper_write", kSumOrder}, {"moe", kRounded},      {"moe_plain_softmax", kRounded},
      {"mtp_fuse", kRounded},     {"embed_and_ngram", 0}, {"sample", 0},
  };
  ASSERT_EQ(worst.size(), bounds.size());
  for (const auto& [name, error] : worst) {
    ASSERT_TRUE(bounds.contains(name)) << name;
    EXPECT_LE(error, bounds.at(name)) << name;
    testing::Test::RecordProperty(name, std::to_string(error));
    if (bounds.at(name) > kSumOrder) {
      // No rounding at all would mean that the backend does not do what it says.
      EXPECT_GT(error, kSumOrder) << name;
    }
  }
}

TEST(Parity, RowOpsMatchTheReferenceInEveryFormat) {
  for (const Backend& backend : all_but_the_reference()) {
    std::map<std::string, double> worst;
    for (const Format& format : all_formats()) {
      check_row_parity(backend, format, kRoundSizes, worst);
    }
    for (const char* format : {"bf16", "q4g32", "q6g64"}) {
      check_row_parity(backend, format_named(format), kDeepSizes, worst);
    }
    for (const char* format : {"bf16", "q4g32", "q8g32"}) {
      check_row_parity(backend, format_named(format), kHalfSizes, worst);
    }
    for (const char* format : {"f32", "bf16", "f16"}) {
      check_row_parity(backend, format_named(format), kOddSizes, worst);
    }
    expect_row_bounds(worst);
  }
}

// Prompt chunks of 5, then windows of 4 of which 3 are kept, on both; outputs and states side by
// side.
struct LayerErrors {
  double output = 0;
  double state = 0;
  std::string where = {};  // the row of the largest error of the output, and its largest value
};

// The value that is farthest off, for people.
std::string farthest(const float* got, const float* want, int count) {
  int at = 0;
  for (int i = 1; i < count; ++i) {
    if (!(std::fabs(got[i] - want[i]) <= std::fabs(got[at] - want[at]))) at = i;
  }
  return fmt::format("value {}: {} instead of {}", at, got[at], want[at]);
}

LayerErrors layer_errors(const Backend& backend, size_t which, DType dtype) {
  constexpr int kPositions = 105;
  std::vector<float> outputs[2];
  std::vector<float> snapshots[2];
  int width = 0;
  for (const int side : {0, 1}) {
    const auto ops = side == 0 ? backends()[0].make(1) : backend.make(2);
    auto layer = std::move(layer_cases(31, {dtype, 8})[which]);
    width = layer->out_width();
    Random random(77);
    const auto in = random.values(int64_t{kMostPositions} * layer->in_width(), -2, 2);
    LayerState state = layer->new_state(random);
    int pending = 0;
    for (int done = 0; done < kPositions;) {
      const bool prompt = done < 40;
      const int rows = prompt ? 5 : 4;
      const int kept = prompt ? 5 : std::min(3, kPositions - done);
      std::vector<float> out(static_cast<size_t>(rows * width));
      layer->run(*ops, out.data(), &in[static_cast<size_t>(done * layer->in_width())],
                 prompt ? Role::kPrompt : Role::kDecode, {{&state, rows, done, pending}});
      outputs[side].insert(outputs[side].end(), out.begin(), out.begin() + kept * width);
      done += kept;
      pending = prompt ? 0 : kept;
    }
    snapshots[side] = layer->snapshot(*ops, state, pending, kPositions);
  }
  LayerErrors errors;
  for (size_t at = 0; at < outputs[0].size(); at += static_cast<size_t>(width)) {
    const double error = row_error(&outputs[1][at], &outputs[0][at], width);
    if (error <= errors.output) continue;
    errors.output = error;
    errors.where = fmt::format("row {}, {}", at / static_cast<size_t>(width),
                               farthest(&outputs[1][at], &outputs[0][at], width));
  }
  errors.state =
      row_error(snapshots[1].data(), snapshots[0].data(), static_cast<int>(snapshots[0].size()));
  return errors;
}

TEST(Parity, LayersWithStateMatchTheReference) {
  // No product with weights in them: f32 throughout, so only the order of sums differs. Both store
  // what they computed, rounded to bf16 or not; a value on a rounding edge would differ by 2^-8 of
  // itself, and this seed has none.
  constexpr double kBound = 2e-5;
  for (const Backend& backend : all_but_the_reference()) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      const size_t count = layer_cases(31, {dtype, 8}).size();
      for (size_t which = 0; which < count; ++which) {
        const std::string name = layer_cases(31, {dtype, 8})[which]->name();
        const LayerErrors errors = layer_errors(backend, which, dtype);
        EXPECT_LE(errors.output, kBound) << backend.name << " " << name << ", " << errors.where;
        EXPECT_LE(errors.state, kBound) << backend.name << " " << name;
        RecordProperty(name, std::to_string(errors.output) + " " + std::to_string(errors.state));
      }
    }
  }
}

// All outputs of the row ops in one format, and of the layers: prompt rows, then a window.
std::vector<float> all_outputs(const Backend& backend, const Format& format) {
  const auto ops = backend.make(2);
  Store store;
  std::vector<float> all;
  for (const RowOp& op : row_ops(*ops, store, format, kRoundSizes, 21)) {
    Random random(9);
    const auto in = random.values(int64_t{kRows} * op.in_width, -2, 2);
    std::vector<float> out(static_cast<size_t>(kRows * op.out_width));
    op.run(*ops, out.data(), in.data(), kRows);
    all.insert(all.end(), out.begin(), out.end());
  }
  for (const auto& layer : layer_cases(31, {DType::kBf16, 8})) {
    constexpr int kPromptRows = 50;
    constexpr int kWindow = 4;
    Random random(10);
    const int rows = kPromptRows + kWindow;
    const auto in = random.values(int64_t{rows} * layer->in_width(), -2, 2);
    std::vector<float> out(static_cast<size_t>(rows * layer->out_width()));
    LayerState state = layer->new_state(random);
    layer->run(*ops, out.data(), in.data(), Role::kPrompt, {{&state, kPromptRows, 0, 0}});
    layer->run(*ops, &out[static_cast<size_t>(kPromptRows * layer->out_width())],
               &in[static_cast<size_t>(kPromptRows * layer->in_width())], Role::kDecode,
               {{&state, kWindow, kPromptRows, 0}});
    all.insert(all.end(), out.begin(), out.end());
    const auto snapshot = layer->snapshot(*ops, state, 3, kPromptRows + 3);
    all.insert(all.end(), snapshot.begin(), snapshot.end());
  }
  return all;
}

// All levels compute with the same 16 lanes, the same tree and the same sequence of products, but
// for avx512_bf16, whose instruction has an order of its own. Where there is one level, its twin of
// three threads stands for the others; product_order_test holds each to the written order.
TEST(Parity, LevelsGiveTheSameBits) {
  auto levels = all_but_the_reference();
  std::erase_if(levels, [](const Backend& level) {
    return level.name == "cpu_avx512_bf16" || level.name == "cuda";
  });
  ASSERT_FALSE(levels.empty());
  levels.push_back(
      {levels[0].name + "_threads_3", [make = levels[0].make](int) { return make(3); }, true});
  for (const Format& format : all_formats()) {
    const std::vector<float> first = all_outputs(levels[0], format);
    for (size_t i = 1; i < levels.size(); ++i) {
      const std::vector<float> other = all_outputs(levels[i], format);
      ASSERT_EQ(other.size(), first.size());
      ASSERT_EQ(std::memcmp(other.data(), first.data(), first.size() * sizeof(float)), 0)
          << levels[i].name << " " << format.name;
    }
  }
}

TEST(Parity, RefusalsNameTheLevelAndWhatTheCpuHas) {
  const std::string has = available_isa_levels();
  ASSERT_FALSE(has.empty());
  for (const char* level : {"avx2", "avx512", "avx512_bf16", "amx", "sse9"}) {
    if ((", " + has + ",").find(fmt::format(", {},", level)) != std::string::npos) continue;
    const auto ops = make_cpu_ops(level, 1);
    ASSERT_FALSE(ops.ok());
    EXPECT_NE(ops.error().message.find(level), std::string::npos) << ops.error().message;
    EXPECT_NE(ops.error().message.find(has), std::string::npos) << ops.error().message;
  }
  EXPECT_FALSE(make_cpu_ops("auto", 0).ok());
  EXPECT_FALSE(make_cpu_ops("auto", 5000).ok());
  const auto ops = make_cpu_ops("auto", 2);
  ASSERT_TRUE(ops.ok());
  EXPECT_EQ((*ops)->info().name, "cpu");
  EXPECT_EQ((*ops)->info().prompt_grid, 1);
  EXPECT_TRUE(has.ends_with((*ops)->info().isa)) << "auto takes the highest level";
}

// A part at a time, as large banks are loaded, gives the same copy as all at once; and the copy has
// the size that was announced.
TEST(Parity, PreparingByPartsIsPreparing) {
  for (const Backend& backend : backends()) {
    for (const char* name : {"q4g64", "q6g64", "bf16"}) {
      const Format format = format_named(name);
      const auto ops = backend.make(2);
      Store store;
      Random random(9);
      Matrix whole = store.matrix(random, format, 1, 600, 128);
      Matrix parts = whole;
      ASSERT_TRUE(ops->prepare(whole).ok());
      ASSERT_TRUE(ops->begin_prepare(parts).ok());
      ops->prepare_part(parts, {0, 1, 512, 88});
      ops->prepare_part(parts, {0, 1, 0, 512});
      const std::vector<float> x = random.values(2 * 128, -1, 1);
      std::vector<float> expected(2 * 600);
      std::vector<float> out(expected.size(), -1);
      ops->project(expected.data(), x.data(), 2, whole);
      ops->project(out.data(), x.data(), 2, parts);
      EXPECT_EQ(out, expected) << backend.name << " " << name;

      MoeWeights moe;
      moe.hidden = 128;
      moe.experts = 5;
      moe.top_experts = 3;
      moe.width = 64;
      moe.shared_width = 64;
      moe.gate = store.matrix(random, format, 5, 64, 128, 64);
      moe.up = store.matrix(random, format, 5, 64, 128);
      moe.down = store.matrix(random, format, 5, 128, 64);
      moe.shared_gate = store.matrix(random, format, 1, 64, 128);
      moe.shared_up = store.matrix(random, format, 1, 64, 128);
      moe.shared_down = store.matrix(random, format, 1, 128, 64);
      moe.shared_router = store.matrix(random, format, 1, 1, 128);
      MoeWeights by_parts = moe;
      for (MoeWeights* w : {&moe, &by_parts}) {
        for (Matrix* m : {&w->gate, &w->up, &w->down}) {
          if (w == &moe) {
            ASSERT_TRUE(ops->prepare(*m).ok());
            continue;
          }
          ASSERT_TRUE(ops->begin_prepare(*m).ok());
          ops->prepare_part(*m, {0, 2, 0, m->rows});
          ops->prepare_part(*m, {2, 3, 0, m->rows});
        }
        for (Matrix* m : {&w->shared_gate, &w->shared_up, &w->shared_down, &w->shared_router}) {
          ASSERT_TRUE(ops->prepare(*m).ok());
        }
      }
      const std::vector<int32_t> ids = {4, 0, 2, 1, 3, 4};
      const std::vector<float> gates = {0.5F, 0.25F, 0.25F, 0.5F, 0.25F, 0.25F};
      std::vector<float> routed(2 * 128);
      std::vector<float> routed_by_parts(routed.size(), -1);
      ops->experts(routed.data(), x.data(), ids.data(), gates.data(), 2, moe);
      ops->experts(routed_by_parts.data(), x.data(), ids.data(), gates.data(), 2, by_parts);
      EXPECT_EQ(routed_by_parts, routed) << backend.name << " " << name;
    }
  }
}

TEST(Parity, SizesAreKnownBeforehand) {
  Store store;
  Random random(2);
  const auto ops = make_cpu_ops("auto", 1);
  ASSERT_TRUE(ops.ok());
  // 40 rows are two panels of 32. Codes up to 4 bits take half a byte, wider ones a byte; a group
  // of a row has a scale and a bias of two bytes.
  const struct {
    const char* format;
    size_t bytes;
  } cases[] = {
      {"q4g64", 64 * (128 / 2 + 2 * 4)}, {"q8g64", 64 * (128 + 2 * 4)}, {"bf16", 64 * 128 * 2}};
  for (const auto& c : cases) {
    const Matrix matrix = store.matrix(random, format_named(c.format), 3, 40, 128);
    EXPECT_EQ((*ops)->prepared_bytes(matrix), 3 * c.bytes) << c.format;
    EXPECT_EQ(make_reference_ops()->prepared_bytes(matrix), 3U * 40 * 128 * sizeof(float));
  }
}

TEST(Parity, PrepareRefusesShapesThatNoFormatHas) {
  const auto ops = make_cpu_ops("auto", 1);
  ASSERT_TRUE(ops.ok());
  Store store;
  Random random(1);
  const Matrix good = store.matrix(random, format_named("q4g64"), 1, 16, 128);
  const auto refused = [&](auto change) {
    Matrix bad = good;
    change(bad);
    return !(*ops)->prepare(bad).ok();
  };
  EXPECT_FALSE(refused([](Matrix&) {}));
  EXPECT_TRUE(refused([](Matrix& m) { m.bits = 7; }));
  EXPECT_TRUE(refused([](Matrix& m) { m.group = 48; }));
  EXPECT_TRUE(refused([](Matrix& m) { m.cols = 96; }));
  EXPECT_TRUE(refused([](Matrix& m) { m.rows = 0; }));
  EXPECT_TRUE(refused([](Matrix& m) { m.scales = nullptr; }));
  EXPECT_TRUE(refused([](Matrix& m) { m.scale_dtype = DType::kI32; }));
  EXPECT_TRUE(refused([](Matrix& m) {
    m.count = 2;
    m.stride_rows = 15;
  }));
}

}  // namespace
}  // namespace flashlane::kernels::test
