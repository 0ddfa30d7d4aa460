#!/usr/bin/env python3
"""Compares the engine with the reference values of a fixtures folder, through the binary alone.

    tools/compare_fixtures.py --binary build/release/flashlane --fixtures tests/fixtures/nano \\
        --model models/flash-next-nano-6bit --backend reference [--only code prose]

For every golden_NAME.safetensors: `score` on its tokens, the MTP head's three depths at its
positions, and the greedy continuation by `generate`; on the cpu backend at every instruction level
that this machine has. The rules are those of the folder's README:

float32 row (backend reference): top 20 and logsumexp within 1e-3; of a sequence longer than 256,
0.5 % of the positions may miss by more. The head likewise, best draft equal where the two best
differ by more than 1e-3.

bf16 row (other backends): mean KL(golden, engine) below 0.003, best token equal on 97 % of the
positions. KL is exact where the fixture holds all logits. Elsewhere it is taken over the golden's
top 20 and all other tokens as one: never above the exact value, and close to it, since the 20
hold nearly all of the mass. The head: the same over its top 5 and the rest.

Greedy tokens are equal up to the first step whose two best differ by less than the tolerance: 1e-3,
and for the bf16 row BF16_TOLERANCE, which also decides where best drafts must agree.
Exit code 0 when all rules hold, else 1. Pure Python, no packages.
"""

import argparse
import array
import json
import math
import pathlib
import struct
import subprocess
import sys
import tempfile

F32_TOLERANCE = 1e-3
BF16_TOLERANCE = 0.25
LONG = 256
ALLOWED_SHARE = 0.005
MEAN_KL = 0.003
SAME_BEST = 0.97
TOP = 64


class Tensor:
    """A flat array with a shape; row(i, j, …) is the innermost row."""

    def __init__(self, shape, values):
        self.shape, self.values = shape, values

    def row(self, *index):
        offset = 0
        for i, place in enumerate(index):
            offset = offset * self.shape[i] + place
        width = math.prod(self.shape[len(index):])
        return self.values[offset * width : (offset + 1) * width]


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        values = array.array({"F32": "f", "I32": "i"}[entry["dtype"]])
        values.frombytes(data[begin:end])
        if sys.byteorder == "big":
            values.byteswap()
        tensors[name] = Tensor(entry["shape"], values)
    return tensors


