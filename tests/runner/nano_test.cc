// The bundled model on the backend that serves it: drafts from its trained head stand, and change
// nothing (E1).
#include <gtest/gtest.h>

#include <string_view>

#include "runner/runner.h"
#include "scheduler/scheduler.h"
#include "tests/support/tiny_model.h"

namespace flashlane::runner {
namespace {

using flashlane::testing::kTinyContext;
using flashlane::testing::kTinyRows;
using Tokens = std::vector<int32_t>;

struct Reply {
  Tokens tokens;
  std::vector<scheduler::TokenLogprobs> logprobs;
  scheduler::DraftStats drafts;
  int steps = 0;
};

Reply reply_of(Runner& runner, scheduler::SequenceSpec spec) {
  scheduler::Scheduler scheduler({.context = kTinyContext,
                                  .pool = runner.storage().pool,
                                  .pages = runner.limits().pages,
                                  .prefill_chunk = 32,
                                  .max_draft = 3});
  CHECK(scheduler.submit(std::move(spec)).ok());
  Reply reply;
  for (auto plan = scheduler.plan(); !plan.empty(); plan = scheduler.plan()) {
    scheduler.commit(plan, runner.run(plan).value());
    ++reply.steps;
  }
  for (const scheduler::Event& event : scheduler.collect()) {
    reply.tokens.insert(reply.tokens.end(), event.tokens.begin(), event.tokens.end());
    reply.logprobs.insert(reply.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    if (event.kind == scheduler::Event::Kind::kFinished) reply.drafts = event.drafts;
  }
  return reply;
}

TEST(SlowNanoRunner, DraftedIsPlainAndFaster) {
  const auto runner = Runner::create(flashlane::testing::nano_model(),
                                     {.slots = 1, .context = kTinyContext, .max_rows = kTinyRows})
                          .value();
  for (const float temperature : {0.0F, 0.8F}) {
    int64_t accepted = 0;
    for (const Tokens& prompt : {Tokens{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3},
                                 Tokens{40, 50, 60, 70, 80, 90, 100}, Tokens(40, 7)}) {
      scheduler::SequenceSpec spec{.prompt = prompt, .max_tokens = 48};
      spec.sampling = {.temperature = temperature, .top_k = 20, .top_p = 0.95F, .seed = 5};
      const Reply drafted = reply_of(*runner, spec);
      spec.drafts = false;
      const Reply plain = reply_of(*runner, spec);
      EXPECT_EQ(drafted.tokens, plain.tokens);
      EXPECT_EQ(plain.drafts.drafted, 0);
      EXPECT_EQ(drafted.steps + drafted.drafts.accepted, plain.steps);
      accepted += drafted.drafts.accepted;
    }
    EXPECT_GT(accepted, 20) << "at temperature " << temperature;
  }
}

// Penalties look at the row's own prefix, drafts among it, and log probabilities come from the row
// that drew the token: neither depends on how the reply was cut into windows (E6).
TEST(SlowNanoRunner, PenaltiesAndLogProbabilitiesAreTheSameDraftedAndPlain) {
  const auto runner = Runner::create(flashlane::testing::nano_model(),
                                     {.slots = 1, .context = kTinyContext, .max_rows = kTinyRows})
                          .value();
  int64_t accepted = 0;
  for (const float temperature : {0.0F, 0.8F}) {
    for (const Tokens& prompt : {Tokens{1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3}, Tokens(40, 7)}) {
      scheduler::SequenceSpec spec{.prompt = prompt, .max_tokens = 48};
      spec.sampling = {.temperature = temperature, .top_k = 20, .top_p = 0.95F, .seed = 5};
      spec.logprobs = 3;
      const Reply free = reply_of(*runner, spec);
      spec.sampling.presence_penalty = 0.5F;
      spec.sampling.frequency_penalty = 0.25F;
      spec.sampling.repetition_penalty = 1.25F;
      const Reply drafted = reply_of(*runner, spec);
      spec.drafts = false;
      const Reply plain = reply_of(*runner, spec);
      EXPECT_EQ(drafted.tokens, plain.tokens);
      EXPECT_NE(plain.tokens, free.tokens) << "the penalties did nothing";
      ASSERT_EQ(plain.logprobs.size(), plain.tokens.size());
      ASSERT_EQ(drafted.logprobs.size(), plain.tokens.size());
      for (size_t i = 0; i < plain.tokens.size(); ++i) {
        const scheduler::TokenLogprobs& own = plain.logprobs[i];
        EXPECT_EQ(own.logprob, drafted.logprobs[i].logprob) << i;
        ASSERT_EQ(own.best.size(), 3U);
        for (size_t rank = 0; rank < own.best.size(); ++rank) {
          EXPECT_EQ(own.best[rank].token, drafted.logprobs[i].best[rank].token);
          EXPECT_EQ(own.best[rank].logprob, drafted.logprobs[i].best[rank].logprob);
        }
        EXPECT_LE(own.logprob, own.best.front().logprob);
      }
      for (size_t i = 0; temperature == 0 && i < free.tokens.size(); ++i) {
        EXPECT_EQ(free.logprobs[i].best.front().token, free.tokens[i]) << "greedy takes the best";
      }
      accepted += drafted.drafts.accepted;
    }
  }
  EXPECT_GT(accepted, 10);
}

}  // namespace
}  // namespace flashlane::runner
