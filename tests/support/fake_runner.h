// A runner without a model: the next token is a hash of everything that was fed to the slot, so
// that any slip of position, roll back or order changes the output. Drafts are right, wrong, or
// either by chance. It checks every plan against its own idea of the slot, as the real runner does.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "base/keyed_random.h"
#include "base/result.h"
#include "scheduler/scheduler.h"

namespace flashlane::testing {

enum class Drafting : uint8_t { kRight, kWrong, kRandom };

// The token after `history`; with a temperature also a function of the seed. With a `memory` only
// so many last tokens count, so that texts run into circles.
inline int32_t fake_token(std::span<const int32_t> history, const scheduler::Sampling& sampling,
                          int vocabulary, int memory = 0) {
  uint64_t hash = sampling.temperature > 0 ? sampling.seed + 1 : 0;
  const auto last = static_cast<size_t>(memory);
  if (memory > 0 && history.size() > last) history = history.last(last);
  for (const int32_t token : history) hash = splitmix64(hash ^ static_cast<uint64_t>(token + 1));
  return static_cast<int32_t>(hash % static_cast<uint64_t>(vocabulary));
}

// The log probability of `token` after `history`: a hash of both.
inline float fake_logprob(std::span<const int32_t> history, int32_t token) {
  uint64_t hash = splitmix64(static_cast<uint64_t>(token) + 99);
  for (const int32_t before : history) hash = splitmix64(hash ^ static_cast<uint64_t>(before + 1));
  return -static_cast<float>(hash % 4096) / 64;
}

struct FakeRunner {
  int vocabulary = 16;
  int memory = 0;
  Drafting drafting = Drafting::kRight;
  int fail_at_step = -1;  // this call fails
  size_t fail_after = 0;  // segments that it runs before it does
  Error failure = {ErrorCode::kInternal, "the fake failed"};

  int slots = 1;

  int steps = 0;
  int64_t rows = 0;
  int widest = 0;  // rows of a decode segment
  struct Slot {
    std::vector<int32_t> history = {};  // committed rows
    int window_start = -1;              // of the last verify, while it may be cut
  };
  std::map<int, Slot> kept = {};
  // What lies on a page of the arena: a piece of a state, and which.
  struct Copy {
    std::vector<int32_t> history = {};
    size_t place = 0;
  };
  std::map<int32_t, Copy> arena = {};
  // Copies and restores that fail.
  bool fail_keeps = false;
  bool fail_restores = false;
  bool fail_moves = false;
  // What the last step of a slot left for one that its verdict fills.
  struct Verdict {
    int32_t last_drawn = -1;
    std::vector<int32_t> drafts = {};
  };
  std::map<int, Verdict> verdicts = {};
  scheduler::StepPlan filled = {};  // the last plan that a verdict filled, as it was run
  size_t most_shared = 0;           // segments of a decode step

  Result<scheduler::StepResult> run(const scheduler::StepPlan& plan) {
    if (plan.segments.empty() || plan.segments.front().verdict_rows == 0) return run_whole(plan);
    filled = plan;
    scheduler::Segment& segment = filled.segments.front();
    EXPECT_EQ(filled.segments.size(), 1u) << "a verdict's segment shares its plan";
    EXPECT_TRUE(segment.tokens.empty() && segment.kind == scheduler::SegmentKind::kVerify);
    const auto verdict = verdicts.find(segment.slot);
    if (verdict == verdicts.end()) return error(ErrorCode::kInternal, "the step before it failed");
    fill_from_verdict(segment, static_cast<int>(kept[segment.slot].history.size()),
                      verdict->second.last_drawn, verdict->second.drafts);
    auto result = run_whole(filled);
    if (!result.ok()) return result;
    result.value().segments.front().rows = static_cast<int>(segment.tokens.size());
    return result;
  }

