#!/usr/bin/env python3
"""Checks that the folders of src/ keep to their layers: what each may include, link and use.

The matrix below is the rule (docs/architecture.md says why). Includes are read from the sources and
link lines from src/CMakeLists.txt, and the two have to agree. Prints one line per breach.

    tools/check_layers.py [ROOT]
"""

import pathlib
import re
import sys

MAY_INCLUDE = {
    "base": [],
    "tensor": ["base"],
    "format": ["base", "tensor"],
    "kernels": ["base", "tensor"],
    "model": ["base", "tensor", "format", "kernels"],
    "memory": ["base"],
    "scheduler": ["base", "memory"],
    "runner": ["base", "tensor", "kernels", "model", "memory", "scheduler"],
    "engine": ["base", "tensor", "format", "kernels", "model", "memory", "scheduler", "runner"],
    "text": ["base", "format"],
    "server": ["base", "text", "engine"],
}
MAY_INCLUDE["cli"] = list(MAY_INCLUDE)
# The runner sees the plan and the result, never the policy that made them.
SCHEDULER_FOR_RUNNER = {"scheduler/step_plan.h", "scheduler/step_result.h"}

THREADS_AND_CLOCKS = re.compile(
    r"#\s*include\s*<(thread|mutex|shared_mutex|condition_variable|future|atomic|semaphore|latch|"
    r"barrier|stop_token|ctime|time\.h|pthread\.h)>"
    r"|\b(steady_clock|system_clock|high_resolution_clock|clock_gettime|gettimeofday)\b"
)
ENVIRONMENT = re.compile(r"\b(secure_getenv|getenv|setenv|putenv|unsetenv|environ)\b")
BEAST = re.compile(r"#\s*include\s*<boost/(beast|asio)")
PROJECT_INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')
BANNED = [
    (("memory", "scheduler"), THREADS_AND_CLOCKS, "the pure tower has no threads and no clock"),
    (tuple(f for f in MAY_INCLUDE if f != "cli"), ENVIRONMENT, "only cli/ reads the environment"),
    (tuple(f for f in MAY_INCLUDE if f != "server"), BEAST, "sockets belong to server/"),
]
WARN_LINES, MAX_LINES = 400, 600
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".py"}


def without_comments(text):
    """Blanks comments, keeping line numbers; string literals stay, which is strict enough here."""
    text = re.sub(r"/\*.*?\*/", lambda match: "\n" * match.group().count("\n"), text, flags=re.S)
    return re.sub(r"//[^\n]*", "", text)


def check_includes(folder, name, lines, source_root):
    for number, line in enumerate(lines, 1):
        match = PROJECT_INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        other = target.split("/")[0]
        if other not in MAY_INCLUDE or not (source_root / target).is_file():
            yield f"{name}:{number}: \"{target}\" is no file of src/"
        elif other != folder and other not in MAY_INCLUDE[folder]:
            yield f"{name}:{number}: {folder} may not include {target}"
        elif folder == "runner" and other == "scheduler" and target not in SCHEDULER_FOR_RUNNER:
            yield f"{name}:{number}: runner may include only the scheduler's plan and result"


def check_source(path, source_root):
    folder = path.relative_to(source_root).parts[0]
    name = path.relative_to(source_root.parent)
    if folder not in MAY_INCLUDE:
        yield f"{name}: {folder} is no layer"
        return
    lines = without_comments(path.read_text(encoding="utf-8")).split("\n")
    yield from check_includes(folder, name, lines, source_root)
    for folders, pattern, reason in BANNED:
        for number, line in enumerate(lines, 1):
            found = pattern.search(line) if folder in folders else None
            if found:
                yield f"{name}:{number}: {found.group().strip()}: {reason}"
    if path.suffix == ".h" and BEAST.search("\n".join(lines)):
        yield f"{name}: Beast and Asio stay in source files, behind our interface"


def check_links(cmake, name):
    """The link lines: flashlane_layer(NAME DEPENDS a b LIBRARIES ...)."""
    declared = re.findall(r"flashlane_layer\(\s*(\w+)([^)]*)\)", re.sub(r"#[^\n]*", "", cmake))
    for folder, rest in declared:
        match = re.search(r"\bDEPENDS\b(.*?)(\bLIBRARIES\b|$)", rest, re.S)
        for other in match.group(1).split() if match else []:
            if other not in MAY_INCLUDE.get(folder, []):
                yield f"{name}: {folder} may not link {other}"


def check_lengths(root):
    for top in ("src", "tests", "bench", "tools"):
        for path in sorted((root / top).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            count = path.read_text(encoding="utf-8", errors="replace").count("\n")
            if count > MAX_LINES:
                yield f"{path.relative_to(root)}: {count} lines, at most {MAX_LINES}"
            elif count > WARN_LINES:
                print(f"note: {path.relative_to(root)}: {count} lines, aim for {WARN_LINES}")


def breaches(root):
    source_root = root / "src"
    sources = sorted(p for p in source_root.rglob("*") if p.suffix in SUFFIXES and p.is_file())
    if not sources:
        yield "src: no sources found"
    for path in sources:
        yield from check_source(path, source_root)
    cmake = source_root / "CMakeLists.txt"
    yield from check_links(cmake.read_text(encoding="utf-8"), cmake.relative_to(root))
    yield from check_lengths(root)


def main():
    default = pathlib.Path(__file__).resolve().parent.parent
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else default
    found = list(breaches(root))
    for line in found:
        print(line)
    print(f"check_layers: {len(found)} breaches")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
