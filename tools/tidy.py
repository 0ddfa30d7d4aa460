#!/usr/bin/env python3
"""Runs clang-tidy on the files named on stdin, several at once.

A file that passed is not analysed again until it, a header of the project or the configuration
changes: what passed is remembered under the build folder by a hash of all of these.

    tools/tidy.py BUILD JOBS < files
"""

import concurrent.futures
import hashlib
import json
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The deep analysis takes minutes on a file of templates and found nothing that this one does not.
SHALLOW = [f"--extra-arg={word}" for word in ("-Xclang", "-analyzer-config", "-Xclang", "mode=shallow")]
INCLUDE = re.compile(rb'^\s*#\s*include\s*"([^"]+)"', re.M)


def closure(path, seen):
    """The file and every project header it includes, as bytes by path."""
    if path in seen or not path.is_file():
        return seen
    seen[path] = path.read_bytes()
    for name in INCLUDE.findall(seen[path]):
        for base in (ROOT / "src", ROOT, path.parent):
            closure(base / name.decode(), seen)
    return seen


def fingerprint(path):
    digest = hashlib.sha256(pathlib.Path(__file__).read_bytes())
    for config in sorted(ROOT.glob(".clang-tidy")) + sorted(ROOT.glob("*/.clang-tidy")):
        digest.update(config.read_bytes())
    for name, data in sorted(closure(path, {}).items()):
        digest.update(str(name.relative_to(ROOT)).encode() + b"\0" + data)
    return digest.hexdigest()


def analyse(build, path):
    begin = time.monotonic()
    command = ["clang-tidy", "-p", str(build), "--quiet", *SHALLOW, str(path)]
    result = subprocess.run(command, capture_output=True, text=True)
    return path, result.returncode, result.stdout, result.stderr, time.monotonic() - begin


def main():
    build, jobs = pathlib.Path(sys.argv[1]).resolve(), int(sys.argv[2])
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    known = {pathlib.Path(entry["file"]).resolve() for entry in commands}
    remembered = build / "tidy-passed"
    remembered.mkdir(exist_ok=True)
    named = [(ROOT / line.strip()).resolve() for line in sys.stdin if line.strip()]
    paths = [path for path in named if path in known]
    todo = {path: fingerprint(path) for path in paths}
    todo = {path: mark for path, mark in todo.items() if not (remembered / mark).exists()}
    failed, last = 0, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        done = pool.map(lambda p: analyse(build, p), todo)
        for count, (path, code, out, err, seconds) in enumerate(done, 1):
            if time.monotonic() - last > 60:
                last = time.monotonic()
                print(f"clang-tidy: {count} of {len(todo)} files", flush=True)
            if code == 0:
                (remembered / todo[path]).touch()
                continue
            failed += 1
            print(f"{path.relative_to(ROOT)} ({seconds:.0f} s)\n{out}{err if not out else ''}")
    print(f"clang-tidy: {len(paths)} files, {len(paths) - len(todo)} known good, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
