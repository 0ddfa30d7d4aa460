#!/usr/bin/env python3
"""Plants one fault at a time in a copy of the sources and demands that the named test turns red.

A fault is a text and what stands there instead (plant_faults.py, plant_traps.py, plant_memory.py);
the text occurs exactly once in its file, and tidy.plant checks that it still does. The copy lies in
build/plant, with a build folder of its own, and only the binary that runs the named test is built.

    tools/plant.py            all faults, a table; exit code 1 when one stays green or does not fit
    tools/plant.py NAME...    these
    tools/plant.py --list     names, files and tests
"""

import collections
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

from plant_faults import RULES
from plant_memory import MEMORY
from plant_traps import TRAPS

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRATCH = ROOT / "build" / "plant"
# What a build of the tests and a run of them needs; the bundled model is the largest of it.
COPIED = ["CMakeLists.txt", "cmake", "src", "tests", "bench", "models"]
BUILD_LIMIT_S = 1800
TEST_LIMIT_S = 120
FAULTS = RULES + TRAPS + MEMORY


def path_of(fault):
    return pathlib.PurePath("src") / fault.file


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
               "-DCMAKE_CXX_FLAGS_RELEASE=-O1", "-DFLASHLANE_TESTS=ON", "-DFLASHLANE_CUDA=OFF"]
    code, output = run(command, BUILD_LIMIT_S)
    if code:
        sys.exit(output)


def is_script(test):
    """Tests of the binary itself are FOLDER.NAME, those of gtest FOLDER.SUITE.NAME."""
    return test.count(".") == 1


def target_of(test):
    return "flashlane" if is_script(test) else test.split(".")[0] + "_test"


def verdict(test):
    """What the test says of the sources as they stand: red, green, or why there is no answer."""
    jobs = os.environ.get("JOBS", "1")
    target = target_of(test)
    code, output = run(["cmake", "--build", "build", "-j", jobs, "--target", target], BUILD_LIMIT_S)
    if code:
        return "does not build", output
    if is_script(test):
        exactly = f"^{re.escape(test)}$"
        command = ["ctest", "--test-dir", "build", "--output-on-failure", "-R", exactly]
        there = "out of 1\n"
    else:
        command = [f"build/{target}", "--gtest_filter=" + test.partition(".")[2]]
        there = "1 test from"
    code, output = run(command, TEST_LIMIT_S)
    if code != 124 and there not in output:
        return "no such test", output
    return ("red" if code else "green"), output


def plant(fault):
    path = SCRATCH / "tree" / path_of(fault)
    sound = path.read_text(encoding="utf-8")
    try:
        path.write_text(sound.replace(fault.text, fault.instead), encoding="utf-8")
        return verdict(fault.test)
    finally:
        path.write_text(sound, encoding="utf-8")


def main(arguments):
    if arguments == ["--list"]:
        for fault in FAULTS:
            print(f"{fault.name:40} {fault.file:30} {fault.test}")
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
    for test in sorted({fault.test for fault in chosen}):
        answer, output = verdict(test)
        if answer != "green":
            sys.exit(f"{test} without a fault: {answer}\n{output[-2000:]}")
    bad = 0
    for fault in chosen:
        begin = time.monotonic()
        answer, output = plant(fault)
        took_s = time.monotonic() - begin
        print(f"{answer:14} {fault.name:40} {fault.test} ({took_s:.0f} s)", flush=True)
        if answer != "red":
            bad += 1
            print(output[-2000:] if answer != "green" else "  the test does not notice it")
    print(f"{len(chosen)} faults, {bad} not red")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