 private:
  Result<scheduler::StepResult> run_whole(const scheduler::StepPlan& plan) {
    check(plan);
    for (const scheduler::Segment& segment : plan.segments) verdicts.erase(segment.slot);
    for (const scheduler::Restore& restore : plan.restores) verdicts.erase(restore.slot);
    const bool fails = steps++ == fail_at_step;
    scheduler::StepResult result;
    if (fails && plan.segments.empty()) return failure;
    for (const scheduler::Move& move : plan.moves) {
      EXPECT_FALSE(kept[move.slot].history.empty())
          << "slot " << move.slot << " has nothing to move";
      result.moved.push_back(!fail_moves);
    }
    for (const scheduler::Restore& restore : plan.restores) {
      result.restored.push_back(run_restore(restore));
    }
    for (const scheduler::Segment& segment : plan.segments) {
      if (fails && result.segments.size() == fail_after) return failure;
      result.segments.push_back(run_segment(segment));
    }
    if (fails) return failure;
    for (size_t i = 0; i < plan.segments.size(); ++i) {
      const scheduler::SegmentResult& segment = result.segments[i];
      if (segment.tokens.empty()) continue;
      verdicts[plan.segments[i].slot] = {segment.tokens.back(), segment.drafts};
    }
    return result;
  }

  void check(const scheduler::StepPlan& plan) {
    std::set<int> taken;
    size_t decode_rows = 0;
    for (const scheduler::Segment& segment : plan.segments) {
      EXPECT_EQ(segment.kind, plan.segments.front().kind) << "a step has one role";
      EXPECT_TRUE(segment.slot >= 0 && segment.slot < slots) << segment.slot;
      EXPECT_TRUE(taken.insert(segment.slot).second) << "slot " << segment.slot << " twice";
      EXPECT_FALSE(segment.tokens.empty());
      if (segment.kind == scheduler::SegmentKind::kVerify) decode_rows += segment.tokens.size();
    }
    EXPECT_LE(decode_rows, size_t{scheduler::kMostDecodeRows});
    if (decode_rows > 0) most_shared = std::max(most_shared, plan.segments.size());
  }

  scheduler::SegmentResult run_segment(const scheduler::Segment& segment) {
    Slot& slot = kept[segment.slot];
    rows += static_cast<int64_t>(segment.tokens.size());
    rewind(slot, segment.start_position);
    if (segment.kind == scheduler::SegmentKind::kVerify) return verify(slot, segment);
    scheduler::SegmentResult result = prefill(slot, segment);
    if (segment.keep_pages.empty()) return result;
    EXPECT_GE(segment.next_token, 0) << "a state is kept at a prompt's end";
    result.kept = !fail_keeps;
    for (size_t place = 0; place < segment.keep_pages.size(); ++place) {
      Copy& copy = arena[segment.keep_pages[place]];
      copy = result.kept ? Copy{slot.history, place} : Copy{};
    }
    return result;
  }

  bool run_restore(const scheduler::Restore& restore) {
    Slot& slot = kept[restore.slot];
    slot = {};
    if (fail_restores) return false;
    for (size_t place = 0; place < restore.kept_pages.size(); ++place) {
      const Copy& copy = arena[restore.kept_pages[place]];
      EXPECT_EQ(copy.history, restore.tokens) << "another state lies on a kept page";
      EXPECT_EQ(copy.place, place);
    }
    slot.history = restore.tokens;
    return true;
  }

  void rewind(Slot& slot, int position) {
    const int length = static_cast<int>(slot.history.size());
    const bool in_window =
        slot.window_start >= 0 && position > slot.window_start && position < length;
    EXPECT_TRUE(position == 0 || position == length || in_window)
        << "start " << position << " with " << length << " rows done";
    slot.history.resize(static_cast<size_t>(position));
  }

  scheduler::SegmentResult prefill(Slot& slot, const scheduler::Segment& segment) {
    scheduler::SegmentResult result;
    std::vector<int32_t>& history = slot.history;
    slot.window_start = -1;
    history.insert(history.end(), segment.tokens.begin(), segment.tokens.end());
    if (segment.next_token >= 0) {
      EXPECT_EQ(segment.draft_depth, 0);
      return result;
    }
    result.tokens = {fake_token(history, segment.sampling, vocabulary, memory)};
    add_logprobs(segment, history, result);
    result.drafts = drafts(slot, segment, result.tokens.back());
    return result;
  }

