// The rules say what was committed; what was learned from a segment goes to whoever drafted it.
#include "scheduler/sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace flashlane::scheduler {
namespace {

constexpr int kMostForcedRows = 3;  // beside the pending token, as a plain step of drafts has

ReplyLimits limits_of(const SequenceSpec& spec) {
  return {.max_tokens = spec.max_tokens,
          .end_ids = spec.end_ids,
          .stop_strings = spec.stop_strings,
          .thinking = spec.thinking};
}

}  // namespace

Sequence::Sequence(SequenceId sequence_id, SequenceSpec sequence_spec,
                   const SchedulerOptions& options)
    : id(sequence_id),
      spec(std::move(sequence_spec)),
      rules(limits_of(spec), options.token_bytes),
      uses_mtp(spec.drafts && options.max_draft > 0),
      keeps_mtp(options.max_draft > 0),
      uses_lookup(spec.drafts && options.prompt_lookup),
      acceptance(uses_mtp ? options.max_draft : 0) {}

Sequence::Window Sequence::next_window(bool alone) const {
  if (!spec.drafts) return {};
  const int room = draft_room() - 1;
  const std::span<const int32_t> forced = rules.forced();
  if (!forced.empty()) {
    const int rows = std::min({static_cast<int>(forced.size()), room, kMostForcedRows});
    return {.source = DraftSource::kForced,
            .tokens = {forced.begin(), forced.begin() + std::max(0, rows)}};
  }
  if (uses_lookup) {
    std::vector<int32_t> copy = lookup.proposal(alone, room);
    if (!copy.empty()) {
      std::vector<double> chances = copies.landing(static_cast<int>(copy.size()));
      return {DraftSource::kLookup, std::move(copy), std::move(chances)};
    }
  }
  const int count = std::clamp(room, 0, static_cast<int>(drafts.size()));
  if (count == 0) return {};
  return {.source = DraftSource::kHead,
          .tokens = {drafts.begin(), drafts.begin() + count},
          .chances = acceptance.landing(count)};
}

Segment Sequence::prefill_segment(int rows, int depth) const {
  CHECK(rows >= 1 && rows <= prompt_left());
  const std::vector<int32_t>& prompt = spec.prompt;
  const int end = prefilled + rows;
  const bool last = end == prompt_size();
  return {
      .sequence = id,
      .slot = slot,
      .kind = SegmentKind::kPrefill,
      .start_position = prefilled,
      .tokens = {prompt.begin() + prefilled, prompt.begin() + end},
      .next_token = last ? -1 : prompt[static_cast<size_t>(end)],
      .sampling = spec.sampling,
      .reply_start = last ? prompt_size() : 0,
      .logprobs = last ? spec.logprobs : -1,
      .replacement = last ? rules.replacement(0).value_or(-1) : -1,
      .draft_depth = last ? depth : 0,
      .uses_mtp = uses_mtp || (keeps_mtp && !states.marks.empty() && end <= states.marks.back())};
}

Segment Sequence::verify_segment(const Window& window, int rows, int depth) const {
  CHECK(rows >= 0 && rows <= static_cast<int>(window.tokens.size()));
  std::vector<int32_t> tokens = {pending};
  tokens.insert(tokens.end(), window.tokens.begin(), window.tokens.begin() + rows);
  const int forced_rows = window.source == DraftSource::kForced ? rows : 0;
  return {.sequence = id,
          .slot = slot,
          .kind = SegmentKind::kVerify,
          .start_position = reply_position(),
          .tokens = std::move(tokens),
          .forced_rows = forced_rows,
          .next_token = -1,
          .sampling = spec.sampling,
          .reply_start = prompt_size(),
          .logprobs = spec.logprobs,
          .replacement = rules.replacement(forced_rows).value_or(-1),
          .draft_depth = depth,
          .uses_mtp = uses_mtp};
}

Segment Sequence::verdict_segment(int rows) const {
  Segment segment = verify_segment({}, 0, 0);
  segment.verdict_rows = rows;
  segment.start_position = -1;
  segment.tokens.clear();
  return segment;
}

