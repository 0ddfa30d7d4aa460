// Random worlds: requests, cancels and failures in any order against a fake runner, each reply held
// to what the request gives alone, worked out without the scheduler.
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>

#include "scheduler/scheduler.h"
#include "scheduler/step_share.h"
#include "tests/support/fake_runner.h"

namespace flashlane::scheduler {
namespace {

using flashlane::testing::Drafting;
using flashlane::testing::fake_token;
using flashlane::testing::FakeRunner;
using flashlane::testing::solo_reply;
using flashlane::testing::SoloReply;

const std::vector<std::string> kTexts = {"a", "b", "ab", "",  "ba", "c", "ca", "aa",
                                         "d", "e", "f",  "g", "h",  "i", "j",  "k"};

class World {
 public:
  World(uint64_t seed, Drafting drafting) : random_(seed), seed_(seed) {
    runner_.drafting = drafting;
    const double shares[] = {0, 0.3, 0.5, StepShare::kMostShare};
    settings_ = {.context = roll(8, 90),
                 .slots = roll(0, 2) == 0 ? 1 : roll(2, kMostSlots),
                 .prefill_chunk = roll(1, 12),
                 .decode_share = shares[roll(0, 3)],
                 .max_draft = roll(0, 4),
                 .vocabulary = runner_.vocabulary,
                 .token_bytes = std::make_shared<TokenBytes>(kTexts)};
    runner_.slots = settings_.slots;
    scheduler_ = std::make_unique<Scheduler>(settings_);
  }

  void run(int turns) {
    for (int turn = 0; turn < turns; ++turn) {
      if (roll(0, 3) == 0) submit();
      if (roll(0, 15) == 0) cancel_any();
      step();
    }
    // Liveness: no more arrivals; each sequence needs at most one step per token and row, and twice
    // where a shared prompt step fails.
    const int64_t bound = static_cast<int64_t>(requests_.size()) * 3 * settings_.context + 1;
    int64_t steps = 0;
    while (scheduler_->running() + scheduler_->waiting() > 0) {
      ASSERT_LT(steps++, bound) << "seed " << seed_;
      step();
    }
    check();
  }

  int64_t accepted() const { return accepted_; }
  int64_t cut_by_stop() const { return cut_by_stop_; }
  size_t most_shared() const { return runner_.most_shared; }

 private:
  struct Record {
    SequenceSpec spec;
    std::vector<int32_t> tokens = {};
    int finished = 0;
    FinishReason reason = FinishReason::kStop;
    bool touched = false;  // cancelled or failed: a prefix is all it can give
  };

