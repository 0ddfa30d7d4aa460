"""Thousands of random requests at once on a synthetic model: prompts of all sizes that share
beginnings, greedy and seeded, drafted and plain, streamed and whole, refused ones, and clients that
hang up before, during prefill and during decode. They wait for slots and, in the second test, for
pages, and states of prompts are evicted. After each company the server holds what it held at load,
and a sample of requests has in every company, and at the end, the tokens it had alone at first
(E3, H2, H4, P1, P2).

    random_test.py BINARY [REQUESTS]    with a number, that many instead of 10,000

The seed is printed, and RANDOM_SEED in the environment brings one back: the same requests in the same
order, though not the same company. What was done is counted, and each kind has a least number.
"""

import collections
import concurrent.futures
import contextlib
import json
import os
import pathlib
import random
import re
import socket
import struct
import sys
import tempfile
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

REQUESTS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 10_000
SEED = int(os.environ.get("RANDOM_SEED", random.SystemRandom().randrange(1 << 32)))
CLIENTS = 24
SLOTS = 16
COMPANY = 500
SAMPLE = 20
STEMS = 6
PATH = "/v1/completions"
# Of a hundred requests.
KINDS = {"whole": 56, "streamed": 18, "left before": 5, "left in prefill": 6, "left in decode": 8,
         "refused": 7}
# What has to happen, by what the server's log or its figures call it, in a thousand requests.
LEAST = {"whole": 400, "streamed": 100, "left before": 10, "left in prefill": 10, "left in decode": 15,
         "refused": 15, "compared in company": 40, "done": 600, "ended without a token": 5,
         "ended with tokens": 5, "states kept": 100, "states evicted": 100, "prompts resumed": 30,
         "draft tokens accepted": 100, "waits for a slot seen": 1}


