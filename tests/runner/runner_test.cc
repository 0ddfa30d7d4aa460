// The runner on the tiny model, on every backend: whatever is drafted, cut, put together or
// chunked, each sequence gives the tokens that it gives alone, plain and in one piece (E1, E2, E4,
// E7).
#include "runner/runner.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/int_math.h"
#include "base/keyed_random.h"
#include "runner/head_backlog.h"
#include "tests/support/stream.h"
#include "tests/support/tiny_model.h"

namespace flashlane::runner {
namespace {

using flashlane::testing::kTinyContext;
using flashlane::testing::kTinyRows;
using flashlane::testing::plain_reply;
using flashlane::testing::step_together;
using flashlane::testing::Stream;
using flashlane::testing::tiny_model;
using scheduler::Sampling;
using Tokens = std::vector<int32_t>;

constexpr Sampling kGreedy = {};
constexpr Sampling kSampled = {.temperature = 0.8F, .top_k = 40, .top_p = 0.95F, .seed = 11};

class RunnerTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Runner> make_runner(RunnerOptions options = {.slots = 4, .page_rows = 16}) {
    if (options.context == 0) options.context = kTinyContext;
    options.max_rows = kTinyRows;
    // Pieces where a page holds each of them.
    const int least = least_page_rows(tiny_model(GetParam()).shape(), options.kv_dtype);
    if (options.page_rows < least) options.state_form = StateForm::kRun;
    auto runner = Runner::create(tiny_model(GetParam()), options);
    CHECK(runner.ok());
    return std::move(runner).value();
  }
};
class SlowRunnerTest : public RunnerTest {};
class ReferenceRunnerTest : public RunnerTest {};

INSTANTIATE_TEST_SUITE_P(Backends, RunnerTest, ::testing::Values("reference", "cpu"));
INSTANTIATE_TEST_SUITE_P(Backends, SlowRunnerTest, ::testing::Values("reference", "cpu"));
INSTANTIATE_TEST_SUITE_P(Backends, ReferenceRunnerTest, ::testing::Values("reference"));

Tokens make_prompt(int size, uint64_t seed) {
  Tokens prompt;
  for (int i = 0; i < size; ++i) {
    prompt.push_back(static_cast<int32_t>(keyed_bits(seed, static_cast<uint64_t>(i), 0) % 512));
  }
  return prompt;
}

// What the head drafted, step by step, as a second thing that must not change.
struct Trace {
  Tokens reply;
  std::vector<Tokens> drafts;
};
Trace drafted_run(Runner& runner, Stream stream, int count) {
  Trace run;
  while (static_cast<int>(stream.reply.size()) < count && !::testing::Test::HasFatalFailure()) {
    step_together(runner, {&stream});
    run.drafts.push_back(stream.drafts);
  }
  stream.reply.resize(static_cast<size_t>(count));
  run.reply = stream.reply;
  return run;
}

TEST_P(RunnerTest, DraftedIsPlain) {
  const auto runner = make_runner();
  for (const Sampling& sampling : {kGreedy, kSampled}) {
    for (const int size : {1, 2, 33}) {
      const Tokens prompt = make_prompt(size, 3);
      const Tokens plain = plain_reply(*runner, prompt, sampling, 10);
      for (const int depth : {0, 3}) {
        const Stream stream{
            .prompt = prompt, .sampling = sampling, .depth = depth, .uses_mtp = true};
        EXPECT_EQ(drafted_run(*runner, stream, 10).reply, plain) << size << " depth " << depth;
      }
    }
  }
}

TEST_P(RunnerTest, AnyDraftsGiveThePlainReply) {
  const auto runner = make_runner();
  for (const Sampling& sampling : {kGreedy, kSampled}) {
    const Tokens prompt = make_prompt(13, 5);
    const Tokens plain = plain_reply(*runner, prompt, sampling, 30);
    for (const int right : {0, 1, 2, 6}) {
      Stream stream{.prompt = prompt, .sampling = sampling, .depth = right % 4, .uses_mtp = true};
      int steps = 0;
      while (stream.reply.size() < 15) {
        step_together(*runner, {&stream});
        ++steps;
        ASSERT_FALSE(HasFatalFailure());
        // `right` true tokens, then rubbish: the window is cut behind them.
        const size_t at = stream.reply.size();
        stream.drafts.assign(plain.begin() + static_cast<ptrdiff_t>(at),
                             plain.begin() + static_cast<ptrdiff_t>(at) + right);
        stream.drafts.push_back((plain[at + static_cast<size_t>(right)] + 1) % 512);
        stream.drafts.push_back(plain[at + static_cast<size_t>(right) + 1]);
      }
      EXPECT_TRUE(std::equal(stream.reply.begin(), stream.reply.end(), plain.begin())) << right;
      EXPECT_EQ(stream.accepted, right * (steps - 1));
    }
  }
}

TEST_P(RunnerTest, AFullWindowOfRightDraftsStands) {
  const auto runner = make_runner();
  const Tokens prompt = make_prompt(21, 6);
  const Tokens plain = plain_reply(*runner, prompt, kGreedy, 24);
  Stream stream{.prompt = prompt};
  step_together(*runner, {&stream});
  stream.drafts.assign(plain.begin() + 1, plain.begin() + kernels::kMaxWindow);
  step_together(*runner, {&stream});
  EXPECT_EQ(stream.accepted, kernels::kMaxWindow - 1);
  step_together(*runner, {&stream});
  EXPECT_TRUE(std::equal(stream.reply.begin(), stream.reply.end(), plain.begin()));
}

TEST_P(RunnerTest, AnyChunksGiveTheSameReplyAndDrafts) {
  const auto runner = make_runner();
  for (const Sampling& sampling : {kGreedy, kSampled}) {
    Stream whole{.prompt = make_prompt(30, 7), .sampling = sampling, .depth = 3, .uses_mtp = true};
    const Trace expected = drafted_run(*runner, whole, 5);
    for (const int chunk : {1, 3, 16, 29}) {
      Stream cut = whole;
      cut.chunk = chunk;
      Trace run = drafted_run(*runner, cut, 5);
      std::erase_if(run.drafts, [](const Tokens& drafts) { return drafts.empty(); });
      EXPECT_EQ(run.reply, expected.reply) << chunk;
      EXPECT_EQ(run.drafts, expected.drafts) << chunk;
    }
  }
}

// The reference's two roles are the same arithmetic, so a reply that was decoded in windows and one
// that comes back as a prompt must leave the head in the same state: same first token, same drafts.
TEST_P(ReferenceRunnerTest, TheHeadIsWhereAFreshPromptWouldPutIt) {
  const auto runner = make_runner();
  for (const int right : {0, 1, 2}) {
    const Sampling sampling = right == 1 ? kSampled : kGreedy;
    const Tokens prompt = make_prompt(18, 8);
    const Tokens plain = plain_reply(*runner, prompt, sampling, 24);
    Stream stream{.prompt = prompt, .sampling = sampling, .depth = 3, .uses_mtp = true};
    for (int step = 0; step < 5; ++step) {
      step_together(*runner, {&stream});
      Tokens past = prompt;
      past.insert(past.end(), stream.reply.begin(), stream.reply.end() - 1);
      Stream fresh{.prompt = past, .sampling = sampling, .slot = 1, .depth = 3, .uses_mtp = true};
      step_together(*runner, {&fresh});
      ASSERT_FALSE(HasFatalFailure());
      EXPECT_EQ(fresh.reply.back(), stream.reply.back());
      EXPECT_EQ(fresh.drafts, stream.drafts) << "step " << step << " right " << right;
      ASSERT_EQ(stream.drafts.size(), 3U);
      const size_t at = stream.reply.size();
      for (size_t i = 0; i < static_cast<size_t>(right); ++i) stream.drafts[i] = plain[at + i];
    }
    EXPECT_GE(stream.accepted, right * 4);
  }
}

// Rows of steps that asked for no drafts wait, more of them than a backlog holds too, and a window
// that is cut in the middle of them; the drafts that come then are those of a fresh prompt.
TEST_P(ReferenceRunnerTest, RowsThatWaitedForTheHeadCountAsIfTheyHadNot) {
  const auto runner = make_runner();
  const auto other = make_runner();
  for (const int steps : {1, 2, 17, kTinyRows, kTinyRows + 9}) {
    const Tokens prompt = make_prompt(18, 8);
    Stream stream{.prompt = prompt, .uses_mtp = true};
    for (int step = 0; step < steps; ++step) {
      if (step == 5) {
        // Right drafts of the test's own, then back into the middle of their window.
        const Tokens plain = plain_reply(*other, prompt, kGreedy, 12);
        const size_t at = stream.reply.size();
        stream.drafts.assign(plain.begin() + static_cast<std::ptrdiff_t>(at),
                             plain.begin() + static_cast<std::ptrdiff_t>(at) + 3);
        step_together(*runner, {&stream});
        stream.go_back(2);
        continue;
      }
      step_together(*runner, {&stream});
    }
    stream.depth = 3;
    step_together(*runner, {&stream});
    Tokens past = prompt;
    past.insert(past.end(), stream.reply.begin(), stream.reply.end() - 1);
    Stream fresh{.prompt = past, .slot = 1, .depth = 3, .uses_mtp = true};
    while (fresh.reply.empty()) step_together(*runner, {&fresh});
    ASSERT_FALSE(HasFatalFailure());
    EXPECT_EQ(fresh.reply.back(), stream.reply.back());
    EXPECT_EQ(fresh.drafts, stream.drafts) << steps;
    EXPECT_EQ(stream.drafts.size(), 3U);
  }
}

// Forwards of trunk and head.
struct ForwardCounter : model::Probe {
  void begin(const kernels::Batch&) override { ++forwards; }
  void floats(std::string_view, const float*, int, int) override {}
  void ints(std::string_view, const int32_t*, int, int) override {}
  int forwards = 0;
};

// A prompt's rows wait as a reply's do: until the first draft the head costs nothing.
TEST(HeadBacklog, APromptThatAsksForNoDraftsLeavesTheHeadAlone) {
  ForwardCounter counter;
  auto made = Runner::create(tiny_model("reference"), {.slots = 2,
                                                       .context = kTinyContext,
                                                       .max_rows = kTinyRows,
                                                       .page_rows = 16,
                                                       .probe = &counter});
  ASSERT_TRUE(made.ok());
  Runner* const runner = made.value().get();
  Stream stream{.prompt = make_prompt(40, 9), .chunk = 18, .uses_mtp = true};
  while (stream.in_prompt()) step_together(*runner, {&stream});
  step_together(*runner, {&stream});
  EXPECT_EQ(counter.forwards, 3 + 1);
  Stream eager{.prompt = stream.prompt, .slot = 1, .chunk = 18, .depth = 1, .uses_mtp = true};
  counter.forwards = 0;
  while (eager.in_prompt()) step_together(*runner, {&eager});
  // Before the last chunk the head takes in the others, then that chunk, then its last row.
  EXPECT_EQ(counter.forwards, 3 + 3);
  counter.forwards = 0;
  stream.depth = 1;
  step_together(*runner, {&stream});
  EXPECT_EQ(counter.forwards, 1 + 2);
  while (eager.reply.size() < stream.reply.size()) step_together(*runner, {&eager});
  ASSERT_FALSE(HasFatalFailure());
  EXPECT_TRUE(std::equal(stream.reply.begin(), stream.reply.end(), eager.reply.begin()));
}

// So hot that the noise alone decides: head and target then draw the same token, if and only if a
// draft is drawn with the noise of its own position (E6).
TEST_P(RunnerTest, DraftsAreDrawnWithTheTargetsOwnNoise) {
  const auto runner = make_runner();
  const Sampling noise = {.temperature = 1e6F, .seed = 21};
  Stream stream{.prompt = make_prompt(6, 12), .sampling = noise, .depth = 3, .uses_mtp = true};
  for (int step = 0; step < 5; ++step) step_together(*runner, {&stream});
  EXPECT_EQ(stream.accepted, 4 * 3);
  const Tokens plain = plain_reply(*runner, stream.prompt, noise, 17);
  EXPECT_EQ(stream.reply, plain);
}

// The head's passes over all sequences at once and over one after the other draft the same (S3).
TEST_P(RunnerTest, TogetherIsAlone) {
  const auto runner = make_runner({.slots = 4, .page_rows = 8});
  std::vector<Stream> streams;
  for (int i = 0; i < 4; ++i) {
    streams.push_back({.prompt = make_prompt(5 + 4 * i, static_cast<uint64_t>(20 + i)),
                       .sampling = i % 2 == 0 ? kGreedy : kSampled,
                       .slot = i,
                       .depth = i == 3 ? 0 : i + 1,
                       .uses_mtp = i != 3});
  }
  std::vector<Trace> alone;
  for (const Stream& stream : streams) alone.push_back(drafted_run(*runner, stream, 8));
  for (const bool serial : {false, true}) {
    const auto shared = make_runner({.slots = 4, .page_rows = 8, .serial_drafts = serial});
    std::vector<Stream> copies = streams;
    std::vector<Stream*> all;
    for (Stream& stream : copies) all.push_back(&stream);
    std::vector<Trace> together(4);
    for (int step = 0; step < 8; ++step) {
      step_together(*shared, all);
      ASSERT_FALSE(HasFatalFailure());
      for (size_t i = 0; i < all.size(); ++i) together[i].drafts.push_back(all[i]->drafts);
    }
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_TRUE(std::equal(alone[i].reply.begin(), alone[i].reply.end(), all[i]->reply.begin()));
      EXPECT_TRUE(
          std::equal(alone[i].drafts.begin(), alone[i].drafts.end(), together[i].drafts.begin()))
          << i << " serial " << serial;
      EXPECT_EQ(together[i].drafts[0].size(), static_cast<size_t>(all[i]->depth));
    }
  }
}

