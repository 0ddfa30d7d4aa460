"""Faults that are the spec's traps once more (spec/lane-engine.md, section 20), and two of kernels.

A name begins with its trap's number; docs/testing.md says for each where its fix lives.
"""

from plant_faults import Fault

# A product whose columns are summed in one part or in two, as `condition` says.
K_SPLIT = """const int fault_rows = end - begin;
      PanelTile part = panels;
      if ({condition} && panels.groups > 1) part.groups = panels.groups / 2;
      kernels_.project(part, block, fault_rows);
      if (part.groups < panels.groups) {{
        const int64_t columns = part.groups * panels.format->group;
        float rest[kMostRowBlock][kTileRows];
        for (int r = 0; r < fault_rows; ++r) {{
          block[r].x += columns;
          if (block[r].pairs != nullptr) block[r].pairs += columns;
          block[r].sums += part.groups;
          block[r].out = rest[r];
        }}
        part.data += static_cast<size_t>(part.groups) * panels.format->group_bytes(part.subs);
        part.groups = panels.groups - part.groups;
        kernels_.project(part, block, fault_rows);
        for (int r = 0; r < fault_rows; ++r) {{
          float* sum = out + (begin + r) * matrix.rows;
          for (int64_t o = 0; o < panels.outputs; ++o) sum[o] += rest[r][o];
        }}
      }}"""

