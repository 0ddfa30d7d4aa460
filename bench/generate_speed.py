#!/usr/bin/env python3
"""Times whole replies of the bundled model: prompt, plain decode and drafted decode, interleaved.

usage: bench/generate_speed.py [BINARY] [RUNS]

Each run is its own process on a code prompt of 1,500 characters of this repository. Figures are
tokens per second, median (lowest to highest). Drafted and plain replies must have equal hashes.
"""
import json
import pathlib
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
TOKENS = 129  # the first comes from the prompt: 128 are decoded


def reply(binary, *options):
    command = [binary, "generate", "--json", "--ignore-eos", "--max-tokens", str(TOKENS), *options]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def spread(values):
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else str(ROOT / "build/release/flashlane")
    runs = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    prompt = (ROOT / "src/kernels/sampler.cc").read_text()[:1500]
    for threads in ("1", "2"):
        common = ("--prompt", prompt, "--threads", threads)
        plain, drafted, prefill = [], [], []
        for _ in range(runs):
            first = reply(binary, *common, "--no-drafts")
            second = reply(binary, *common)
            if first["token_sha"] != second["token_sha"]:
                sys.exit("drafted and plain replies differ")
            plain.append((TOKENS - 1) * 1000 / first["timings"]["decode_ms"])
            drafted.append((TOKENS - 1) * 1000 / second["timings"]["decode_ms"])
            prefill.append(first["prompt_tokens"] * 1000 / first["timings"]["prefill_ms"])
        print(f"threads {threads}: plain {spread(plain)}, drafted {spread(drafted)} "
              f"{second['drafts']}, prompt of {first['prompt_tokens']}: {spread(prefill)}")


if __name__ == "__main__":
    main()
