"""Every fault of tools/plant.py still fits: its text occurs exactly once, its test is there.

A list that no longer fits the sources would be found only when somebody plants all of it.
"""

import importlib.util
import re

import tree

specification = importlib.util.spec_from_file_location("plant", tree.ROOT / "tools/plant.py")
plant = importlib.util.module_from_spec(specification)
specification.loader.exec_module(plant)


def check(root):
    yield from plant.misfits(root)
    tests = set()
    for name in tree.tracked(root):
        if name.startswith("tests/") and name.endswith(".cc"):
            text = (root / name).read_text(encoding="utf-8")
            tests.update(".".join(found) for found in re.findall(r"TEST\((\w+),\s*(\w+)\)", text))
    for fault in plant.FAULTS:
        if fault.test not in tests:
            yield f"{fault.name}: no test is named {fault.test}"
    if len(plant.FAULTS) < 12:
        yield f"only {len(plant.FAULTS)} faults are listed"


if __name__ == "__main__":
    tree.run(check)
