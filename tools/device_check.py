#!/usr/bin/env python3
"""What tools/check --device runs on a machine with a GPU, where nothing can be built or installed.

    tools/device_check.py correct BINARY KERNELS_TEST
    tools/device_check.py speed BINARY KERNELS_TEST

tools/device_bundle.py packs both for such a machine.

correct: every op against the reference and by the row rule; the fixtures; 20 prompts drafted, plain
and sampled, with one hash each; a prompt of 5,000 by steps of 16 to 4,096 rows; replies over HTTP
alone, in company, resumed, grown through sessions, over every form of pages, handed over by the lone
driver; the memory checker over a small model.
speed: `bench` on the bundled model and on the whole true shape at 6 and 5.0 bits (as many layers of
it as the GPU's memory holds), a lone reply driven and in shared steps in turns, and transformers' own
class where it is installed. Every step says what it counted; exit code 1 when one failed.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
PROMPTS = json.loads((ROOT / "tests" / "cli" / "prompts.json").read_text())
NANO = ROOT / "models" / "flash-next-nano-6bit"
# Of a script of tests/conformance: what its arguments ask for, and they take seconds.
SERVED = {"smoke": ["16"], "prompt_cache": ["2"], "pages": ["600"], "sessions": ["600"],
          "lone": ["400"], "snapshots": []}


class Failed(Exception):
    """One line for people."""


def run(*command, **environment):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          env={**os.environ, **environment}, check=False)
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise Failed("\n".join([f"exit code {done.returncode}: {command[0]}", *said[-15:]]))
    return done.stdout + done.stderr


def report_of(said):
    """The JSON object in what a command said, which progress may surround."""
    return json.JSONDecoder().raw_decode(said[said.index("{"):])[0]


def gpu(options):
    """Else the rest would say nothing of a GPU."""
    found = json.loads(run(options.binary, "--version", "--json"))["cuda"]
    if found is None:
        raise Failed("no GPU, or a build without CUDA")
    return json.dumps(found)


def kernels(options):
    said = run(options.kernels_test, "--gtest_filter=Parity.*:RowRule.*:*Draw.*", "--gtest_brief=1",
               TEST_BACKEND="cuda")
    return next(line for line in said.splitlines() if "ran" in line)


def fixtures(options):
    told = []
    for folder, model, only in (("micro_a", ROOT / "tests/fixtures/micro_a", []),
                                ("nano", NANO, ["--only", "code", "prose", "count", "copy", "edit",
                                                "eos", "long700", "long3000"])):
        said = run(sys.executable, ROOT / "tools/compare_fixtures.py", "--binary", options.binary,
                   "--backend", "cuda", "--fixtures", ROOT / "tests/fixtures" / folder, "--model",
                   model, *only)
        told += said.strip().splitlines()
    return "\n".join(told)


def reply(options, prompt, *arguments):
    chat = ["--no-thinking"] if prompt["via"] == "chat" else []
    said = run(options.binary, "generate", "--backend", "cuda", f"--{prompt['via']}={prompt['text']}",
               "--max-tokens", "64", "--json", *chat, *arguments)
    return report_of(said)


def replies(options):
    accepted = drafted = 0
    for prompt in PROMPTS:
        for sampling in ([], ["--temperature", "0.8", "--seed", "5"]):
            ours = reply(options, prompt, *sampling)
            if ours["token_sha"] != reply(options, prompt, "--no-drafts", *sampling)["token_sha"]:
                raise Failed(f"drafted is not plain: {prompt['text'][:60]} {sampling}")
            accepted += ours["drafts"]["accepted"]
            drafted += ours["drafts"]["drafted"]
    return f"{2 * len(PROMPTS)} replies equal drafted and plain; {accepted} of {drafted} drafts stood"


def one_sha_in_any_chunks(options):
    """A prompt longer than a step has rows: kernels of few rows, of many, and of thousands."""
    ids = [300 + i * 7919 % 2700 for i in range(5000)]
    told = []
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(ids, file)
        file.flush()
        for name, model, chunks in (("nano", [], (16, 300, 4096)),
                                    ("true shape", true_shape(options, "q6g64", 4), (300, 4096))):
            for drawn in (["--temperature", "0"], ["--temperature", "1", "--seed", "5"]):
                hashes = set()
                for chunk in chunks:
                    said = run(options.binary, "generate", "--backend", "cuda", *model, *drawn, "--json",
                               "--prompt-ids", file.name, "--prefill-chunk", chunk, "--max-tokens", "48",
                               "--ignore-eos")
                    hashes.add(report_of(said)["token_sha"])
                if len(hashes) != 1:
                    raise Failed(f"{name}, {drawn}: {len(hashes)} replies by chunks of {chunks}")
            told.append(f"{name}: one reply by chunks of {chunks}, greedy and drawn")
    return "\n".join(told)


def served(name):
    def check(options):
        said = run(sys.executable, ROOT / "tests/conformance" / f"{name}_test.py", options.binary,
                   *SERVED[name], TEST_BACKEND="cuda")
        return "; ".join(line for line in said.splitlines()
                         if re.search(r"^Ran |comparisons|equal", line))
    check.__name__ = f"served, {name}"
    return check


def memory_checker(options):
    checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    said = run(checker, "--error-exitcode", "9", options.binary, "generate", "--backend", "cuda",
               "--model", "synth:tiny", "--prompt-ids", options.ids, "--max-tokens", "12")
    return next(line for line in said.splitlines() if "ERROR SUMMARY" in line)


PLAIN = ["--drafts", "off", "--unpriced", "--probe-mib", "64", "--rounds", "3"]
CODE = ["--prompt-file", str(ROOT / "bench/prompts/code.txt"), "--prompt-tokens", "512"]
WHOLE_LAYERS = 48
LAYER_GB = {"q6g64": 2.2, "q4g32": 1.8}  # rounded up
BESIDE_GB = 8  # head, embedding, draft head, step buffers, pool
LEAST_LAYERS = 3  # the n-gram layer is the second of them
LEAST_GB_OF_PEER = 60  # 8 layers in bf16 and what torch takes beside them


def true_shape(options, form, most_layers=WHOLE_LAYERS):
    """The model and the limit: what the card has but for what it keeps for itself."""
    gigabytes = json.loads(gpu(options))["memory_bytes"] / 1e9 * 0.97
    layers = min(most_layers, int((gigabytes - BESIDE_GB) / LAYER_GB[form]))
    if layers < LEAST_LAYERS:
        raise Failed(f"{gigabytes:.1f} GB hold fewer than {LEAST_LAYERS} layers of the true shape")
    return ["--model", f"synth:true,layers={layers},format={form}", "--memory-limit-gib",
            f"{gigabytes * 1e9 / 2**30:.1f}"]


def bench(*arguments, form=None):
    def check(options):
        model = true_shape(options, form) if form else []
        return run(options.binary, "bench", "--backend", "cuda", *model, *arguments)
    check.__name__ = " ".join(["bench", *([form] if form else []), *arguments])
    return check


def lone_over_shared(options):
    """Driven, shared, shared, driven: the same reply's tokens a second."""
    told = []
    for name, model in (("nano, code", CODE), ("true shape at 6 bits", [
            *true_shape(options, "q6g64"), "--prompt-tokens", "64"])):
        speeds = {"driven": [], "shared": []}
        for way in ("driven", "shared", "shared", "driven"):
            said = run(options.binary, "bench", "--backend", "cuda", "--json", *model, *PLAIN, "--rows", "1",
                       "--decode-tokens", "128", *(["--no-lone"] if way == "shared" else []))
            decode = next(c for c in report_of(said)["cells"] if c["kind"] == "decode")
            speeds[way].append(decode["tokens_per_second"])
        ratio = sum(speeds["driven"]) / sum(speeds["shared"])
        told.append(f"{name}: {ratio:.3f} of " + ", ".join(
            f"{way} {' and '.join(f'{s:.1f}' for s in of)}" for way, of in speeds.items()))
    return "\n".join(told)