TRAPS = [
    # T23: calibration wrote past small sessions.
    Fault("t23_calibrates_a_context_too_short", "runner/calibration.cc",
          "runner.options().context < kCalibrationRows",
          "runner.options().context + 1 < kCalibrationRows",
          "runner.Calibration.DeclinesAContextThatIsTooShort"),
    Fault("t23_step_past_the_context", "runner/plan_check.cc",
          "start > context - rows - after",
          "start > context - rows",
          "runner.WrongPlans.OfPromptSegmentsLeaveNoTrace"),
    Fault("t23_head_rows_that_were_not_run", "runner/runner.cc",
          "state.progress[static_cast<size_t>(slot)].length < rows",
          "state.progress[static_cast<size_t>(slot)].length + 1 < rows",
          "runner.Calibration.HeadRowsNeedRowsThatWereRun"),
    # T24: no way out where calibration fails.
    Fault("t24_unpriced_measures_all_the_same", "cli/serving.cc",
          "if (!pricing.calibrate) return;",
          "",
          "cli.pricing"),
    Fault("t24_half_a_measurement_counts", "runner/calibration.cc",
          "if (!measured.ok()) calibration = {.skipped = measured.error().message};",
          "if (!measured.ok()) calibration.skipped = measured.error().message;",
          "runner.Calibration.AStepThatFailsLeavesEverythingUnpriced"),
    # T25: a test that passed though the first draft was charged.
    Fault("t25_first_draft_charged_by_the_walk", "scheduler/draft_allocation.cc",
          "if (++counts[index] > 1 &&",
          "if (++counts[index] > 0 &&",
          "scheduler.PricedGreedyAllocation.TheFirstDraftIsFree"),
    Fault("t25_first_draft_charged_by_the_search", "scheduler/exact_allocation.cc",
          "if (depth >= first_depth)",
          "if (depth + 1 >= first_depth)",
          "scheduler.PricedGreedyAllocation.TheFirstDraftIsFree"),
    # T26: priced steps counted again as overhead; greedy and sampled steps apart.
    Fault("t26_head_steps_are_overhead_too", "scheduler/overhead.cc",
          "step.wall_ms - step.head_ms",
          "step.wall_ms",
          "scheduler.Overhead.TakesPricedHeadStepsOut"),
    Fault("t26_policy_forgets_the_head_steps", "scheduler/decode_policy.cc",
          ".head_ms = head_ms}",
          ".head_ms = 0 * head_ms}",
          "scheduler.DecodePolicy.PricedHeadStepsAreNoOverhead"),
    Fault("t26_one_list_for_greedy_and_sampled", "scheduler/overhead.cc",
          "entries_[step.sampled ? 1 : 0]",
          "entries_[0]",
          "scheduler.Overhead.KeepsGreedyAndSampledApart"),
    # T27: candidates by chance alone miss cheaper splits.
    Fault("t27_policy_walks_by_chance", "scheduler/decode_policy.cc",
          "options.costs = costs;",
          "options.costs = costs, options.rule = AllocationRule::kPricedGreedy;",
          "scheduler.DecodePolicy.FindsTheSplitThatAWalkByChanceMisses"),
    Fault("t27_exact_rule_walks_by_chance", "scheduler/draft_allocation.cc",
          "return exact_allocation(claims, forward, chain_ms_, overhead_ms, limit);",
          "return walk_by_chance(claims, forward, head_step.covers(1) ? head_step.ms(1) : 0,\n"
          "                            overhead_ms, limit);",
          "scheduler.PricedGreedyAllocation.MissesTheCheaperSplitThatTheExactRuleFinds"),
    # T37: a whole prompt goes in while replies wait.
    Fault("t37_whole_prompt_in_one_step", "scheduler/step_planning.cc",
          "share.prompt_rows(replies_run, options.prefill_chunk)",
          "share.prompt_rows(replies_run && false, 1 << 20)",
          "scheduler.SharedSteps.ALongPromptDoesNotStallAReply"),
    Fault("t37_prompt_chunks_in_a_row", "scheduler/step_planning.cc",
          "(!prompts.empty() && share.prompt_is_due())",
          "!prompts.empty()",
          "scheduler.SharedSteps.ALongPromptDoesNotStallAReply"),
    # T38: a lost cancel; a loop that is busy though nothing can run.
    Fault("t38_cancels_the_oldest_only", "engine/engine.cc",
          "if (request.reply->cancelled)",
          "if (request.reply->cancelled && request.id == live.front().id)",
          "engine.Engine.CancelsWaitingAndRunningRequests"),
    Fault("t38_busy_without_work", "engine/engine.cc",
          "bell->wait();",
          "std::this_thread::yield();",
          "engine.Endings.AnEngineWithoutWorkSleeps"),
    # T39: asking for a copy has a side effect.
    Fault("t39_asking_shortens_the_silence", "scheduler/prompt_lookup.cc",
          "if (matched_ == 0) return {};",
          "if (silent_rounds_ > 1) --const_cast<PromptLookup*>(this)->silent_rounds_;\n"
          "  if (matched_ == 0) return {};",
          "scheduler.PromptLookup.AskingChangesNothing"),
    # T40: requests that fail early follow another rule of events.
    Fault("t40_last_event_forgets_the_prompt", "engine/engine.cc",
          ".prefilled = event.prefilled,",
          ".prefilled = 0,",
          "engine.Endings.FollowOneRuleHoweverEarlyTheyCome"),
    Fault("t40_no_event_for_the_last_chunk", "scheduler/step_commit.cc",
          "  events.push_back(\n      {.kind = Event::Kind::kPrefilled,",
          "  if (sequence.prompt_left() > 0) events.push_back(\n"
          "      {.kind = Event::Kind::kPrefilled,",
          "engine.Endings.FollowOneRuleHoweverEarlyTheyCome"),
    # T41: a failed step and a failed prompt speak differently.
    Fault("t41_replies_fail_with_a_bare_name", "scheduler/step_commit.cc",
          "      state.retire(*sequence, FinishReason::kError, error);\n    }\n  }\n}",
          "      state.retire(*sequence, FinishReason::kError,\n"
          "                   segment.kind == SegmentKind::kVerify ? Error{error.code, \"failed\"}\n"
          "                                                        : error);\n    }\n  }\n}",
          "engine.Endings.APromptAndAReplyFailInTheSameWords"),
    # T42: something is done for a request after its last event.
    Fault("t42_last_event_before_the_books", "engine/engine.cc",
          "    publish();\n    for (Ending& ending : endings) {",
          "    struct Late {\n      State* state;\n      ~Late() {\n"
          "        std::this_thread::sleep_for(std::chrono::milliseconds(20));\n"
          "        state->publish();\n      }\n    } late{this};\n"
          "    for (Ending& ending : endings) {",
          "engine.Counters.UsageReturnsToItsValueAtLoad"),
    Fault("t42_step_of_an_ended_sequence_is_told", "scheduler/step_commit.cc",
          "if (sequence->phase != Phase::kRetiring) return sequence;",
          "return sequence;",
          "scheduler.Scheduler.CancelInFlightDropsTheResultAndKeepsTheSlotUntilThen"),
    # The row rule, in the product of the cpu backend.
    Fault("kernel_splits_columns_by_row_count", "kernels/cpu/cpu_dense.cc",
          "kernels_.project(panels, block, end - begin);",
          K_SPLIT.format(condition="count < 4"),
          "kernels.RowRule.RowsAloneEqualRowsAmongOthersInEveryFormat"),
    Fault("kernel_reduces_by_thread", "kernels/cpu/cpu_dense.cc",
          "kernels_.project(panels, block, end - begin);",
          K_SPLIT.format(condition="pool_.threads() > 1"),
          "kernels.RowRule.RowsAloneEqualRowsAmongOthersInEveryFormat"),
]