TEST_P(RunnerTest, GoesBackInsideTheLastWindow) {
  const auto runner = make_runner();
  const Tokens prompt = make_prompt(11, 9);
  const Tokens plain = plain_reply(*runner, prompt, kGreedy, 24);
  for (const bool uses_mtp : {false, true}) {
    for (int back = 1; back <= 4; ++back) {
      Stream stream{.prompt = prompt, .depth = uses_mtp ? 2 : 0, .uses_mtp = uses_mtp};
      step_together(*runner, {&stream});
      stream.drafts.assign(plain.begin() + 1, plain.begin() + 5);
      step_together(*runner, {&stream});
      ASSERT_EQ(stream.accepted, 4);
      stream.go_back(back);
      while (stream.reply.size() < 12) step_together(*runner, {&stream});
      EXPECT_TRUE(std::equal(stream.reply.begin(), stream.reply.end(), plain.begin())) << back;
    }
  }
}

TEST_P(RunnerTest, AUsedSlotStartsAfresh) {
  const auto runner = make_runner();
  const Stream first{.prompt = make_prompt(40, 1), .depth = 3, .uses_mtp = true};
  const Stream second{.prompt = make_prompt(17, 2), .depth = 3, .uses_mtp = true};
  const Trace expected = drafted_run(*make_runner(), second, 10);
  drafted_run(*runner, first, 30);
  const Trace run = drafted_run(*runner, second, 10);
  EXPECT_EQ(run.reply, expected.reply);
  EXPECT_EQ(run.drafts, expected.drafts);
}

