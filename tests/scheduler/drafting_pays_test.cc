// Drafting among several replies, by a clock of its own: a fake machine on which steps take what
// they took on a real one, where rows cost more than the table that was measured at load says. The
// same requests with drafts and without, prompts included: whoever may draft must not be slower.
#include <gtest/gtest.h>

#include <array>
#include <map>
#include <vector>

#include "base/keyed_random.h"
#include "scheduler/draft_allocation.h"
#include "scheduler/scheduler.h"

namespace flashlane::scheduler {
namespace {

constexpr int kPrompt = 40;
constexpr int kReply = 97;

// What calibration measured; ms of 1, 2, 4, 8, 16 rows.
const CostTable& forward() {
  static const CostTable table(
      std::vector<MeasuredCost>{{1, 1.13}, {2, 1.50}, {4, 2.55}, {8, 3.51}, {16, 5.36}}, 16);
  return table;
}
const CostTable& head() {
  static const CostTable table(
      std::vector<MeasuredCost>{{1, 0.27}, {2, 0.33}, {4, 0.56}, {8, 0.79}, {16, 1.19}}, 16);
  return table;
}

// What is said, and how well it can be foretold.
struct Text {
  std::array<double, 3> acceptance = {};  // of the head's first, second, third draft
  int repeated = 0;                       // of every 48 tokens, so many repeat the 24 before them
};

// One segment after another, as the runner has it, for a model that says what `text` says.
class Machine {
 public:
  Machine(const Text& text, double noise) : text_(text), noise_(noise) {}

  StepResult run(const StepPlan& plan) {
    StepResult result;
    step_ = {};
    for (const Segment& segment : plan.segments) result.segments.push_back(run_segment(segment));
    const bool prompt = plan.segments.front().kind == SegmentKind::kPrefill;
    const double ms = prompt ? prompt_ms() : decode_ms(static_cast<int>(plan.segments.size()));
    total_ms_ += ms;
    result.elapsed_ms = ms * disturbance();
    return result;
  }
  double total_ms() const { return total_ms_; }

 private:
  struct Step {
    int rows = 0, late_rows = 0, kept_rows = 0;
    std::vector<int> depths = {};
  };

  double chance(uint64_t a, uint64_t b) const {
    return static_cast<double>(splitmix64(splitmix64(a) ^ b) >> 11) * 0x1p-53;
  }
  int32_t token(const Segment& segment, int position) const {
    const int place = position % 48;
    if (place >= 24 && place < 24 + text_.repeated) position -= 24;
    return static_cast<int32_t>(
        splitmix64(segment.sequence.value * 4096 + static_cast<uint64_t>(position)) % (1U << 30U));
  }

  SegmentResult run_segment(const Segment& segment) {
    SegmentResult result;
    const int rows = static_cast<int>(segment.tokens.size());
    step_.rows += rows;
    int kept = rows;
    if (segment.kind == SegmentKind::kVerify) {
      for (kept = 1; kept < rows; ++kept) {
        if (segment.tokens[static_cast<size_t>(kept)] !=
            token(segment, segment.start_position + kept))
          break;
      }
    }
    const int end = segment.start_position + kept;  // position of the next token
    if (segment.next_token == -1) {
      const int first = segment.kind == SegmentKind::kVerify ? segment.start_position + 1 : end;
      for (int at = first; at <= end; ++at) result.tokens.push_back(token(segment, at));
      draft(segment, end, result);
    }
    if (segment.uses_mtp) take_in(segment, rows, kept);
    return result;
  }

  void draft(const Segment& segment, int end, SegmentResult& result) const {
    for (int depth = 0; depth < segment.draft_depth; ++depth) {
      const int at = end + 1 + depth;
      const bool right = chance(segment.sequence.value + 77, static_cast<uint64_t>(at)) <
                         text_.acceptance[static_cast<size_t>(depth)];
      result.drafts.push_back(right ? token(segment, at) : -2);
    }
  }

  // The MTP head's rows wait for the first draft, at most so many.
  void take_in(const Segment& segment, int rows, int kept) {
    int& waiting = waiting_[segment.slot];
    if (segment.start_position == 0) waiting = 0;
    if (segment.draft_depth > 0 || waiting + rows > kMostWaitingRows) {
      step_.late_rows += waiting;
      waiting = 0;
    }
    if (segment.draft_depth == 0) {
      waiting += kept;
    } else {
      (segment.kind == SegmentKind::kVerify ? step_.kept_rows : step_.late_rows) += kept;
      step_.depths.push_back(segment.draft_depth);
    }
  }

