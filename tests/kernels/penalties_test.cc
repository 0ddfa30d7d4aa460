// Penalties and log probabilities against a naive reading of their formulas.
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "kernels/sampler.h"

namespace flashlane::kernels {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int kVocabulary = 50;

std::vector<float> random_logits(std::mt19937& random) {
  std::normal_distribution<float> normal(0, 2);
  std::vector<float> logits(kVocabulary);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

Tokens random_tokens(std::mt19937& random, int most) {
  Tokens tokens(random() % static_cast<unsigned>(most + 1));
  for (int32_t& token : tokens) token = static_cast<int32_t>(random() % kVocabulary);
  return tokens;
}

float naive(float logit, int32_t token, const Tokens& prompt, const Tokens& reply,
            const SampleParams& params) {
  const auto times = std::count(reply.begin(), reply.end(), token);
  const bool seen = times > 0 || std::count(prompt.begin(), prompt.end(), token) > 0;
  double value = static_cast<double>(logit);
  const auto repetition = static_cast<double>(params.repetition_penalty);
  if (seen) value = value > 0 ? value / repetition : value * repetition;
  value -= static_cast<double>(params.frequency_penalty) * static_cast<double>(times);
  if (times > 0) value -= static_cast<double>(params.presence_penalty);
  return static_cast<float>(value);
}

TEST(Penalties, AreTheNaiveOnesWhateverStoodInTheScratch) {
  std::mt19937 random(3);
  PenaltyScratch scratch;
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> logits = random_logits(random);
    const Tokens prompt = random_tokens(random, 30);
    const Tokens reply = random_tokens(random, 60);
    SampleRow row;
    row.params.presence_penalty = round % 3 == 0 ? 0.0F : 0.75F;
    row.params.frequency_penalty = round % 4 == 0 ? 0.0F : -0.5F;
    row.params.repetition_penalty = round % 5 == 0 ? 1.0F : 1.3F;
    Tokens context = prompt;
    context.insert(context.end(), reply.begin(), reply.end());
    row.prompt = static_cast<int>(prompt.size());
    // Where committed tokens end and drafts begin makes no difference.
    const size_t split = prompt.size() + random() % (reply.size() + 1);
    row.context = std::span(context).first(split);
    row.ahead = std::span(context).subspan(split);
    const float* out = penalise(logits.data(), kVocabulary, row, scratch);
    for (int32_t id = 0; id < kVocabulary; ++id) {
      EXPECT_EQ(out[id], naive(logits[static_cast<size_t>(id)], id, prompt, reply, row.params));
    }
  }
}

TEST(Penalties, WithoutAnyNothingIsCopied) {
  const std::vector<float> logits(kVocabulary, 1.0F);
  const Tokens context = {1, 2, 3};
  SampleRow row;
  row.context = context;
  PenaltyScratch scratch;
  EXPECT_EQ(penalise(logits.data(), kVocabulary, row, scratch), logits.data());
}

TEST(Penalties, TurnGreedyAndSampledDraws) {
  const std::vector<float> logits = {2.0F, 1.5F, 1.0F};
  const Tokens context = {0, 0, 0, 1};
  SamplerScratch scratch;
  SampleRow row;
  row.context = context;
  const auto draw = [&] { return sample_token(logits.data(), 3, row, scratch); };
  EXPECT_EQ(draw(), 0);
  row.params.frequency_penalty = 0.3F;  // 1.1, 1.2, 1.0
  EXPECT_EQ(draw(), 1);
  row.params.presence_penalty = 1;  // 0.1, 0.2, 1.0
  EXPECT_EQ(draw(), 2);
  row.prompt = 4;  // all of it is prompt: neither counts
  EXPECT_EQ(draw(), 0);
  row.params.repetition_penalty = 4;  // 0.5, 0.375, 1.0
  EXPECT_EQ(draw(), 2);
  row.params = {.temperature = 1, .top_k = 1, .repetition_penalty = 4};
  EXPECT_EQ(draw(), 2);
}

TEST(LogProbabilities, AreTheLogarithmsOfTheSoftmax) {
  std::mt19937 random(8);
  SamplerScratch scratch;
  for (int round = 0; round < 20; ++round) {
    std::vector<float> logits = random_logits(random);
    if (round % 2 == 0) logits[7] = logits[30] = 9;  // a tie at the top
    if (round == 4) logits[3] = -INFINITY;
    if (round == 6) logits[3] = std::nanf("");
    double total = 0;
    for (const float logit : logits) {
      total += std::isnan(logit) ? 0 : std::exp(static_cast<double>(logit));
    }
    std::vector<TokenLogprob> all(kVocabulary);
    std::vector<TokenLogprob> own = {{3, 0}, {30, 0}};
    log_probabilities(all, own, logits.data(), kVocabulary, scratch);
    double mass = 0;
    for (size_t i = 0; i < all.size(); ++i) {
      const float logit = logits[static_cast<size_t>(all[i].token)];
      mass += std::exp(static_cast<double>(all[i].logprob));
      if (i > 0 && all[i].logprob == all[i - 1].logprob) {
        EXPECT_LT(all[i - 1].token, all[i].token);
      } else if (i > 0) {
        EXPECT_LT(all[i].logprob, all[i - 1].logprob);
      }
      if (std::isinf(logit) || std::isnan(logit)) {
        EXPECT_EQ(all[i].logprob, -INFINITY);
        continue;
      }
      EXPECT_NEAR(static_cast<double>(all[i].logprob), static_cast<double>(logit) - std::log(total),
                  1e-6);
      for (const TokenLogprob& asked : own) {
        if (asked.token != all[i].token) continue;
        EXPECT_EQ(asked.logprob, all[i].logprob);
      }
    }
    EXPECT_NEAR(mass, 1, 1e-6);
    std::vector<TokenLogprob> best(3);
    log_probabilities(best, {}, logits.data(), kVocabulary, scratch);
    for (size_t i = 0; i < best.size(); ++i) {
      EXPECT_EQ(best[i].token, all[i].token);
      EXPECT_EQ(best[i].logprob, all[i].logprob);
    }
  }
}

TEST(LogProbabilities, DoNotFeelAShiftOfAllLogits) {
  // What a constant adds cancels; only rounding of the shifted logits is left.
  SamplerScratch scratch;
  const std::vector<float> logits = {1.0F, 2.0F, 4.0F};
  const std::vector<float> shifted = {1025.0F, 1026.0F, 1028.0F};
  std::vector<TokenLogprob> a(3);
  std::vector<TokenLogprob> b(3);
  log_probabilities(a, {}, logits.data(), 3, scratch);
  log_probabilities(b, {}, shifted.data(), 3, scratch);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(a[i].logprob, b[i].logprob);
}

}  // namespace
}  // namespace flashlane::kernels
