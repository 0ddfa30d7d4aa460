#!/usr/bin/env python3
"""How long a chat's first tokens take: each turn of a chat of three, with prompts of several lengths, on a
server that keeps states of prompts, on one that has to read them back from files because another
long prompt came between any two turns, and on one that keeps nothing (H4). In rounds, the servers in
turns; replies must have the same tokens on all.

    bench/resuming.py BINARY [--tokens 40,1000,3000] [--rounds 5] [--threads N]

Prints, per length and turn, prompt tokens, and for each server those restored and milliseconds to the
first token: median (lowest to highest). Loopback only; nothing else should run on the machine.
"""

import argparse
import http.client
import json
import pathlib
import statistics
import subprocess
import sys
import time

TOKENS_PER_SENTENCE = 18
TURNS = ["What came first?", "And what came next?", "Why?"]


class Server:
    def __init__(self, binary, threads, *arguments):
        limit = ["--threads", str(threads)] if threads else []
        self.process = subprocess.Popen(
            [binary, "serve", "--port", "0", "--context", "8192", *limit, *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        line = self.process.stdout.readline()
        if not line.startswith("listening on "):
            sys.exit("the server did not start")
        self.port = int(line.rsplit(":", 1)[1])

    def ask(self, messages):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = {"messages": messages, "max_tokens": 8, "temperature": 0}
        connection.request("POST", "/v1/chat/completions", json.dumps(body),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        reply = json.loads(response.read())
        connection.close()
        if response.status != 200:
            sys.exit(f"{response.status}: {reply}")
        return reply["flashlane"], reply["choices"][0]["message"]["content"] or "Nothing."

    def status(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/status")
        status = json.loads(connection.getresponse().read())
        connection.close()
        return status

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)


def opening(tokens, mark):
    sentences = max(1, tokens // TOKENS_PER_SENTENCE)
    return " ".join(f"The {mark} of year {1900 + i} was number {i * 37 % 101} of {i * 11 % 89}."
                    for i in range(sentences))


def chat(server, tokens, mark, displaced_by=None):
    """The figures of each turn's reply; before each but the first, a prompt of so many tokens."""
    messages = []
    figures = []
    for turn, question in enumerate(TURNS):
        if turn and displaced_by:
            await_files(server)
            server.ask([{"role": "user", "content": opening(displaced_by, f"{mark} {turn}")}])
            await_files(server)
        text = question if turn else f"{opening(tokens, mark)} {question}"
        messages.append({"role": "user", "content": text})
        reply, said = server.ask(messages)
        figures.append(reply)
        messages.append({"role": "assistant", "content": said})
    return figures


def await_files(server):
    """Until every state has its file; else what was evicted too early would be counted as slow."""
    saved = -1
    while (now := server.status()["prompt_cache"]["snapshots_saved"]) != saved:
        saved = now
        time.sleep(0.5)


def spread(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--tokens", default="40,1000,3000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--small-gib", type=float, default=0.06,
                        help="memory for kept states where they have to be read back")
    options = parser.parse_args()
    lengths = [int(tokens) for tokens in options.tokens.split(",")]
    servers = {"kept": Server(options.binary, options.threads),
               "read back": Server(options.binary, options.threads, "--prompt-cache-gib",
                                   str(options.small_gib), "--spill-gib", "8"),
               "fresh": Server(options.binary, options.threads, "--prompt-cache-gib", "0")}
    try:
        for tokens in lengths:
            runs = {name: [] for name in servers}
            for number in range(options.rounds):
                order = list(servers) if number % 2 == 0 else list(servers)[::-1]
                for name in order:
                    runs[name].append(chat(servers[name], tokens, f"mark {tokens} {number}",
                                           max(lengths) if name == "read back" else None))
            for name in ("kept", "read back"):
                for resumed, fresh in zip(runs[name], runs["fresh"]):
                    if [r["token_sha"] for r in resumed] != [r["token_sha"] for r in fresh]:
                        sys.exit(f"a reply with states {name} differs from a fresh one")
            for turn in range(len(TURNS)):
                print(f"about {tokens}, turn {turn + 1}: "
                      f"{runs['kept'][-1][turn]['prompt_tokens']} tokens")
                for name in servers:
                    replies = [run[turn] for run in runs[name]]
                    first_ms = [reply["timings"]["first_token_ms"] for reply in replies]
                    restored = [reply["cached_tokens"] for reply in replies]
                    print(f"  {name}: {min(restored)} to {max(restored)} restored, first token "
                          f"{spread(first_ms)} ms")
    finally:
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    main()
