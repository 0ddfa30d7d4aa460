"""Every test is built and run: each tests/**/*.cc has a binary, each fuzz target a corpus.

Also: no test is disabled or skipped, for a skipped check must not look green. Only what this machine's
CPU lacks may be skipped, by a line that says so: GTEST_SKIP() << "this CPU ...".
"""

import pathlib
import re

import tree

SKIPS = re.compile(r'\bDISABLED_\w+\b|\bGTEST_SKIP\b(?!\(\)\s*<<\s*"this CPU)')


def check(root):
    cmake = (root / "tests/CMakeLists.txt").read_text(encoding="utf-8")
    folders = set(re.findall(r"^flashlane_tests\((\w+)", cmake, re.M))
    names = tree.tracked(root)
    for name in names:
        path = pathlib.PurePath(name)
        if path.parts[0] != "tests" or path.suffix != ".cc":
            continue
        if path.parts[1] == "fuzz":
            if path.name == "replay_main.cc":
                continue
            target = re.fullmatch(r"fuzz_(\w+)", path.stem)
            if not target:
                yield f"{name}: a fuzz target is named fuzz_NAME.cc"
            elif not any(n.startswith(f"tests/fuzz/corpus/{target.group(1)}/") for n in names):
                yield f"{name}: tests/fuzz/corpus/{target.group(1)} holds no input"
        elif len(path.parts) != 3 or path.parts[1] not in folders:
            yield f"{name}: belongs to no test binary of tests/CMakeLists.txt"
        found = SKIPS.search((root / name).read_text(encoding="utf-8"))
        if found:
            yield f"{name}: {found.group()}: a test runs or goes"


if __name__ == "__main__":
    tree.run(check)