def transformers(options):
    try:
        found = importlib.util.find_spec("torch") and importlib.util.find_spec(
            "transformers.models.qwen4_exp")
    except ModuleNotFoundError:
        found = None
    if not found:
        return "torch or a transformers with qwen4_exp is not installed: not compared"
    if json.loads(gpu(options))["memory_bytes"] < LEAST_GB_OF_PEER * 1e9:
        return f"less than {LEAST_GB_OF_PEER} GB of memory: not compared"
    return run(sys.executable, ROOT / "bench/peers/transformers_decode.py", options.binary)


STEPS = {
    "correct": [gpu, kernels, fixtures, replies, one_sha_in_any_chunks, *map(served, SERVED),
                memory_checker],
    "speed": [
        gpu,
        bench(*CODE, "--rounds", "3", "--probe-mib", "64"),
        bench("--prompt-tokens", "8192", "--decode-tokens", "64", "--rows", "1,4,16", *PLAIN,
              form="q6g64"),
        bench("--prompt-tokens", "64", "--decode-tokens", "64", "--rows", "1", *PLAIN,
              form="q4g32"),
        lone_over_shared,
        transformers,
    ],
}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=STEPS)
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("kernels_test", type=pathlib.Path)
    options = parser.parse_args()
    options.binary = options.binary.resolve()
    libraries = options.binary.parent / "lib"
    if libraries.is_dir():  # of a bundle (tools/device_bundle.py)
        os.environ["LD_LIBRARY_PATH"] = str(libraries)
    options.ids = ROOT / "tests" / "cli" / "short_ids.json"
    failed = 0
    for step in STEPS[options.mode]:
        began = time.monotonic()
        try:
            told, word = step(options), "ok"
        except (Failed, OSError, ValueError, KeyError, StopIteration) as failure:
            told, word = f"{type(failure).__name__}: {failure}", "FAILED"
            failed += 1
        print(f"{told}\n== {step.__name__}: {word}, {time.monotonic() - began:.1f} s", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
