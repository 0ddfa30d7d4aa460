"""`flashlane convert`: what it writes is a checkpoint like those of other tools, scores like its
source, and is there whole or not at all."""

import errno
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import tempfile
import time

import support
from support import MICRO

NANO = support.ROOT / "models" / "flash-next-nano-6bit"
FORMATS = ["bf16", "f16", "f32"] + [f"q{b}g{g}" for b in (2, 3, 4, 5, 6, 8) for g in (32, 64, 128)]
ELEMENT_BYTES = {"I64": 8, "U32": 4, "F32": 4, "BF16": 2, "F16": 2}
CODE = b"""def fibonacci(n):
    \"\"\"Return the n-th number.\"\"\"
    a, b = 0, 1
    for i in range(n):
        a, b = b, a + b
    return a

class Point:
    def __init__(self, x, y):
        self.x = x
"""


def header(path):
    """The header of a safetensors file, read by other code than ours; data must have no gaps."""
    whole = path.read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    entries = json.loads(whole[8 : 8 + length])
    entries.pop("__metadata__", None)
    assert length % 8 == 0, path
    end = 0
    for name, entry in sorted(entries.items(), key=lambda e: e[1]["data_offsets"]):
        begin, after = entry["data_offsets"]
        width = ELEMENT_BYTES[entry["dtype"]]
        count = 1
        for size in entry["shape"]:
            count *= size
        assert begin == end and after - begin == count * width and begin % width == 0, name
        end = after
    assert 8 + length + end == len(whole), path
    return {name: (entry["dtype"], entry["shape"]) for name, entry in entries.items()}


