// Segments that the verdict of the step before fills are those that the host would have made of its
// result: the same tokens, drafts and log probabilities, step by step; and a slot that has no
// verdict refuses them, with nothing changed (L1, E3).
#include "runner/verdicts.h"

#include <gtest/gtest.h>

#include "tests/support/stream.h"
#include "tests/support/tiny_model.h"

namespace flashlane::runner {
namespace {

using flashlane::testing::give_pages;
using flashlane::testing::kTinyContext;
using flashlane::testing::kTinyRows;
using flashlane::testing::Stream;
using flashlane::testing::tiny_model;
using scheduler::Segment;
using scheduler::SegmentKind;
using scheduler::StepPlan;

constexpr int kDepth = 3;

class VerdictsTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Runner> make_runner() const {
    auto runner = Runner::create(tiny_model(GetParam()), {.slots = 2,
                                                          .context = kTinyContext,
                                                          .max_rows = kTinyRows,
                                                          .page_rows = 16,
                                                          .state_form = StateForm::kRun});
    CHECK(runner.ok());
    return std::move(runner).value();
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, VerdictsTest, ::testing::Values("reference", "cpu"));

Segment verdict_segment(const Stream& stream, int rows) {
  return {.slot = stream.slot,
          .kind = SegmentKind::kVerify,
          .verdict_rows = rows,
          .start_position = -1,
          .sampling = stream.sampling,
          .reply_start = static_cast<int>(stream.prompt.size()),
          .draft_depth = stream.depth,
          .uses_mtp = stream.uses_mtp};
}

// One step of `stream`, as the host makes it or by the verdict, with at most `rows` rows.
scheduler::SegmentResult step(Runner& runner, Stream& stream, bool by_verdict, size_t rows) {
  StepPlan plan;
  stream.drafts.resize(std::min(stream.drafts.size(), rows - 1));
  Segment made = stream.segment();
  give_pages(runner, made);
  const bool decodes = made.kind == SegmentKind::kVerify;
  plan.segments = {by_verdict && decodes ? verdict_segment(stream, static_cast<int>(rows)) : made};
  auto result = runner.run(plan);
  EXPECT_TRUE(result.ok()) << result.error().message;
  if (!result.ok()) return {};
  const scheduler::SegmentResult& of_segment = result.value().segments.front();
  EXPECT_EQ(of_segment.rows, by_verdict && decodes ? static_cast<int>(made.tokens.size()) : 0);
  stream.take(made, of_segment);
  return of_segment;
}

TEST_P(VerdictsTest, FillWhatTheHostWouldHaveMade) {
  size_t replied = 0;
  for (const scheduler::Sampling& sampling :
       {scheduler::Sampling{}, scheduler::Sampling{.temperature = 1, .seed = 3}}) {
    const Stream begins{.prompt = {5, 9, 2, 300, 17},
                        .sampling = sampling,
                        .slot = 1,
                        .depth = kDepth,
                        .uses_mtp = true};
    const auto by_host = make_runner();
    const auto by_verdict = make_runner();
    Stream made = begins;
    Stream filled = begins;
    size_t drafted = 0;
    for (size_t i = 0; i < 24; ++i) {
      const size_t rows = 1 + i % (kDepth + 1);  // fewer than there are drafts, too
      const auto expected = step(*by_host, made, false, rows);
      const auto actual = step(*by_verdict, filled, true, rows);
      ASSERT_EQ(actual.tokens, expected.tokens) << i;
      ASSERT_EQ(actual.drafts, expected.drafts) << i;
      drafted += expected.drafts.size();
    }
    EXPECT_GT(drafted, 40U);
    replied += made.reply.size();
  }
  EXPECT_GT(replied, 48U) << "no draft stood";
}

TEST_P(VerdictsTest, AreRefusedWhereThereAreNone) {
  const auto runner = make_runner();
  const auto refused = [&](const StepPlan& plan) {
    const auto result = runner->run(plan);
    return result.ok() ? std::string("run") : result.error().message;
  };
  Stream stream{.prompt = {4, 4, 4, 4}, .chunk = 2};
  const std::string none = "slot 0 has no verdict for the segment that it is to fill";
  EXPECT_EQ(refused({.segments = {verdict_segment(stream, 1)}}), none);
  // Inside the prompt nothing was drawn.
  step(*runner, stream, false, 1);
  EXPECT_EQ(refused({.segments = {verdict_segment(stream, 1)}}), none);
  step(*runner, stream, false, 1);
  StepPlan shared{.segments = {verdict_segment(stream, 1), verdict_segment(stream, 1)}};
  EXPECT_EQ(refused(shared), "a verdict's segment shares its plan with 1 more");
  StepPlan wide{.segments = {verdict_segment(stream, kernels::kMaxWindow + 1)}};
  EXPECT_NE(refused(wide).find("can't fill a segment of 17 rows"), std::string::npos);
  StepPlan brings{.segments = {verdict_segment(stream, 1)}};
  brings.segments.front().tokens = {1};
  EXPECT_NE(refused(brings).find("brings 1 tokens"), std::string::npos);
  StepPlan prompt{.segments = {verdict_segment(stream, 1)}};
  prompt.segments.front().kind = SegmentKind::kPrefill;
  EXPECT_NE(refused(prompt).find("can't fill"), std::string::npos);
  StepPlan elsewhere{.segments = {verdict_segment(stream, 1)}};
  elsewhere.segments.front().slot = 7;
  EXPECT_EQ(refused(elsewhere), "segment 0 names slot 7; there are 2");
  // Nothing of that touched the reply.
  EXPECT_EQ(step(*runner, stream, true, 1).tokens.size(), 1U);
  const auto other = make_runner();
  EXPECT_EQ(stream.reply, flashlane::testing::plain_reply(*other, stream.prompt, {}, 2));
}

}  // namespace
}  // namespace flashlane::runner