// Here and below as the runner has it: rows wait where nothing is drafted from them, as many as a
// backlog holds.
int Sequence::rows_taken_in(const Segment& segment) const {
  const bool full = waiting_rows + static_cast<int>(segment.tokens.size()) > kMostWaitingRows;
  const bool due = segment.draft_depth > 0 || !segment.keep_pages.empty() || full;
  return uses_mtp && due ? waiting_rows : 0;
}

void Sequence::count_waiting(const Segment& segment, int kept) {
  waiting_rows -= rows_taken_in(segment);
  const bool wait = uses_mtp && segment.draft_depth == 0 && segment.keep_pages.empty() &&
                    kept <= kMostWaitingRows;
  if (wait) waiting_rows += kept;
}

void Sequence::commit_prompt(const Segment& segment) {
  CHECK_EQ(segment.start_position, prefilled);
  const int rows = static_cast<int>(segment.tokens.size());
  count_waiting(segment, rows);
  prefilled += rows;
}

Landed Sequence::commit_first(const SegmentResult& result) {
  CHECK_EQ(result.tokens.size(), size_t{1});
  if (uses_lookup) lookup.append(spec.prompt);
  return land(result, {});
}

Landed Sequence::commit_window(const Segment& segment, const SegmentResult& result) {
  CHECK(!result.tokens.empty());
  CHECK_LE(result.tokens.size(), segment.tokens.size());
  const int drafted = static_cast<int>(segment.tokens.size()) - 1;
  const int stood = static_cast<int>(result.tokens.size()) - 1;
  CHECK_GE(stood, segment.forced_rows);
  for (int i = 0; i < stood; ++i) {
    CHECK_EQ(result.tokens[static_cast<size_t>(i)], segment.tokens[static_cast<size_t>(i) + 1]);
  }
  count_waiting(segment, static_cast<int>(result.tokens.size()));
  ++stats.rounds;
  LookupVerdict verdict;
  if (source == DraftSource::kHead) acceptance.observe(drafted, stood);
  if (source == DraftSource::kLookup && drafted > 0) {
    copies.observe(drafted, stood);
    verdict = {.drafted = drafted, .accepted = stood, .alone = was_alone};
  }
  const int emitted = rules.emitted();
  Landed landed = land(result, verdict);
  if (drafted > 0 && source != DraftSource::kForced) {
    // The last of the result's tokens was no draft; of the others, those that are in the reply.
    const int accepted = std::min({landed.unchanged, stood, rules.emitted() - emitted});
    stats.count(source == DraftSource::kLookup ? &DraftStats::copied : &DraftStats::head, drafted,
                accepted);
  }
  return landed;
}

// Held drafts follow the token that was drawn last, so they go where a rule put another one there,
// or says what comes next. The head has taken in the drawn token then; that costs a draft at most.
Landed Sequence::land(const SegmentResult& result, const LookupVerdict& verdict) {
  Landed landed = rules.commit(result.tokens);
  pending = landed.tokens.back();
  if (spec.logprobs >= 0) {
    CHECK_EQ(result.logprobs.size(), result.tokens.size());
    const size_t count = landed.tokens.size();
    landed.logprobs.assign(result.logprobs.begin(),
                           result.logprobs.begin() + static_cast<std::ptrdiff_t>(count));
    if (static_cast<size_t>(landed.unchanged) < count) {
      landed.logprobs.back().logprob = landed.logprobs.back().of_replacement;
    }
  }
  as_drawn = static_cast<size_t>(landed.unchanged) == result.tokens.size();
  drafts = as_drawn && rules.forced().empty() ? result.drafts : std::vector<int32_t>{};
  if (uses_lookup) {
    LookupVerdict judged = verdict;
    judged.accepted = std::min(judged.accepted, landed.unchanged);
    lookup.commit(landed.tokens, judged);
  }
  return landed;
}

}  // namespace flashlane::scheduler
