// Plans that can't be run are refused by name before anything is touched, and so are options.
#include "runner/plan_check.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>

#include "runner/runner.h"
#include "tests/support/stream.h"
#include "tests/support/tiny_model.h"

namespace flashlane::runner {
namespace {

using flashlane::testing::kTinyRows;
using flashlane::testing::plain_reply;
using flashlane::testing::step_together;
using flashlane::testing::Stream;
using flashlane::testing::tiny_model;
using scheduler::Segment;
using scheduler::SegmentKind;
using scheduler::StepPlan;
using Tokens = std::vector<int32_t>;

constexpr RunnerOptions kOptions = {.slots = 3,
                                    .context = 64,
                                    .max_rows = kTinyRows,
                                    .page_rows = 16,
                                    .state_form = StateForm::kRun,
                                    .max_draft = 3};

struct Refusal {
  const char* message;
  std::function<void(StepPlan&)> spoil;
};

// Slot 0 decodes at row 8 (window from 5), slot 1 is inside its prompt at row 4, slot 2 is new.
class WrongPlans : public ::testing::Test {
 protected:
  void SetUp() override {
    runner_ = Runner::create(tiny_model(), kOptions).value();
    plain_ = plain_reply(*runner_, prompt_, {}, 12);
    step_together(*runner_, {&decoding_});
    decoding_.drafts = {plain_[1], plain_[2]};
    step_together(*runner_, {&decoding_});
    step_together(*runner_, {&prefilling_});
    ASSERT_EQ(decoding_.done, 8);
    ASSERT_EQ(prefilling_.done, 4);
  }

  void expect_refused(const StepPlan& good, const std::vector<Refusal>& refusals) {
    for (const Refusal& refusal : refusals) {
      StepPlan plan = good;
      refusal.spoil(plan);
      const auto result = runner_->run(plan);
      ASSERT_FALSE(result.ok()) << refusal.message;
      EXPECT_EQ(result.error().message, refusal.message);
    }
  }

