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
  return policy.depths(claims, 0, false);
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
    policy.observe(2, sampled, forward.ms(2) + kHeadMs, asked, 0, std::nullopt);
    EXPECT_EQ(policy.verify_rows(claims, sampled), (Counts{0, 0}));
  }
}

// Costs under which all that may land is drafted.
StepCosts cheap() {
  return {.forward = flat(10), .head_step = flat(0.1)};
}

struct Company {
  explicit Company(size_t sequences) : lone(sequences) {
    for (LoneDepth& own : lone) {
      claims.push_back({.acceptance = &acceptance, .lone = &own, .draft_room = kRoom});
    }
  }
  DraftAcceptance acceptance = DraftAcceptance(kHeadDrafts);
  std::vector<LoneDepth> lone;
  std::vector<DepthClaim> claims = {};
};

// The head's pass over its rows would be for nothing: the copy goes on, or one step has no drafts.
TEST(DecodePolicy, ACopyAheadAsksTheHeadForNothingInCompany) {
  DecodePolicy policy({.costs = cheap(), .max_draft = 3});
  Company company(2);
  company.claims[1].next.copy_ahead = true;
  EXPECT_EQ(policy.depths(company.claims, 0, false), (Counts{3, 0}));
}

// Those that run beside the claims have rows of the next step too.
TEST(DecodePolicy, OthersLeaveNoRowsForDrafts) {
  DecodePolicy policy({.costs = cheap(), .max_draft = 3});
  Company company(2);
  EXPECT_EQ(policy.depths(company.claims, 14, false), (Counts{0, 0}));
  EXPECT_EQ(policy.depths(company.claims, 12, false), (Counts{1, 1}));
  Company one(1);
  EXPECT_EQ(policy.depths(one.claims, 15, false), (Counts{0}));
}

// A row costs the head 0.5 ms: 200 of them are 100 ms, six of each of 16 steps of 10 ms.
TEST(DecodePolicy, WaitingRowsKeepASequenceFromDrafting) {
  const CostTable head(std::vector<MeasuredCost>{{1, 0.5}, {16, 8}}, kMostDecodeRows);
  DecodePolicy policy({.costs = {.forward = flat(10), .head_step = head}, .max_draft = 3});
  Company company(4);
  policy.observe(4, false, 10, Counts{0, 0, 0, 0}, 0, std::nullopt);
  const Counts fresh = policy.depths(company.claims, 0, false);
  EXPECT_GE(fresh[2], 1);
  company.claims[2].waiting_rows = 200;
  const Counts late = policy.depths(company.claims, 0, false);
  EXPECT_EQ(late[2], 0);
  EXPECT_GE(late[1], 1);
  company.claims[2].waiting_rows = 10;
  EXPECT_GE(policy.depths(company.claims, 0, false)[2], 1);
  company.claims[2].draft_room = 3;
  EXPECT_EQ(policy.depths(company.claims, 0, false)[2], 0) << "too few steps are left to earn it";
}

// Wide steps take what they take, whatever the table says.
TEST(DecodePolicy, LearnsWhatWideStepsTake) {
  DecodePolicy policy({.costs = cheap(), .max_draft = 1});
  const Counts none = {0, 0, 0, 0};
  const std::vector<VerifyClaim> claims(4, {.chances = {0.9}});
  for (int step = 0; step < 40; ++step) policy.observe(4, false, 10, none, 0, std::nullopt);
  EXPECT_EQ(policy.verify_rows(claims, false), (Counts{1, 1, 1, 1}));
  for (int step = 0; step < 40; ++step) policy.observe(8, false, 30, none, 0, std::nullopt);
  EXPECT_EQ(policy.verify_rows(claims, false), (Counts{0, 0, 0, 0}));
}

// Else one bad run of drafts would be the last word: after 64 decisions the one with the least to
// take in drafts, after 128 more again.
TEST(DecodePolicy, LooksAgainAtDraftsThatDoNotPay) {
  const CostTable by_row(std::vector<MeasuredCost>{{1, 10}}, kMostDecodeRows);
  DecodePolicy policy({.costs = {.forward = by_row, .head_step = flat(5)}, .max_draft = 3});
  Company company(3);
  for (DepthClaim& claim : company.claims) claim.waiting_rows = 40;
  company.claims[1].waiting_rows = 30;
  policy.observe(3, false, 30, Counts{0, 0, 0}, 0, std::nullopt);
  std::vector<int> probes;
  for (int decision = 1; decision <= 500; ++decision) {
    const Counts depths = policy.depths(company.claims, 0, false);
    if (depths == Counts{0, 0, 0}) continue;
    EXPECT_EQ(depths, (Counts{0, 3, 0}));
    probes.push_back(decision);
  }
  EXPECT_EQ(probes, (std::vector<int>{64, 192, 448}));
}

TEST(DecodePolicy, KnowsWhatIsUsual) {
  DecodePolicy policy({.max_draft = 3});
  EXPECT_EQ(policy.usual_acceptance().rate(0), prior_acceptance(0));
  for (int step = 0; step < 200; ++step) policy.observe_drafts(3, 1);
  EXPECT_GT(policy.usual_acceptance().rate(0), 0.99);
  EXPECT_LT(policy.usual_acceptance().rate(1), 0.01);
  EXPECT_EQ(policy.usual_acceptance().rate(2), prior_acceptance(2));
}

}  // namespace
}  // namespace flashlane::scheduler
