"""`bench`: the shape of its report, the bytes it counts against the checkpoint's own header, replies
against `generate`, what it refuses; and bench/compare.py on commands whose numbers are known.
No time is checked against anything but itself."""

import json
import pathlib
import shlex
import struct
import subprocess
import sys
import tempfile

import support
from support import MICRO

QUICK = ("--rounds", 2, "--probe-mib", 4)
CELL = ["kind", "rows", "streams", "chain", "threads", "tokens_per_second", "ms", "ms_min", "ms_max",
        "bytes", "distinct_experts", "share_of_read_bandwidth"]
PROMPT, DECODED = 40, 6
VOCABULARY, END = 320, 5  # of micro_a


def counted_ids(count):
    """The ids that `bench` takes when it is given no text."""
    ids, mask = [], (1 << 64) - 1
    for i in range(count * 2):
        v = (i + 0x9E3779B97F4A7C15) & mask
        v = (v ^ (v >> 30)) * 0xBF58476D1CE4E5B9 & mask
        v = (v ^ (v >> 27)) * 0x94D049BB133111EB & mask
        v = (v ^ (v >> 31)) % VOCABULARY
        if v != END:
            ids.append(v)
    return ids[:count]


def tensor_bytes():
    """Bytes of each tensor of micro_a by name, and its shape."""
    with open(MICRO / "model.safetensors", "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    header.pop("__metadata__", None)
    return {name: (t["data_offsets"][1] - t["data_offsets"][0], t["shape"])
            for name, t in header.items()}


def forward_bytes(position):
    """What one row of one sequence of micro_a moves at `position`, K/V in bf16."""
    dense = bank = 0
    for name, (size, shape) in tensor_bytes().items():
        if name.startswith("mtp.") or "ngram_embedding" in name or "embed_tokens" in name:
            continue
        if len(shape) == 2:
            dense += size
        elif "experts" in name:
            bank += size
    rows = 64 * 2 + 2 * 4 * 16 * 2  # one embedding row, four n-gram rows in each of two layers
    delta = 2 * 4 * 32 * 32 + (2 * 32 + 4 * 32 + 4) + (3 + 1) * 256
    state = 4 * (4 * delta + 2 * (2 * 3 + 1) * 192)
    seen = position + 1
    complete, tail = divmod(seen, 4)
    attended = min(complete, 8) * 4 + tail
    scored = complete if complete > 8 else 0
    kv = 2 * 2 * ((attended + 1) * 2 * 2 * 32 + (scored + 1) * 32)
    return {"weight_bytes": dense + rows, "expert_bytes": bank * 3 // 10, "state_bytes": state,
            "kv_bytes": kv}


class Bench(support.CommandTest):
    def bench(self, *arguments, model=MICRO):
        return self.succeed_json("bench", "--model", model, "--json", *QUICK, *arguments)

    def micro(self, *arguments):
        return self.bench("--prompt-tokens", PROMPT, "--decode-tokens", DECODED, "--backend", "cpu",
                          *arguments)

    def cell(self, report, kind, rows=1, chain=True):
        found = [c for c in report["cells"]
                 if (c["kind"], c["rows"], c["chain"]) == (kind, rows, chain)]
        self.assertEqual(len(found), 1, (kind, rows, chain))
        return found[0]

    def test_drafts_are_priced_as_in_a_server(self):
        """However short the prompt and its reply are: they would be unpriced in so short a context."""
        done = support.run("bench", "--model", MICRO, *QUICK, "--backend", "cpu", "--rows", 1,
                           "--prompt-tokens", PROMPT, "--decode-tokens", DECODED, "--streams", 2)
        said = done.stderr.decode()
        self.assertEqual(done.returncode, 0, said)
        self.assertEqual(said.count("bench: measured: a step of 1, 2, 4, 8, 16 rows takes"), 1, said)
        self.assertNotIn("not priced", said)

    def test_report(self):
        # Unpriced: whether drafts of a model this small pay is a matter of the machine's mood.
        report = self.micro("--rows", "1,4", "--streams", "1,3", "--threads", 2, "--unpriced")
        self.assertEqual(list(report)[:1] + ["probe_gbps", "cells"],
                         [key for key in report if key in ("machine", "probe_gbps", "cells")])
        machine = report["machine"]
        for key in ("cpu", "cores", "isa", "threads", "build", "load_average"):
            self.assertIn(key, machine)
        self.assertEqual(machine["threads"], 2)
        self.assertEqual(machine["build"], self.succeed_json("--version", "--json")["build"])
        for key in ("probe_gbps", "probe_gbps_1_thread"):
            self.assertEqual(len(report[key]), 2)
            self.assertGreater(min(report[key]), 0)
        kinds = [(c["kind"], c["rows"], c["streams"], c["chain"]) for c in report["cells"]]
        self.assertEqual(kinds, [
            ("prompt", PROMPT, 1, True), ("decode", 1, 1, True), ("drafted", 4, 1, True),
            ("streams", 1, 1, True), ("streams", 4, 1, True), ("streams", 1, 3, False),
            ("streams", 4, 3, False), ("forward", 1, 1, True), ("forward", 4, 1, True),
            ("forward", 4, 4, False), ("draft_step", 1, 1, True)])
        read = sum(report["probe_gbps"]) / 2
        units = {"prompt": PROMPT, "streams": DECODED + 1}
        for cell in report["cells"]:
            self.assertEqual(list(cell)[:len(CELL)], CELL)
            self.assertLessEqual(cell["ms_min"], cell["ms"])
            self.assertLessEqual(cell["ms"], cell["ms_max"])
            self.assertEqual((cell["threads"], cell["context"], cell["rounds"]), (2, PROMPT, 2))
            tokens = cell["rows"] if cell["kind"] == "forward" else units.get(cell["kind"], 1)
            if cell["kind"] == "streams":
                tokens *= cell["streams"]
            self.assertAlmostEqual(cell["tokens_per_second"] * cell["ms"] / (1000 * tokens), 1, 6)
            parts = sum(cell[p] for p in ("weight_bytes", "expert_bytes", "state_bytes", "kv_bytes"))
            self.assertAlmostEqual(cell["bytes"] / parts, 1, 6)
            moved = cell["bytes"] / cell["ms"] / 1e6
            self.assertAlmostEqual(cell["share_of_read_bandwidth"] / (moved / read), 1, 6)
        for key in ("rounds", "drafted"):
            self.assertGreater(self.cell(report, "drafted", 4)["drafts"][key], 0)
        for drafts in (cell["drafts"] for cell in report["cells"] if "drafts" in cell):
            for key in ("drafted", "accepted"):
                self.assertEqual(sum(drafts["head"][key]) + sum(drafts["copied"][key]), drafts[key])

    def test_bytes_are_those_of_the_checkpoint(self):
        report = self.micro("--rows", "1")
        # A round's first forward isn't timed.
        places = {"decode": range(PROMPT, PROMPT + DECODED),
                  "forward": range(PROMPT + 1, PROMPT + 1 + DECODED)}
        for kind, positions in places.items():
            cell = self.cell(report, kind)
            self.assertEqual(cell["units"], DECODED)
            self.assertEqual(cell["distinct_experts"], 3)
            for part, size in forward_bytes(PROMPT).items():
                expected = sum(forward_bytes(p)[part] for p in positions) / DECODED
                self.assertAlmostEqual(cell[part] / expected, 1, 6, (kind, part, size))

    def test_more_rows_share_experts(self):
        report = self.micro("--rows", "1,8")
        for chain in (True, False):
            cell = self.cell(report, "forward", 8, chain)
            self.assertGreater(cell["distinct_experts"], 3)
            self.assertLessEqual(cell["distinct_experts"], 10)
            one = self.cell(report, "forward")
            ratio = cell["distinct_experts"] / one["distinct_experts"]
            self.assertAlmostEqual(cell["expert_bytes"] / one["expert_bytes"] / ratio, 1, 6)
            states = cell["state_bytes"] / one["state_bytes"]
            self.assertTrue(7.9 < states < 8.1 if not chain else states < 6, states)

    def test_replies_are_those_of_generate(self):
        report = self.micro("--rows", "1")
        reply = self.succeed_json(
            "generate", "--model", MICRO, "--backend", "cpu", "--prompt-ids", "-", "--ignore-eos",
            "--no-drafts", "--max-tokens", DECODED + 1, "--json",
            stdin=json.dumps(counted_ids(PROMPT)).encode())
        for kind, rows in (("decode", 1), ("drafted", 4)):
            self.assertEqual(self.cell(report, kind, rows)["token_sha"], reply["token_sha"])

    def test_chunks_of_a_prompt_change_no_token(self):
        cells = [self.micro("--rows", "1", *chunk) for chunk in ([], ["--prefill-chunk", "5"])]
        for report, rows in zip(cells, (PROMPT, 5)):
            self.assertGreater(self.cell(report, "prompt", rows)["ms"], 0)
        whole, cut = (self.cell(c, "decode", 1)["token_sha"] for c in cells)
        self.assertEqual(whole, cut)

    def test_lists_and_drafts_off(self):
        report = self.bench("--prompt-tokens", "8,3", "--decode-tokens", "2,5", "--rows", "2",
                            "--drafts", "off", "--backend", "reference", model="synth:tiny")
        self.assertEqual([(c["kind"], c["context"], c["units"]) for c in report["cells"]
                          if c["kind"] != "draft_step"],
                         [("prompt", 8, 1), ("decode", 8, 2), ("decode", 8, 5),
                          ("prompt", 3, 1), ("decode", 3, 2), ("decode", 3, 5),
                          ("forward", 8, 2), ("forward", 8, 5), ("forward", 3, 2),
                          ("forward", 3, 5)])

    def test_a_text_as_prompt(self):
        text = support.ROOT / "bench/prompts/code.txt"
        done = support.run("bench", "--prompt-file", text, "--prompt-tokens", 24, "--decode-tokens",
                           4, "--rows", 1, *QUICK)
        self.assertEqual(done.returncode, 0, done.stderr)
        for words in ("prompt of 24", "decode 4 after 24", "drafts accepted", "experts", "GB/s"):
            self.assertIn(words, done.stdout.decode())

    def test_refusals(self):
        bench = ("bench", "--model", MICRO)
        self.refuse(2, ["--rows", "0", "1 to 16"], *bench, "--rows", "0")
        self.refuse(2, ["--rows", "17", "1 to 16"], *bench, "--rows", "1,17")
        self.refuse(2, ["--rows", "''"], *bench, "--rows", "1,,2")
        self.refuse(2, ["--prompt-tokens", "'x'"], *bench, "--prompt-tokens", "x")
        self.refuse(2, ["--decode-tokens", "0"], *bench, "--decode-tokens", "0")
        self.refuse(2, ["--rounds", "0", "1000"], *bench, "--rounds", "0")
        self.refuse(2, ["--drafts", "'maybe'", "on, off"], *bench, "--drafts", "maybe")
        self.refuse(2, ["--streams", "17", "1 to 16"], *bench, "--streams", "1,17")
        self.refuse(2, ["4000", "4096"], *bench, "--prompt-tokens", "4000")
        self.refuse(2, ["no tokenizer"], *bench, "--prompt-file", MICRO / "config.json")
        self.refuse(2, ["absent.txt"], "bench", "--prompt-file", "absent.txt")
        self.refuse(2, ["bytes", "4294967296"], "bench", "--model", "synth:true,format=q4g32")

    def test_texts_and_heads_that_do_not_serve(self):
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            (folder / "short.txt").write_text("one two")
            (folder / "broken.txt").write_bytes(b"ab\xff")
            (folder / "empty.txt").write_text("")
            for file, words in (("short.txt", ["--prompt-tokens 9", "short.txt"]),
                                ("broken.txt", ["broken.txt", "byte 2"]),
                                ("empty.txt", ["empty.txt", "one token"])):
                self.refuse(2, words, "bench", "--prompt-file", folder / file, "--prompt-tokens", 9)
            config = json.loads((MICRO / "config.json").read_text())
            config["text_config"]["mtp_num_hidden_layers"] = 0
            (folder / "config.json").write_text(json.dumps(config))
            (folder / "model.safetensors").symlink_to(MICRO / "model.safetensors")
            self.refuse(2, ["--drafts on", "MTP"], "bench", "--model", folder, "--drafts", "on")
            report = self.bench("--prompt-tokens", 4, "--decode-tokens", 2, "--rows", 1,
                                model=folder)
            self.assertEqual([c["kind"] for c in report["cells"]], ["prompt", "decode", "forward"])


class Compare(support.CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.log = self.folder / "order"

    def side(self, name, values, shape="{{\"cells\":[{{\"kind\":\"decode\",\"rows\":1,"
                                       "\"tokens_per_second\":{}}}]}}"):
        """A command that prints the values one after the other, and notes that it ran."""
        script = self.folder / f"{name}.py"
        script.write_text(
            "import pathlib\n"
            f"log = pathlib.Path({str(self.log)!r})\n"
            "ran = log.read_text() if log.exists() else ''\n"
            f"log.write_text(ran + {name!r})\n"
            f"print({shape!r}.format({values!r}[ran.count({name!r})]))\n")
        return shlex.join([sys.executable, "-B", str(script)])

    def compare(self, *arguments):
        return subprocess.run([sys.executable, "-B", str(support.ROOT / "bench/compare.py"),
                               *map(str, arguments)], capture_output=True, text=True, check=False)

    def test_ratio_in_turns(self):
        # Both slow down by half in the second round, which a ratio of medians would see.
        done = self.compare("--a", self.side("A", [200, 200, 100, 100]),
                            "--b", self.side("B", [100, 100, 50, 50]), "--rounds", 2, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.log.read_text(), "ABBAABBA")
        (metric,) = json.loads(done.stdout)["metrics"]
        self.assertAlmostEqual(metric["ratio"]["median"], 2)
        self.assertAlmostEqual(metric["ratio"]["max"], 2)
        self.assertEqual(metric["noise_floor"], 0)
        self.assertTrue(metric["differs"])
        self.assertEqual(metric["a"], {"median": 150, "min": 100, "max": 200})

    def test_a_difference_within_the_noise_is_none(self):
        done = self.compare("--a", self.side("A", [100, 121]), "--b", self.side("B", [100, 100]),
                            "--rounds", 1, "--json")
        (metric,) = json.loads(done.stdout)["metrics"]
        self.assertAlmostEqual(metric["ratio"]["median"], 1.1)
        self.assertAlmostEqual(metric["noise_floor"], 0.21)
        self.assertFalse(metric["differs"])

    def test_other_names_and_a_table(self):
        done = self.compare("--a", self.side("A", [30, 30]),
                            "--b", self.side("B", [10, 10], "{{\"speed\":[{{\"x\":{}}}]}}"),
                            "--rounds", 1, "--metric",
                            "decoding=cells[kind=decode,rows=1].tokens_per_second|speed[0].x")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("decoding", done.stdout)
        self.assertIn("3.000", done.stdout)

    def test_refusals(self):
        good, bad = self.side("A", [1] * 40), shlex.join([sys.executable, "-c", "raise SystemExit(3)"])
        for words, arguments in (
                ("ended with 3", ("--b", bad)),
                ("no JSON", ("--b", "echo text")),
                ("can't run", ("--b", "/nowhere/at-all")),
                ("no item has [kind=none]", ("--b", good, "--metric", "m=cells[kind=none].x")),
                ("there is no 'speed'", ("--b", good, "--metric", "m=speed")),
                ("NAME=PATH", ("--b", good, "--metric", "speed"))):
            done = self.compare("--a", good, "--rounds", 1, *arguments)
            self.assertEqual(done.returncode, 2, words)
            self.assertIn(words, done.stderr.splitlines()[-1])
            self.assertEqual(done.stdout, "")


if __name__ == "__main__":
    support.main()