  Tokens prompt_ = {1, 2, 3, 4, 5};
  std::unique_ptr<Runner> runner_;
  Tokens plain_;
  Stream decoding_{.prompt = prompt_, .depth = 2, .uses_mtp = true};
  Stream prefilling_{.prompt = {9, 8, 7, 6, 5, 4, 3, 2, 1}, .slot = 1, .chunk = 4};
};

TEST_F(WrongPlans, OfDecodeSegmentsLeaveNoTrace) {
  StepPlan good;
  good.segments.push_back(decoding_.segment());
  const auto first = [](StepPlan& plan) -> Segment& { return plan.segments.front(); };
  expect_refused(
      good,
      {{"the plan is empty", [](StepPlan& plan) { plan.segments.clear(); }},
       {"segment 0 names slot 3; there are 3", [&](StepPlan& plan) { first(plan).slot = 3; }},
       {"segment 0 names slot -1; there are 3", [&](StepPlan& plan) { first(plan).slot = -1; }},
       {"segments 0 and 1 both name slot 0",
        [&](StepPlan& plan) { plan.segments.push_back(first(plan)); }},
       {"the plan mixes prompt and decode segments",
        [&](StepPlan& plan) { plan.segments.push_back(prefilling_.segment()); }},
       {"segment 0 has no rows", [&](StepPlan& plan) { first(plan).tokens.clear(); }},
       {"the plan has 17 decode rows; the limit is 16",
        [&](StepPlan& plan) { first(plan).tokens.resize(17); }},
       {"token 1 of segment 0 is 512; the vocabulary has 512",
        [&](StepPlan& plan) {
          first(plan).tokens = {1, 512};
        }},
       {"token 0 of segment 0 is -1; the vocabulary has 512",
        [&](StepPlan& plan) { first(plan).tokens = {-1}; }},
       {"decode segment 0 has a next token, 7",
        [&](StepPlan& plan) { first(plan).next_token = 7; }},
       {"segment 0 asks for 4 drafts; the limit is 3",
        [&](StepPlan& plan) { first(plan).draft_depth = 4; }},
       {"segment 0 asks for -1 drafts; the limit is 3",
        [&](StepPlan& plan) { first(plan).draft_depth = -1; }},
       {"segment 0 asks for 2 drafts without the MTP head",
        [&](StepPlan& plan) { first(plan).uses_mtp = false; }},
       {"segment 0 starts at 9, but slot 0 is at 8",
        [&](StepPlan& plan) { first(plan).start_position = 9; }},
       {"segment 0 starts at 5, but slot 0 is at 8 and can go back to 6 at most",
        [&](StepPlan& plan) { first(plan).start_position = 5; }},
       {"segment 0 has positions -1 to -1; the context is 64",
        [&](StepPlan& plan) {
          first(plan).start_position = -1;
          first(plan).tokens = {1};
        }},
       {"segment 0 has positions 2147483647 to 2147483647; the context is 64", [&](StepPlan& plan) {
          first(plan).start_position = 2147483647;
          first(plan).tokens = {1};
        }}});
  // A good segment before the bad one is not run either.
  StepPlan second_bad = good;
  second_bad.segments.push_back(
      {.slot = 1, .kind = SegmentKind::kVerify, .start_position = 3, .tokens = {1}});
  EXPECT_EQ(runner_->run(second_bad).error().message,
            "segment 1 starts at 3, but slot 1 is at 4 and can go back to 4 at most");

  while (decoding_.reply.size() < 10 && !HasFatalFailure()) {
    step_together(*runner_, {&decoding_});
  }
  ASSERT_GE(decoding_.reply.size(), 10U);
  EXPECT_TRUE(std::equal(plain_.begin(), plain_.begin() + 10, decoding_.reply.begin()));
}

TEST_F(WrongPlans, OfPromptSegmentsLeaveNoTrace) {
  StepPlan good;
  good.segments.push_back(prefilling_.segment());
  const auto first = [](StepPlan& plan) -> Segment& { return plan.segments.front(); };
  expect_refused(good, {{"the plan has 65 prompt rows; the limit is 64",
                         [&](StepPlan& plan) { first(plan).tokens.resize(65); }},
                        {"the next token of segment 0 is 999; the vocabulary has 512",
                         [&](StepPlan& plan) { first(plan).next_token = 999; }},
                        {"the next token of segment 0 is -2; the vocabulary has 512",
                         [&](StepPlan& plan) { first(plan).next_token = -2; }},
                        {"segment 0 asks for drafts inside the prompt",
                         [&](StepPlan& plan) {
                           first(plan).draft_depth = 1;
                           first(plan).uses_mtp = true;
                         }},
                        {"segment 0 starts at 4, but the MTP head of slot 1 is at 0",
                         [&](StepPlan& plan) { first(plan).uses_mtp = true; }},
                        {"segment 0 starts at 2, but slot 1 is at 4 and can go back to 4 at most",
                         [&](StepPlan& plan) { first(plan).start_position = 2; }},
                        {"segment 0 has positions 4 to 64; the context is 64",
                         [&](StepPlan& plan) { first(plan).tokens.resize(60); }}});
  const Tokens plain =
      plain_reply(*Runner::create(tiny_model(), kOptions).value(), prefilling_.prompt, {}, 6);
  while (prefilling_.reply.size() < 6 && !HasFatalFailure()) {
    step_together(*runner_, {&prefilling_});
  }
  EXPECT_EQ(prefilling_.reply, plain);
}

// Slot 2 is new: its first rows bring the pages of its state and of the rows.
TEST_F(WrongPlans, OfPagesLeaveNoTrace) {
  Stream fresh{.prompt = {3, 1, 4}, .slot = 2};
  StepPlan good;
  good.segments.push_back(fresh.segment());
  flashlane::testing::give_pages(*runner_, good.segments.back());
  const auto first = [](StepPlan& plan) -> Segment& { return plan.segments.front(); };
  const int pages = runner_->limits().pages;
  const auto state = std::to_string(runner_->limits().state_pages);
  const std::string none = "segment 0 starts at 0 with 0 state pages instead of " + state;
  const std::string beyond = fmt::format("segment 0 names page {}; the pool has {}", pages, pages);
  expect_refused(
      good,
      {{none.c_str(), [&](StepPlan& plan) { first(plan).state_pages.clear(); }},
       {beyond.c_str(), [&](StepPlan& plan) { first(plan).state_pages[1] = pages; }},
       {beyond.c_str(), [&](StepPlan& plan) { first(plan).new_pages[0] = pages; }},
       {"segment 0 brings slot 2 to 6 pages; the limit is 5",
        [&](StepPlan& plan) { first(plan).new_pages.push_back(0); }},
       {"segment 0 has positions up to 2, but slot 2 has 0 pages of 16 rows",
        [&](StepPlan& plan) { first(plan).new_pages.clear(); }},
       {"segment 0 has positions up to 17, but slot 2 has 1 pages of 16 rows", [&](StepPlan& plan) {
          first(plan).tokens.resize(16);
          first(plan).uses_mtp = true;
          first(plan).draft_depth = 3;
          first(plan).new_pages.resize(1);
        }}});
  StepPlan late;
  late.segments.push_back(prefilling_.segment());
  const std::string again = "segment 0 starts at 4 with 1 state pages instead of 0";
  expect_refused(late, {{again.c_str(), [&](StepPlan& plan) { first(plan).state_pages = {0}; }}});
  const Tokens plain =
      plain_reply(*Runner::create(tiny_model(), kOptions).value(), fresh.prompt, {}, 3);
  while (fresh.reply.size() < 3 && !HasFatalFailure()) step_together(*runner_, {&fresh});
  EXPECT_EQ(fresh.reply, plain);
}

TEST_F(WrongPlans, TokensFromOutsideAreTheCallersFault) {
  StepPlan plan;
  plan.segments.push_back({.slot = 2, .tokens = {1, 600}});
  EXPECT_EQ(runner_->run(plan).error().code, ErrorCode::kInvalidArgument);
  plan.segments[0].slot = 7;
  EXPECT_EQ(runner_->run(plan).error().code, ErrorCode::kInternal);
}

TEST(RunnerOptions, AreRefusedByName) {
  const auto refusal = [](const std::function<void(RunnerOptions&)>& spoil) {
    RunnerOptions options = kOptions;
    spoil(options);
    const auto runner = Runner::create(tiny_model(), options);
    return runner.ok() ? std::string("accepted") : runner.error().message;
  };
  EXPECT_EQ(refusal([](RunnerOptions&) {}), "accepted");
  EXPECT_EQ(refusal([](RunnerOptions& o) { o.slots = 0; }), "slots is 0; it must be 1 to 256");
  EXPECT_EQ(refusal([](RunnerOptions& o) { o.context = 5000; }),
            "context is 5000; it must be 1 to 4096, the model's limit");
  EXPECT_EQ(refusal([](RunnerOptions& o) { o.context = 0; }),
            "context is 0; it must be 1 to 4096, the model's limit");
  EXPECT_EQ(refusal([](RunnerOptions& o) { o.max_rows = 0; }),
            "max_rows is 0; it must be 1 or more");
  EXPECT_EQ(refusal([](RunnerOptions& o) { o.page_rows = 6; }),
            "page_rows is 6; it must be a multiple of 4 up to 65536");
  EXPECT_EQ(refusal([](RunnerOptions& o) { o.pages = -1; }),
            "pages is -1; it must be 0 to 1073741824");
  const auto pieces = [&](int page_rows) {
    return refusal([&](RunnerOptions& o) {
      o.page_rows = page_rows;
      o.state_form = StateForm::kPieces;
    });
  };
  const int least = least_page_rows(tiny_model().shape(), DType::kF32);
  EXPECT_EQ(pieces(least), "accepted");
  const std::string narrow = pieces(least - 4);
  EXPECT_EQ(narrow.find(fmt::format("page_rows is {}, a page of ", least - 4)), 0U) << narrow;
  EXPECT_NE(narrow.find("piece over page"), std::string::npos) << narrow;
  EXPECT_NE(narrow.find(fmt::format("the least page rows are {}", least)), std::string::npos)
      << narrow;
  EXPECT_EQ(refusal([](RunnerOptions& o) { o.max_draft = 16; }),
            "max_draft is 16; it must be 0 to 15");
  EXPECT_EQ(refusal([](RunnerOptions& o) { o.kv_dtype = DType::kF16; }),
            "kv_dtype is F16; it must be F32 or BF16");
}

TEST(PlanCheck, WithoutAHeadNothingMayUseIt) {
  const PlanLimits limits{.slots = 1,
                          .context = 8,
                          .max_rows = 4,
                          .max_draft = 0,
                          .vocabulary = 9,
                          .pages = 1,
                          .page_rows = 8,
                          .table_pages = 1};
  const std::vector<SlotProgress> slots(1);
  StepPlan plan;
  plan.segments.push_back({.tokens = {1}, .uses_mtp = true, .new_pages = {0}});
  EXPECT_EQ(check_plan(plan, limits, slots).error().message,
            "segment 0 uses the MTP head, which is not there");
  plan.segments[0].uses_mtp = false;
  EXPECT_TRUE(check_plan(plan, limits, slots).ok());
}

TEST(PlanCheck, DecodeRowsAreLimitedByTheStepBuffersToo) {
  const PlanLimits limits{.slots = 1, .context = 32, .max_rows = 4, .vocabulary = 9};
  const std::vector<SlotProgress> slots = {{.length = 3}};
  StepPlan plan;
  plan.segments.push_back({.kind = SegmentKind::kVerify, .start_position = 3, .tokens = Tokens(5)});
  EXPECT_EQ(check_plan(plan, limits, slots).error().message,
            "the plan has 5 decode rows; the limit is 4");
}

}  // namespace
}  // namespace flashlane::runner
