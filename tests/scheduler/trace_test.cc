// The trace of decisions: the ring, its hash, and a small run written out in full.
#include "scheduler/trace.h"

#include <gtest/gtest.h>

#include "scheduler/scheduler.h"
#include "tests/support/fake_runner.h"

namespace flashlane::scheduler {
namespace {

using Lines = std::vector<std::string>;

TEST(Trace, KeepsTheLastAndHashesAll) {
  Trace all(100);
  Trace few(3);
  Trace none(0);
  for (int32_t i = 0; i < 10; ++i) {
    for (Trace* trace : {&all, &few, &none}) trace->add(TraceKind::kToken, {7}, {i, 2 * i});
  }
  EXPECT_EQ(all.count(), 10U);
  EXPECT_EQ(all.last().size(), 10U);
  EXPECT_EQ(few.last(), (std::vector<TraceEntry>{{TraceKind::kToken, {7}, {7, 14}},
                                                 {TraceKind::kToken, {7}, {8, 16}},
                                                 {TraceKind::kToken, {7}, {9, 18}}}));
  EXPECT_TRUE(none.last().empty());
  EXPECT_EQ(all.hash(), few.hash());
  EXPECT_EQ(all.hash(), none.hash());
}

TEST(Trace, TheHashFeelsKindSequenceOrderAndEachValue) {
  const auto hash = [](std::initializer_list<TraceEntry> entries) {
    Trace trace(0);
    for (const TraceEntry& entry : entries) trace.add(entry.kind, entry.sequence, entry.values);
    return trace.hash();
  };
  const TraceEntry a{TraceKind::kToken, {1}, {1, 2, 3, 4}};
  const TraceEntry b{TraceKind::kToken, {2}, {1, 2, 3, 4}};
  EXPECT_NE(hash({a, b}), hash({b, a}));
  EXPECT_NE(hash({a}), hash({b}));
  EXPECT_NE(hash({a}), hash({{TraceKind::kDepth, {1}, {1, 2, 3, 4}}}));
  for (size_t i = 0; i < a.values.size(); ++i) {
    TraceEntry other = a;
    other.values[i] = -1;
    EXPECT_NE(hash({a}), hash({other})) << i;
  }
}

struct Traced {
  Lines lines;
  uint64_t hash = 0;
};

// Two sequences, the first cancelled in mid-reply, the second's first step failed.
Traced run(double step_ms) {
  Scheduler scheduler(
      {.context = 64, .slots = 2, .prefill_chunk = 4, .max_draft = 2, .trace_entries = 64});
  testing::FakeRunner runner;
  runner.slots = 2;
  CHECK(scheduler.submit({.prompt = {1, 2, 3, 4, 5}, .max_tokens = 40}).ok());
  const auto step = [&] {
    const StepPlan plan = scheduler.plan();
    StepResult result = runner.run(plan).value();
    result.elapsed_ms = step_ms;
    scheduler.commit(plan, result);
  };
  for (int i = 0; i < 3; ++i) step();
  scheduler.cancel({1});
  CHECK(scheduler.submit({.prompt = {6}, .max_tokens = 1, .drafts = false}).ok());
  scheduler.fail(scheduler.plan(), {ErrorCode::kInternal, "it broke"});
  Traced traced{.lines = {}, .hash = scheduler.trace().hash()};
  for (const TraceEntry& entry : scheduler.trace().last()) traced.lines.push_back(describe(entry));
  return traced;
}

TEST(Trace, ARunIsWrittenOutInOrder) {
  const auto token = [](std::vector<int32_t> history) {
    return testing::fake_token(history, {}, 16);
  };
  std::vector<int32_t> text = {1, 2, 3, 4, 5};
  for (int i = 0; i < 2; ++i) text.push_back(token(text));
  const auto reply = [&](int place) { return text[static_cast<size_t>(5 + place)]; };
  const Lines lines = run(1).lines;
  ASSERT_GE(lines.size(), 8U);
  const Lines head(lines.begin(), lines.begin() + 7);
  EXPECT_EQ(head, (Lines{"submit of 1: 5, 40, 1, 0", "admit of 1: 0, 0, 0, 0",
                         "prompt rows of 1: 0, 4, 1, 0", "prompt rows of 1: 4, 1, 0, 0",
                         "depth of 1: 2, 0, 0, 0", "landed of 1: 1, 1, 1, 0",
                         fmt::format("token of 1: {}, 0, 0, 0", reply(0))}));
  // The head's two drafts are right: three tokens land.
  EXPECT_EQ(lines[7], "window of 1: 5, 3, 2, 2");
  EXPECT_EQ(lines[9], "landed of 1: 3, 3, 3, 0");
  EXPECT_EQ(lines[10], fmt::format("token of 1: {}, 1, 0, 0", reply(1)));
  const Lines tail(lines.end() - 8, lines.end());
  EXPECT_EQ(tail, (Lines{"cancel of 1: 2, 0, 0, 0", "retire of 1: 2, 5, 4, 0",
                         "submit of 2: 1, 1, 0, 0", "admit of 2: 0, 0, 0, 0",
                         "prompt rows of 2: 0, 1, 0, 0", "depth of 2: 0, 0, 0, 0",
                         "failed of 2: 7, 0, 0, 0", "retire of 2: 3, 0, 0, 0"}));
}

TEST(Trace, TimesNeverEnter) {
  EXPECT_EQ(run(1).hash, run(50).hash);
}

}  // namespace
}  // namespace flashlane::scheduler
