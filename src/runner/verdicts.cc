#include "runner/verdicts.h"

#include "kernels/batch.h"

namespace flashlane::runner {

void Verdicts::note(const scheduler::StepPlan& plan, const scheduler::StepResult& result,
                    std::span<const SlotProgress> slots) {
  for (const scheduler::Restore& restore : plan.restores) {
    verdicts_[static_cast<size_t>(restore.slot)].position = -1;
  }
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const auto slot = static_cast<size_t>(plan.segments[i].slot);
    const scheduler::SegmentResult& of_segment = result.segments[i];
    Verdict& verdict = verdicts_[slot];
    verdict.position = of_segment.tokens.empty() ? -1 : slots[slot].length;
    if (of_segment.tokens.empty()) continue;
    verdict.last_drawn = of_segment.tokens.back();
    verdict.drafts = of_segment.drafts;
  }
}

Status Verdicts::fill(scheduler::StepPlan& plan, std::span<const SlotProgress> slots) const {
  scheduler::Segment& segment = plan.segments.front();
  if (plan.segments.size() > 1) {
    return error(ErrorCode::kInternal, "a verdict's segment shares its plan with {} more",
                 plan.segments.size() - 1);
  }
  if (segment.kind != scheduler::SegmentKind::kVerify || !segment.tokens.empty() ||
      segment.verdict_rows > kernels::kMaxWindow) {
    return error(ErrorCode::kInternal,
                 "a verdict can't fill a segment of {} rows that brings {} tokens; the limit is {}",
                 segment.verdict_rows, segment.tokens.size(), kernels::kMaxWindow);
  }
  const auto slot = static_cast<size_t>(segment.slot);
  if (segment.slot < 0 || slot >= verdicts_.size()) {
    return error(ErrorCode::kInternal, "segment 0 names slot {}; there are {}", segment.slot,
                 verdicts_.size());
  }
  const Verdict& verdict = verdicts_[slot];
  if (verdict.position < 0 || verdict.position != slots[slot].length) {
    return error(ErrorCode::kInternal, "slot {} has no verdict for the segment that it is to fill",
                 segment.slot);
  }
  fill_from_verdict(segment, verdict.position, verdict.last_drawn, verdict.drafts);
  return {};
}

}  // namespace flashlane::runner
