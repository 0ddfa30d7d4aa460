#!/usr/bin/env python3
"""Times two commands that print JSON in turns, A B B A, and tells the ratio from the noise.

    bench/compare.py --a 'build/release/flashlane bench --json' --b 'old/flashlane bench --json'
    bench/compare.py --rounds 5 --a '...' --b 'node bench.mjs model.gguf' \\
        --metric 'decode=cells[kind=decode].tokens_per_second|decode.tokensPerSecond.median'

Each run is a process of its own. A metric is NAME=PATH, or NAME=PATH_A|PATH_B where the two commands
call it by different names; a PATH goes through keys and list items: `cells[kind=forward,rows=4].ms`
takes the first item whose fields say so, `probe_gbps[0]` an item by its place. Without --metric the
tokens per second of every cell that both sides have are compared, as `flashlane bench` prints them.

The ratio is A over B: of a round, of the geometric means of its two runs of each side, so that a
drift of the machine cancels; the figure is the median over rounds, with the lowest and highest. The
noise floor is the median distance between a round's two runs of A. A ratio within the floor of 1 is
reported as no difference.
"""

import argparse
import json
import math
import re
import shlex
import statistics
import subprocess
import sys
import time

ITEM = re.compile(r"^([^\[\]]*)((?:\[[^\[\]]*\])*)$")
MATCHED = ("kind", "rows", "streams", "chain", "context", "units")


class Refused(Exception):
    """What the caller has to be told in one line."""


def split_path(path):
    """"a[k=v].b" → ["a", "[k=v]", "b"]."""
    steps = []
    for part in re.split(r"\.(?![^\[]*\])", path):
        match = ITEM.match(part)
        if not match or not part:
            raise Refused(f"'{path}' is no path: '{part}' is neither a key nor key[...]")
        if match.group(1):
            steps.append(match.group(1))
        steps += re.findall(r"\[[^\[\]]*\]", match.group(2))
    return steps


def same(value, text):
    return (json.dumps(value) if not isinstance(value, str) else value) == text


def pick(items, selector, path):
    """The item of a list that `selector`, without its brackets, names."""
    if not isinstance(items, list):
        raise Refused(f"'{path}': [{selector}] asks for an item of something that is no list")
    if re.fullmatch(r"\d+", selector):
        if int(selector) >= len(items):
            raise Refused(f"'{path}': [{selector}] of a list of {len(items)}")
        return items[int(selector)]
    wanted = [pair.partition("=") for pair in selector.split(",")]
    for item in items:
        if isinstance(item, dict) and all(k in item and same(item[k], v) for k, _, v in wanted):
            return item
    raise Refused(f"'{path}': no item has [{selector}]")


def lookup(value, path):
    """The number at `path`."""
    for step in split_path(path):
        if step.startswith("["):
            value = pick(value, step[1:-1], path)
        elif isinstance(value, dict) and step in value:
            value = value[step]
        else:
            raise Refused(f"'{path}': there is no '{step}'")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise Refused(f"'{path}' is {json.dumps(value)}; a number above 0 is needed")
    return float(value)


def parse_metric(text):
    name, equals, paths = text.partition("=")
    if not equals or not name or not paths:
        raise Refused(f"--metric '{text}' is not NAME=PATH or NAME=PATH_A|PATH_B")
    path_a, _, path_b = paths.partition("|")
    return name, path_a, path_b or path_a


def cell_name(fields):
    """"forward chain of 4 after 512", as far as the cell says so."""
    words = [fields.get("kind", "cell")]
    if "rows" in fields:
        words.append(f"{'streams' if fields.get('chain') == 'false' else 'chain'} of {fields['rows']}")
    if "context" in fields:
        words.append(f"after {fields['context']}")
    return " ".join(words)


def common_cells(a, b):
    """A metric for every cell that both reports of `flashlane bench` have."""

    def cells(report):
        for cell in report.get("cells", []) if isinstance(report, dict) else []:
            fields = {k: cell[k] for k in MATCHED if k in cell}
            yield {k: v if isinstance(v, str) else json.dumps(v) for k, v in fields.items()}

    of_b = list(cells(b))
    metrics = []
    for fields in cells(a):
        if fields in of_b:
            selector = ",".join(f"{key}={text}" for key, text in fields.items())
            path = f"cells[{selector}].tokens_per_second"
            metrics.append((cell_name(fields), path, path))
    if not metrics:
        raise Refused("the reports have no cell in common; say with --metric what to compare")
    return metrics


