#!/usr/bin/env python3
"""Plants one fault at a time in a copy of the sources and demands that the named test turns red.

A fault is one line's text and what stands there instead; the text occurs exactly once in its file,
and tidy.plant checks that it still does. The copy lies in build/plant, with a build folder of its own.

    tools/plant.py            all faults, a table; exit code 1 when one stays green or does not fit
    tools/plant.py NAME...    these
    tools/plant.py --list     names, files and tests
"""

import collections
import os
import pathlib
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRATCH = ROOT / "build" / "plant"
# What a build of the tests needs; nothing here is large.
COPIED = ["CMakeLists.txt", "cmake", "src", "tests", "bench"]
BUILD_LIMIT_S = 900
TEST_LIMIT_S = 120
SIMULATOR = "Simulator.TwoThousandSeeds"

Fault = collections.namedtuple("Fault", "name file text instead test")


FAULTS = [
    # Turns of replies and their rows.
    Fault("newest_served_first", "decode_turns.cc",
          "turns[a].served < turns[b].served",
          "turns[a].served > turns[b].served",
          "DecodeTurns.NobodyStarvesWithMoreSequencesThanRows"),
    Fault("shares_out_of_order", "decode_turns.cc",
          "std::sort(order.begin(), order.end());",
          "std::reverse(order.begin(), order.end());",
          "DecodeTurns.NobodyStarvesWithMoreSequencesThanRows"),
    Fault("one_row_too_many", "decode_turns.cc",
          "fixed_rows <= row_limit",
          "fixed_rows <= row_limit + 1",
          "DecodeTurns.TheFirstThatDoesNotFitEndsTheChoice"),
    Fault("one_reply_a_step", "decode_turns.cc",
          "order.resize(chosen);",
          "order.resize(1);",
          SIMULATOR),
    Fault("forced_rows_of_others_not_counted", "decode_turns.cc",
          "rows += turns[order[chosen++]].fixed_rows;",
          "rows += 1 + 0 * turns[order[chosen++]].fixed_rows;",
          SIMULATOR),
    # Order of prompts.
    Fault("longest_prompt_first", "prompt_turns.cc",
          ": turns[i].left, i",
          ": -turns[i].left, i",
          "PromptTurns.TheShortestGoesFirstAndOthersTakeWhatIsLeft"),
    Fault("prompts_never_overdue", "prompt_turns.h",
          "kMostPassedOver = 8;",
          "kMostPassedOver = 8000;",
          SIMULATOR),
    Fault("overdue_one_step_late", "prompt_turns.cc",
          "passed_over >= kMostPassedOver",
          "passed_over > kMostPassedOver",
          SIMULATOR),
    Fault("shortest_of_the_overdue_first", "prompt_turns.cc",
          "overdue ? -turns[i].passed_over",
          "overdue ? turns[i].left",
          SIMULATOR),
    Fault("prompt_alone_shares", "prompt_turns.cc",
          "if (turns[i].alone) break;",
          "",
          "PromptTurns.APromptThatMustBeAloneSharesNoStep"),
    Fault("prompt_rows_not_counted", "prompt_turns.cc",
          "rows -= taken;",
          "rows -= taken / 2;",
          SIMULATOR),
    Fault("passed_over_not_counted", "scheduler.cc",
          "++sequence->passed_over;",
          "sequence->passed_over = 0;",
          SIMULATOR),
    # How prompts and replies share the time.
    Fault("prompt_steps_in_a_row", "step_share.cc",
          "decode_due_ = true;",
          "decode_due_ = false;",
          SIMULATOR),
    Fault("share_upside_down", "step_share.cc",
          "(1 - decode_share_) / decode_share_",
          "decode_share_ / (1 - decode_share_)",
          "StepShare.RepliesKeepTheirShareOfTheTime"),
    Fault("debt_never_paid", "step_share.cc",
          "counted_ms * (1 - decode_share_)",
          "0 * counted_ms * (1 - decode_share_)",
          SIMULATOR),
    Fault("cold_caches_at_the_replies_cost", "step_share.cc",
          "return std::max(counted, kLeastCounted);",
          "return own;",
          "StepShare.WhatPromptsCostTheRepliesIsThePromptsTime"),
    Fault("gap_without_limit", "step_share.cc",
          "constexpr double kGapMs = 50;",
          "constexpr double kGapMs = 5000;",
          "StepShare.APromptStepStaysWithinTheGapOfARunningReply"),
    # Slots and the way out.
    Fault("slot_free_in_flight", "scheduler.cc",
          "} else if (!sequence.in_flight) {",
          "} else {",
          SIMULATOR),
    Fault("slot_never_free", "scheduler.cc",
          "slots[static_cast<size_t>(sequence.slot)].reset();",
          "",
          SIMULATOR),
    Fault("second_end_of_a_cancel", "scheduler.cc",
          "if ((*runs)->phase != Phase::kRetiring)",
          "if ((*runs)->slot >= 0)",
          SIMULATOR),
    Fault("cancel_of_the_first_waiting_only", "scheduler.cc",
          "if (waits != state.waiting.end())",
          "if (waits == state.waiting.begin())",
          SIMULATOR),
    Fault("newest_admitted_first", "scheduler.cc",
          "    slots[slot] = std::move(waiting.front());",
          "    waiting.front().swap(waiting.back()), slots[slot] = std::move(waiting.front());",
          SIMULATOR),
    Fault("lost_device_retried", "scheduler.cc",
          "error.code != ErrorCode::kDeviceLost",
          "error.code != ErrorCode::kCancelled",
          "SharedSteps.ALostDeviceEndsSharedPromptsAtOnce"),
    Fault("failed_prompt_goes_on", "scheduler.cc", "      sequence->prefilled = 0;", "", SIMULATOR),
    Fault("failed_prompt_shares_again", "scheduler.cc",
          "sequence->prompt_alone = true;",
          "sequence->prompt_alone = false;",
          SIMULATOR),
    # Commit, segments and cuts.
    Fault("commit_past_the_end", "scheduler.cc", "if (!landed.end) return;", "return;",
          SIMULATOR),
    Fault("stale_pending_token", "sequence.cc",
          "pending = landed.tokens.back();",
          "pending = result.tokens.front();",
          SIMULATOR),
    Fault("window_past_max_tokens", "sequence.cc",
          "rules.draft_room() - 1;",
          "rules.draft_room();",
          SIMULATOR),
    Fault("forced_rows_are_only_drafts", "sequence.cc",
          "window.source == DraftSource::kForced ? rows : 0",
          "window.source == DraftSource::kForced ? 0 : 0",
          SIMULATOR),
    Fault("wrong_next_token", "sequence.cc",
          "last ? -1 : prompt[static_cast<size_t>(end)]",
          "last ? -1 : prompt[static_cast<size_t>(end - 1)]",
          SIMULATOR),
    Fault("a_draft_too_many_asked", "scheduler.cc",
          ".draft_room = sequence->rules.draft_room() - 1,",
          ".draft_room = sequence->rules.draft_room(),",
          "Scheduler.AWindowIsNeverWiderThanTheTokensLeft"),
    Fault("rejected_draft_counted", "sequence.cc",
          "stats.accepted += std::min({landed.unchanged, stood,",
          "stats.accepted += 1 + std::min({landed.unchanged, stood,",
          SIMULATOR),
    Fault("budget_one_token_late", "reply_rules.cc",
          "emitted_ + 1 >= limits_",
          "emitted_ >= limits_",
          "ThinkingBudget.ReplacesTheTokenAtTheBudgetAndForcesTheRest"),
    Fault("commit_behind_a_replaced_token", "reply_rules.cc",
          "!= 0 || committed != token) break;",
          "!= 0) break;",
          "RandomReply.EveryRunLengthCutsAtTheSameToken"),
    # Drafts: copies of the context.
    Fault("ramp_in_company", "prompt_lookup.cc",
          "alone ? ramp_width_ : kFirstWidth",
          "alone ? ramp_width_ : ramp_width_",
          "PromptLookup.RampGrowsAloneWhileAllLands"),
    Fault("never_silent", "prompt_lookup.cc",
          "silent_rounds_ = kSilentRounds;",
          "silent_rounds_ = 0;",
          "PromptLookup.FourMissesInARowSilenceSixteenRounds"),
]


