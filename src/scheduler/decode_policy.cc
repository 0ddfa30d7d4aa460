// A sequence alone goes by measured times of its own steps; in company the allocation goes by the
// costs measured at load, corrected by what steps of as many sequences and rows have taken.
#include "scheduler/decode_policy.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

// Rows of a sequence that asks for no drafts wait, so the head's pass over them has a price too.
constexpr int kFirstPricedDepth = 1;
// In company one sequence is made to draft after so many decisions, then after twice as many, …
constexpr int kFirstProbeWait = 64;
constexpr int kLongestProbeWait = 1024;
// Waiting rows go into the head once, and a sequence that drafts goes on for some steps.
constexpr int kTollSteps = 16;
// Costs and chances are estimates: what drafts win must be more than a hair.
constexpr double kLeastWin = 0.05;  // tokens of a sequence in a step

// What one row more adds to a pass of the head.
double head_row_ms(const CostTable& head_step) {
  const int widest = head_step.limit();
  const int half = widest / 2;
  if (half < 1) return 0;
  return std::max(0.0, (head_step.ms(widest) - head_step.ms(half)) / (widest - half));
}

AllocationOptions allocation_of(const StepCosts& costs) {
  AllocationOptions options;
  options.costs = costs;
  options.first_priced_depth = kFirstPricedDepth;
  return options;
}

}  // namespace

DecodePolicy::DecodePolicy(DecodePolicyOptions options)
    : options_(std::move(options)),
      allocator_(allocation_of(options_.costs)),
      lone_costs_(options_.lone_priced ? options_.costs : StepCosts{}),
      usual_acceptance_(options_.max_draft, kUsualLearningRate) {}

std::vector<int> DecodePolicy::verify_rows(std::span<const VerifyClaim> claims,
                                           bool sampled) const {
  std::vector<DraftClaim> drafts;
  drafts.reserve(claims.size());
  for (const VerifyClaim& claim : claims) {
    drafts.push_back({.fixed_rows = claim.fixed_rows, .chances = claim.chances, .sunk = true});
  }
  return allocate(drafts, static_cast<int>(claims.size()), sampled);
}

// By rows: the forward's price and what such steps took beyond it.
CostTable DecodePolicy::step_costs(int sequences, bool sampled) const {
  const CostTable& forward = options_.costs.forward;
  std::vector<MeasuredCost> costs;
  for (int rows = 1; rows <= std::min(forward.limit(), kMostDecodeRows); ++rows) {
    costs.push_back({rows, forward.ms(rows) + overhead_.ms(sequences, rows, sampled)});
  }
  return {costs, static_cast<int>(costs.size())};
}

std::vector<int> DecodePolicy::allocate(std::span<const DraftClaim> claims, int sequences,
                                        bool sampled) const {
  if (options_.costs.forward.empty()) {
    return allocator_.allocate(claims, overhead_.ms(sequences, sampled));
  }
  return allocator_.allocate(claims, step_costs(sequences, sampled));
}

// Beside the least win: the tokens that all of them would have meanwhile without drafts.
double DecodePolicy::toll(const DepthClaim& claim, int sequences, bool sampled) const {
  if (!options_.costs.forward.covers(sequences)) return 0;
  const double step_ms =
      options_.costs.forward.ms(sequences) + overhead_.ms(sequences, sequences, sampled);
  const double take_in_ms = claim.waiting_rows * head_row_ms(options_.costs.head_step);
  const int steps = std::clamp(claim.draft_room, 1, kTollSteps);
  return kLeastWin + sequences / step_ms * take_in_ms / steps;
}

int DecodePolicy::most_drafts(const DepthClaim& claim) const {
  if (claim.acceptance == nullptr) return 0;
  return std::max(0, std::min(options_.max_draft, claim.draft_room - 1));
}

std::vector<int> DecodePolicy::depths(std::span<const DepthClaim> claims, int others,
                                      bool sampled) {
  CHECK_GE(others, 0);
  if (claims.size() != 1 || others > 0) return shared_depths(claims, others, sampled);
  const DepthClaim& claim = claims.front();
  const int most = most_drafts(claim);
  if (most == 0) return {0};
  const int wanted =
      claim.lone->choose(claim.acceptance->landing(most), lone_costs_, times_, claim.draft_room);
  return {std::min(head_depth(wanted, claim.next), most)};
}

// The claim that drafts as deep as it may, whatever that costs, or -1: else drafts that once failed
// would never be looked at again. It is the one whose head has the least to take in.
int DecodePolicy::probed(std::span<const DepthClaim> claims, int sequences) {
  if (sequences != probe_company_) {
    probe_company_ = sequences;
    probe_wait_ = kFirstProbeWait;
    unprobed_ = 0;
  }
  if (2 * sequences > kMostDecodeRows || ++unprobed_ < probe_wait_) return -1;
  unprobed_ = 0;
  probe_wait_ = std::min(2 * probe_wait_, kLongestProbeWait);
  const auto least = std::min_element(
      claims.begin(), claims.end(),
      [](const auto& a, const auto& b) { return a.waiting_rows < b.waiting_rows; });
  return static_cast<int>(least - claims.begin());
}

std::vector<int> DecodePolicy::shared_depths(std::span<const DepthClaim> claims, int others,
                                             bool sampled) {
  const int count = static_cast<int>(claims.size()) + others;
  // A pass of the head has its price here, and a copy needs none.
  const auto most_of = [&](const DepthClaim& claim) {
    return claim.next.copy_ahead ? 0 : most_drafts(claim);
  };
  std::vector<std::vector<double>> chances;
  std::vector<DraftClaim> drafts;
  chances.reserve(claims.size());
  drafts.reserve(claims.size());
  for (const DepthClaim& claim : claims) {
    const int most = most_of(claim);
    chances.push_back(most == 0 ? std::vector<double>{} : claim.acceptance->landing(most));
    drafts.push_back(
        {.fixed_rows = 1, .chances = chances.back(), .toll = toll(claim, count, sampled)});
  }
  if (others > 0) drafts.push_back({.fixed_rows = others});
  std::vector<int> depths = allocate(drafts, count, sampled);
  depths.resize(claims.size());
  const int probe = probed(claims, count);
  for (size_t i = 0; i < claims.size(); ++i) {
    const int most = most_of(claims[i]);
    const int wanted = static_cast<int>(i) == probe ? most : depths[i];
    depths[i] = std::min(head_depth(wanted, claims[i].next), most);
  }
  return depths;
}

void DecodePolicy::observe(int rows, bool sampled, double wall_ms, std::span<const int> depths,
                           int waiting_rows, std::optional<int> lone_drafts) {
  if (!(wall_ms > 0)) return;
  if (lone_drafts.has_value()) times_.observe(*lone_drafts, wall_ms);
  const StepCosts& costs = options_.costs;
  if (costs.forward.empty()) return;
  const double head_ms = head_chain_ms(depths, costs.head_step, kFirstPricedDepth) +
                         waiting_rows * head_row_ms(costs.head_step);
  overhead_.observe({.sequences = static_cast<int>(depths.size()),
                     .rows = rows,
                     .sampled = sampled,
                     .wall_ms = wall_ms,
                     .head_ms = head_ms},
                    costs.forward);
}

}  // namespace flashlane::scheduler