class Convert(support.CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def convert(self, source, form, name=None, *more):
        target = self.folder / (name or form)
        said = self.succeed_json("convert", source, "--format", form, "--output", target, "--json",
                                 *more)
        self.assertEqual(said["directory"], str(target))
        self.assertEqual(said["format"], form)
        return target, said

    def score(self, model, ids, *more):
        return self.succeed("score", "--model", model, "--ids", "-", "--top", "1", "--json", *more,
                            stdin=json.dumps(ids).encode())

    def ids(self):
        return self.succeed_json("tokenize", "--json", stdin=CODE)["ids"]

    def test_every_format_serves(self):
        ids = [(7 * i + i * i) % 300 for i in range(30)]
        exact = self.score(MICRO, ids, "--backend", "reference")
        for form in FORMATS:
            target, said = self.convert(MICRO, form)
            text = self.score(target, ids, "--backend", "reference")
            self.assertEqual(len(text.splitlines()), 30)
            # The source is bf16, so these two lose nothing.
            if form in ("bf16", "f32"):
                self.assertEqual(text, exact, form)
                self.assertEqual(said["relative_error"], 0, form)
            info = self.succeed_json("info", "--model", target, "--json")
            words = f"affine {form[1]}-bit group {form[3:]}" if form.startswith("q") else form
            self.assertEqual(info["format"], words)
            if form.startswith("q"):
                self.assertGreater(said["relative_error"], 0, form)

    def test_same_tensors_as_other_conversions_have(self):
        target, said = self.convert("nano", "q4g32")
        had = header(NANO / "model.safetensors")
        expected = {}
        for name, (dtype, shape) in had.items():
            path = name.rsplit(".", 1)[0]
            if f"{path}.scales" in had:
                # From 6 bits to 4; from groups of 64, or 32 in the n-gram table, to 32.
                last = shape[-1] * 4 // 6 if dtype == "U32" else shape[-1] * 2
                if "ngram_embedding" in name and dtype != "U32":
                    last = shape[-1]
                shape = [*shape[:-1], last]
            expected[name] = (dtype, shape)
        self.assertEqual(header(target / "model.safetensors"), expected)
        # The n-gram table has groups of 32 throughout, so no module differs from the default.
        config = json.loads((target / "config.json").read_text())
        original = json.loads((NANO / "config.json").read_text())
        for key in ("quantization", "quantization_config"):
            self.assertEqual(config.pop(key), {"group_size": 32, "bits": 4, "mode": "affine"})
            original.pop(key)
        self.assertEqual(config, original)
        copied = {p.name for p in NANO.iterdir()} - {"config.json", "model.safetensors"}
        self.assertEqual(set(said["copied_files"]), copied)
        for name in copied:
            self.assertEqual((target / name).read_bytes(), (NANO / name).read_bytes(), name)
        self.assertEqual(said["left_out"], [])

    def test_a_format_that_is_there_is_kept_to_the_bit(self):
        target, said = self.convert(NANO, "q6g64")
        self.assertEqual(said["matrices"]["converted"], 0)
        self.assertEqual(json.loads((target / "config.json").read_text()),
                         json.loads((NANO / "config.json").read_text()))
        ids = self.ids()
        self.assertEqual(self.score(target, ids), self.score(NANO, ids))
        again, _ = self.convert(target, "q6g64", "again")
        for name in ("model.safetensors", "config.json"):
            self.assertEqual((again / name).read_bytes(), (target / name).read_bytes(), name)

    def test_scores_stay_close(self):
        ids = self.ids()

        def best(text):
            return [json.loads(line)["top"][0][0] for line in text.splitlines()]

        exact = self.score(NANO, ids, "--backend", "reference")
        wide, _ = self.convert(NANO, "f32")
        # Every dequantised value is kept, and reference computes with nothing else.
        self.assertEqual(self.score(wide, ids, "--backend", "reference"), exact)
        for form, share in (("q8g64", 0.9), ("q4g32", 0.75)):
            target, _ = self.convert(NANO, form)
            pairs = list(zip(best(exact), best(self.score(target, ids))))
            same = sum(a == b for a, b in pairs)
            self.assertGreaterEqual(same, share * len(pairs), form)
            replies = [
                self.succeed_json("generate", "--model", target, "--prompt", CODE.decode(),
                                  "--max-tokens", 24, "--json", *more)["token_sha"]
                for more in ((), ("--no-drafts",))
            ]
            self.assertEqual(*replies, form)

    def test_shards_and_threads_change_no_value(self):
        whole, _ = self.convert(NANO, "q8g64", "whole", "--threads", "1")
        parts, said = self.convert(NANO, "q8g64", "parts", "--threads", "3", "--shard-mib", "8")
        self.assertGreater(len(said["weight_files"]), 4)
        index = json.loads((parts / "model.safetensors.index.json").read_text())
        tensors = {}
        for name in said["weight_files"]:
            found = header(parts / name)
            self.assertEqual({index["weight_map"][tensor] for tensor in found}, {name})
            tensors.update(found)
        self.assertEqual(tensors, header(whole / "model.safetensors"))
        self.assertEqual(index["metadata"]["total_size"], said["bytes"])
        ids = self.ids()
        self.assertEqual(self.score(parts, ids), self.score(whole, ids))

    def test_refusals(self):
        target = self.folder / "out"

        def refuse(words, *arguments, code=2):
            self.refuse(code, words, "convert", *arguments)
            self.assertEqual(sorted(p.name for p in self.folder.iterdir()), there)

        there = []
        refuse(["--format is missing"], "nano", "--output", target)
        refuse(["--output is missing"], "nano", "--format", "q4g32")
        to = ("--output", target, "--format")
        refuse(['"q7g32"', "q<bits>g<group>", "2, 3, 4, 5, 6, 8"], "nano", *to, "q7g32")
        refuse(["fp8", "CUDA"], "nano", *to, "fp8")
        refuse(["synth:tiny", "no files"], "synth:tiny", *to, "bf16")
        refuse(["no-such-model"], "no-such-model", *to, "bf16")
        refuse(["--shard-mib", "0"], "nano", *to, "bf16", "--shard-mib", "0")
        refuse([f"{self.folder}/no: no such directory"], "nano", "--format", "bf16", "--output",
               self.folder / "no" / "out")
        target.mkdir()
        there = ["out"]
        refuse([f"{target} exists already"], "nano", *to, "bf16")
        self.assertEqual(list(target.iterdir()), [])
        # A checkpoint that could not be served is not converted either.
        model = self.folder / "broken"
        model.mkdir()
        shutil.copyfile(MICRO / "config.json", model / "config.json")
        whole = (MICRO / "model.safetensors").read_bytes()
        (model / "model.safetensors").write_bytes(
            whole.replace(b"lm_head.weight", b"lm_tail.weight", 1))
        there = ["broken", "out"]
        refuse(["lm_head.weight"], model, "--format", "bf16", "--output", self.folder / "new")

    def start(self, target, **more):
        return subprocess.Popen(
            [str(support.BINARY), "convert", str(NANO), "--format", "f32", "--output", str(target)],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=support.clean_environment(), **more)

    def test_an_interrupt_leaves_nothing(self):
        for number in (signal.SIGINT, signal.SIGTERM):
            process = self.start(self.folder / "out")
            while process.poll() is None and not any(self.folder.iterdir()):
                time.sleep(0.01)
            self.assertRegex([p.name for p in self.folder.iterdir()][0], r"^\.out\.partial-\d+-0$")
            process.send_signal(number)
            output, said = process.communicate(timeout=600)
            self.assertEqual(process.returncode, 130, said)
            self.assertEqual(output, b"")
            self.assertIn(b"flashlane: interrupted: nothing is written", said)
            self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_failure_half_way_leaves_nothing(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (50 << 20, 50 << 20))

        # Python ignores SIGXFSZ; kept so, a write over the limit fails instead of killing.
        process = self.start(self.folder / "out", preexec_fn=limit, restore_signals=False)
        output, said = process.communicate(timeout=600)
        self.assertEqual(process.returncode, 2, said)
        self.assertEqual(output, b"")
        self.assertIn(b"can't write: " + os.strerror(errno.EFBIG).encode(), said)
        self.assertEqual(list(self.folder.iterdir()), [])


if __name__ == "__main__":
    support.main()
