"""No tracked text names a place on one machine or a package registry's host.

A clone has to build wherever it lies, with whatever mirror its machine uses.
"""

import re

import tree

# Written in pieces, so that this file does not find itself.
PLACES = [
    re.compile(r"(?<![\w.~}$-])/" + r"(work|root|farm|home/\w+|Users/\w+|mnt|media)/"),
    re.compile(r"\b[A-Z]:" + r"\\\\?Users\b"),
]
HOSTS = re.compile(
    r"registry\." + r"(npmjs|yarnpkg|npmmirror)|pypi\." + r"org|files\.python" + r"hosted|"
    r"(deb|security|ftp)[\w.]*\.debian\." + r"org|crates\." + r"io/|npm\.pkg\." + r"github",
    re.I,
)


def check(root):
    for name in tree.tracked(root):
        text = tree.text_of(root, name)
        if text is None or name.startswith("models/"):
            continue
        for number, line in enumerate(text.split("\n"), 1):
            for pattern, what in [*((p, "a machine's path") for p in PLACES), (HOSTS, "a registry")]:
                found = pattern.search(line)
                if found:
                    yield f"{name}:{number}: names {what}: {found.group()}"
        if name.endswith("package-lock.json") and '"resolved"' in text:
            yield f"{name}: a lock file must not say where packages lie (omit-lockfile-registry-resolved)"


if __name__ == "__main__":
    tree.run(check)
