// One function per kind of rule: the plan as a whole, a segment's numbers, its place in the slot. A
// token outside the vocabulary came with a request; anything else is a slip of the planner.
#include "runner/plan_check.h"

#include <algorithm>

#include "base/int_math.h"
#include "kernels/batch.h"
#include "memory/page_id.h"

namespace flashlane::runner {
namespace {

using scheduler::Segment;
using scheduler::SegmentKind;
using scheduler::StepPlan;

template <typename... Args>
Error refuse(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kInternal, format, std::forward<Args>(args)...);
}

Status check_whole(const StepPlan& plan, const PlanLimits& limits) {
  const size_t segments = plan.segments.size();
  if (segments > size_t{kernels::kMaxWindow}) {
    return refuse("the plan has {} segments; the limit is {}", segments, kernels::kMaxWindow);
  }
  const SegmentKind kind = plan.segments.front().kind;
  size_t rows = 0;
  for (size_t i = 0; i < segments; ++i) {
    const Segment& segment = plan.segments[i];
    if (segment.kind != kind) return refuse("the plan mixes prompt and decode segments");
    if (segment.slot < 0 || segment.slot >= limits.slots) {
      return refuse("segment {} names slot {}; there are {}", i, segment.slot, limits.slots);
    }
    for (size_t other = 0; other < i; ++other) {
      if (plan.segments[other].slot == segment.slot) {
        return refuse("segments {} and {} both name slot {}", other, i, segment.slot);
      }
    }
    if (segment.tokens.empty()) return refuse("segment {} has no rows", i);
    rows += segment.tokens.size();
  }
  const int limit = kind == SegmentKind::kPrefill ? limits.max_rows
                                                  : std::min(limits.max_rows, kernels::kMaxWindow);
  if (rows > static_cast<size_t>(limit)) {
    return refuse("the plan has {} {} rows; the limit is {}", rows,
                  kind == SegmentKind::kPrefill ? "prompt" : "decode", limit);
  }
  return {};
}

Status check_tokens(const Segment& segment, size_t index, int vocabulary) {
  const auto outside = [&](int32_t token) { return token < 0 || token >= vocabulary; };
  for (size_t row = 0; row < segment.tokens.size(); ++row) {
    if (outside(segment.tokens[row])) {
      return invalid("token {} of segment {} is {}; the vocabulary has {}", row, index,
                     segment.tokens[row], vocabulary);
    }
  }
  if (segment.kind == SegmentKind::kVerify && segment.next_token != -1) {
    return refuse("decode segment {} has a next token, {}", index, segment.next_token);
  }
  const int drafts = static_cast<int>(segment.tokens.size()) - 1;
  const int most_forced = segment.kind == SegmentKind::kVerify ? drafts : 0;
  if (segment.forced_rows < 0 || segment.forced_rows > most_forced) {
    return refuse("segment {} has {} forced rows; it may have {}", index, segment.forced_rows,
                  most_forced);
  }
  if (segment.next_token != -1 && outside(segment.next_token)) {
    return invalid("the next token of segment {} is {}; the vocabulary has {}", index,
                   segment.next_token, vocabulary);
  }
  return {};
}

Status check_logprobs(const Segment& segment, size_t index, const PlanLimits& limits) {
  if (segment.logprobs < -1 || segment.logprobs > scheduler::kMostLogprobs) {
    return refuse("segment {} asks for {} log probabilities a token; the limit is {}", index,
                  segment.logprobs, scheduler::kMostLogprobs);
  }
  if (segment.replacement < -1 || segment.replacement >= limits.vocabulary) {
    return refuse("the replacement token of segment {} is {}; the vocabulary has {}", index,
                  segment.replacement, limits.vocabulary);
  }
  return {};
}

Status check_drafts(const Segment& segment, size_t index, const PlanLimits& limits) {
  if (segment.draft_depth < 0 || segment.draft_depth > limits.max_draft) {
    return refuse("segment {} asks for {} drafts; the limit is {}", index, segment.draft_depth,
                  limits.max_draft);
  }
  if (segment.uses_mtp && limits.max_draft == 0) {
    return refuse("segment {} uses the MTP head, which is not there", index);
  }
  if (segment.draft_depth > 0 && !segment.uses_mtp) {
    return refuse("segment {} asks for {} drafts without the MTP head", index, segment.draft_depth);
  }
  if (segment.draft_depth > 0 && segment.next_token != -1) {
    return refuse("segment {} asks for drafts inside the prompt", index);
  }
  return {};
}

Status check_place(const Segment& segment, size_t index, int context, const SlotProgress& slot) {
  const int start = segment.start_position;
  const int rows = static_cast<int>(segment.tokens.size());
  // The token after a prompt chunk needs a position too.
  const int after = segment.next_token == -1 ? 0 : 1;
  if (start < 0 || start > context - rows - after) {
    return refuse("segment {} has positions {} to {}; the context is {}", index, start,
                  int64_t{start} + rows + after - 1, context);
  }
  if (segment.reply_start < 0 || segment.reply_start > start + rows) {
    return refuse("the reply of segment {} starts at {}, beyond its rows, {} to {}", index,
                  segment.reply_start, start, start + rows - 1);
  }
  if (start == 0) return {};
  if (start > slot.length) {
    return refuse("segment {} starts at {}, but slot {} is at {}", index, start, segment.slot,
                  slot.length);
  }
  if (start < slot.length && (slot.window_start < 0 || start <= slot.window_start)) {
    return refuse("segment {} starts at {}, but slot {} is at {} and can go back to {} at most",
                  index, start, segment.slot, slot.length,
                  slot.window_start < 0 ? slot.length : slot.window_start + 1);
  }
  if (segment.uses_mtp && slot.mtp_length < start) {
    return refuse("segment {} starts at {}, but the MTP head of slot {} is at {}", index, start,
                  segment.slot, slot.mtp_length);
  }
  return {};
}

Status check_page_ids(const char* what, size_t index, std::span<const memory::PageId> pages,
                      int limit) {
  for (const memory::PageId page : pages) {
    if (page >= 0 && page < limit) continue;
    return refuse("{} {} names page {}; there are {}", what, index, page, limit);
  }
  return {};
}

// Of a state kept behind so many rows: copies of the state pages and of the rows'.
Status check_kept_pages(const char* what, size_t index, std::span<const memory::PageId> pages,
                        int64_t rows, const PlanLimits& limits) {
  const int64_t wanted = limits.state_pages + div_ceil(rows, int64_t{limits.page_rows});
  if (static_cast<int64_t>(pages.size()) != wanted) {
    return refuse("{} {} has {} pages of the arena instead of {}", what, index, pages.size(),
                  wanted);
  }
  return check_page_ids(what, index, pages, limits.kept_pages);
}

// State pages come with the first rows and never again; the table reaches as far as rows and
// chained drafts may be written.
Status check_pages(const Segment& segment, size_t index, const PlanLimits& limits,
                   const SlotProgress& slot) {
  const bool opens = segment.start_position == 0;
  const auto state_pages = static_cast<int>(segment.state_pages.size());
  if (state_pages != (opens ? limits.state_pages : 0)) {
    return refuse("segment {} starts at {} with {} state pages instead of {}", index,
                  segment.start_position, state_pages, opens ? limits.state_pages : 0);
  }
  RETURN_IF_ERROR(check_page_ids("segment", index, segment.state_pages, limits.pages));
  RETURN_IF_ERROR(check_page_ids("segment", index, segment.new_pages, limits.pages));
  const int64_t mapped =
      (opens ? 0 : slot.mapped_pages) + static_cast<int64_t>(segment.new_pages.size());
  if (mapped > limits.table_pages) {
    return refuse("segment {} brings slot {} to {} pages; the limit is {}", index, segment.slot,
                  mapped, limits.table_pages);
  }
  const int64_t end = segment.start_position + static_cast<int64_t>(segment.tokens.size()) +
                      std::max(0, segment.draft_depth - 1);
  if (mapped * limits.page_rows < end) {
    return refuse("segment {} has positions up to {}, but slot {} has {} pages of {} rows", index,
                  end - 1, segment.slot, mapped, limits.page_rows);
  }
  return {};
}

Status check_keep(const Segment& segment, size_t index, const PlanLimits& limits) {
  if (segment.keep_pages.empty()) return {};
  if (segment.kind != SegmentKind::kPrefill || segment.next_token == -1) {
    return refuse("segment {} is to be kept, but ends no chunk inside a prompt", index);
  }
  if (limits.max_draft > 0 && !segment.uses_mtp) {
    return refuse("segment {} is to be kept without the MTP head's state", index);
  }
  const int64_t rows = segment.start_position + static_cast<int64_t>(segment.tokens.size());
  return check_kept_pages("segment", index, segment.keep_pages, rows, limits);
}

Status check_restore(const scheduler::Restore& restore, size_t index, const PlanLimits& limits) {
  if (restore.slot < 0 || restore.slot >= limits.slots) {
    return refuse("restore {} names slot {}; there are {}", index, restore.slot, limits.slots);
  }
  const auto rows = static_cast<int64_t>(restore.tokens.size());
  if (rows < 1 || rows >= limits.context) {
    return refuse("restore {} has {} rows; the context is {}", index, rows, limits.context);
  }
  RETURN_IF_ERROR(check_kept_pages("restore", index, restore.kept_pages, rows, limits));
  const int64_t wanted = div_ceil(rows, int64_t{limits.page_rows});
  if (static_cast<int64_t>(restore.state_pages.size()) != limits.state_pages ||
      static_cast<int64_t>(restore.new_pages.size()) != wanted) {
    return refuse("restore {} has {} state pages and {} for rows instead of {} and {}", index,
                  restore.state_pages.size(), restore.new_pages.size(), limits.state_pages, wanted);
  }
  RETURN_IF_ERROR(check_page_ids("restore", index, restore.state_pages, limits.pages));
  return check_page_ids("restore", index, restore.new_pages, limits.pages);
}

Status check_move(const scheduler::Move& move, size_t index, const PlanLimits& limits,
                  std::span<const SlotProgress> slots) {
  if (move.slot < 0 || move.slot >= limits.slots) {
    return refuse("move {} names slot {}; there are {}", index, move.slot, limits.slots);
  }
  const SlotProgress& slot = slots[static_cast<size_t>(move.slot)];
  if (static_cast<int64_t>(move.state_pages.size()) != limits.state_pages ||
      static_cast<int64_t>(move.pages.size()) != slot.mapped_pages) {
    return refuse("move {} has {} state pages and {} for rows; slot {} has {} and {}", index,
                  move.state_pages.size(), move.pages.size(), move.slot, limits.state_pages,
                  slot.mapped_pages);
  }
  RETURN_IF_ERROR(check_page_ids("move", index, move.state_pages, limits.pages));
  return check_page_ids("move", index, move.pages, limits.pages);
}

}  // namespace