  int roll(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void submit() {
    SequenceSpec spec;
    const int prompt = roll(1, settings_.context - 1);
    for (int i = 0; i < prompt; ++i) spec.prompt.push_back(roll(0, runner_.vocabulary - 1));
    spec.max_tokens =
        roll(0, 3) == 0 ? settings_.context - prompt : roll(1, settings_.context - prompt);
    if (roll(0, 1) == 0)
      spec.sampling = {.temperature = 1, .seed = static_cast<uint64_t>(roll(0, 9))};
    if (roll(0, 2) == 0) spec.end_ids = {roll(0, 15), roll(0, 15)};
    if (roll(0, 2) == 0) spec.stop_strings = {"abab", roll(0, 1) == 0 ? "ca" : "aaaa"};
    spec.drafts = roll(0, 4) != 0;
    const auto id = scheduler_->submit(spec);
    ASSERT_TRUE(id.ok()) << id.error().message;
    requests_[id.value().value] = {.spec = spec};
  }

  void cancel_any() {
    const uint64_t id = static_cast<uint64_t>(roll(1, static_cast<int>(requests_.size()) + 1));
    scheduler_->cancel({id});
    if (const auto found = requests_.find(id); found != requests_.end()) {
      found->second.touched = true;
    }
  }

  void step() {
    const StepPlan plan = scheduler_->plan();
    collect();
    if (plan.empty()) return;
    check_plan(plan);
    runner_.fail_at_step = roll(0, 40) == 0 ? runner_.steps : -1;
    auto result = runner_.run(plan);
    if (roll(0, 30) == 0) cancel_any();
    if (result.ok()) {
      result.value().elapsed_ms = roll(0, 1) * 0.5 * roll(1, 200);
      scheduler_->commit(plan, result.value());
    } else {
      for (const Segment& segment : plan.segments) {
        requests_.at(segment.sequence.value).touched = true;
      }
      scheduler_->fail(plan, result.error());
    }
    collect();
  }

  void check_plan(const StepPlan& plan) {
    for (const Segment& segment : plan.segments) {
      const Record& record = requests_.at(segment.sequence.value);
      ASSERT_EQ(record.finished, 0) << "a retired sequence is planned";
      const int end = segment.start_position + static_cast<int>(segment.tokens.size());
      // A window may commit a token for each row; none may lie beyond what the request allows.
      const int last = static_cast<int>(record.spec.prompt.size()) + record.spec.max_tokens;
      ASSERT_LT(end, last + 1);
      if (segment.kind == SegmentKind::kVerify) {
        ASSERT_LT(end, last);
        ASSERT_LE(static_cast<int>(segment.tokens.size()), settings_.max_draft + 1);
      } else {
        ASSERT_LE(static_cast<int>(segment.tokens.size()), settings_.prefill_chunk);
      }
    }
  }

  void collect() {
    for (const Event& event : scheduler_->collect()) {
      Record& record = requests_.at(event.sequence.value);
      ASSERT_EQ(record.finished, 0) << "an event after the last, seed " << seed_;
      record.tokens.insert(record.tokens.end(), event.tokens.begin(), event.tokens.end());
      if (event.kind != Event::Kind::kFinished) continue;
      ++record.finished;
      record.reason = event.reason;
      ASSERT_LE(event.drafts.accepted, event.drafts.drafted);
      accepted_ += event.drafts.accepted;
      if (event.reason == FinishReason::kStop) ++cut_by_stop_;
    }
  }

  void check() {
    for (const auto& [id, record] : requests_) {
      SCOPED_TRACE("seed " + std::to_string(seed_) + " request " + std::to_string(id));
      EXPECT_EQ(record.finished, 1);
      const SoloReply solo = solo_reply(record.spec, runner_.vocabulary, kTexts);
      const bool whole =
          record.reason == FinishReason::kStop || record.reason == FinishReason::kLength;
      EXPECT_TRUE(whole || record.touched);
      if (whole) {
        EXPECT_EQ(record.tokens, solo.tokens);
        EXPECT_EQ(record.reason, solo.reason);
      } else {
        ASSERT_LE(record.tokens.size(), solo.tokens.size());
        EXPECT_TRUE(std::equal(record.tokens.begin(), record.tokens.end(), solo.tokens.begin()));
      }
    }
  }

  std::mt19937_64 random_;
  uint64_t seed_;
  FakeRunner runner_;
  SchedulerOptions settings_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<uint64_t, Record> requests_;
  int64_t accepted_ = 0;
  int64_t cut_by_stop_ = 0;
};

TEST(RandomRun, EveryReplyIsWhatTheRequestGivesAlone) {
  int64_t accepted_wrong = 0;
  int64_t accepted_random = 0;
  int64_t cut_by_stop = 0;
  size_t most_shared = 0;
  for (uint64_t seed = 0; seed < 120; ++seed) {
    const auto drafting = static_cast<Drafting>(seed % 3);
    World world(seed, drafting);
    world.run(80);
    if (::testing::Test::HasFatalFailure()) return;
    if (drafting == Drafting::kWrong) accepted_wrong += world.accepted();
    if (drafting == Drafting::kRandom) accepted_random += world.accepted();
    cut_by_stop += world.cut_by_stop();
    most_shared = std::max(most_shared, world.most_shared());
  }
  EXPECT_EQ(accepted_wrong, 0);
  EXPECT_GT(accepted_random, 500);
  EXPECT_GT(cut_by_stop, 100);
  EXPECT_GT(most_shared, 8U);
}

TEST(RandomRun, RightDraftsShortenTheRun) {
  const SequenceSpec spec{.prompt = {1, 2, 3}, .max_tokens = 41};
  for (const Drafting drafting : {Drafting::kRight, Drafting::kWrong}) {
    FakeRunner runner{.drafting = drafting};
    Scheduler scheduler({.context = 100, .max_draft = 3});
    ASSERT_TRUE(scheduler.submit(spec).ok());
    for (StepPlan plan = scheduler.plan(); !plan.empty(); plan = scheduler.plan()) {
      scheduler.commit(plan, runner.run(plan).value());
    }
    // Two drafts a step at first, three once they have proved right.
    EXPECT_EQ(runner.steps, drafting == Drafting::kRight ? 1 + 11 : 1 + 40);
  }
}

}  // namespace
}  // namespace flashlane::scheduler
