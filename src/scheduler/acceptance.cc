// Moving rates: each tested draft pulls its rate towards 1 if it stood, else towards 0.
#include "scheduler/acceptance.h"

#include <algorithm>
#include <array>
#include <cstddef>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

constexpr std::array<double, 7> kPrior = {0.85, 0.75, 0.70, 0.65, 0.60, 0.55, 0.50};

void learn(double& rate, bool stood, double learning_rate = kAcceptanceLearningRate) {
  rate += learning_rate * ((stood ? 1.0 : 0.0) - rate);
}

}  // namespace

double prior_acceptance(int depth) {
  CHECK_GE(depth, 0);
  return kPrior[std::min(static_cast<size_t>(depth), kPrior.size() - 1)];
}

DraftAcceptance::DraftAcceptance(int depths, double learning_rate) : learning_rate_(learning_rate) {
  CHECK_GE(depths, 0);
  for (int depth = 0; depth < depths; ++depth) rates_.push_back(prior_acceptance(depth));
}

void DraftAcceptance::start_from(const DraftAcceptance& usual) {
  std::copy_n(usual.rates_.begin(), std::min(rates_.size(), usual.rates_.size()), rates_.begin());
}

void DraftAcceptance::observe(int drafted, int accepted) {
  CHECK_GE(accepted, 0);
  CHECK_LE(accepted, drafted);
  // The drafts that stood and the one that failed; what lies behind it was not tested.
  const int tested = std::min({drafted, accepted + 1, static_cast<int>(rates_.size())});
  for (int depth = 0; depth < tested; ++depth) {
    learn(rates_[static_cast<size_t>(depth)], accepted > depth, learning_rate_);
  }
}

double DraftAcceptance::rate(int depth) const {
  CHECK_GE(depth, 0);
  if (rates_.empty()) return 0;
  return rates_[std::min(static_cast<size_t>(depth), rates_.size() - 1)];
}

std::vector<double> DraftAcceptance::landing(int drafts) const {
  std::vector<double> chances;
  double chance = 1;
  for (int depth = 0; depth < drafts; ++depth) {
    chance *= rate(depth);
    chances.push_back(chance);
  }
  return chances;
}

void CopyAcceptance::observe(int copied, int accepted) {
  CHECK_GE(accepted, 0);
  CHECK_LE(accepted, copied);
  for (int token = 0; token < std::min(copied, accepted + 1); ++token) {
    learn(rate_, accepted > token);
  }
}

std::vector<double> CopyAcceptance::landing(int copied) const {
  std::vector<double> chances;
  double chance = 1;
  for (int token = 0; token < copied; ++token) {
    chance *= rate_;
    chances.push_back(chance);
  }
  return chances;
}

}  // namespace flashlane::scheduler