// Whatever the pages are, how the state lies in them, and which ones a sequence gets (E3).
TEST_P(RunnerTest, PagesAndSlotChangeNothing) {
  const Stream stream{.prompt = make_prompt(30, 4), .depth = 3, .uses_mtp = true};
  const Trace expected = drafted_run(*make_runner(), stream, 12);
  for (const int page_rows : {4, 12, 256, 260}) {
    Stream elsewhere = stream;
    elsewhere.slot = 2;
    const auto runner = make_runner({.slots = 3, .page_rows = page_rows});
    const Trace run = drafted_run(*runner, elsewhere, 12);
    EXPECT_EQ(run.reply, expected.reply);
    EXPECT_EQ(run.drafts, expected.drafts);
  }
}

// Pages in any order, and full of rubbish from what was there before: the null page alone is zero.
TEST_P(RunnerTest, ShuffledAndUsedPagesChangeNothing) {
  const Stream stream{.prompt = make_prompt(50, 4), .depth = 3, .uses_mtp = true};
  const Trace expected = drafted_run(*make_runner(), stream, 12);
  for (const int page_rows : {4, 16, 256}) {
    const auto runner = make_runner({.slots = 2, .page_rows = page_rows});
    const bool pieces = runner->storage().pool.form() == StateForm::kPieces;
    const PlanLimits& limits = runner->limits();
    std::vector<memory::PageId> pages(static_cast<size_t>(limits.pages));
    std::iota(pages.begin(), pages.end(), 0);
    std::mt19937_64 random(5);
    Stream other{.prompt = make_prompt(60, 9), .slot = 1};
    for (int round = 0; round < 3; ++round) {
      // Both slots write over pages that were the other's a round ago.
      std::shuffle(pages.begin(), pages.end(), random);
      other.done = 0;
      other.reply.clear();
      step_together(*runner, {&other});
      Stream own = stream;
      Trace run;
      while (own.reply.size() < 12 && !HasFatalFailure()) {
        scheduler::StepPlan plan{.segments = {own.segment()}};
        scheduler::Segment& segment = plan.segments.front();
        flashlane::testing::give_pages(*runner, segment);
        if (own.done == 0) {
          size_t used = 0;
          // A run's pages are consecutive.
          if (pieces)
            for (memory::PageId& page : segment.state_pages) page = pages[used++];
          for (memory::PageId& page : segment.new_pages) {
            const auto taken = [&](memory::PageId id) {
              return std::count(segment.state_pages.begin(), segment.state_pages.end(), id) > 0;
            };
            while (taken(pages[used])) ++used;
            page = pages[used++];
          }
        }
        const auto result = runner->run(plan);
        ASSERT_TRUE(result.ok()) << result.error().message;
        own.take(segment, result.value().segments.front());
        run.drafts.push_back(own.drafts);
      }
      own.reply.resize(12);
      EXPECT_EQ(own.reply, expected.reply) << page_rows << " round " << round;
      EXPECT_EQ(run.drafts, expected.drafts) << page_rows << " round " << round;
    }
  }
}

