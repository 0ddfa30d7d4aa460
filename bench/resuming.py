#!/usr/bin/env python3
"""How long a chat's first tokens take: each turn of a chat of three, with prompts of several lengths, on a
server that keeps states of prompts, and on one that does not (H4). In rounds, the two servers in
turns; replies must have the same tokens on both.

    bench/resuming.py BINARY [--tokens 40,1000,3000] [--rounds 5] [--threads N]

Prints, per length and turn, prompt tokens, those restored, and milliseconds to the first token: median
(lowest to highest). Loopback only; nothing else should run on the machine.
"""

import argparse
import http.client
import json
import pathlib
import statistics
import subprocess
import sys

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

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=60)


def opening(tokens, mark):
    sentences = max(1, tokens // TOKENS_PER_SENTENCE)
    return " ".join(f"The {mark} of year {1900 + i} was number {i * 37 % 101} of {i * 11 % 89}."
                    for i in range(sentences))


def chat(server, tokens, mark):
    """The figures of each turn's reply."""
    messages = []
    figures = []
    for turn, question in enumerate(TURNS):
        text = question if turn else f"{opening(tokens, mark)} {question}"
        messages.append({"role": "user", "content": text})
        reply, said = server.ask(messages)
        figures.append(reply)
        messages.append({"role": "assistant", "content": said})
    return figures


def spread(values):
    return f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", type=pathlib.Path)
    parser.add_argument("--tokens", default="40,1000,3000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=0)
    options = parser.parse_args()
    servers = {"kept": Server(options.binary, options.threads),
               "fresh": Server(options.binary, options.threads, "--prompt-cache-gib", "0")}
    try:
        for tokens in map(int, options.tokens.split(",")):
            runs = {name: [] for name in servers}
            for number in range(options.rounds):
                order = ["kept", "fresh"] if number % 2 == 0 else ["fresh", "kept"]
                for name in order:
                    runs[name].append(chat(servers[name], tokens, f"mark {tokens} {number}"))
            for kept, fresh in zip(runs["kept"], runs["fresh"]):
                if [r["token_sha"] for r in kept] != [r["token_sha"] for r in fresh]:
                    sys.exit("a resumed reply differs from a fresh one")
            for turn in range(len(TURNS)):
                of = {name: [run[turn] for run in runs[name]] for name in servers}
                first_ms = {name: [reply["timings"]["first_token_ms"] for reply in replies]
                            for name, replies in of.items()}
                sample = of["kept"][-1]
                print(f"about {tokens}, turn {turn + 1}: {sample['prompt_tokens']} tokens, "
                      f"{sample['cached_tokens']} restored, first token "
                      f"{spread(first_ms['kept'])} ms; nothing kept {spread(first_ms['fresh'])} ms")
    finally:
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    main()
