"""Every fault of tools/plant.py still fits: its text occurs exactly once, its test is there.

A list that no longer fits the sources would be found only when somebody plants all of it. Each trap
of the spec that is asked for has a fault, and docs/testing.md has a row for it.
"""

import re
import sys

import tree

sys.path.insert(0, str(tree.ROOT / "tools"))
import plant  # noqa: E402

TRAPS = [*range(23, 28), *range(37, 43)]
FEWEST_RULES = 12  # on turns, commit and drafts


def tests_of(root):
    """Names in ctest of the tests that a fault may name."""
    for name in tree.tracked(root):
        parts = name.split("/")
        if parts[0] == "tests" and name.endswith(".cc"):
            text = (root / name).read_text(encoding="utf-8")
            for suite, test in re.findall(r"^TEST(?:_F)?\((\w+),\s*(\w+)\)", text, re.MULTILINE):
                yield f"{parts[1]}.{suite}.{test}"
    scripts = (root / "tests/cli/CMakeLists.txt").read_text(encoding="utf-8")
    yield from re.findall(r"flashlane_script_test\(([\w.]+) ", scripts)


def check(root):
    yield from plant.misfits(root)
    tests = set(tests_of(root))
    for fault in plant.FAULTS:
        if fault.test not in tests:
            yield f"{fault.name}: no test is named {fault.test}"
    if len(plant.RULES) < FEWEST_RULES:
        yield f"only {len(plant.RULES)} faults are listed on the scheduler's rules"
    table = (root / "docs/testing.md").read_text(encoding="utf-8")
    for trap in TRAPS:
        if not any(fault.name.startswith(f"t{trap}_") for fault in plant.TRAPS):
            yield f"no fault is named after trap T{trap}"
        if f"\n| T{trap} |" not in table:
            yield f"docs/testing.md has no row for trap T{trap}"


if __name__ == "__main__":
    tree.run(check)