Status check_plan(const StepPlan& plan, const PlanLimits& limits,
                  std::span<const SlotProgress> slots) {
  if (plan.empty()) return refuse("the plan is empty");
  const int kinds = static_cast<int>(!plan.segments.empty()) +
                    static_cast<int>(!plan.restores.empty()) +
                    static_cast<int>(!plan.moves.empty());
  if (kinds > 1) return refuse("the plan mixes segments, restores and moves");
  for (size_t i = 0; i < plan.moves.size(); ++i) {
    RETURN_IF_ERROR(check_move(plan.moves[i], i, limits, slots));
  }
  if (!plan.moves.empty()) return {};
  if (!plan.restores.empty()) {
    for (size_t i = 0; i < plan.restores.size(); ++i) {
      RETURN_IF_ERROR(check_restore(plan.restores[i], i, limits));
    }
    return {};
  }
  RETURN_IF_ERROR(check_whole(plan, limits));
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& segment = plan.segments[i];
    RETURN_IF_ERROR(check_tokens(segment, i, limits.vocabulary));
    RETURN_IF_ERROR(check_logprobs(segment, i, limits));
    RETURN_IF_ERROR(check_drafts(segment, i, limits));
    const SlotProgress& slot = slots[static_cast<size_t>(segment.slot)];
    RETURN_IF_ERROR(check_place(segment, i, limits.context, slot));
    RETURN_IF_ERROR(check_pages(segment, i, limits, slot));
    RETURN_IF_ERROR(check_keep(segment, i, limits));
  }
  return {};
}

}  // namespace flashlane::runner