def path_of(fault):
    return pathlib.PurePath("src/scheduler") / fault.file


def misfits(root=ROOT):
    """One line for each fault that no longer fits its file."""
    for name, count in collections.Counter(fault.name for fault in FAULTS).items():
        if count > 1:
            yield f"{count} faults are named {name}"
    for fault in FAULTS:
        path = root / path_of(fault)
        count = path.read_text(encoding="utf-8").count(fault.text) if path.is_file() else 0
        if count != 1:
            yield f"{fault.name}: its text occurs {count} times in {path_of(fault)}: {fault.text}"


def copy_tree():
    """Brings the copy up to date; files that are the same stay, so that little is rebuilt."""
    wanted = set()
    for name in COPIED:
        top = ROOT / name
        for source in [top] if top.is_file() else sorted(p for p in top.rglob("*") if p.is_file()):
            relative = source.relative_to(ROOT)
            target = SCRATCH / "tree" / relative
            wanted.add(target)
            if not target.is_file() or target.read_bytes() != source.read_bytes():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
    for target in (SCRATCH / "tree").rglob("*"):
        if target.is_file() and target not in wanted:
            target.unlink()


def run(command, limit_s):
    """Exit code and output; 124 where it took longer, which for a test counts as red."""
    try:
        done = subprocess.run(command, cwd=SCRATCH, capture_output=True, text=True, timeout=limit_s)
        return done.returncode, done.stdout + done.stderr
    except subprocess.TimeoutExpired:
        return 124, f"longer than {limit_s} s"