TEST_P(RunnerTest, DraftedIsPlainWithBf16Keys) {
  const auto runner = make_runner({.slots = 1, .page_rows = 16, .kv_dtype = DType::kBf16});
  const Tokens prompt = make_prompt(30, 4);
  const Stream stream{.prompt = prompt, .depth = 3, .uses_mtp = true};
  EXPECT_EQ(drafted_run(*runner, stream, 20).reply, plain_reply(*runner, prompt, kGreedy, 20));
}

TEST_P(RunnerTest, TheContextCanBeFilledToItsEnd) {
  const auto runner = make_runner({.slots = 1, .context = 24, .page_rows = 8});
  Stream stream{.prompt = make_prompt(20, 10), .depth = 3, .uses_mtp = true};
  const Tokens plain = plain_reply(*runner, stream.prompt, kGreedy, 4);
  step_together(*runner, {&stream});
  EXPECT_EQ(stream.drafts.size(), 3U);  // positions 21 to 23
  stream.drafts = {plain[1]};
  step_together(*runner, {&stream});
  EXPECT_EQ(stream.accepted, 1);
  EXPECT_EQ(stream.drafts.size(), 1U);  // position 23
  stream.drafts.clear();
  step_together(*runner, {&stream});
  EXPECT_TRUE(stream.drafts.empty());
  EXPECT_EQ(stream.reply, plain);
  scheduler::StepPlan plan{.segments = {stream.segment()}};
  ASSERT_TRUE(runner->run(plan).ok());  // the row at 23; its token has no position
  plan.segments[0].start_position = 24;
  EXPECT_EQ(runner->run(plan).error().message,
            "segment 0 has positions 24 to 24; the context is 24");
}

