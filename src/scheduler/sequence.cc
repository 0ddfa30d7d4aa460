// A reply is cut token by token, so that the cut is the same whether a step brings one or five
// (E1).
#include "scheduler/sequence.h"

#include <algorithm>

#include "base/check.h"

namespace flashlane::scheduler {

Segment Sequence::prefill_segment(int rows, int depth) const {
  CHECK(rows >= 1 && rows <= prompt_left());
  const std::vector<int32_t>& prompt = spec.prompt;
  const int end = prefilled + rows;
  const bool last = end == prompt_size();
  return {.sequence = id,
          .slot = slot,
          .kind = SegmentKind::kPrefill,
          .start_position = prefilled,
          .tokens = {prompt.begin() + prefilled, prompt.begin() + end},
          .next_token = last ? -1 : prompt[static_cast<size_t>(end)],
          .sampling = spec.sampling,
          // After the first token, max_tokens - 1 are left; a window has a row for its pending one.
          .draft_depth = last ? std::clamp(spec.max_tokens - 2, 0, depth) : 0,
          .uses_mtp = uses_mtp};
}

Segment Sequence::verify_segment(int draft_rows, int depth) const {
  CHECK(draft_rows >= 0 && draft_rows <= static_cast<int>(drafts.size()));
  CHECK_LE(draft_rows, draft_room());
  std::vector<int32_t> tokens = {pending};
  tokens.insert(tokens.end(), drafts.begin(), drafts.begin() + draft_rows);
  return {.sequence = id,
          .slot = slot,
          .kind = SegmentKind::kVerify,
          .start_position = prompt_size() + emitted - 1,
          .tokens = std::move(tokens),
          .next_token = -1,
          .sampling = spec.sampling,
          // This step brings one token at least, and the next window has a pending row.
          .draft_depth = std::clamp(remaining() - 2, 0, depth),
          .uses_mtp = uses_mtp};
}

Committed commit_tokens(Sequence& sequence, const SegmentResult& result,
                        const TokenBytes* token_bytes) {
  Committed committed;
  const std::vector<int32_t>& end_ids = sequence.spec.end_ids;
  for (const int32_t token : result.tokens) {
    committed.tokens.push_back(token);
    sequence.pending = token;
    ++sequence.emitted;
    const bool ends = std::find(end_ids.begin(), end_ids.end(), token) != end_ids.end();
    const bool stops = token_bytes != nullptr && sequence.stops.push(token_bytes->bytes(token));
    if (ends || stops) {
      committed.reason = FinishReason::kStop;
    } else if (sequence.remaining() == 0) {
      committed.reason = FinishReason::kLength;
    }
    if (committed.reason) break;
  }
  sequence.drafts = result.drafts;
  // The last of the result's tokens was no draft; of the others, those that were committed stood.
  sequence.stats.accepted += std::min(static_cast<int>(committed.tokens.size()),
                                      static_cast<int>(result.tokens.size()) - 1);
  return committed;
}

}  // namespace flashlane::scheduler
