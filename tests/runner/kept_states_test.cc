// States of prompts: a sequence that goes on from a kept state gives the tokens, and the drafts, of
// one that had its whole prompt taken in, whatever follows, wherever the state was kept and in
// which pages it lies (E3, M5).
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "base/int_math.h"
#include "base/keyed_random.h"
#include "tests/support/stream.h"
#include "tests/support/tiny_model.h"

namespace flashlane::runner {
namespace {

using flashlane::testing::kTinyContext;
using flashlane::testing::kTinyRows;
using flashlane::testing::step_together;
using flashlane::testing::Stream;
using flashlane::testing::tiny_model;
using scheduler::Restore;
using scheduler::Segment;
using scheduler::StepPlan;
using Tokens = std::vector<int32_t>;

constexpr int kReply = 12;
constexpr int kArena = 200;

Tokens make_tokens(int size, uint64_t seed) {
  Tokens tokens;
  for (int i = 0; i < size; ++i) {
    tokens.push_back(static_cast<int32_t>(keyed_bits(seed, static_cast<uint64_t>(i), 0) % 512));
  }
  return tokens;
}

struct Seen {
  Tokens reply;
  std::vector<Tokens> drafts;
  friend bool operator==(const Seen&, const Seen&) = default;
};

class KeptStatesOfTiny : public ::testing::Test {
 protected:
  static std::unique_ptr<Runner> runner_on(const char* backend, int page_rows, int max_draft) {
    RunnerOptions options{.slots = 3,
                          .context = kTinyContext,
                          .kept_pages = kArena,
                          .max_rows = kTinyRows,
                          .page_rows = page_rows,
                          .max_draft = max_draft};
    const int least = least_page_rows(tiny_model(backend).shape(), options.kv_dtype);
    if (page_rows < least) options.state_form = StateForm::kRun;
    return Runner::create(tiny_model(backend), options).value();
  }

  static Seen finish(Runner& runner, Stream stream) {
    Seen seen;
    while (static_cast<int>(stream.reply.size()) < kReply && !HasFatalFailure()) {
      step_together(runner, {&stream});
      if (!stream.reply.empty()) seen.drafts.push_back(stream.drafts);
    }
    stream.reply.resize(kReply);
    seen.reply = stream.reply;
    return seen;
  }

  static Tokens arena_pages(const Runner& runner, int rows, int first) {
    const PlanLimits& limits = runner.limits();
    Tokens pages(static_cast<size_t>(limits.state_pages + div_ceil(rows, limits.page_rows)));
    std::iota(pages.begin(), pages.end(), first);
    return pages;
  }

  // Takes the prompt in up to `position`, in chunks, keeps the state there, and goes on to the end.
  static Seen keep(Runner& runner, Stream stream, int position, int first_page) {
    while (stream.done < position) {
      StepPlan plan{.segments = {stream.segment()}};
      Segment& segment = plan.segments.front();
      const int rows = std::min(static_cast<int>(segment.tokens.size()), position - stream.done);
      segment.tokens.resize(static_cast<size_t>(rows));
      segment.next_token = stream.token_at(stream.done + rows);
      segment.draft_depth = 0;
      segment.uses_mtp = runner.limits().max_draft > 0;
      flashlane::testing::give_pages(runner, segment);
      if (stream.done + rows == position) {
        segment.keep_pages = arena_pages(runner, position, first_page);
      }
      const auto result = runner.run(plan);
      EXPECT_TRUE(result.ok()) << result.error().message;
      EXPECT_EQ(result.value().segments[0].kept, stream.done + rows == position);
      stream.take(segment, result.value().segments.front());
    }
    return finish(runner, stream);
  }