class Traffic:
    """What is sent: everything about request `i` comes from the seed and `i`."""

    def __init__(self, context, vocabulary, longest, most_tokens, endless, kinds, sampled):
        self.kinds = kinds
        self.context = context
        self.vocabulary = vocabulary
        self.longest = longest          # of prompts that a client waits for
        self.most_tokens = most_tokens  # of replies that a client waits for
        self.endless = endless          # tokens that those leaving in decode ask for, from and to
        self.sampled = sampled          # part of the replies that are a sample's
        dice = random.Random(f"{SEED} stems")
        self.stems = [self.ids(dice, self.longest) for _ in range(STEMS)]
        self.sample = [self.sample_body(i) for i in range(SAMPLE)]

    def ids(self, dice, count):
        # Few of them in rounds, so that copies of the context are tried as well as the head.
        few = [dice.randrange(self.vocabulary) for _ in range(9)]
        rounds = dice.random() < 0.5
        return [few[i % 9] if rounds else dice.randrange(self.vocabulary) for i in range(count)]

    def prompt(self, dice, least=1):
        """Half of the tails are empty, so that a prompt is another's beginning."""
        few = dice.random() < 0.9
        length = dice.randint(least, max(least, self.longest // 8 if few else self.longest))
        stem = []
        if dice.random() < 0.8:  # some more often than others, and cut at few places
            stem = dice.choice(self.stems[:dice.randint(1, STEMS)])[:length // 8 * 8]
        tail = self.ids(dice, dice.choice((0, length - len(stem))))
        return (stem + tail) or [dice.randrange(self.vocabulary)]

    def body(self, dice, number=0):
        body = {"prompt": self.prompt(dice), "temperature": 0,
                "max_tokens": dice.randint(1, self.most_tokens if dice.random() < 0.1 else 5)}
        if dice.random() < 0.5:
            body |= {"temperature": 0.9, "seed": number}
        if dice.random() < 0.2:
            body |= {"top_k": 40, "presence_penalty": 0.5, "repetition_penalty": 1.1}
        if dice.random() < 0.5:
            body["ignore_eos"] = True
        if dice.random() < 0.1:
            body["logprobs"] = 2
        return body

    def sample_body(self, i):
        """No two alike; a quarter of the prompts are long."""
        dice = random.Random(f"{SEED} sample {i}")
        body = self.body(dice, i)
        if i % 4 == 0:
            body["prompt"] = self.prompt(dice, self.longest // 2)
        return body | {"prompt": body["prompt"] + [i], "max_tokens": body["max_tokens"] + 4}

    def refused(self, dice):
        body = self.body(dice)
        fault = dice.randrange(5)
        if fault == 0:
            body["prompt"] = [1] * dice.randint(self.context, 2 * self.context)
        elif fault == 1:
            body["max_tokens"] = self.context + dice.randrange(1000)
        elif fault == 2:
            body["prompt"].append(dice.choice((-1, self.vocabulary, 1 << 40)))
        elif fault == 3:
            body["prompt"] = []
        else:
            body["temperature"] = "hot"
        return body

    def request(self, i):
        """Its kind, its body, the number of its sample or None, and dice for what happens to it."""
        dice = random.Random(f"{SEED} {i}")
        kind = dice.choices(list(self.kinds), list(self.kinds.values()))[0]
        body = self.body(dice, i)
        if kind == "refused":
            body = self.refused(dice)
        elif kind == "left in prefill":
            body["prompt"] = self.prompt(dice, self.longest * 3 // 4)
            if dice.random() < 0.7:  # a kept state would leave little to do
                body["prompt"].insert(0, dice.randrange(self.vocabulary))
        elif kind == "left in decode":
            body |= {"prompt": body["prompt"][:16], "ignore_eos": True,
                     "max_tokens": dice.randint(*self.endless)}
        sampled = None
        if kind in ("whole", "streamed") and dice.random() < self.sampled:
            sampled = dice.randrange(SAMPLE)
            body = dict(self.sample[sampled])
        body["draft"] = dice.random() < 0.7
        body["stream"] = kind == "streamed" or (kind.startswith("left") and dice.random() < 0.5)
        return kind, body, sampled, dice


class Random(support.ServedTest):
    def start(self, traffic, *arguments, model, pages_of_one):
        """`pages_of_one`: at least what any request is promised; 0 where a free slot is enough."""
        print(f"RANDOM_SEED={SEED} for {model}")
        self.traffic = traffic
        self.mutex = threading.Lock()
        self.pages_of_one = pages_of_one
        self.count = collections.Counter()
        self.usual_s = 0.05  # that a whole reply takes, as of late
        self.log = tempfile.TemporaryFile(mode="w+")  # pylint: disable=consider-using-with
        self.addCleanup(self.log.close)
        self.serve("--parallel", SLOTS, *arguments, model=model, context=traffic.context, log=self.log)

    def idle(self):
        """The status once nothing runs; a client that left is noticed a moment later."""
        deadline = time.monotonic() + self.PATIENCE_S
        while (now := self.status())["running"] + now["waiting"] > 0:
            self.assertLess(time.monotonic(), deadline, now)
            time.sleep(0.005)
        return now

    def nothing_is_left(self, done):
        now = self.idle()
        self.assertEqual(now["usage"], now["usage_at_load"], done)
        self.assertEqual(now["usage"]["pages_free"], now["usage"]["pages"], done)
        self.assertLessEqual(now["prompt_cache"]["pages_used"], now["prompt_cache"]["pages"], done)
        self.assertEqual(now["prompt_cache"]["failed"], 0, done)
        return now

    def said(self, body):
        """Status and figures of a reply, streamed or whole, that is read to its end."""
        connection = self.connect()
        connection.request("POST", PATH, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        if response.status != 200:
            return response.status, json.loads(text)
        if body.get("stream"):
            events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            self.assertEqual(events[-1], "[DONE]", body)
            text = events[-2]
        reply = json.loads(text)
        self.assertIn(reply["choices"][0]["finish_reason"], ("length", "stop"), body)
        self.assertLessEqual(reply["usage"]["completion_tokens"], body["max_tokens"], body)
        self.assertEqual(reply["usage"]["prompt_tokens"], len(body["prompt"]), body)
        return 200, reply["flashlane"]

    def sent(self, body, share=1.0):
        """A socket on which that share of a request was sent."""
        text = json.dumps(body)
        text = (f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(text)}\r\n\r\n{text}").encode()
        client = socket.create_connection(("127.0.0.1", self.port), timeout=self.PATIENCE_S)
        client.sendall(text[:int(share * len(text))])
        return client

    def leave(self, kind, body, dice):
        """Hangs up: in the middle of what it sends, at once, or after about what a reply takes."""
        with self.sent(body, dice.random() if kind == "left before" else 1.0) as client:
            if kind != "left before":
                about = (0, 0.5) if kind == "left in prefill" else (0.5, 5)
                time.sleep(dice.uniform(*about) * self.usual_s)
            if dice.random() < 0.5:  # a reset instead of an end
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    @contextlib.contextmanager
    def held(self, count):
        """So many endless replies that nobody leaves meanwhile."""
        body = {"prompt": [1], "max_tokens": self.traffic.endless[1], "ignore_eos": True}
        with contextlib.ExitStack() as stack:
            for _ in range(count):
                stack.enter_context(self.sent(body))
            yield

    def one(self, i):
        kind, body, sampled, dice = self.traffic.request(i)
        if kind.startswith("left"):
            self.leave(kind, body, dice)
        else:
            begin = time.monotonic()
            status, figures = self.said(body)
            self.assertEqual(status, 400 if kind == "refused" else 200, (i, kind, body, figures))
            if sampled is not None:
                self.assertEqual(figures["token_sha"], self.shas[sampled], (i, sampled, body))
        with self.mutex:
            self.count[kind] += 1
            self.count["compared in company"] += sampled is not None
            if kind == "whole":
                self.usual_s += 0.02 * (time.monotonic() - begin - self.usual_s)

    def sample_shas(self):
        return [self.said(body)[1]["token_sha"] for body in self.traffic.sample]

    def watch(self, stopped):
        """What requests wait for: where a slot is free and fewer pages than one may need, for pages."""
        while not stopped.wait(0.02):
            now = self.status()
            if now["waiting"] == 0:
                continue
            unpromised = now["usage"]["pages_free"] - now["usage"]["pages_promised"]
            if now["running"] == SLOTS:
                self.count["waits for a slot seen"] += 1
            elif unpromised < self.pages_of_one:
                self.count["waits for pages seen"] += 1

    def say_short(self, number):
        """How much of a short prompt was there already; its state is kept."""
        prompt = [number, number + 1] * 4
        status, figures = self.said({"prompt": prompt, "max_tokens": 1, "ignore_eos": True})
        self.assertEqual(status, 200)
        return figures["cached_tokens"]

    def check_kept_states(self, pages_of_state):
        """As many as fit are kept and used again: nobody who left has one pinned."""
        fit = self.status()["prompt_cache"]["pages"] // pages_of_state
        self.assertGreater(fit, 1)
        newest = range(1, 2 * fit + 1)
        for number in newest:
            self.say_short(number)
        self.assertEqual([self.say_short(number) for number in reversed(newest[-fit:])], [7] * fit)

    def send(self, requests, holders=0):
        self.say_short(0)
        pages_of_state = self.idle()["prompt_cache"]["pages_used"]
        self.shas = self.sample_shas()
        self.assertGreater(len(set(self.shas)), SAMPLE * 3 // 4)
        stopped = threading.Event()
        with concurrent.futures.ThreadPoolExecutor(CLIENTS + 1) as pool:
            watcher = pool.submit(self.watch, stopped)
            try:
                for first in range(0, requests, COMPANY):
                    with self.held(holders):
                        list(pool.map(self.one, range(first, min(first + COMPANY, requests))))
                    self.nothing_is_left(first + COMPANY)
            finally:
                stopped.set()
            watcher.result()
        self.assertEqual(self.sample_shas(), self.shas)
        self.check_kept_states(pages_of_state)
        return self.nothing_is_left(requests)

    def read_log(self):
        """How the server says requests ended, once it has ended too, and well."""
        self.server.terminate()
        self.server.communicate(timeout=self.PATIENCE_S)
        self.log.seek(0)
        text = self.log.read()
        other = [line for line in text.splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
        self.assertEqual(self.server.returncode, 0, "\n".join(other[-200:]))
        for what, tokens in re.findall(r" (done|ended|failed) cmpl-\w+ .*?\btokens=(\d+)", text):
            if what == "ended":
                what += " without a token" if tokens == "0" else " with tokens"
            self.count[what] += 1

    def check(self, requests, status, least):
        self.read_log()
        cache = status["prompt_cache"]
        self.count |= {"states kept": cache["kept"], "states evicted": cache["evicted"],
                       "prompts resumed": cache["hits"],
                       "draft tokens accepted": status["drafts"]["accepted"]}
        for what, number in sorted(self.count.items()):
            print(f"{number:>10}  {what}")
        self.assertEqual(sum(self.count[kind] for kind in KINDS), requests)
        self.assertEqual(self.count["failed"], 0)
        # Those that somebody read, and some whose client was about to leave.
        self.assertGreaterEqual(self.count["done"],
                                self.count["whole"] + self.count["streamed"] + 2 * SAMPLE)
        ended = self.count["ended without a token"] + self.count["ended with tokens"]
        self.assertEqual(self.count["done"] + ended, status["requests_total"])
        for what, number in least.items():
            self.assertGreaterEqual(self.count[what], number, what)

    def test_many(self):
        """Sixteen always fit: they wait for a slot. The prompt cache has room for a few states."""
        self.start(Traffic(160, 512, longest=128, most_tokens=24, endless=(50, 90), kinds=KINDS,
                           sampled=0.15),
                   "--prompt-cache-gib", 0.004, "--kv-page-rows", 64, "--prefill-chunk", 32,
                   model="synth:tiny", pages_of_one=0)
        self.check(REQUESTS, self.send(REQUESTS),
                   {what: max(1, number * REQUESTS // 1000) for what, number in LEAST.items()})

    def test_short_of_pages(self):
        """Five of the longest fit, and stay. Clients who want more of them wait until they leave."""
        requests = max(60, REQUESTS // 50)
        self.start(Traffic(16384, 8192, longest=300, most_tokens=12, endless=(12000, 16000),
                           kinds=KINDS | {"left in decode": 40}, sampled=0.5),
                   "--prompt-cache-gib", 0.02, model="synth:nano,layers=4", pages_of_one=68)
        self.check(requests, self.send(requests, holders=5),
                   {"waits for pages seen": 1, "left in decode": requests // 10,
                    "compared in company": requests // 10, "done": requests // 3})


if __name__ == "__main__":
    support.main()
