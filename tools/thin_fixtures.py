#!/usr/bin/env python3
"""Copies the reference values into tests/fixtures, thinned to what the tests need (at most 6 MB).

Whole files are copied byte for byte. Of the nano goldens, only full_pos and full_logits lose rows.
Of the traces, every tensor with one row per traced position loses the same rows; the tokens stay
whole, and so do the selected blocks, which have one row per query, but for the long trace, where
block_rows names those kept. Kept values keep their bits: rows are cut out as bytes and no number is
read but the positions.

    tools/thin_fixtures.py SOURCE [TARGET]
"""

import argparse
import json
import pathlib
import struct
import sys

WHOLE = [
    "tokenizer_strings.json",
    "tokenizer_partial.json",
    "chat_template_cases.json",
    "micro_a/config.json",
    "micro_a/model.safetensors",
    "micro_a/golden_t2.safetensors",
    "micro_a/golden_t60.safetensors",
    "micro_a/golden_t181.safetensors",
    "micro_a/golden_t400.safetensors",
    "micro_a/trace_t60.safetensors",
    "nano/index.json",
    "nano/dequant_6bit.safetensors",
]
# Rows of full_pos that are kept: the last.
GOLDENS = {"code": (7,), "copy": (7,), "count": (7,), "edit": (7,), "eos": (7,), "long700": (7,),
           "long3000": (7,), "prose": (7,)}
TRACES = {  # The positions kept: the last always, and of long700 one just past the budget of 256.
    "short": (20, 39),
    "long700": (259, 702),
}
BLOCK_ROWS = {"long700": 4}  # one query in so many has its blocks kept
LIMIT_BYTES = 6_000_000


class Safetensors:
    """The tensors of one file as dtype, shape and bytes, in the order of the file."""

    def __init__(self, path):
        data = path.read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header = json.loads(data[8 : 8 + length])
        body = data[8 + length :]
        self.metadata = header.pop("__metadata__", None)
        self.tensors = {}
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            self.tensors[name] = (entry["dtype"], entry["shape"], body[begin:end])

    def integers(self, name):
        dtype, shape, data = self.tensors[name]
        if dtype != "I32" or len(shape) != 1:
            sys.exit(f"{name} is {dtype} {shape}, not a list of I32")
        return list(struct.unpack(f"<{shape[0]}i", data))

    def keep_rows(self, name, rows):
        dtype, shape, data = self.tensors[name]
        stride = len(data) // shape[0]
        kept = b"".join(data[row * stride : (row + 1) * stride] for row in rows)
        self.tensors[name] = (dtype, [len(rows), *shape[1:]], kept)

    def write(self, path):
        header, body = {}, []
        if self.metadata is not None:
            header["__metadata__"] = self.metadata
        offset = 0
        for name, (dtype, shape, data) in self.tensors.items():
            end = offset + len(data)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [offset, end]}
            body.append(data)
            offset = end
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(body))


def thin_golden(file, rows):
    file.keep_rows("full_pos", rows)
    file.keep_rows("full_logits", rows)


def thin_blocks(file, step):
    rows = None
    for name, (_, shape, _) in list(file.tensors.items()):
        if not name.endswith("_blocks"):
            continue
        # The draft head has a query less.
        rows = rows or list(range(0, shape[0] - 1, step))
        file.keep_rows(name, rows)
    file.tensors["block_rows"] = ("I32", [len(rows)], struct.pack(f"<{len(rows)}i", *rows))


def thin_trace(file, kept):
    positions = file.integers("positions")
    mtp_positions = file.integers("mtp_positions")
    rows = [positions.index(position) for position in kept]
    mtp_rows = [mtp_positions.index(p) for p in kept if p in mtp_positions]
    last = positions[-4:]  # The logits are those of the last four positions.
    for name, (_, shape, _) in list(file.tensors.items()):
        if name == "tokens" or name.endswith("_blocks"):
            continue
        if name == "logits":
            file.keep_rows(name, [last.index(p) for p in kept if p in last])
        elif name.startswith("mtp_"):
            if shape[0] != len(mtp_positions):
                sys.exit(f"{name} has {shape[0]} rows, not {len(mtp_positions)}")
            file.keep_rows(name, mtp_rows)
        else:
            if shape[0] != len(positions):
                sys.exit(f"{name} has {shape[0]} rows, not {len(positions)}")
            file.keep_rows(name, rows)


def main():
    root = pathlib.Path(__file__).resolve().parent.parent
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("target", type=pathlib.Path, nargs="?", default=root / "tests/fixtures")
    options = parser.parse_args()
    for folder in ("micro_a", "nano"):
        (options.target / folder).mkdir(parents=True, exist_ok=True)
    for name in WHOLE:
        (options.target / name).write_bytes((options.source / name).read_bytes())
    for name, rows in GOLDENS.items():
        path = f"nano/golden_{name}.safetensors"
        file = Safetensors(options.source / path)
        thin_golden(file, rows)
        file.write(options.target / path)
    for name, kept in TRACES.items():
        path = f"nano/trace_{name}.safetensors"
        file = Safetensors(options.source / path)
        thin_trace(file, kept)
        if name in BLOCK_ROWS:
            thin_blocks(file, BLOCK_ROWS[name])
        file.write(options.target / path)
    total = sum(path.stat().st_size for path in options.target.rglob("*") if path.is_file())
    print(f"{options.target}: {total} bytes, limit {LIMIT_BYTES}")
    if total > LIMIT_BYTES:
        sys.exit(1)


if __name__ == "__main__":
    main()
