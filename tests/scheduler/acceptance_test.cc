// Acceptance: only tested drafts move a rate, and each rate finds the chance behind it whatever
// depth is drafted.
#include "scheduler/acceptance.h"

#include <gtest/gtest.h>

#include <random>

namespace flashlane::scheduler {
namespace {

TEST(DraftAcceptance, StartsAsThePriorCutToItsDepths) {
  const DraftAcceptance acceptance(3);
  EXPECT_EQ(acceptance.rate(0), 0.85);
  EXPECT_EQ(acceptance.rate(1), 0.75);
  EXPECT_EQ(acceptance.rate(2), 0.70);
  EXPECT_EQ(acceptance.rate(3), 0.70);  // past the end the last rate goes on
  const DraftAcceptance deep(15);
  const double prior[] = {0.85, 0.75, 0.70, 0.65, 0.60, 0.55, 0.50, 0.50};
  for (int depth = 0; depth < 8; ++depth) EXPECT_EQ(deep.rate(depth), prior[depth]);
  EXPECT_EQ(deep.rate(14), 0.50);
  EXPECT_EQ(deep.rate(40), 0.50);
}

TEST(DraftAcceptance, StartsFromWhatIsUsualAsFarAsThatGoes) {
  DraftAcceptance usual(2, 0.05);
  usual.observe(2, 1);
  EXPECT_DOUBLE_EQ(usual.rate(0), 0.85 + 0.05 * 0.15) << "at its own rate of learning";
  DraftAcceptance acceptance(3);
  acceptance.observe(3, 3);
  acceptance.start_from(usual);
  EXPECT_EQ(acceptance.rate(0), usual.rate(0));
  EXPECT_EQ(acceptance.rate(1), usual.rate(1));
  EXPECT_DOUBLE_EQ(acceptance.rate(2), 0.70 + 0.15 * 0.30);
  const double before = acceptance.rate(0);
  acceptance.observe(1, 0);
  EXPECT_DOUBLE_EQ(acceptance.rate(0), before - 0.15 * before);
}

TEST(DraftAcceptance, JudgesADraftOnlyIfAllBeforeItStood) {
  DraftAcceptance acceptance(4);
  acceptance.observe(4, 1);
  EXPECT_DOUBLE_EQ(acceptance.rate(0), 0.85 + 0.15 * (1 - 0.85));
  EXPECT_DOUBLE_EQ(acceptance.rate(1), 0.75 - 0.15 * 0.75);
  EXPECT_EQ(acceptance.rate(2), 0.70);
  EXPECT_EQ(acceptance.rate(3), 0.65);
}

TEST(DraftAcceptance, DoesNotJudgeWhatWasNotDrafted) {
  DraftAcceptance acceptance(4);
  acceptance.observe(2, 2);
  EXPECT_DOUBLE_EQ(acceptance.rate(1), 0.75 + 0.15 * (1 - 0.75));
  EXPECT_EQ(acceptance.rate(2), 0.70);
  acceptance.observe(0, 0);
  EXPECT_DOUBLE_EQ(acceptance.rate(0), 0.85 + 0.15 * (1 - 0.85));
}

TEST(DraftAcceptance, DraftsPastItsDepthsMoveNothing) {
  DraftAcceptance acceptance(1);
  acceptance.observe(6, 6);
  EXPECT_DOUBLE_EQ(acceptance.rate(0), 0.85 + 0.15 * (1 - 0.85));
  EXPECT_EQ(acceptance.rate(5), acceptance.rate(0));
}

TEST(DraftAcceptance, LandingIsTheProductOfRates) {
  const DraftAcceptance acceptance(2);
  const std::vector<double> chances = acceptance.landing(4);
  ASSERT_EQ(chances.size(), 4U);
  EXPECT_DOUBLE_EQ(chances[0], 0.85);
  EXPECT_DOUBLE_EQ(chances[1], 0.85 * 0.75);
  EXPECT_DOUBLE_EQ(chances[2], 0.85 * 0.75 * 0.75);
  EXPECT_DOUBLE_EQ(chances[3], 0.85 * 0.75 * 0.75 * 0.75);
  EXPECT_TRUE(acceptance.landing(0).empty());
}

TEST(DraftAcceptance, WithoutDepthsNothingLands) {
  DraftAcceptance acceptance(0);
  acceptance.observe(3, 1);
  EXPECT_EQ(acceptance.rate(0), 0);
  EXPECT_EQ(acceptance.landing(2), (std::vector<double>{0, 0}));
}

TEST(DraftAcceptance, FindsTheChanceWhateverTheDepth) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  const double chance[] = {0.9, 0.6, 0.3};
  DraftAcceptance acceptance(3);
  double mean[3] = {};
  constexpr int kRounds = 20000;
  for (int round = 0; round < kRounds; ++round) {
    const int drafted = 1 + round % 3;
    int accepted = 0;
    while (accepted < drafted && uniform(random) < chance[accepted]) ++accepted;
    acceptance.observe(drafted, accepted);
    for (int depth = 0; depth < 3; ++depth) mean[depth] += acceptance.rate(depth) / kRounds;
  }
  for (int depth = 0; depth < 3; ++depth) EXPECT_NEAR(mean[depth], chance[depth], 0.02);
}

TEST(CopyAcceptance, HasOneRateForEveryPlace) {
  CopyAcceptance copies;
  EXPECT_EQ(copies.rate(), 0.94);
  const std::vector<double> chances = copies.landing(3);
  ASSERT_EQ(chances.size(), 3U);
  EXPECT_DOUBLE_EQ(chances[0], 0.94);
  EXPECT_DOUBLE_EQ(chances[1], 0.94 * 0.94);
  EXPECT_DOUBLE_EQ(chances[2], 0.94 * 0.94 * 0.94);
}

TEST(CopyAcceptance, MovesByEachTestedToken) {
  CopyAcceptance copies;
  copies.observe(15, 1);  // one stood, one failed, thirteen were not tested
  EXPECT_DOUBLE_EQ(copies.rate(), (0.94 + 0.15 * (1 - 0.94)) * 0.85);
  CopyAcceptance whole;
  whole.observe(2, 2);
  EXPECT_DOUBLE_EQ(whole.rate(), 1 - (1 - 0.94) * 0.85 * 0.85);
  whole.observe(0, 0);
  EXPECT_DOUBLE_EQ(whole.rate(), 1 - (1 - 0.94) * 0.85 * 0.85);
}

}  // namespace
}  // namespace flashlane::scheduler