// Random windows, drafts, cuts and companions against the plain replies.
TEST_P(SlowRunnerTest, RandomPlansGiveThePlainReplies) {
  std::mt19937_64 random(4);
  const auto roll = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  const auto runner = make_runner();
  for (int world = 0; world < 6; ++world) {
    std::vector<Stream> streams;
    std::vector<Tokens> plain;
    for (int i = 0; i < 3; ++i) {
      streams.push_back({.prompt = make_prompt(roll(1, 40), random()),
                         .sampling = roll(0, 1) == 0 ? kGreedy : kSampled,
                         .slot = i,
                         .chunk = roll(1, 20),
                         .depth = roll(0, 3),
                         .uses_mtp = true});
      plain.push_back(plain_reply(*runner, streams.back().prompt, streams.back().sampling, 70));
    }
    for (int step = 0; step < 60; ++step) {
      const bool prompts = roll(0, 1) == 0;
      std::vector<Stream*> chosen;
      for (size_t i = 0; i < streams.size(); ++i) {
        Stream& stream = streams[i];
        if (stream.in_prompt() != prompts || stream.reply.size() > 50 || roll(0, 3) == 0) continue;
        if (!prompts && roll(0, 1) == 0) {
          const size_t at = stream.reply.size();
          const int right = roll(0, 3);
          stream.drafts.assign(plain[i].begin() + static_cast<ptrdiff_t>(at),
                               plain[i].begin() + static_cast<ptrdiff_t>(at) + right);
          if (roll(0, 1) == 0) stream.drafts.push_back(roll(0, 511));
        }
        chosen.push_back(&stream);
      }
      if (chosen.empty()) continue;
      std::vector<size_t> before;
      for (const Stream* stream : chosen) before.push_back(stream->reply.size());
      step_together(*runner, chosen);
      ASSERT_FALSE(HasFatalFailure());
      for (size_t i = 0; i < chosen.size(); ++i) {
        const int gained = static_cast<int>(chosen[i]->reply.size() - before[i]);
        if (!prompts && gained > 1 && roll(0, 2) == 0) chosen[i]->go_back(roll(1, gained - 1));
      }
    }
    for (size_t i = 0; i < streams.size(); ++i) {
      const Tokens& reply = streams[i].reply;
      EXPECT_TRUE(std::equal(reply.begin(), reply.end(), plain[i].begin())) << world << " " << i;
    }
  }
}

