// Drafts in figures: places and sources add up to the whole, in the value and in a run.
#include "scheduler/draft_stats.h"

#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/support/fake_runner.h"

namespace flashlane::scheduler {
namespace {

using Places = std::vector<DraftCounts>;

TEST(DraftStats, CountsByPlaceAndSource) {
  DraftStats stats;
  stats.count(&DraftStats::head, 3, 1);
  stats.count(&DraftStats::head, 2, 2);
  stats.count(&DraftStats::copied, 1, 0);
  EXPECT_EQ(stats.head, (Places{{2, 2}, {2, 1}, {1, 0}}));
  EXPECT_EQ(stats.copied, (Places{{1, 0}}));
  EXPECT_EQ(stats.drafted, 6);
  EXPECT_EQ(stats.accepted, 3);
  EXPECT_EQ(sum(stats.head), (DraftCounts{5, 3}));
  EXPECT_EQ(sum({}), DraftCounts{});
}

TEST(DraftStats, SumsOfDifferentLengths) {
  DraftStats a{.rounds = 1, .drafted = 2, .accepted = 1, .head = {{1, 1}, {1, 0}}};
  const DraftStats b{.rounds = 2,
                     .drafted = 4,
                     .accepted = 3,
                     .head = {{1, 1}},
                     .copied = {{1, 1}, {1, 1}, {1, 0}}};
  a += b;
  EXPECT_EQ(a.rounds, 3);
  EXPECT_EQ(a.drafted, 6);
  EXPECT_EQ(a.accepted, 4);
  EXPECT_EQ(a.head, (Places{{2, 2}, {1, 0}}));
  EXPECT_EQ(a.copied, b.copied);
}

DraftStats stats_of(testing::Drafting drafting, int memory, bool lookup, SequenceSpec spec) {
  Scheduler scheduler(
      {.context = 512, .prefill_chunk = 64, .max_draft = 3, .prompt_lookup = lookup});
  testing::FakeRunner runner;
  runner.drafting = drafting;
  runner.memory = memory;
  CHECK(scheduler.submit(std::move(spec)).ok());
  for (StepPlan plan = scheduler.plan(); !plan.empty(); plan = scheduler.plan()) {
    scheduler.commit(plan, runner.run(plan).value());
  }
  return scheduler.collect().back().drafts;
}

TEST(DraftStats, ARunOfRightDraftsStandsAtEveryPlace) {
  const SequenceSpec spec{.prompt = {1, 2, 3}, .max_tokens = 200};
  const DraftStats stats = stats_of(testing::Drafting::kRight, 0, false, spec);
  ASSERT_FALSE(stats.head.empty());
  for (const DraftCounts& place : stats.head) EXPECT_EQ(place.drafted, place.accepted);
  EXPECT_TRUE(stats.copied.empty());
  EXPECT_EQ(sum(stats.head), (DraftCounts{stats.drafted, stats.accepted}));
  EXPECT_EQ(stats.rounds + stats.accepted, 199);
}

// A text that runs in a circle is copied; what the end of the reply cuts off has not stood.
TEST(DraftStats, CopiesAndTheHeadAreToldApart) {
  SequenceSpec spec{.prompt = {1, 2, 3}, .max_tokens = 200};
  const DraftStats stats = stats_of(testing::Drafting::kRandom, 1, true, spec);
  EXPECT_GT(sum(stats.head).drafted, 0);
  EXPECT_GT(sum(stats.copied).accepted, 100);
  EXPECT_GT(stats.copied.size(), stats.head.size()) << "copies ramp up beyond the head's depth";
  EXPECT_EQ(sum(stats.head).drafted + sum(stats.copied).drafted, stats.drafted);
  EXPECT_EQ(sum(stats.head).accepted + sum(stats.copied).accepted, stats.accepted);
  EXPECT_EQ(stats.rounds + stats.accepted, 199);
  for (const auto* places : {&stats.head, &stats.copied}) {
    for (size_t i = 1; i < places->size(); ++i) {
      EXPECT_LE((*places)[i].drafted, (*places)[i - 1].drafted);
      EXPECT_LE((*places)[i].accepted, (*places)[i - 1].accepted);
    }
  }
}

}  // namespace
}  // namespace flashlane::scheduler
