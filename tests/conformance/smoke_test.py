"""The promise, from outside, over HTTP on the bundled model: the same request gives the same tokens
drafted or plain, again, and in the company of 1, 2, 4, 8 and 16 streams, greedy and seeded, long and
short together, with penalties and log probabilities among them, while other clients come and leave
in the middle (E1, E2, E4, E6, H2).

    smoke_test.py BINARY [REQUESTS]    with a number, that many requests instead of 16, for slow builds

Counts what it compared and fails if that is less than it should be. At the end nothing runs and
nothing waits.
"""

import concurrent.futures
import json
import pathlib
import random
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

PROMPTS = json.loads((support.ROOT / "tests" / "cli" / "prompts.json").read_text())
STREAMS = (1, 2, 4, 8, 16)
REQUESTS = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 16
WHOLE = REQUESTS == 16


def requests():
    """Half greedy, half seeded; short and long replies side by side, some that may end early."""
    bodies = []
    for i in range(REQUESTS):
        body = {"max_tokens": (12, 64, 24, 48)[i % 4], "ignore_eos": i % 3 != 0}
        body |= {"temperature": 0.8, "seed": 100 + i} if i % 2 else {"temperature": 0}
        if i % 4 in (1, 2):
            body |= {"presence_penalty": 0.4, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
        prompt = PROMPTS[i]
        if prompt["via"] == "chat":
            body |= {"messages": [{"role": "user", "content": prompt["text"]}],
                     "enable_thinking": i % 4 == 0}
            body |= {"logprobs": True, "top_logprobs": 3} if i % 3 == 0 else {}
            bodies.append(("/v1/chat/completions", body))
        else:
            body |= {"logprobs": 2} if i % 3 == 0 else {}
            bodies.append(("/v1/completions", body | {"prompt": prompt["text"]}))
    return bodies


class Smoke(support.ServedTest):
    def setUp(self):
        # Every prompt from its first row on; prompt_cache_test.py has the others.
        self.serve("--parallel", 16, "--prompt-cache-gib", 0)
        self.compared = 0

    def leave_early(self, stopping, seed):
        """A client that starts streams and hangs up: before anything, or after some of the text."""
        chance = random.Random(seed)
        left = 0
        while not stopping.is_set():
            connection = self.connect()
            body = {"prompt": PROMPTS[chance.randrange(len(PROMPTS))]["text"], "max_tokens": 400,
                    "ignore_eos": True, "stream": True}
            connection.request("POST", "/v1/completions", json.dumps(body),
                               {"Content-Type": "application/json"})
            if chance.random() < 0.7:
                connection.getresponse().read(chance.randrange(1, 3000))
            connection.close()
            left += 1
            time.sleep(0.05)
        return left

    def equal(self, known, reply, what):
        """Same tokens and, to the last bit, the same log probabilities where they were asked for."""
        self.assertEqual(known["token_sha"], reply["token_sha"], what)
        self.assertEqual(known["logprobs"], reply["logprobs"], what)
        self.compared += 1

    def test_the_promise(self):
        bodies = requests()
        known = []
        accepted = 0
        for i, (path, body) in enumerate(bodies):
            plain = self.ask(path, body | {"draft": False})
            self.assertEqual(plain["drafts"]["drafted"], 0)
            drafted = self.ask(path, body)
            accepted += drafted["drafts"]["accepted"]
            self.equal(plain, drafted, f"request {i}, drafted against plain")
            self.equal(plain, self.ask(path, body), f"request {i}, again")
            known.append(plain)
        self.assertGreater(accepted, 0)
        self.assertGreaterEqual(sum(reply["logprobs"] is not None for reply in known), REQUESTS // 3)
        self.assertEqual(len({reply["token_sha"] for reply in known}), REQUESTS, "replies that are alike would say nothing")
        left = 0
        with concurrent.futures.ThreadPoolExecutor(max(STREAMS) + 1) as pool:
            for streams in STREAMS:
                stopping = threading.Event()
                leaver = pool.submit(self.leave_early, stopping, streams)
                width = threading.Semaphore(streams)

                def one(i, draft, width=width):
                    with width:
                        path, body = bodies[i]
                        return self.ask(path, body | {"draft": draft})

                # Each request drafted and plain; the two kinds run side by side.
                runs = [(i, (i + turn) % 2 == 0) for turn in (0, 1) for i in range(REQUESTS)]
                replies = list(pool.map(lambda run: one(*run), runs))
                stopping.set()
                left += leaver.result()
                for (i, draft), reply in zip(runs, replies):
                    self.equal(known[i], reply, f"request {i}, draft {draft}, {streams} streams")
        self.assertGreater(left, 10, "hardly anybody left early")
        deadline = time.monotonic() + self.PATIENCE_S
        while (now := self.status())["running"] + now["waiting"] > 0:
            self.assertLess(time.monotonic(), deadline, now)
            time.sleep(0.05)
        wanted = REQUESTS * (2 + 2 * len(STREAMS))
        print(f"{self.compared} comparisons of {wanted}, {left} clients left early")
        self.assertEqual(self.compared, wanted)

    def close_ids(self):
        """A newline, the closing marker and a blank line, as the tokenizer has them."""
        ids = []
        for text in ("\n", "</think>", "\n\n"):
            ids += json.loads(self.succeed("tokenize", "--text", "-", "--json",
                                           stdin=text.encode()))["ids"]
        return ids

    def test_thinking_is_cut_at_the_same_token(self):
        close = self.close_ids()
        end = close[1]
        cuts = 0
        questions = ("What is the capital of France?", "Write a haiku about the sea.")
        for question in questions if WHOLE else questions[:1]:
            for sampling in ({"temperature": 0}, {"temperature": 0.8, "seed": 5}):
                body = {"messages": [{"role": "user", "content": question}], "max_tokens": 96 if WHOLE else 40,
                        "enable_thinking": True, "ignore_eos": True, "return_token_ids": True,
                        "logprobs": True,
                        **sampling}
                free = self.ask("/v1/chat/completions", body | {"draft": False})["token_ids"]
                natural = free.index(end) if end in free else len(free)
                runs = [(budget, draft) for budget in (1, 2, 7, 30) for draft in (False, True)]
                with concurrent.futures.ThreadPoolExecutor(len(runs)) as pool:
                    replies = list(pool.map(lambda run: self.ask(
                        "/v1/chat/completions",
                        body | {"thinking_budget": run[0], "draft": run[1]}), runs))
                for (budget, draft), reply in zip(runs, replies):
                    what = (question, sampling, budget, draft)
                    alone = self.ask("/v1/chat/completions",
                                     body | {"thinking_budget": budget, "draft": draft})
                    self.equal(alone, reply, what)
                    ids = reply["token_ids"]
                    if natural < budget - 1:
                        self.assertEqual(ids, free, what)
                        continue
                    cuts += 1
                    at = budget - 1
                    self.assertEqual(ids[:at], free[:at], what)
                    self.assertEqual(ids[at:at + len(close)], close, what)
                for (budget, _), plain, drafted in zip(runs[::2], replies[::2], replies[1::2]):
                    self.equal(plain, drafted, (question, budget))
        print(f"{self.compared} comparisons, thinking cut {cuts} times")
        self.assertGreaterEqual(cuts, 16 if WHOLE else 8)


if __name__ == "__main__":
    support.main()