TEST(RunnerMemory, IsWhatTheShapeNeeds) {
  const model::ModelShape& shape = tiny_model().shape();
  RunnerOptions options{
      .slots = 3, .context = 100, .max_rows = 64, .page_rows = 32, .state_form = StateForm::kRun};
  const RunnerMemory memory = runner_memory(shape, options).value();
  const model::StateLayout layout = model::make_state_layout(shape, DType::kF32, 32);
  // Pieces stand at multiples of 256, the backlog's blocks of 16 rows behind the model's.
  const size_t state_bytes = layout.pieces_bytes + 4 * HeadBacklog::block_bytes(shape.wide());
  const int state_pages = static_cast<int>(div_ceil(state_bytes, layout.page_bytes));
  EXPECT_EQ(memory.pages, 3 * (state_pages + 4));  // 116 rows
  EXPECT_EQ(memory.pool_bytes, static_cast<size_t>(memory.pages + 1) * layout.page_bytes);
  EXPECT_EQ(memory.slots_bytes, 3 * (116 * 4 + (4 + static_cast<size_t>(state_pages)) * 4 +
                                     (layout.pieces.size() + 4) * sizeof(std::byte*)));
  EXPECT_EQ(memory.kept_bytes, 0U);
  options.kept_pages = 5;
  EXPECT_EQ(runner_memory(shape, options)->kept_bytes, 5 * layout.page_bytes);
  options.pages = 17;
  EXPECT_EQ(runner_memory(shape, options)->pool_bytes, 18 * layout.page_bytes);
  EXPECT_EQ(memory.step_bytes, model::Activations(shape, 64).bytes() + 16 * 512 * 4);
}

}  // namespace
}  // namespace flashlane::runner