  double prompt_ms() const { return 0.3 + 0.235 * step_.rows + head_ms(); }
  double decode_ms(int replies) const {
    return forward().ms(step_.rows) * (0.96 + 0.02 * (step_.rows + replies)) + head_ms();
  }
  double head_ms() const {
    const double late_ms = step_.late_rows == 0 ? 0 : 0.25 + 0.038 * step_.late_rows;
    return late_ms + 1.17 * head_chain_ms(step_.depths, head(), 1);
  }
  // The clock's view of a step: off by some per cent, and now and then by far.
  double disturbance() {
    const double roll = chance(4711, ++steps_);
    return 1 + noise_ * (2 * roll - 1) + (noise_ > 0 && roll > 0.98 ? 0.7 : 0);
  }

  Text text_;
  double noise_;
  Step step_ = {};
  std::map<int, int> waiting_ = {};  // by slot
  double total_ms_ = 0;
  uint64_t steps_ = 0;
};

// Of so many replies at once, three times over.
double total_ms(const Text& text, int replies, bool drafts, double noise, int reply = kReply) {
  Machine machine(text, noise);
  Scheduler scheduler({.context = 4096,
                       .slots = replies,
                       .prefill_chunk = 209,
                       .max_draft = 3,
                       .costs = {forward(), head()}});
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < replies; ++i) {
      SequenceSpec spec{.prompt = {}, .max_tokens = reply, .drafts = drafts};
      const int first = (1 << 20) + (round * replies + i) * kPrompt;  // no prompt has copies
      for (int t = 0; t < kPrompt; ++t) spec.prompt.push_back(first + t);
      EXPECT_TRUE(scheduler.submit(spec).ok());
    }
    for (StepPlan plan = scheduler.plan(); !plan.empty(); plan = scheduler.plan()) {
      scheduler.commit(plan, machine.run(plan));
      scheduler.collect();
    }
  }
  return machine.total_ms();
}

double drafted_over_plain(const Text& text, int replies, double noise, int reply = kReply) {
  return total_ms(text, replies, false, noise, reply) / total_ms(text, replies, true, noise, reply);
}

constexpr Text kWeak = {.acceptance = {0.5, 0.4, 0.3}};
constexpr Text kCode = {.acceptance = {0.75, 0.6, 0.5}, .repeated = 12};
constexpr Text kGood = {.acceptance = {0.9, 0.85, 0.8}};
constexpr Text kCertain = {.acceptance = {1, 1, 1}};
constexpr Text kCopying = {.acceptance = {0.7, 0.6, 0.5}, .repeated = 24};
constexpr double kNoise = 0.12;

// Rows that wait go into the head every 256 tokens, whatever is drafted: 4 % of a long reply here.
TEST(DraftingPays, NobodyLosesByBeingAllowedToDraft) {
  for (const Text& text : {kWeak, kCode, kGood, kCopying}) {
    for (const int replies : {2, 4, 8, 16}) {
      for (const double noise : {0.0, kNoise}) {
        SCOPED_TRACE(::testing::Message() << text.acceptance[0] << " repeated " << text.repeated
                                          << ", replies " << replies << ", noise " << noise);
        EXPECT_GT(drafted_over_plain(text, replies, noise), 0.95);
        EXPECT_GT(drafted_over_plain(text, replies, noise, 400), 0.92);
      }
    }
  }
}

TEST(DraftingPays, WhereDraftsPayTheyAreMade) {
  for (const double noise : {0.0, kNoise}) {
    EXPECT_GT(drafted_over_plain(kCertain, 4, noise), 1.08);
    EXPECT_GT(drafted_over_plain(kCertain, 4, noise, 400), 1.12);
    EXPECT_GT(drafted_over_plain(kCopying, 2, noise), 1.01);
    EXPECT_GT(drafted_over_plain(kCopying, 4, noise), 1.01);
  }
}

// Where a draft is worth what it costs, to a per cent, estimates go to and fro.
TEST(DraftingPays, ADoubtfulCaseLosesLittle) {
  EXPECT_GT(drafted_over_plain(kCertain, 8, 0), 0.93);
  EXPECT_GT(drafted_over_plain(kCertain, 8, kNoise), 0.9);
  EXPECT_GT(drafted_over_plain(kCertain, 16, kNoise), 0.96);
}

}  // namespace
}  // namespace flashlane::scheduler
