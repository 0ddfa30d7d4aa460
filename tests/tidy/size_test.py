"""The tree stays small, because it travels to GPU machines: 54 MB in all, 6 MB of fixtures."""

import tree

LIMITS = {"": 54_000_000, "tests/fixtures/": 6_000_000}


def check(root):
    names = tree.tracked(root)
    if not names:
        yield "no tracked files found"
    for prefix, limit in LIMITS.items():
        total = sum((root / name).stat().st_size for name in names if name.startswith(prefix))
        if total >= limit:
            yield f"{prefix or 'the tree'}: {total} bytes, must be below {limit}"


if __name__ == "__main__":
    tree.run(check)
