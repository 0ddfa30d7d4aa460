"""docs/request_path.md is true: every function it names stands in the file it names.

A row holds `src/file.cc: symbol`; several symbols of one file are separated by commas.
"""

import re

import tree

ROW = re.compile(r"`(src/[\w./]+):\s*([\w:~, ]+)`")


def check(root):
    text = (root / "docs/request_path.md").read_text(encoding="utf-8")
    rows = ROW.findall(text)
    if len(rows) < 10:
        yield f"docs/request_path.md: only {len(rows)} rows found; the path of a request is longer"
    for name, symbols in rows:
        path = root / name
        if not path.is_file():
            yield f"docs/request_path.md: {name} does not exist"
            continue
        source = path.read_text(encoding="utf-8")
        for symbol in (part.strip() for part in symbols.split(",")):
            pattern = r"\b" + re.escape(symbol) + r"\s*[({<=]"
            if not re.search(pattern, source):
                yield f"docs/request_path.md: {name} holds no {symbol}"


if __name__ == "__main__":
    tree.run(check)
