"""What the tests of the tree share: the list of tracked files, and reporting.

Without git's own data (a copy of the tree) every file outside build folders counts.
"""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NOT_TEXT = {".safetensors", ".png", ".jpg", ".webp"}
UNTRACKED = {".git", "build", "node_modules", "__pycache__", "shared"}


def tracked(root=ROOT):
    """Paths relative to root of all tracked files that exist."""
    # The owner of a CI checkout may not be the user who runs it, which git would refuse.
    command = ["git", "-c", "safe.directory=*", "-C", str(root), "ls-files", "-z"]
    listed = None
    if (root / ".git").exists():
        listed = subprocess.run(command, check=True, capture_output=True).stdout.decode().split("\0")
    else:
        listed = []
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in UNTRACKED]
            listed += [os.path.relpath(os.path.join(folder, name), root) for name in files]
    return sorted(name for name in listed if name and (root / name).is_file())


def text_of(root, name):
    """The text of a file, or None if it is not UTF-8 text."""
    if pathlib.PurePath(name).suffix in NOT_TEXT:
        return None
    try:
        return (root / name).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return None


def finish(problems):
    """Prints the problems and exits: 1 if there are any."""
    for line in problems:
        print(line)
    print(f"{len(problems)} problems")
    sys.exit(1 if problems else 0)


def run(check):
    """Runs a check on the tree named on the command line, or on this one."""
    root = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    finish(list(check(root)))
