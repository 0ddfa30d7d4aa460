// How likely drafts are to stand, learned per sequence: one rate per depth for the MTP head's
// chains, one rate for tokens copied from the context. A draft is judged only if everything before
// it in its segment stood, so a rate is a chance given that, and does not depend on how deep was
// drafted. A chain's landing chances never rise with depth, which is what the allocation needs.
#pragma once

#include <vector>

namespace flashlane::scheduler {

inline constexpr double kAcceptanceLearningRate = 0.15;
inline constexpr double kUsualLearningRate = 0.05;  // over all sequences
inline constexpr double kCopyAcceptancePrior = 0.94;

// What is assumed of the head's draft number `depth` (0 is the first) before any was tested.
double prior_acceptance(int depth);

// Drafts of the MTP head. Forced tokens and copies say nothing about the head: don't observe them.
class DraftAcceptance {
 public:
  // `depths` ≥ 0: as deep as this sequence may ever draft.
  explicit DraftAcceptance(int depths, double learning_rate = kAcceptanceLearningRate);

  // Begins anew with the rates of another, as far as they go: what is usual, in place of the prior.
  void start_from(const DraftAcceptance& usual);

  // A segment of `drafted` drafts, of which the first `accepted` stood.
  void observe(int drafted, int accepted);
  // The chance that draft `depth` stands, given that those before it did. Depths past the last
  // share its rate; 0 where there are no depths.
  double rate(int depth) const;
  // Chances that the first, second, … of `drafts` drafts land: products of rates.
  std::vector<double> landing(int drafts) const;

 private:
  std::vector<double> rates_;
  double learning_rate_;
};

// Tokens copied from the sequence's own context; every place in the copy has the same rate.
class CopyAcceptance {
 public:
  void observe(int copied, int accepted);
  double rate() const { return rate_; }
  std::vector<double> landing(int copied) const;

 private:
  double rate_ = kCopyAcceptancePrior;
};

}  // namespace flashlane::scheduler