  scheduler::SegmentResult verify(Slot& slot, const scheduler::Segment& segment) {
    scheduler::SegmentResult result;
    std::vector<int32_t>& history = slot.history;
    widest = std::max(widest, static_cast<int>(segment.tokens.size()));
    slot.window_start = segment.start_position;
    for (size_t row = 0; row < segment.tokens.size(); ++row) {
      history.push_back(segment.tokens[row]);
      const bool forced = row < static_cast<size_t>(segment.forced_rows);
      const int32_t token = forced ? segment.tokens[row + 1]
                                   : fake_token(history, segment.sampling, vocabulary, memory);
      result.tokens.push_back(token);
      add_logprobs(segment, history, result);
      if (row + 1 < segment.tokens.size() && segment.tokens[row + 1] != token) break;
    }
    result.drafts = drafts(slot, segment, result.tokens.back());
    return result;
  }

  // Of the newest token, which follows `history`.
  static void add_logprobs(const scheduler::Segment& segment, std::span<const int32_t> history,
                           scheduler::SegmentResult& result) {
    if (segment.logprobs < 0) return;
    scheduler::TokenLogprobs out{.logprob = fake_logprob(history, result.tokens.back())};
    if (segment.replacement >= 0) out.of_replacement = fake_logprob(history, segment.replacement);
    for (int32_t id = 0; id < segment.logprobs; ++id) {
      out.best.push_back({id, fake_logprob(history, id)});
    }
    result.logprobs.push_back(std::move(out));
  }

  std::vector<int32_t> drafts(const Slot& slot, const scheduler::Segment& segment,
                              int32_t pending) const {
    EXPECT_GE(segment.draft_depth, 0);
    EXPECT_TRUE(segment.uses_mtp || segment.draft_depth == 0);
    std::vector<int32_t> ahead = slot.history;
    ahead.push_back(pending);
    std::vector<int32_t> result;
    for (int i = 0; i < segment.draft_depth; ++i) {
      const int32_t right = fake_token(ahead, segment.sampling, vocabulary, memory);
      const bool slip = drafting == Drafting::kWrong ||
                        (drafting == Drafting::kRandom && splitmix64(ahead.size()) % 3 == 0);
      ahead.push_back(slip ? (right + 1) % vocabulary : right);
      result.push_back(ahead.back());
    }
    return result;
  }
};

struct SoloReply {
  std::vector<int32_t> tokens = {};
  scheduler::FinishReason reason = scheduler::FinishReason::kLength;
};

// What a request must give, worked out token by token without any of the code under test.
inline SoloReply solo_reply(const scheduler::SequenceSpec& spec, int vocabulary,
                            std::span<const std::string> token_texts = {}, int memory = 0) {
  SoloReply reply;
  std::vector<int32_t> history = spec.prompt;
  std::vector<int32_t> forced;
  bool thinks = spec.thinking.budget > 0;
  std::string text;
  while (static_cast<int>(reply.tokens.size()) < spec.max_tokens) {
    int32_t token = fake_token(history, spec.sampling, vocabulary, memory);
    const std::vector<int32_t>& close = spec.thinking.close_tokens;
    if (thinks && !close.empty() &&
        static_cast<int>(reply.tokens.size()) + 1 >= spec.thinking.budget) {
      thinks = false;
      forced = close;
    }
    if (!forced.empty()) {
      token = forced.front();
      forced.erase(forced.begin());
    }
    if (token == spec.thinking.end_token) thinks = false;
    history.push_back(token);
    reply.tokens.push_back(token);
    if (static_cast<size_t>(token) < token_texts.size()) {
      text += token_texts[static_cast<size_t>(token)];
    }
    bool stop = std::count(spec.end_ids.begin(), spec.end_ids.end(), token) > 0;
    for (const std::string& wanted : spec.stop_strings) {
      stop = stop || (!wanted.empty() && text.find(wanted) != std::string::npos);
    }
    if (stop) {
      reply.reason = scheduler::FinishReason::kStop;
      break;
    }
  }
  return reply;
}

}  // namespace flashlane::testing
