// Our own exp, log, sin and cos against the C library's double versions (within the stated units in
// the last place), and the sampler's rules: greedy ties, cuts, keys.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <random>

#include "base/keyed_random.h"
#include "kernels/elementary.h"
#include "kernels/sampler.h"

namespace flashlane::kernels {
namespace {

double relative(double ours, double theirs) {
  return theirs == 0 ? std::fabs(ours) : std::fabs((ours - theirs) / theirs);
}

TEST(Elementary, FloatExpIsWithinTwoUnits) {
  double worst = 0;
  for (float x = -87.0F; x < 88.5F; x += 0.00137F) {
    worst = std::max(worst,
                     relative(static_cast<double>(exp_f32(x)), std::exp(static_cast<double>(x))));
  }
  EXPECT_LE(worst, 2 * 0x1p-23);
  EXPECT_EQ(exp_f32(0.0F), 1.0F);
  EXPECT_EQ(exp_f32(-100.0F), 0.0F);
  EXPECT_EQ(exp_f32(-std::numeric_limits<float>::infinity()), 0.0F);
  EXPECT_EQ(exp_f32(100.0F), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(exp_f32(std::nanf(""))));
}

TEST(Elementary, SigmoidAndSiluSaturate) {
  EXPECT_EQ(sigmoid_f32(-200.0F), 0.0F);
  EXPECT_EQ(sigmoid_f32(200.0F), 1.0F);
  EXPECT_EQ(sigmoid_f32(0.0F), 0.5F);
  EXPECT_EQ(silu_f32(200.0F), 200.0F);
  EXPECT_EQ(silu_f32(-200.0F), -0.0F);
  EXPECT_FLOAT_EQ(softplus_f32(0.0F), 0.693147182F);
  EXPECT_EQ(softplus_f32(25.0F), 25.0F);
  EXPECT_NEAR(softplus_f32(-30.0F), 9.357623e-14, 1e-18);
}

TEST(Elementary, DoubleFunctionsAgreeWithTheLibrary) {
  std::mt19937_64 random(3);
  std::uniform_real_distribution<double> exponent(-700, 700);
  double worst_exp = 0;
  double worst_log = 0;
  double worst_sine = 0;
  for (int i = 0; i < 200000; ++i) {
    const double x = exponent(random);
    worst_exp = std::max(worst_exp, relative(exp_f64(x), std::exp(x)));
    const double y = std::exp(x);
    worst_log =
        std::max(worst_log, std::fabs(log_f64(y) - std::log(y)) / std::max(1.0, std::fabs(x)));
    double s = 0;
    double c = 0;
    const double angle = x * 1400.0;  // up to 10^6
    sincos_f64(angle, &s, &c);
    worst_sine =
        std::max({worst_sine, std::fabs(s - std::sin(angle)), std::fabs(c - std::cos(angle))});
  }
  EXPECT_LE(worst_exp, 1e-15);
  EXPECT_LE(worst_log, 1e-15);
  EXPECT_LE(worst_sine, 1e-14);
  EXPECT_EQ(log_f64(1.0), 0.0);
  EXPECT_EQ(exp_f64(-1000.0), 0.0);
}

int32_t draw(const std::vector<float>& logits, const SampleParams& params, int64_t position) {
  SamplerScratch scratch;
  return sample_token(logits.data(), static_cast<int>(logits.size()), {params, position}, scratch);
}

TEST(Sampler, GreedyTakesTheLowestOfEqualLogits) {
  EXPECT_EQ(draw({1, 3, 2, 3}, {}, 0), 1);
  EXPECT_EQ(draw({-INFINITY, std::nanf(""), -5}, {}, 0), 2);
  EXPECT_EQ(draw({-INFINITY, -INFINITY}, {}, 0), 0);
}

TEST(Sampler, TopKOfOneAndATinyNucleusAreGreedy) {
  const std::vector<float> logits = {0.1F, 2.0F, 1.9F, -1.0F};
  for (int64_t position = 0; position < 200; ++position) {
    EXPECT_EQ(draw(logits, {.temperature = 5, .top_k = 1, .seed = 9}, position), 1);
    EXPECT_EQ(draw(logits, {.temperature = 5, .top_p = 1e-6F, .seed = 9}, position), 1);
    EXPECT_EQ(draw(logits, {.temperature = 1, .min_p = 1, .seed = 9}, position), 1);
  }
}

TEST(Sampler, CutsKeepWhatTheySay) {
  // Probabilities 0.5, 0.25, 0.125, 0.125.
  const std::vector<float> logits = {std::log(0.125F), std::log(0.5F), std::log(0.25F),
                                     std::log(0.125F)};
  std::map<int32_t, int> by_nucleus;
  std::map<int32_t, int> by_min_p;
  std::map<int32_t, int> by_top_k;
  for (int64_t position = 0; position < 4000; ++position) {
    ++by_nucleus[draw(logits, {.temperature = 1, .top_p = 0.7F, .seed = 1}, position)];
    ++by_min_p[draw(logits, {.temperature = 1, .min_p = 0.4F, .seed = 1}, position)];
    ++by_top_k[draw(logits, {.temperature = 1, .top_k = 3, .seed = 1}, position)];
  }
  EXPECT_EQ(by_nucleus.size(), 2U);
  EXPECT_EQ(by_min_p.size(), 2U);
  EXPECT_EQ(by_top_k.size(), 3U);
  EXPECT_EQ(by_top_k.count(0), 1U) << "of two equal logits the lower id stays";
  EXPECT_NEAR(by_nucleus[1] / 4000.0, 2.0 / 3, 0.03);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  const std::vector<float> logits = {0.0F, 1.0F, 2.0F, 3.0F};
  std::vector<int> counts(4);
  constexpr int kDraws = 40000;
  for (int64_t position = 0; position < kDraws; ++position) {
    ++counts[static_cast<size_t>(draw(logits, {.temperature = 2, .seed = 77}, position))];
  }
  double total = 0;
  for (const float logit : logits) total += std::exp(static_cast<double>(logit) / 2);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(counts[i] / double{kDraws}, std::exp(static_cast<double>(logits[i]) / 2) / total,
                0.01);
  }
}

TEST(Sampler, ADrawIsAFunctionOfItsKeyAlone) {
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(300);
  for (float& logit : logits) logit = normal(random);
  const SampleParams params{.temperature = 0.9F, .top_k = 20, .top_p = 0.95F, .seed = 4};
  std::vector<int32_t> first;
  for (int64_t position = 0; position < 64; ++position)
    first.push_back(draw(logits, params, position));
  SamplerScratch shared;
  for (int64_t position = 63; position >= 0; --position) {
    EXPECT_EQ(sample_token(logits.data(), 300, {params, position}, shared),
              first[static_cast<size_t>(position)]);
  }
  SampleParams other = params;
  other.seed = 5;
  int different = 0;
  for (int64_t position = 0; position < 64; ++position) {
    different += draw(logits, other, position) != first[static_cast<size_t>(position)] ? 1 : 0;
  }
  EXPECT_GT(different, 10);
}

}  // namespace
}  // namespace flashlane::kernels
