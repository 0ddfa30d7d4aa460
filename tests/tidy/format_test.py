"""Every tracked C++ file is formatted by .clang-format; `make format` mends it."""

import shutil
import subprocess

import tree


def check(root):
    if shutil.which("clang-format") is None:
        yield "clang-format is missing: tools/setup installs it"
        return
    names = [name for name in tree.tracked(root) if name.endswith((".cc", ".h", ".cu", ".cuh"))]
    command = ["clang-format", "--dry-run", "-Werror", *names]
    result = subprocess.run(command, cwd=root, capture_output=True, text=True)
    if result.returncode != 0:
        yield from sorted({line.split(":")[0] for line in result.stderr.split("\n") if ": error:" in line})
        yield "not formatted: run `make format`"


if __name__ == "__main__":
    tree.run(check)
