"""One pool in every form, over HTTP on the bundled model: whatever the page rows are and however states
lie in pages, greedy and seeded replies, alone and together, have the same tokens, and afterwards all
pages are free (E3, P1 to P4).

    pages_test.py BINARY [TOKENS]    with a number, so many tokens of the long reply instead of 4,200
"""

import concurrent.futures
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

LONG = int(sys.argv.pop(2)) if len(sys.argv) > 2 else 4200
# Page rows, state pages; pieces need 56 rows. 52 is legal for consecutive pages alone.
FORMS = [(256, 1), (52, 0), (60, 0), (60, 1), (64, 1), (104, 1), (256, 0), (260, 1), (512, 0),
         (512, 1)]
LONG_FORMS = [(256, 1), (60, 0)]


def bodies():
    made = []
    for i in range(6):
        body = {"prompt": f"Count from {i} upwards: {i}, {i + 1}, {i + 2}," * (1 + 9 * (i % 3)),
                "max_tokens": 40 + 50 * (i % 3), "ignore_eos": True, "draft": i % 4 != 3}
        made.append(body | ({"temperature": 0.9, "seed": i} if i % 2 else {"temperature": 0}))
    return made


class Pages(support.ServedTest):
    def start(self, rows, states, *arguments, context=2048):
        self.serve("--kv-page-rows", rows, "--state-pages", states, "--unpriced",
                   "--prompt-cache-gib", 0, *arguments, context=context)

    def say(self, body):
        return self.ask("/v1/completions", body)["token_sha"]

    def end(self):
        now = self.status()
        self.assertEqual(now["usage"], now["usage_at_load"])
        self.assertEqual(now["usage"]["pages_free"], now["usage"]["pages"])
        self.stop()

    def test_every_form_gives_the_same_tokens(self):
        known = None
        for rows, states in FORMS:
            self.start(rows, states, "--parallel", 4)
            alone = [self.say(body) for body in bodies()]
            known = known or alone
            self.assertEqual(len(set(alone)), len(alone))
            self.assertEqual(alone, known, (rows, states))
            with concurrent.futures.ThreadPoolExecutor(len(known)) as pool:
                self.assertEqual(list(pool.map(self.say, bodies())), known, (rows, states))
            self.end()

    def test_a_long_reply_over_many_pages(self):
        """Alone, and two of them with a third that has to wait for their pages."""
        long = {"prompt": "Count to 4000: 1, 2, 3, 4, 5,", "max_tokens": LONG, "ignore_eos": True,
                "temperature": 0}
        short = long | {"max_tokens": 30}
        known = None
        for rows, states in LONG_FORMS:
            self.start(rows, states, "--parallel", 3, context=LONG + 100)
            shas = [self.say(short), self.say(long)]
            known = known or shas
            self.assertEqual(shas, known, (rows, states))
            self.end()
        self.start(256, 1, "--parallel", 2, context=LONG + 100)
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            together = list(pool.map(self.say, (long, short, short | {"draft": False})))
        self.assertEqual(together, [known[1], known[0], known[0]])
        self.end()


if __name__ == "__main__":
    support.main()
