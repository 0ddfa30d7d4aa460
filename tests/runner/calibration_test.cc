// What calibration takes of a slot, what it leaves, and when it declines (S5).
#include "runner/calibration.h"

#include <gtest/gtest.h>

#include <map>

#include "tests/support/stream.h"
#include "tests/support/tiny_model.h"

namespace flashlane::runner {
namespace {

using flashlane::testing::plain_reply;

// Every look at it is a millisecond later, so each timed step takes one.
class TickingClock final : public Clock {
 public:
  Time now() const override {
    now_ += std::chrono::milliseconds(1);
    return now_;
  }

 private:
  mutable Time now_{0};
};

struct Bench {
  explicit Bench(int context, int max_draft = 3, int max_rows = flashlane::testing::kTinyRows) {
    runner = Runner::create(flashlane::testing::tiny_model(), {.slots = 2,
                                                               .context = context,
                                                               .max_rows = max_rows,
                                                               .page_rows = 64,
                                                               .max_draft = max_draft})
                 .value();
  }
  std::unique_ptr<Runner> runner;
};

TEST(Calibration, MeasuresEveryWidthThatItNeeds) {
  Bench bench(kCalibrationRows);
  const Calibration measured = calibrate(*bench.runner, TickingClock{});
  EXPECT_EQ(measured.skipped, "");
  std::map<int, int> forward, head;
  for (const scheduler::MeasuredCost& cost : measured.forward) {
    EXPECT_DOUBLE_EQ(cost.ms, 1);
    ++forward[cost.rows];
  }
  for (const scheduler::MeasuredCost& cost : measured.head_step) {
    EXPECT_DOUBLE_EQ(cost.ms, 1);
    ++head[cost.rows];
  }
  EXPECT_EQ(forward,
            (std::map<int, int>{{1, 3}, {2, 3}, {3, 3}, {4, 3}, {6, 3}, {8, 3}, {12, 3}, {16, 3}}));
  EXPECT_EQ(head, (std::map<int, int>{{1, 3}, {2, 3}, {4, 3}, {8, 3}, {16, 3}}));
  EXPECT_GT(measured.took_ms, 0);
}

TEST(Calibration, DeclinesAContextThatIsTooShort) {
  for (const int context : {160, 208}) {
    Bench bench(context);
    const Calibration measured = calibrate(*bench.runner, TickingClock{});
    EXPECT_TRUE(measured.forward.empty());
    EXPECT_EQ(measured.skipped,
              fmt::format("it takes 209 positions and the context has {}", context));
  }
}

// Some widths were timed before the one that this runner has no room for: none of them counts, and
// serving goes on as if nothing had been tried (T24).
TEST(Calibration, AStepThatFailsLeavesEverythingUnpriced) {
  constexpr int kRows = 4;
  Bench bench(kCalibrationRows, 3, kRows);
  const Calibration measured = calibrate(*bench.runner, TickingClock{});
  EXPECT_EQ(measured.skipped, "the plan has 6 decode rows; the limit is 4");
  EXPECT_TRUE(measured.forward.empty());
  EXPECT_TRUE(measured.head_step.empty());
  Bench fresh(kCalibrationRows, 3, kRows);
  std::vector<std::vector<int32_t>> replies;
  for (const Bench* served : {&bench, &fresh}) {
    flashlane::testing::Stream stream{.prompt = {3, 1, 4, 1, 5, 9}, .slot = 1, .chunk = kRows};
    while (stream.reply.size() < 8 && !HasFatalFailure()) {
      flashlane::testing::step_together(*served->runner, {&stream});
    }
    replies.push_back(stream.reply);
  }
  EXPECT_EQ(replies[0], replies[1]);
}

TEST(Calibration, WithoutAHeadOnlyForwardsAreMeasured) {
  Bench bench(kCalibrationRows, 0);
  const Calibration measured = calibrate(*bench.runner, TickingClock{});
  EXPECT_FALSE(measured.forward.empty());
  EXPECT_TRUE(measured.head_step.empty());
  EXPECT_FALSE(bench.runner->run_head_rows(1, 1).ok());
}

// The slot that was measured in gives what a fresh one gives, and the other was not touched.
TEST(Calibration, LeavesNoTrace) {
  const std::vector<int32_t> prompt = {3, 1, 4, 1, 5, 9, 2, 6};
  Bench fresh(256);
  const std::vector<int32_t> expected = plain_reply(*fresh.runner, prompt, {}, 24);
  Bench bench(256);
  ASSERT_EQ(calibrate(*bench.runner, TickingClock{}).skipped, "");
  for (const int slot : {0, 1}) {
    flashlane::testing::Stream stream{.prompt = prompt, .slot = slot, .depth = 2, .uses_mtp = true};
    while (stream.reply.size() < expected.size())
      flashlane::testing::step_together(*bench.runner, {&stream});
    stream.reply.resize(expected.size());
    EXPECT_EQ(stream.reply, expected) << slot;
  }
}

TEST(Calibration, HeadRowsNeedRowsThatWereRun) {
  Bench bench(256);
  EXPECT_FALSE(bench.runner->run_head_rows(1, 1).ok()) << "an empty slot";
  EXPECT_FALSE(bench.runner->run_head_rows(2, 1).ok());
  EXPECT_FALSE(bench.runner->run_head_rows(0, 17).ok());
}

}  // namespace
}  // namespace flashlane::runner