def configure():
    command = ["cmake", "-S", "tree", "-B", "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
               "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DFLASHLANE_TESTS=ON"]
    code, output = run(command, BUILD_LIMIT_S)
    if code:
        sys.exit(output)


def binary_of(fault):
    return "sim_test" if fault.test == SIMULATOR else "scheduler_test"


def verdict(binary, test):
    """What the test says of the sources as they stand: red, green, or why there is no answer."""
    jobs = os.environ.get("JOBS", "1")
    code, output = run(["cmake", "--build", "build", "-j", jobs, "--target", binary], BUILD_LIMIT_S)
    if code:
        return "does not build", output
    code, output = run([f"build/{binary}", f"--gtest_filter={test}"], TEST_LIMIT_S)
    if "1 test from" not in output:
        return "no such test", output
    return ("red" if code else "green"), output


def plant(fault):
    path = SCRATCH / "tree" / path_of(fault)
    sound = path.read_text(encoding="utf-8")
    try:
        path.write_text(sound.replace(fault.text, fault.instead), encoding="utf-8")
        return verdict(binary_of(fault), fault.test)
    finally:
        path.write_text(sound, encoding="utf-8")


def main(arguments):
    if arguments == ["--list"]:
        for fault in FAULTS:
            print(f"{fault.name:34} {fault.file:18} {fault.test}")
        return 0
    unknown = set(arguments) - {fault.name for fault in FAULTS}
    if unknown:
        sys.exit(f"no such fault: {', '.join(sorted(unknown))}; --list names them")
    problems = list(misfits())
    if problems:
        sys.exit("\n".join(problems))
    chosen = [fault for fault in FAULTS if not arguments or fault.name in arguments]
    copy_tree()
    configure()
    # A test that is red without a fault would prove nothing.
    for binary, test in sorted({(binary_of(fault), fault.test) for fault in chosen}):
        answer, output = verdict(binary, test)
        if answer != "green":
            sys.exit(f"{test} without a fault: {answer}\n{output[-2000:]}")
    bad = 0
    for fault in chosen:
        begin = time.monotonic()
        answer, output = plant(fault)
        took_s = time.monotonic() - begin
        print(f"{answer:14} {fault.name:34} {fault.test} ({took_s:.0f} s)", flush=True)
        if answer != "red":
            bad += 1
            print(output[-2000:] if answer != "green" else "  the test does not notice it")
    print(f"{len(chosen)} faults, {bad} not red")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