  // From the kept state at `position` on.
  static Seen resume(Runner& runner, Stream stream, int position, int first_page) {
    const PlanLimits& limits = runner.limits();
    const int rows = limits.context + kernels::kMaxWindow;
    Segment own;
    give_own_pages(own, limits, stream.slot * own_pages(limits, rows), rows);
    Restore restore{.slot = stream.slot, .kept_pages = arena_pages(runner, position, first_page)};
    restore.tokens.assign(stream.prompt.begin(), stream.prompt.begin() + position);
    restore.state_pages = own.state_pages;
    const auto covered = own.new_pages.begin() + div_ceil(position, limits.page_rows);
    restore.new_pages.assign(own.new_pages.begin(), covered);
    const auto restored = runner.run({.restores = {restore}});
    EXPECT_TRUE(restored.ok()) << restored.error().message;
    EXPECT_EQ(restored.value().restored, std::vector<bool>{true});
    stream.done = position;
    StepPlan plan{.segments = {stream.segment()}};
    plan.segments.front().new_pages.assign(covered, own.new_pages.end());
    const auto result = runner.run(plan);
    EXPECT_TRUE(result.ok()) << result.error().message;
    stream.take(plan.segments.front(), result.value().segments.front());
    Seen seen;
    if (!stream.reply.empty()) seen.drafts.push_back(stream.drafts);
    Seen rest = finish(runner, stream);
    seen.drafts.insert(seen.drafts.end(), rest.drafts.begin(), rest.drafts.end());
    seen.reply = rest.reply;
    return seen;
  }
};

class KeptStates : public KeptStatesOfTiny, public ::testing::WithParamInterface<const char*> {
 protected:
  static std::unique_ptr<Runner> make_runner(int page_rows, int max_draft = 3) {
    return runner_on(GetParam(), page_rows, max_draft);
  }
};

INSTANTIATE_TEST_SUITE_P(Backends, KeptStates, ::testing::Values("reference", "cpu"));

TEST_P(KeptStates, ResumedIsFresh) {
  const Tokens first = make_tokens(70, 1);
  for (const int page_rows : {4, 16, 256}) {
    const auto runner = make_runner(page_rows);
    for (const int position : {1, 16, 69}) {
      // The same prompt, another end, and an end that begins otherwise at once.
      Tokens longer(first.begin(), first.begin() + position);
      const Tokens other = make_tokens(40, 2);
      longer.insert(longer.end(), other.begin(), other.end());
      for (const Tokens& prompt : {first, longer}) {
        Stream stream{.prompt = prompt, .slot = 1, .chunk = 33, .depth = 3, .uses_mtp = true};
        const Seen fresh = finish(*runner, stream);
        Stream keeper = stream;
        keeper.prompt = first;
        keeper.slot = 0;
        keep(*runner, keeper, position, 3);
        stream.slot = 2;
        EXPECT_EQ(resume(*runner, stream, position, 3), fresh) << page_rows << " at " << position;
        // And again, over what the last one left.
        EXPECT_EQ(resume(*runner, stream, position, 3), fresh) << page_rows << " at " << position;
      }
    }
  }
}

TEST_P(KeptStates, KeepingChangesNothing) {
  const auto runner = make_runner(16);
  const Stream stream{.prompt = make_tokens(70, 3), .depth = 3, .uses_mtp = true};
  const Seen plain = finish(*runner, stream);
  for (const int position : {1, 40, 69}) {
    EXPECT_EQ(keep(*runner, stream, position, 0), plain) << position;
  }
}

// Moved to other pages before its first reply step and in its middle, with drafts in hand and rows
// that wait for the head, a sequence goes on as if it had never moved (Z3).
TEST_P(KeptStates, MovedIsUnmoved) {
  for (const int page_rows : {4, 16, 256}) {
    for (const bool drafts : {true, false}) {
      const auto runner = make_runner(page_rows);
      const PlanLimits& limits = runner->limits();
      const int rows = limits.context + kernels::kMaxWindow;
      Stream stream{.prompt = make_tokens(50, 8), .uses_mtp = true};
      stream.depth = drafts ? 3 : 0;
      const Seen unmoved = finish(*runner, stream);
      Seen moved;
      int place = 0;
      while (static_cast<int>(stream.reply.size()) < kReply && !HasFatalFailure()) {
        step_together(*runner, {&stream});
        if (!stream.reply.empty()) moved.drafts.push_back(stream.drafts);
        // To the other slots' pages and back; the table is mapped whole.
        place = (place + 1) % 3;
        Segment there;
        give_own_pages(there, limits, place * own_pages(limits, rows), rows);
        const scheduler::Move move{.state_pages = there.state_pages, .pages = there.new_pages};
        const auto result = runner->run({.moves = {move}});
        ASSERT_TRUE(result.ok()) << result.error().message;
        EXPECT_EQ(result.value().moved, std::vector<bool>{true});
      }
      stream.reply.resize(kReply);
      moved.reply = stream.reply;
      EXPECT_EQ(moved, unmoved) << page_rows << " " << drafts;
    }
  }
}

// Who never drafts keeps the head's state all the same, for others who do.
TEST_P(KeptStates, FromOneThatDoesNotDraft) {
  const auto runner = make_runner(16);
  const Tokens prompt = make_tokens(60, 4);
  const Stream drafting{.prompt = prompt, .slot = 1, .depth = 3, .uses_mtp = true};
  const Seen fresh = finish(*runner, drafting);
  const Stream plain{.prompt = prompt};
  EXPECT_EQ(keep(*runner, plain, 59, 7).reply, fresh.reply);
  EXPECT_EQ(resume(*runner, drafting, 59, 7), fresh);
  Stream resumed_plain = plain;
  resumed_plain.slot = 2;
  EXPECT_EQ(resume(*runner, resumed_plain, 59, 7).reply, fresh.reply);
}

TEST_P(KeptStates, WithoutAHead) {
  const auto runner = make_runner(16, 0);
  const Stream stream{.prompt = make_tokens(30, 5)};
  const Seen fresh = keep(*runner, stream, 20, 0);
  Stream elsewhere = stream;
  elsewhere.slot = 2;
  EXPECT_EQ(resume(*runner, elsewhere, 20, 0).reply, fresh.reply);
}

// The head's last row was made with the token that followed in the prompt that was kept.
TEST_F(KeptStatesOfTiny, DraftsAreThoseOfAFreshPrompt) {
  const auto runner = runner_on("cpu", 16, 3);
  // Of several prompts, since one row of the head changes few drafts.
  for (int seed = 6; seed < 26; ++seed) {
    const Tokens kept = make_tokens(40, seed);
    Tokens other = kept;
    other.back() = (other.back() + 1) % 512;
    const Stream stream{.prompt = other, .slot = 1, .depth = 3, .uses_mtp = true};
    const Seen fresh = finish(*runner, stream);
    Stream keeper = stream;
    keeper.prompt = kept;
    keep(*runner, keeper, 39, 0);
    EXPECT_EQ(resume(*runner, stream, 39, 0), fresh) << "prompt " << seed;
  }
}

// Rows that wait for the head go into it before a state is kept, since a restore brings none back
// but the last. Each prompt is kept where another one lay: on pages that held it before, the head's
// rows of then would do.
TEST_F(KeptStatesOfTiny, AllRowsButTheLastAreInTheHead) {
  const auto runner = runner_on("cpu", 16, 3);
  for (int seed = 30; seed < 36; ++seed) {
    for (const int chunk : {60, 17}) {  // at once, and behind rows that wait already
      Stream stream{.prompt = make_tokens(61, seed), .chunk = chunk, .depth = 3, .uses_mtp = true};
      Stream elsewhere = stream;
      elsewhere.prompt = make_tokens(61, seed + 100);
      finish(*runner, elsewhere);
      keep(*runner, stream, 60, 0);
      stream.slot = 1;
      const Seen fresh = finish(*runner, stream);
      stream.slot = 2;
      EXPECT_EQ(resume(*runner, stream, 60, 0), fresh) << "prompt " << seed << " by " << chunk;
    }
  }
}

TEST(KeptStatesPlans, AreRefusedByName) {
  const auto runner = Runner::create(tiny_model(), {.slots = 2,
                                                    .context = 64,
                                                    .kept_pages = 20,
                                                    .max_rows = kTinyRows,
                                                    .page_rows = 16,
                                                    .state_form = StateForm::kRun})
                          .value();
  const int state_pages = runner->limits().state_pages;
  Segment own;
  give_own_pages(own, runner->limits(), 0, 80);
  Restore good{.tokens = make_tokens(20, 1), .state_pages = own.state_pages};
  good.new_pages.assign(own.new_pages.begin(), own.new_pages.begin() + 2);
  good.kept_pages.resize(static_cast<size_t>(state_pages) + 2);
  std::iota(good.kept_pages.begin(), good.kept_pages.end(), 0);
  const auto refusal = [&](const std::function<void(StepPlan&)>& spoil) {
    StepPlan plan{.restores = {good}};
    spoil(plan);
    const auto result = runner->run(plan);
    return result.ok() ? std::string("ran") : result.error().message;
  };
  const auto first = [](StepPlan& plan) -> Restore& { return plan.restores.front(); };
  EXPECT_EQ(refusal([](StepPlan&) {}), "ran");
  EXPECT_EQ(refusal([&](StepPlan& plan) { first(plan).slot = 2; }),
            "restore 0 names slot 2; there are 2");
  EXPECT_EQ(refusal([&](StepPlan& plan) { first(plan).tokens.clear(); }),
            "restore 0 has 0 rows; the context is 64");
  EXPECT_EQ(refusal([&](StepPlan& plan) { first(plan).tokens.resize(64); }),
            "restore 0 has 64 rows; the context is 64");
  EXPECT_EQ(refusal([&](StepPlan& plan) { first(plan).kept_pages.pop_back(); }),
            fmt::format("restore 0 has {} pages of the arena instead of {}", state_pages + 1,
                        state_pages + 2));
  EXPECT_EQ(refusal([&](StepPlan& plan) { first(plan).kept_pages.back() = 20; }),
            "restore 0 names page 20; there are 20");
  EXPECT_EQ(refusal([&](StepPlan& plan) { first(plan).new_pages.pop_back(); }),
            fmt::format("restore 0 has {} state pages and 1 for rows instead of {} and 2",
                        state_pages, state_pages));
  EXPECT_EQ(refusal([&](StepPlan& plan) { first(plan).new_pages.back() = -1; }),
            fmt::format("restore 0 names page -1; there are {}", runner->limits().pages));
  EXPECT_EQ(refusal([&](StepPlan& plan) { plan.segments.emplace_back(); }),
            "the plan mixes segments, restores and moves");

  const auto move_refusal = [&](scheduler::Move move) {
    const auto result = runner->run({.moves = {std::move(move)}});
    return result.ok() ? std::string("ran") : result.error().message;
  };
  EXPECT_EQ(move_refusal({.slot = -1}), "move 0 names slot -1; there are 2");
  EXPECT_EQ(
      move_refusal({.pages = {1}}),
      fmt::format("move 0 has 0 state pages and 1 for rows; slot 0 has {} and 2", state_pages));

  Stream stream{.prompt = make_tokens(20, 1), .slot = 1, .uses_mtp = true};
  StepPlan ends{.segments = {stream.segment()}};
  flashlane::testing::give_pages(*runner, ends.segments.front());
  ends.segments.front().keep_pages = good.kept_pages;
  EXPECT_EQ(runner->run(ends).error().message,
            "segment 0 is to be kept, but ends no chunk inside a prompt");
  ends.segments.front().next_token = 1;
  ends.segments.front().uses_mtp = false;
  EXPECT_EQ(runner->run(ends).error().message,
            "segment 0 is to be kept without the MTP head's state");
  ends.segments.front().uses_mtp = true;
  EXPECT_TRUE(runner->run(ends).ok());
}

}  // namespace
}  // namespace flashlane::runner
