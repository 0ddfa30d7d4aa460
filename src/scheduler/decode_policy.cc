// A sequence alone goes by measured times of its own steps; in company the allocation goes by
// costs.
#include "scheduler/decode_policy.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

// Rows of a sequence that asks for no drafts wait, so the head's pass over them has a price too.
constexpr int kFirstPricedDepth = 1;
// How often a sequence that does not draft in company is looked at again.
constexpr int kProbeEvery = 32;

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
      lone_costs_(options_.lone_priced ? options_.costs : StepCosts{}) {}

std::vector<int> DecodePolicy::verify_rows(std::span<const VerifyClaim> claims,
                                           bool sampled) const {
  std::vector<DraftClaim> drafts;
  drafts.reserve(claims.size());
  for (const VerifyClaim& claim : claims) {
    drafts.push_back({.fixed_rows = claim.fixed_rows, .chances = claim.chances, .sunk = true});
  }
  return allocator_.allocate(drafts, overhead_.ms(static_cast<int>(claims.size()), sampled));
}

int DecodePolicy::most_drafts(const DepthClaim& claim) const {
  if (claim.acceptance == nullptr) return 0;
  return std::max(0, std::min(options_.max_draft, claim.draft_room - 1));
}

std::vector<int> DecodePolicy::depths(std::span<const DepthClaim> claims, bool alone,
                                      bool sampled) {
  if (!alone) return shared_depths(claims, sampled);
  CHECK_EQ(claims.size(), size_t{1});
  const DepthClaim& claim = claims.front();
  const int most = most_drafts(claim);
  if (most == 0) return {0};
  const int wanted =
      claim.lone->choose(claim.acceptance->landing(most), lone_costs_, times_, claim.draft_room);
  return {std::min(head_depth(wanted, claim.next), most)};
}

std::vector<int> DecodePolicy::shared_depths(std::span<const DepthClaim> claims, bool sampled) {
  std::vector<std::vector<double>> chances;
  std::vector<DraftClaim> drafts;
  chances.reserve(claims.size());
  drafts.reserve(claims.size());
  for (const DepthClaim& claim : claims) {
    const int most = most_drafts(claim);
    chances.push_back(most == 0 ? std::vector<double>{} : claim.acceptance->landing(most));
    drafts.push_back({.fixed_rows = 1, .chances = chances.back()});
  }
  const int count = static_cast<int>(claims.size());
  std::vector<int> depths = allocator_.allocate(drafts, overhead_.ms(count, sampled));
  // One draft now and then where there is a row for it: else a sequence whose drafts once failed
  // would never be looked at again.
  const bool probe = ++shared_decisions_ % kProbeEvery == 0 && 2 * count <= kMostDecodeRows;
  for (size_t i = 0; i < claims.size(); ++i) {
    const int most = most_drafts(claims[i]);
    const int wanted = probe ? draft_budget(depths[i], most) : depths[i];
    depths[i] = std::min(head_depth(wanted, claims[i].next), most);
  }
  return depths;
}

void DecodePolicy::observe(int rows, bool sampled, double wall_ms, std::span<const int> depths,
                           std::optional<int> lone_drafts) {
  if (!(wall_ms > 0)) return;
  if (lone_drafts.has_value()) times_.observe(*lone_drafts, wall_ms);
  const StepCosts& costs = options_.costs;
  if (costs.forward.empty()) return;
  const double head_ms =
      costs.head_step.empty() ? 0 : head_chain_ms(depths, costs.head_step, kFirstPricedDepth);
  overhead_.observe({.sequences = static_cast<int>(depths.size()),
                     .rows = rows,
                     .sampled = sampled,
                     .wall_ms = wall_ms,
                     .head_ms = head_ms},
                    costs.forward);
}

}  // namespace flashlane::scheduler
