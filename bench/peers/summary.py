#!/usr/bin/env python3
"""Prints what bench/peers/run.sh measured: the machine, each pair of thread counts, the ratios to the
peer's better thread count.

    bench/peers/summary.py WORK_FOLDER
"""

import json
import pathlib
import sys

PAIRS = ((1, 1), (2, 2), (2, 1))


def read(folder, name, pair):
    return json.loads((folder / f"{name}_{pair[0]}_{pair[1]}.json").read_text(encoding="utf-8"))


def describe(folder):
    """One line about each side, from the first pair's first runs."""
    ours, theirs = read(folder, "reports", PAIRS[0])[0][:2]
    machine = ours["machine"]
    load = machine["load_average"][0]
    print(f"{machine['cpu']}, {machine['cores']} cores, load average {load:.2f} at the start")
    print(f"ours: flashlane {machine['version']} ({machine['build']}), {machine['isa']}, "
          f"{ours['model']['format']}")
    print(f"theirs: llama.cpp {theirs['llamaCpp']}, {theirs['build']}, {theirs['model']}; "
          f"{theirs['system']}\n")


def main():
    folder = pathlib.Path(sys.argv[1])
    describe(folder)
    print(f"{'tokens per second':<18}{'threads':>8}{'ours':>9}{'theirs':>9}{'ratio':>8}  "
          f"{'(lowest to highest)':<21}{'noise':>6}")
    best = {}
    for pair in PAIRS:
        for result in read(folder, "compared", pair)["metrics"]:
            ratio, name = result["ratio"], result["name"]
            spread = f"({ratio['min']:.2f} to {ratio['max']:.2f})"
            print(f"{name:<18}{pair[0]:>5} v {pair[1]}{result['a']['median']:>9.0f}"
                  f"{result['b']['median']:>9.0f}{ratio['median']:>8.2f}  {spread:<21}"
                  f"{result['noise_floor']:>6.1%}")
            if pair[0] == 2:
                best[name] = min(best.get(name, ratio["median"]), ratio["median"])
    print()
    for name, ratio in best.items():
        print(f"{name}: 2 threads of ours against its better thread count: {ratio:.2f}")


if __name__ == "__main__":
    main()
