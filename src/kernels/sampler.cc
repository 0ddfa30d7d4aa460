#include "kernels/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/check.h"
#include "base/keyed_random.h"
#include "kernels/elementary.h"

namespace flashlane::kernels {
namespace {

float ordered_value(float logit) {
  return std::isnan(logit) ? -std::numeric_limits<float>::infinity() : logit;
}

// -ln(-ln u) of the keyed uniform; u may round to 1, where the inner logarithm would be 0.
double gumbel(uint64_t seed, int64_t position, int32_t token) {
  const double u =
      keyed_uniform(seed, static_cast<uint64_t>(position), static_cast<uint64_t>(token));
  const double inner = -log_f64(u);
  return -log_f64(inner > 0x1p-54 ? inner : 0x1p-54);
}

void all_ids(int vocabulary, std::vector<int32_t>& ids) {
  ids.resize(static_cast<size_t>(vocabulary));
  std::iota(ids.begin(), ids.end(), 0);
}

// Leaves the best `count` ids, best first.
void keep_best(const float* logits, size_t count, std::vector<int32_t>& ids) {
  const auto before = [logits](int32_t a, int32_t b) {
    const float va = ordered_value(logits[a]);
    const float vb = ordered_value(logits[b]);
    return va != vb ? va > vb : a < b;
  };
  if (count < ids.size()) {
    const auto cut = ids.begin() + static_cast<std::ptrdiff_t>(count);
    std::nth_element(ids.begin(), cut, ids.end(), before);
    ids.erase(cut, ids.end());
  }
  std::sort(ids.begin(), ids.end(), before);
}

// Orders the candidates that can matter: all of them only when a nucleus asks for it.
void collect_candidates(const float* logits, int vocabulary, const SampleParams& params,
                        std::vector<int32_t>& ids) {
  all_ids(vocabulary, ids);
  if (params.top_k > 0 && params.top_k < vocabulary) {
    keep_best(logits, static_cast<size_t>(params.top_k), ids);
  } else if (params.top_p > 0 && params.top_p < 1) {
    keep_best(logits, ids.size(), ids);
  }  // else every token competes, in id order
}

// Keeps the shortest prefix whose softmax mass reaches top_p.
void cut_nucleus(std::vector<int32_t>& ids, const std::vector<double>& values, double highest,
                 double top_p, std::vector<double>& weights) {
  weights.resize(ids.size());
  double total = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    weights[i] = exp_f64(values[i] - highest);
    total += weights[i];
  }
  double mass = 0;
  for (size_t i = 0; i < ids.size(); ++i) {
    mass += weights[i];
    if (mass >= top_p * total) {
      ids.resize(i + 1);
      return;
    }
  }
}

}  // namespace

int32_t argmax(const float* logits, int vocabulary) {
  int32_t best = 0;
  float highest = -std::numeric_limits<float>::infinity();
  for (int32_t i = 0; i < vocabulary; ++i) {
    if (logits[i] > highest) {
      highest = logits[i];
      best = i;
    }
  }
  return best;
}

int32_t sample_token(const float* logits, int vocabulary, const SampleRow& row,
                     SamplerScratch& scratch) {
  const SampleParams& params = row.params;
  logits = penalise(logits, vocabulary, row, scratch.penalised);
  if (!(params.temperature > 0)) return argmax(logits, vocabulary);
  collect_candidates(logits, vocabulary, params, scratch.ids);
  auto& ids = scratch.ids;
  const double scale = std::max(static_cast<double>(params.temperature), 1e-6);
  auto value_of = [&](int32_t id) {
    return static_cast<double>(ordered_value(logits[id])) / scale;
  };
  const double highest = value_of(argmax(logits, vocabulary));
  if (params.top_p > 0 && params.top_p < 1) {
    scratch.values.clear();
    for (const int32_t id : ids) scratch.values.push_back(value_of(id));
    cut_nucleus(ids, scratch.values, highest, static_cast<double>(params.top_p), scratch.masses);
  }
  const double floor = params.min_p > 0 ? highest + log_f64(static_cast<double>(params.min_p))
                                        : -std::numeric_limits<double>::infinity();
  int32_t best = ids.front();
  double best_score = -std::numeric_limits<double>::infinity();
  for (const int32_t id : ids) {
    const double value = value_of(id);
    if (value < floor) continue;
    const double score = value + gumbel(params.seed, row.position, id);
    if (score > best_score) {
      best_score = score;
      best = id;
    }
  }
  return best;
}

void log_probabilities(std::span<TokenLogprob> best, std::span<TokenLogprob> of_tokens,
                       const float* logits, int vocabulary, SamplerScratch& scratch) {
  CHECK_LE(best.size(), static_cast<size_t>(vocabulary));
  const double highest = static_cast<double>(ordered_value(logits[argmax(logits, vocabulary)]));
  const auto below_highest = [&](int32_t id) {
    return static_cast<double>(ordered_value(logits[id])) - highest;
  };
  double total = 0;
  for (int32_t id = 0; id < vocabulary; ++id) total += exp_f64(below_highest(id));
  const double log_total = log_f64(total);
  const auto fill = [&](TokenLogprob& out) {
    out.logprob = static_cast<float>(below_highest(out.token) - log_total);
  };
  if (!best.empty()) {
    all_ids(vocabulary, scratch.ids);
    keep_best(logits, best.size(), scratch.ids);
    for (size_t i = 0; i < best.size(); ++i) best[i].token = scratch.ids[i];
  }
  std::for_each(best.begin(), best.end(), fill);
  std::for_each(of_tokens.begin(), of_tokens.end(), fill);
}

}  // namespace flashlane::kernels
