// The head's drafts on the bundled model, sampled against greedy. A sampled reply's drafts are
// drawn from the head's own logits with the noise that the target's draw will have, so the two
// often agree even where the distribution leaves room (E6).
#include <gtest/gtest.h>

#include <fmt/format.h>
#include <algorithm>
#include <string>

#include "format/safetensors.h"
#include "runner/runner.h"
#include "scheduler/scheduler.h"
#include "tests/support/tensor_values.h"
#include "tests/support/tiny_model.h"

namespace flashlane::runner {
namespace {

using flashlane::testing::kTinyContext;
using flashlane::testing::kTinyRows;
using Tokens = std::vector<int32_t>;

constexpr int kReply = 64;

// The first tokens of a text, at most so many as leave room for a reply.
Tokens fixture_prompt(const std::string& name, size_t most) {
  const auto file = format::SafetensorsFile::open(
      fmt::format("{}/tests/fixtures/nano/golden_{}.safetensors", FLASHLANE_SOURCE_DIR, name));
  EXPECT_TRUE(file.ok()) << name;
  Tokens tokens = values_of<int32_t>(*file.value()->find("tokens"));
  tokens.resize(std::min({tokens.size(), most, static_cast<size_t>(kTinyContext - kReply)}));
  return tokens;
}

// Of a reply that drafts with the head alone.
scheduler::DraftStats drafts_of(Runner& runner, const Tokens& prompt,
                                const scheduler::Sampling& sampling) {
  scheduler::Scheduler scheduler({.context = kTinyContext,
                                  .pool = runner.storage().pool,
                                  .pages = runner.limits().pages,
                                  .prefill_chunk = kTinyRows,
                                  .prompt_lookup = false});
  CHECK(scheduler.submit({.prompt = prompt, .max_tokens = kReply, .sampling = sampling}).ok());
  scheduler::DraftStats stats;
  for (auto plan = scheduler.plan(); !plan.empty(); plan = scheduler.plan()) {
    scheduler.commit(plan, runner.run(plan).value());
    for (const scheduler::Event& event : scheduler.collect()) {
      if (event.kind == scheduler::Event::Kind::kFinished) stats = event.drafts;
    }
  }
  return stats;
}

double rate(const scheduler::DraftStats& stats) {
  return static_cast<double>(stats.accepted) / static_cast<double>(stats.drafted);
}

// Of replies to several texts, or to their beginnings.
scheduler::DraftStats drafts_of_all(Runner& runner, size_t most, scheduler::Sampling sampling) {
  scheduler::DraftStats sum;
  for (const char* name : {"code", "prose", "count", "edit", "long700", "long3000"}) {
    ++sampling.seed;
    const scheduler::DraftStats one = drafts_of(runner, fixture_prompt(name, most), sampling);
    sum.drafted += one.drafted;
    sum.accepted += one.accepted;
  }
  fmt::print("prompts up to {}, temperature {}: {} of {} drafts accepted\n", most,
             sampling.temperature, sum.accepted, sum.drafted);
  EXPECT_GT(sum.drafted, 100);
  return sum;
}

// Whole texts, whose continuation is nearly certain, and beginnings, which leave much open. Where
// all tokens may come, drafts that are drawn with other noise, or not drawn at all, are accepted
// less than a fifth as often as greedy ones; at 0.7 this model is too sure of itself to show it.
TEST(SlowDraftsOfTheHead, SampledAreAcceptedAtLeastHalfAsOftenAsGreedy) {
  const auto runner = Runner::create(flashlane::testing::nano_model(),
                                     {.slots = 1, .context = kTinyContext, .max_rows = kTinyRows})
                          .value();
  const scheduler::Sampling usual{.temperature = 0.7F, .top_k = 20, .top_p = 0.95F};
  const scheduler::Sampling hot{.temperature = 1.5F};
  constexpr size_t kWhole = kTinyContext;
  constexpr size_t kBeginning = 8;
  for (const size_t most : {kWhole, kBeginning}) {
    const double greedy = rate(drafts_of_all(*runner, most, {}));
    EXPECT_GT(greedy, 0.5) << "then half of it says little";
    EXPECT_GE(rate(drafts_of_all(*runner, most, usual)), greedy / 2);
    if (most == kWhole) continue;
    EXPECT_GE(rate(drafts_of_all(*runner, most, hot)), greedy / 2);
  }
}

}  // namespace
}  // namespace flashlane::runner
