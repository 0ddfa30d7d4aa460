#!/usr/bin/env python3
"""What a running reply feels while a long prompt enters beside it (S10), over HTTP.

    bench/entering.py build/release/flashlane
    bench/entering.py --prompt-tokens 3000 --rounds 5 --json BINARY -- --threads 2 --decode-share 0.5

What follows `--` goes to `serve`. Each round runs one streamed reply alone and, with drafts on and
off, again while a prompt of --prompt-tokens ids enters in its middle; both must have the same tokens.
A gap is the time between two events of the stream, as the client sees them: alone, one step. The
rate kept is the running reply's tokens per second from the long prompt's start to its first token,
over its rate at the same places of the reply when it ran alone.
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import threading
import time

QUESTION = "Count from 1 to 400, one number per line."
ENTER_AFTER = 60  # tokens of the running reply
PATIENCE_S = 120


class Failed(Exception):
    """What the caller has to be told in one line."""


def start_server(binary, options):
    # Nothing kept: each round's prompt goes in whole.
    server = subprocess.Popen([binary, "serve", "--port", "0", "--parallel", "2",
                               "--prompt-cache-gib", "0", *options],
                              stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n", server.stdout.readline())
    if not found:
        raise Failed("the server did not start")
    return server, int(found.group(1))


def post(port, path, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise Failed(f"{path}: {response.status}: {response.read().decode()}")
    return response


def run_stream(port, drafts, length, when_running=None):
    """One streamed reply: [(seconds, tokens in the event)], its hash. `when_running` is called once,
    on a thread of its own, when the reply is under way."""
    response = post(port, "/v1/chat/completions", {
        "messages": [{"role": "user", "content": QUESTION}], "max_tokens": length,
        "temperature": 0, "ignore_eos": True, "stream": True, "draft": drafts, "logprobs": True})
    events, tokens, thread, sha = [], 0, None, None
    for line in response:
        now = time.perf_counter()
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if "error" in chunk:
            raise Failed(chunk["error"]["message"])
        for choice in chunk["choices"]:
            count = len((choice["logprobs"] or {"content": []})["content"])
            tokens += count
            if count:
                events.append((now, count))
        sha = chunk.get("flashlane", {}).get("token_sha", sha)
        if when_running and thread is None and tokens >= ENTER_AFTER:
            thread = threading.Thread(target=when_running)
            thread.start()
    if thread:
        thread.join()
    return events, sha


def enter_prompt(port, length, times):
    """A prompt of ids from a counter; `times` takes when it was sent and when it was in."""
    ids = [(i * 7919 + 13) % 8000 for i in range(length)]
    times.append(time.perf_counter())
    post(port, "/v1/completions", {"prompt": ids, "max_tokens": 1, "temperature": 0}).read()
    times.append(time.perf_counter())


def percentile(values, part):
    """The smallest value that at least `part` of them do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


def gaps_ms(events):
    return [(b - a) * 1000 for (a, _), (b, _) in zip(events, events[1:])]


def one_round(port, options, drafts):
    alone, sha = run_stream(port, drafts, options.reply_tokens)
    times = []
    running, same = run_stream(port, drafts, options.reply_tokens,
                               lambda: enter_prompt(port, options.prompt_tokens, times))
    if sha != same:
        raise Failed("the reply is another one while a prompt enters")
    if len(times) != 2 or running[-1][0] < times[1]:
        raise Failed("the running reply ended before the prompt was in; raise --reply-tokens")
    # The same tokens, alone and beside the prompt: by their place in the reply.
    before = sum(count for at, count in running if at < times[0])
    beside = [(at, count) for at, count in running if times[0] <= at <= times[1]]
    tokens = sum(count for _, count in beside)
    place, alone_s, last = 0, 0.0, alone[0][0]
    for at, count in alone:
        if before < place + count and place < before + tokens:
            alone_s += at - last
        place, last = place + count, at
    step = statistics.median(gaps_ms(alone))
    # The gap that the prompt's start cuts into belongs to it.
    first = max(i for i, (at, _) in enumerate(running) if at < times[0])
    felt = gaps_ms(running[first:first + len(beside) + 1])
    return {"step_ms": step, "alone_p99_ms": percentile(gaps_ms(alone), 0.99),
            "beside_p99_ms": percentile(felt, 0.99), "beside_most_ms": max(felt), "gaps": len(felt),
            "limit_ms": max(4 * step, 50.0), "prompt_ms": (times[1] - times[0]) * 1000,
            "kept": (tokens / (times[1] - times[0])) / (tokens / alone_s) if alone_s else 0.0}


def main():
    arguments = sys.argv[1:]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", help="flashlane's path")
    parser.add_argument("--prompt-tokens", type=int, default=3000)
    parser.add_argument("--reply-tokens", type=int, default=4000, help="of the running reply")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    options = parser.parse_args(arguments[:split])
    server, port = start_server(options.binary, arguments[split + 1:])
    try:
        results = {"drafted": [], "plain": []}
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr)
            for name in ("drafted", "plain") if number % 2 else ("plain", "drafted"):
                results[name].append(one_round(port, options, name == "drafted"))
    finally:
        server.terminate()
        server.wait(timeout=60)
    if options.json:
        print(json.dumps({"prompt_tokens": options.prompt_tokens, **results}))
        return
    for name, rounds in results.items():
        print(f"{name}, median (lowest to highest) of {len(rounds)} rounds:")
        for key in rounds[0]:
            values = [result[key] for result in rounds]
            print(f"  {key:15} {statistics.median(values):9.2f} "
                  f"({min(values):.2f} to {max(values):.2f})")


if __name__ == "__main__":
    try:
        main()
    except (Failed, OSError, ValueError) as failure:
        sys.exit(f"entering.py: {failure}")