def run(command):
    """One run's report."""
    try:
        done = subprocess.run(shlex.split(command), capture_output=True, text=True, check=False)
    except (OSError, ValueError) as failure:
        raise Refused(f"can't run '{command}': {failure}") from failure
    if done.returncode != 0:
        said = done.stderr.strip().splitlines()
        raise Refused(f"'{command}' ended with {done.returncode}: {said[-1] if said else ''}")
    try:
        return json.loads(done.stdout)
    except json.JSONDecodeError as failure:
        raise Refused(f"'{command}' printed no JSON: {failure}") from failure


def run_rounds(command_a, command_b, rounds):
    """[[A, B, B, A], ...]"""
    began = time.monotonic()
    reports = []
    for number in range(rounds):
        of_round = []
        for side in "ABBA":
            print(f"compare: round {number + 1} of {rounds}, {side}, "
                  f"{time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
            of_round.append(run(command_a if side == "A" else command_b))
        reports.append(of_round)
    return reports


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def compare(reports, metric):
    """Medians of both sides, paired ratios, and the noise floor of one metric."""
    name, path_a, path_b = metric
    of_a, of_b, ratios, distances = [], [], [], []
    for a1, b1, b2, a2 in reports:
        a = [lookup(a1, path_a), lookup(a2, path_a)]
        b = [lookup(b1, path_b), lookup(b2, path_b)]
        of_a += a
        of_b += b
        ratios.append(math.sqrt(a[0] * a[1] / (b[0] * b[1])))
        distances.append(math.exp(abs(math.log(a[0] / a[1]))) - 1)
    floor = statistics.median(distances)
    ratio = spread(ratios)
    distance = math.exp(abs(math.log(ratio["median"]))) - 1
    return {"name": name, "a": spread(of_a), "b": spread(of_b), "ratio": ratio,
            "noise_floor": floor, "differs": distance > floor}


def table(results):
    width = max([len("metric"), *(len(result["name"]) for result in results)])
    lines = [f"{'metric':<{width}}{'A':>12}{'B':>12}{'A/B':>9}  {'(lowest to highest)':<19}"
             f"{'noise':>7}"]
    for result in results:
        ratio = result["ratio"]
        spread_text = f"({ratio['min']:.3f} to {ratio['max']:.3f})"
        lines.append(f"{result['name']:<{width}}{result['a']['median']:>12.4g}"
                     f"{result['b']['median']:>12.4g}{ratio['median']:>9.3f}  {spread_text:<19}"
                     f"{result['noise_floor']:>6.1%}"
                     f"{'' if result['differs'] else '  no difference'}")
    return "\n".join(lines)


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--a", required=True, metavar="COMMAND", help="the first command")
    parser.add_argument("--b", required=True, metavar="COMMAND", help="the second command")
    parser.add_argument("--rounds", type=int, default=5, help="of A B B A; default 5")
    parser.add_argument("--metric", action="append", default=[], metavar="NAME=PATH[|PATH_B]",
                        help="what to compare; may be given again")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    parser.add_argument("--keep", metavar="FILE", help="also write every run's report there")
    arguments = parser.parse_args()
    if arguments.rounds < 1:
        parser.error(f"--rounds is {arguments.rounds}; at least 1 is needed")
    return arguments


def main():
    arguments = parse_arguments()
    try:
        metrics = [parse_metric(text) for text in arguments.metric]
        for _, *paths in metrics:
            for path in paths:
                split_path(path)  # wrong ones are refused before anything runs
        reports = run_rounds(arguments.a, arguments.b, arguments.rounds)
        if arguments.keep:
            with open(arguments.keep, "w", encoding="utf-8") as file:
                json.dump(reports, file)
        metrics = metrics or common_cells(reports[0][0], reports[0][1])
        results = [compare(reports, metric) for metric in metrics]
    except Refused as refusal:
        print(f"compare: {refusal}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps({"a": arguments.a, "b": arguments.b, "rounds": arguments.rounds,
                          "metrics": results}))
    else:
        print(f"A: {arguments.a}\nB: {arguments.b}\n{arguments.rounds} rounds of A B B A\n")
        print(table(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
