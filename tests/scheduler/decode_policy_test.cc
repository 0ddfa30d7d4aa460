// The policy over allocation and overhead: that it searches, and that what it learns from steps is
// not priced twice (traps T26 and T27 of the spec).
#include "scheduler/decode_policy.h"

#include <gtest/gtest.h>

#include "tests/support/allocation_cases.h"

namespace flashlane::scheduler {
namespace {

using flashlane::testing::Counts;
using flashlane::testing::flat;

constexpr int kHeadDrafts = 3;
constexpr int kRoom = 100;

// What a company of sequences that draft by their prior rates asks of the head.
Counts depths_of_company(DecodePolicy& policy, size_t sequences) {
  const DraftAcceptance acceptance(kHeadDrafts);
  std::vector<LoneDepth> lone(sequences);
  std::vector<DepthClaim> claims;
  for (LoneDepth& own : lone) {
    claims.push_back({.acceptance = &acceptance, .lone = &own, .draft_room = kRoom});
  }
  return policy.depths(claims, false, false);
}

// A head step is one pass over all sequences, so that a second and a third draft pay though none of
// them would if each had to pay for the pass: 11.7 tokens in 24 ms against 7.4 in 18, or 20.
TEST(DecodePolicy, FindsTheSplitThatAWalkByChanceMisses) {
  DecodePolicy policy({.costs = {.forward = flat(10), .head_step = flat(2)}, .max_draft = 3});
  EXPECT_EQ(depths_of_company(policy, 4), (Counts{3, 3, 3, 3}));
}

// A row costs 1 ms more. Drafts of chance 0.15 are worth it beside 8 ms of overhead, the first
// guess, and not beside none; steps that took no more than their priced work have none.
TEST(DecodePolicy, PricedHeadStepsAreNoOverhead) {
  const CostTable forward(std::vector<MeasuredCost>{{1, 10}, {16, 25}}, kMostDecodeRows);
  constexpr double kHeadMs = 8;
  DecodePolicy policy({.costs = {.forward = forward, .head_step = flat(kHeadMs)}, .max_draft = 3});
  const std::vector<VerifyClaim> claims = {{.chances = {0.15}}, {.chances = {0.15}}};
  const Counts asked = {1, 1};  // one head step
  for (const bool sampled : {false, true}) {
    EXPECT_EQ(policy.verify_rows(claims, sampled), (Counts{1, 1})) << "of its own kind, none yet";
    policy.observe(2, sampled, forward.ms(2) + kHeadMs, asked, std::nullopt);
    EXPECT_EQ(policy.verify_rows(claims, sampled), (Counts{0, 0}));
  }
}

}  // namespace
}  // namespace flashlane::scheduler
