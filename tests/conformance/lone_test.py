"""The lone driver, over HTTP on the bundled model: replies that it drives, hands over at exactly these
lengths, goes on with two or three steps under way, and shares with others who come in between have the
tokens of replies in shared steps, greedy and seeded, drafted and plain (E3, L1 to L4).

    lone_test.py BINARY [TOKENS]    with a number, so many tokens of the long reply instead of 4,200
"""

import concurrent.futures
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

LONG = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 4200
HANDOFFS = [length for length in (1, 77, 3041) if length < LONG]
CONTEXT = LONG + 200


def replies():
    """The first is the long one; the others stop, repeat what they were told, or think."""
    long = {"prompt": "Count to 4000: 1, 2, 3, 4, 5,", "max_tokens": LONG, "ignore_eos": True,
            "temperature": 0}
    copied = "def add(a, b):\n    return a + b\n\n" * 4
    return [long, long | {"max_tokens": 160, "draft": False},
            {"prompt": copied, "max_tokens": 120, "temperature": 0, "ignore_eos": True},
            {"prompt": "Once upon a time", "max_tokens": 120, "temperature": 1, "seed": 5},
            {"prompt": "The sea", "max_tokens": 90, "temperature": 0.8, "seed": 9,
             "presence_penalty": 0.5, "logprobs": 2},
            {"prompt": "Count: 1, 2, 3,", "max_tokens": 200, "temperature": 0, "stop": ["30"]}]


class Lone(support.ServedTest):
    def start(self, *arguments):
        self.serve("--unpriced", "--prompt-cache-gib", 0, "--parallel", 3, *arguments,
                   context=CONTEXT)

    def say(self, body):
        return self.ask("/v1/completions", body)["token_sha"]

    def end(self):
        """A step that was under way when its reply ended is let go when it is back."""
        deadline = time.monotonic() + 20
        now = self.status()
        while now["usage"] != now["usage_at_load"] and time.monotonic() < deadline:
            time.sleep(0.01)
            now = self.status()
        self.assertEqual(now["usage"], now["usage_at_load"])
        self.stop()
        return now["lone"]

    def test_driven_is_shared(self):
        self.start("--no-lone")
        known = [self.say(body) for body in replies()]
        off = self.end()
        self.assertEqual((off["on"], off["steps"]), (False, 0))
        for steps in (1, 2):
            self.start("--steps-in-flight", steps)
            self.assertEqual([self.say(body) for body in replies()], known, steps)
            lone = self.end()
            self.assertEqual((lone["on"], lone["steps_in_flight"]), (True, steps))
            self.assertEqual((lone["runs"], lone["handoffs"]), (len(known), 0))
            self.assertEqual(lone["ahead"] > 0, steps > 1)

        # Handed over at exactly these lengths, and taken back; then by whoever comes.
        self.start("--steps-in-flight", 3, "--lone-handoffs", ",".join(map(str, HANDOFFS)))
        self.assertEqual([self.say(body) for body in replies()], known)
        # At the first token nothing has been driven yet.
        self.assertGreaterEqual(self.end()["handoffs"], len(HANDOFFS) - 1)

        self.start("--steps-in-flight", 2)
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            long = pool.submit(self.say, replies()[0])
            while not self.status()["lone"]["active"] and not long.done():
                time.sleep(0.001)
            others = [self.say(body) for body in replies()[1:]]
            self.assertEqual([long.result()] + others, known)
        lone = self.end()
        self.assertFalse(lone["active"])
        self.assertGreaterEqual(lone["handoffs"], 1)
        self.assertGreater(lone["runs"], lone["handoffs"])


    def test_driven_resumed_and_grown(self):
        """The long reply again: from its kept prompt, and through two larger sessions."""
        long = replies()[0]
        self.serve("--unpriced", "--steps-in-flight", 2, "--parallel", 1, context=CONTEXT)
        fresh, resumed = (self.ask("/v1/completions", long) for _ in range(2))
        self.assertEqual((fresh["cached_tokens"] > 0, resumed["cached_tokens"] > 0), (False, True))
        self.assertEqual(resumed["token_sha"], fresh["token_sha"])
        self.stop()
        self.start_sessions(f"{LONG // 3},{LONG // 8}")
        self.assertEqual(self.say(long), fresh["token_sha"])
        self.assertGreaterEqual(self.status()["moves_total"], 1)
        lone = self.end()
        self.assertGreater(lone["ahead"], 0)

    def start_sessions(self, sizes):
        self.serve("--unpriced", "--prompt-cache-gib", 0, "--steps-in-flight", 2,
                   "--session-contexts", sizes, "--session-grow", 8, context=CONTEXT)


if __name__ == "__main__":
    support.main()