class Engine:
    """The binary with one model and one backend."""

    def __init__(self, binary, model, options):
        self.binary, self.model, self.options = binary, model, options

    def lines(self, command, *arguments):
        line = [self.binary, command, "--model", self.model, *self.options, *arguments, "--json"]
        done = subprocess.run([str(part) for part in line], stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{command} ended with exit code {done.returncode}")
        return [json.loads(text) for text in done.stdout.decode().splitlines()]

    def score(self, ids, *arguments):
        return {line["position"]: line for line in self.lines("score", "--ids", ids, *arguments)}


def levels_of(binary):
    """Instruction levels of the cpu backend that this machine has."""
    done = subprocess.run([binary, "--version", "--json"], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["isa_available"]


def difference(golden_ids, golden_logits, golden_sum, top, logsumexp):
    """The largest difference of a logit or of the logsumexp. A golden token that the engine does not
    list lies below all that it lists, so the difference is at least the one to the last of them."""
    ours = dict(top)
    last = top[-1][1]
    worst = abs(golden_sum - logsumexp) if logsumexp is not None else 0.0
    for token, logit in zip(golden_ids, golden_logits):
        worst = max(worst, abs(logit - ours[token]) if token in ours else logit - last)
    return worst


def coarse_kl(golden_ids, golden_logits, golden_sum, top, logsumexp):
    """KL over the given tokens and all others as one."""
    ours = dict(top)
    total, golden_mass, our_mass = 0.0, 0.0, 0.0
    for token, logit in zip(golden_ids, golden_logits):
        log_p = logit - golden_sum
        log_q = ours.get(token, top[-1][1]) - logsumexp
        golden_mass += math.exp(log_p)
        our_mass += math.exp(log_q)
        total += math.exp(log_p) * (log_p - log_q)
    rest, our_rest = 1 - golden_mass, max(1 - our_mass, 1e-12)
    if rest > 1e-6:
        total += rest * math.log(rest / our_rest)
    return total


def exact_kl(golden, top, logsumexp):
    """KL over the vocabulary; `top` holds every token."""
    largest = max(golden)
    golden_sum = largest + math.log(math.fsum(math.exp(logit - largest) for logit in golden))
    return math.fsum(
        math.exp(golden[token] - golden_sum) * ((golden[token] - golden_sum) - (logit - logsumexp))
        for token, logit in top
    )


class Outcome:
    """What one sequence showed, and the rules it broke."""

    def __init__(self, name, length):
        self.name, self.length = name, length
        self.worst = self.worst_mtp = 0.0
        self.misses = self.drafts = self.same_drafts = 0
        self.kl, self.mtp_kl, self.exact = [], [], []
        self.same_best = 0
        self.greedy_equal = self.greedy_due = 0
        self.failures = []

    def mean(self, values):
        return math.fsum(values) / len(values) if values else 0.0

    def cells(self):
        return [
            self.name,
            str(self.length),
            f"{self.worst:.1e}",
            str(self.misses),
            f"{self.mean(self.kl):.1e}",
            f"{max(self.kl):.1e}",
            f"{max(self.exact):.1e}" if self.exact else "-",
            f"{100 * self.same_best / self.length:.1f}",
            f"{self.worst_mtp:.1e}",
            f"{self.mean(self.mtp_kl):.1e}",
            f"{self.same_drafts}/{self.drafts}",
            f"{self.greedy_equal}/{self.greedy_due}",
            "ok" if not self.failures else "; ".join(self.failures),
        ]


HEADINGS = [
    "sequence", "T", "worst", "missed", "mean KL", "max KL", "exact KL", "best %",
    "mtp worst", "mtp KL", "drafts", "greedy", "",
]


def compare_positions(golden, scores, full, outcome):
    """Every position's top 20 and logsumexp; all logits where the fixture has them."""
    exact_at = {position: i for i, position in enumerate(golden["full_pos"].values)}
    for position in range(outcome.length):
        line = scores[position]
        ids, logits = golden["top_ids"].row(position), golden["top_logits"].row(position)
        golden_sum = golden["logsumexp"].values[position]
        figures = (ids, logits, golden_sum, line["top"], line["logsumexp"])
        worst = difference(*figures)
        outcome.worst = max(outcome.worst, worst)
        outcome.misses += worst > F32_TOLERANCE
        outcome.same_best += line["top"][0][0] == ids[0]
        kl = coarse_kl(*figures)
        if position in exact_at:
            row = golden["full_logits"].row(exact_at[position])
            kl = exact_kl(row, full[position]["top"], full[position]["logsumexp"])
            outcome.exact.append(kl)
        outcome.kl.append(kl)


def compare_head(golden, scores, tolerance, outcome):
    """The head's three depths. Behind a draft that differs, deeper ones are other questions."""
    for place, position in enumerate(golden["mtp_pos"].values):
        depths = scores[position].get("mtp", [])
        if len(depths) != golden["mtp_ids"].shape[1]:
            raise SystemExit(f"score gave {len(depths)} depths of the head at {position}")
        for depth, ours in enumerate(depths):
            ids = golden["mtp_ids"].row(place, depth)
            logits = golden["mtp_logits"].row(place, depth)
            figures = (ids, logits, golden["mtp_logsumexp"].row(place)[depth], ours["top"],
                       ours["logsumexp"])
            outcome.worst_mtp = max(outcome.worst_mtp, difference(*figures))
            outcome.mtp_kl.append(coarse_kl(*figures))
            due = logits[0] - logits[1] > tolerance
            same = ours["top"][0][0] == ids[0]
            outcome.drafts += due
            outcome.same_drafts += due and same
            if not same:
                break


def compare_greedy(golden, reply, tolerance, outcome):
    due = len(golden["greedy_gap"].values)
    for step, gap in enumerate(golden["greedy_gap"].values):
        if gap < tolerance:
            due = step
            break
    outcome.greedy_due = due
    for step in range(due):
        if reply[step] != golden["greedy_ids"].values[step]:
            break
        outcome.greedy_equal += 1


def judge(outcome, row):
    if row == "f32":
        allowed = int(ALLOWED_SHARE * outcome.length) if outcome.length > LONG else 0
        if outcome.misses > allowed:
            outcome.failures.append(f"{outcome.misses} positions miss, {allowed} may")
        if outcome.worst_mtp > F32_TOLERANCE:
            outcome.failures.append("the head misses")
    else:
        if outcome.mean(outcome.kl) >= MEAN_KL:
            outcome.failures.append(f"mean KL is not below {MEAN_KL}")
        if outcome.same_best < SAME_BEST * outcome.length:
            outcome.failures.append(f"best token differs on more than {1 - SAME_BEST:.0%}")
        if outcome.mean(outcome.mtp_kl) >= MEAN_KL:
            outcome.failures.append(f"the head's mean KL is not below {MEAN_KL}")
    if outcome.same_drafts < outcome.drafts:
        outcome.failures.append("a best draft differs")
    if outcome.greedy_equal < outcome.greedy_due:
        outcome.failures.append("greedy tokens differ")


def compare(engine, path, row, scratch):
    golden = read_safetensors(path)
    tokens = list(golden["tokens"].values)
    outcome = Outcome(path.stem.removeprefix("golden_"), len(tokens))
    tolerance = F32_TOLERANCE if row == "f32" else BF16_TOLERANCE
    ids = scratch / "ids.json"
    ids.write_text(json.dumps(tokens))
    vocabulary = golden["full_logits"].shape[1]
    scores = engine.score(ids, "--top", TOP)
    wanted = sorted({*golden["full_pos"].values, *golden["mtp_pos"].values})
    full = engine.score(ids, "--top", vocabulary, "--mtp", "--mtp-depth", 3,
                        "--positions", ",".join(map(str, wanted)))
    if sorted(scores) != list(range(len(tokens))) or sorted(full) != wanted:
        raise SystemExit(f"{path.name}: score printed other positions than asked")
    compare_positions(golden, scores, full, outcome)
    compare_head(golden, full, tolerance, outcome)
    steps = len(golden["greedy_ids"].values)
    reply = engine.lines("generate", "--prompt-ids", ids, "--ignore-eos", "--max-tokens", steps)[0]
    if len(reply["ids"]) != steps:
        raise SystemExit(f"{path.name}: generate gave {len(reply['ids'])} tokens, not {steps}")
    compare_greedy(golden, reply["ids"], tolerance, outcome)
    judge(outcome, row)
    return outcome


def print_table(rows):
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.rjust(width) if i else cell.ljust(width)
                        for i, (cell, width) in enumerate(zip(row, widths))).rstrip())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--fixtures", required=True, type=pathlib.Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--row", choices=["f32", "bf16"], help="default: f32 for reference")
    parser.add_argument("--only", nargs="+", help="names of sequences")
    parser.add_argument("--threads", default="0")
    options = parser.parse_args()
    row = options.row or ("f32" if options.backend == "reference" else "bf16")
    paths = sorted(options.fixtures.glob("golden_*.safetensors"))
    if options.only:
        paths = [path for path in paths if path.stem.removeprefix("golden_") in options.only]
    if not paths or options.only and len(paths) != len(options.only):
        raise SystemExit(f"{options.fixtures} lacks sequences: found {[p.name for p in paths]}")
    failed = False
    for level in levels_of(options.binary) if options.backend == "cpu" else [None]:
        engine = Engine(options.binary, options.model,
                        ["--backend", options.backend, "--threads", options.threads,
                         "--memory-limit-gib", "4", *(["--isa", level] if level else [])])
        with tempfile.TemporaryDirectory() as folder:
            outcomes = [compare(engine, path, row, pathlib.Path(folder)) for path in paths]
        print(f"{options.fixtures.name}, backend {options.backend}"
              f"{f' at {level}' if level else ''}, by the {row} row")
        print_table([HEADINGS, *(outcome.cells() for outcome in outcomes)])
        failed |= any(outcome.failures for outcome in outcomes)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
