"""Sized sessions, over HTTP on the bundled model: a reply that grows through the sizes, alone, two of
them at once of which one waits, and with others beside them, has the tokens of one that never moves,
drafted and plain, greedy and seeded (E3, Z2 to Z5).

    sessions_test.py BINARY [TOKENS]    with a number, so many tokens of the long replies

That replies moved, and waited, is demanded too. At the end all sessions are free.
"""

import concurrent.futures
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

LONG = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 1200
CONTEXT = LONG + 200


def growing(number, **other):
    body = {"prompt": f"Count from {number} to 4000: {number}, {number + 1}, {number + 2},",
            "max_tokens": LONG, "ignore_eos": True, "temperature": 0}
    return body | other


class Sessions(support.ServedTest):
    def say(self, body):
        return self.ask("/v1/completions", body)["token_sha"]

    def start(self, *arguments):
        self.serve("--unpriced", "--prompt-cache-gib", 0, *arguments, context=CONTEXT)

    def until_running(self, replies):
        deadline = time.monotonic() + self.PATIENCE_S
        while self.status()["running"] < replies:
            self.assertLess(time.monotonic(), deadline, f"never {replies} at once")
            time.sleep(0.002)

    def end(self, moves, waits):
        """After at least so many moves and waits, nothing is held."""
        now = self.status()
        self.assertEqual(now["usage"], now["usage_at_load"])
        self.assertEqual(now["usage"]["sessions_free"], now["usage"]["sessions"])
        self.assertGreaterEqual(now["moves_total"], moves)
        self.assertGreaterEqual(now["pauses_total"], waits)
        self.stop()
        return now

    def test_growing_replies(self):
        bodies = [growing(1), growing(7, temperature=0.8, seed=3, draft=False),
                  growing(20, draft=False)]
        small, middle = LONG // 8, LONG // 3
        self.start("--parallel", 2)
        known = [self.say(body) for body in bodies]
        self.assertEqual(self.end(0, 0)["usage"]["sessions"], 0)

        # Alone, each moves once: to the free one that holds its end.
        self.start("--session-contexts", f"{middle},{small}", "--session-grow", 8)
        self.assertEqual([self.say(body) for body in bodies], known)
        self.end(3, 0)

        # All at once, with short ones beside them. The long ones come first, the plain ones before
        # the drafted one, which is faster, so that each has a small session: the first to grow has the
        # whole context, and long before it ends the other plain one has grown to the middle and waits
        # there, to grow again.
        short = [{"prompt": f"Say {i}:", "max_tokens": 20, "temperature": 0} for i in range(4)]
        self.start("--session-contexts", f"{middle}x2,{small}x3", "--session-grow", 8)
        alone = [self.say(body) for body in short]
        with concurrent.futures.ThreadPoolExecutor(7) as pool:
            together = []
            for body in reversed(bodies):
                together.insert(0, pool.submit(self.say, body))
                self.until_running(len(together))
            together += [pool.submit(self.say, body) for body in short]
            self.assertEqual([reply.result() for reply in together], known + alone)
        self.end(4, 1)

    def test_nothing_moves_that_has_room(self):
        body = growing(3, max_tokens=100)
        self.start("--parallel", 1)
        known = self.say(body)
        self.end(0, 0)
        self.start("--session-contexts", "300,200")
        self.assertEqual([self.say(body), self.say(body)], [known, known])
        self.assertEqual(self.end(0, 0)["moves_total"], 0)

    def test_what_no_session_holds_is_refused(self):
        self.start("--session-contexts", "64")
        with self.assertRaisesRegex(AssertionError, "^400: .*context"):
            self.say(growing(1, max_tokens=CONTEXT))
        self.say(growing(1, max_tokens=5))
        self.end(0, 0)


if __name__ == "__main__":
    support.main()
