// One sequence driven by hand through a runner: it makes the next segment of a plan and takes its
// result, with drafts from the head or of the test's own making. So a test can put several
// sequences into one plan, or feed windows that no scheduler would.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "runner/own_pages.h"
#include "runner/runner.h"

namespace flashlane::testing {

struct Stream {
  std::vector<int32_t> prompt;
  scheduler::Sampling sampling = {};
  int slot = 0;
  int chunk = 64;
  int depth = 0;  // drafts to ask for
  bool uses_mtp = false;

  int done = 0;  // rows committed
  std::vector<int32_t> reply = {};
  std::vector<int32_t> drafts = {};  // for the next window; a test may change them
  int accepted = 0;

  int32_t token_at(int position) const {
    const auto index = static_cast<size_t>(position);
    return index < prompt.size() ? prompt[index] : reply[index - prompt.size()];
  }
  bool in_prompt() const { return done < static_cast<int>(prompt.size()); }

  scheduler::Segment segment() const {
    scheduler::Segment segment{
        .slot = slot, .start_position = done, .sampling = sampling, .uses_mtp = uses_mtp};
    if (in_prompt()) {
      const int end = std::min(done + chunk, static_cast<int>(prompt.size()));
      segment.tokens.assign(prompt.begin() + done, prompt.begin() + end);
      const bool last = end == static_cast<int>(prompt.size());
      segment.next_token = last ? -1 : prompt[static_cast<size_t>(end)];
      segment.draft_depth = last ? depth : 0;
    } else {
      segment.kind = scheduler::SegmentKind::kVerify;
      segment.tokens = {token_at(done)};
      segment.tokens.insert(segment.tokens.end(), drafts.begin(), drafts.end());
      segment.draft_depth = depth;
    }
    return segment;
  }

  void take(const scheduler::Segment& run, const scheduler::SegmentResult& result) {
    const bool prefill = run.kind == scheduler::SegmentKind::kPrefill;
    const int kept = static_cast<int>(prefill ? run.tokens.size() : result.tokens.size());
    done += kept;
    if (!prefill) accepted += kept - 1;
    reply.insert(reply.end(), result.tokens.begin(), result.tokens.end());
    drafts = result.drafts;
  }

  // Forgets the reply's last tokens, so that the next window starts inside the last one.
  void go_back(int tokens) {
    reply.resize(reply.size() - static_cast<size_t>(tokens));
    done -= tokens;
    drafts.clear();
  }
};

// With its first rows, a slot's part of the pool.
inline void give_pages(const runner::Runner& runner, scheduler::Segment& segment) {
  if (segment.start_position != 0) return;
  const runner::PlanLimits& limits = runner.limits();
  const int rows = limits.context + kernels::kMaxWindow;
  runner::give_own_pages(segment, limits, segment.slot * runner::own_pages(limits, rows), rows);
}

// One step over all of them; they must be in the same phase.
inline void step_together(runner::Runner& runner, const std::vector<Stream*>& streams) {
  scheduler::StepPlan plan;
  for (const Stream* stream : streams) {
    plan.segments.push_back(stream->segment());
    give_pages(runner, plan.segments.back());
  }
  const auto result = runner.run(plan);
  ASSERT_TRUE(result.ok()) << result.error().message;
  ASSERT_EQ(result.value().segments.size(), streams.size());
  for (size_t i = 0; i < streams.size(); ++i) {
    streams[i]->take(plan.segments[i], result.value().segments[i]);
  }
}

// The first `count` reply tokens, one row a step and without the MTP head.
inline std::vector<int32_t> plain_reply(runner::Runner& runner, const std::vector<int32_t>& prompt,
                                        const scheduler::Sampling& sampling, int count) {
  Stream stream{.prompt = prompt, .sampling = sampling};
  while (static_cast<int>(stream.reply.size()) < count && !::testing::Test::HasFatalFailure()) {
    step_together(runner, {&stream});
  }
  return stream.reply;
}

}  // namespace flashlane::testing
