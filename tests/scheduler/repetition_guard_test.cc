// The repetition guard against its definition, looked up over the whole reply for every token.
#include "scheduler/repetition_guard.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <vector>

namespace flashlane::scheduler {
namespace {

// The smallest period at which the last 256 tokens repeat, 64 tokens before that run; 0 for none.
int naive_period(const std::vector<int32_t>& reply) {
  const int emitted = static_cast<int>(reply.size());
  for (int period = 1; period <= 8; ++period) {
    if (emitted - 256 - period < 64) continue;
    bool repeats = true;
    for (int i = emitted - 256; i < emitted && repeats; ++i) {
      repeats = reply[static_cast<size_t>(i)] == reply[static_cast<size_t>(i - period)];
    }
    if (repeats) return period;
  }
  return 0;
}

// `lead` tokens that never repeat, then a loop of `period`; the first count of tokens that fires.
int fires_at(int lead, int period, int* fired) {
  RepetitionGuard guard;
  for (int i = 0; i < 2000; ++i) {
    const int32_t token = i < lead ? 1000 + i : (i - lead) % period;
    *fired = guard.push(token);
    if (*fired != 0) return i + 1;
  }
  return 0;
}

TEST(RepetitionGuard, FiresWhereTheDefinitionSays) {
  int period = 0;
  EXPECT_EQ(fires_at(0, 1, &period), 321);  // never before token 321
  EXPECT_EQ(period, 1);
  EXPECT_EQ(fires_at(64, 1, &period), 321);
  EXPECT_EQ(fires_at(65, 1, &period), 322);
  EXPECT_EQ(fires_at(70, 3, &period), 329);
  EXPECT_EQ(period, 3);
  EXPECT_EQ(fires_at(0, 8, &period), 328);
  EXPECT_EQ(period, 8);
  EXPECT_EQ(fires_at(70, 9, &period), 0);
}

TEST(RepetitionGuard, OneOtherTokenStartsTheRunAnew) {
  RepetitionGuard guard;
  for (int i = 0; i < 320; ++i) EXPECT_EQ(guard.push(5), 0);
  EXPECT_EQ(guard.push(6), 0);
  EXPECT_EQ(guard.push(5), 0);  // token 322, which the run of period 1 begins after
  for (int i = 0; i < 255; ++i) EXPECT_EQ(guard.push(5), 0);
  EXPECT_EQ(guard.push(5), 1);
}

TEST(RepetitionGuard, AgreesWithTheDefinition) {
  int fires = 0;
  const bool passed = rc::check("definition", [&fires] {
    std::vector<int32_t> reply;
    RepetitionGuard guard;
    // A few stretches, each a loop that starts anywhere in its period and may run long enough.
    const int stretches = *rc::gen::inRange(1, 4);
    for (int stretch = 0; stretch < stretches; ++stretch) {
      const int period = *rc::gen::inRange(1, 11);
      const int alphabet = *rc::gen::inRange(1, 4);
      const int length = *rc::gen::element(3, 61, 66, 255, 256, 264, 330);
      for (int i = 0; i < length; ++i) {
        reply.push_back(static_cast<int32_t>(i % period % alphabet));
        const int fired = guard.push(reply.back());
        RC_ASSERT(fired == naive_period(reply));
        fires += fired != 0 ? 1 : 0;
      }
    }
  });
  EXPECT_TRUE(passed);
  EXPECT_GT(fires, 100);
}

}  // namespace
}  // namespace flashlane::scheduler
