"""A thousand requests, one after the other, on the bundled model, that end in every way there is from
outside: by length, end token, stop string, streamed or whole, given up by the client, refused. Then
the server holds what it held at load, its memory has not grown since the first two hundred, and the
first request has the tokens that it had at first (H2, H6, C4).

    thousand_test.py BINARY [REQUESTS]    with a number, that many, and memory is not looked at
"""

import json
import pathlib
import re
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

WHOLE = len(sys.argv) <= 2
REQUESTS = 1000 if WHOLE else int(sys.argv.pop(2))
SETTLED = REQUESTS // 5
# What allocators and the kernel's counters may be off by; 800 requests that each left 6 KB exceed it.
MEMORY_SLACK = 4 << 20
QUESTION = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
            "enable_thinking": False}
TEXT = "Two boats had come in during"


def plain(body, reason):
    """The body of a chat when it has messages, and the finish_reason that it must end with."""
    return ("/v1/chat/completions" if "messages" in body else "/v1/completions"), body, reason


WAYS = {
    "length": plain({"prompt": TEXT, "max_tokens": 4, "temperature": 0}, "length"),
    "end": plain(QUESTION | {"max_tokens": 24, "temperature": 0}, "stop"),
    "stop": plain({"prompt": TEXT, "max_tokens": 12, "stop": " ", "temperature": 0}, "stop"),
    "seeded": plain({"prompt": TEXT, "max_tokens": 4, "temperature": 0.9, "seed": 4,
                     "logprobs": 2, "presence_penalty": 0.5, "ignore_eos": True}, "length"),
    "thinking": plain(QUESTION | {"enable_thinking": True, "thinking_budget": 2, "max_tokens": 5,
                                  "temperature": 0}, "length"),
    "streamed": plain({"prompt": TEXT, "max_tokens": 5, "stream": True, "temperature": 0,
                       "draft": False}, "length"),
    # Far more than will be read of it.
    "given up": plain({"prompt": TEXT, "max_tokens": 1500, "stream": True, "ignore_eos": True}, None),
    "refused": plain({"prompt": TEXT, "max_tokens": 100000}, None),
}


class Thousand(support.ServedTest):
    def setUp(self):
        self.serve("--parallel", "2")
        self.shas = {}
        self.ended = dict.fromkeys(WAYS, 0)

    def idle(self):
        """The status once nothing runs; a client that left is noticed a moment later."""
        deadline = time.monotonic() + self.PATIENCE_S
        while (now := self.status())["running"] + now["waiting"] > 0:
            self.assertLess(time.monotonic(), deadline, now)
            time.sleep(0.002)
        return now

    def held(self):
        text = pathlib.Path(f"/proc/{self.server.pid}/status").read_text(encoding="ascii")
        return int(re.search(r"^RssAnon:\s+(\d+) kB$", text, re.M).group(1)) * 1024

    def one(self, way):
        path, body, reason = WAYS[way]
        connection = self.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertEqual(response.status, 400 if way == "refused" else 200, way)
        if way == "given up":
            self.assertTrue(response.read(20), way)
            response.close()
            connection.close()
            self.idle()
        else:
            text = response.read().decode()
            connection.close()
            if way != "refused":
                self.finished(way, text, body, reason)
        self.ended[way] += 1

    def finished(self, way, text, body, reason):
        if body.get("stream"):
            events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
            self.assertEqual(events[-1], "[DONE]", way)
            reply = json.loads(events[-2])
        else:
            reply = json.loads(text)
        self.assertEqual(reply["choices"][0]["finish_reason"], reason, way)
        sha = reply["flashlane"]["token_sha"]
        self.assertEqual(self.shas.setdefault(way, sha), sha, f"{way}, after {sum(self.ended.values())}")

    def test_nothing_is_left(self):
        at_load = self.status()
        self.assertEqual(at_load["usage"], at_load["usage_at_load"])
        ways = list(WAYS)
        settled = last = 0
        for i in range(REQUESTS):
            if i == SETTLED:
                settled = self.held()
            self.one(ways[i % len(ways)])
        now = self.idle()
        last = self.held()
        self.assertEqual(now["usage"], now["usage_at_load"])
        self.assertEqual(now["usage_at_load"], at_load["usage_at_load"])
        # Those that were refused never were requests.
        self.assertEqual(now["requests_total"], REQUESTS - self.ended["refused"])
        for way in ways:
            self.assertGreaterEqual(self.ended[way], REQUESTS // len(ways), way)
        replies = sum(self.ended[way] for way in self.shas)
        self.assertEqual(len(self.shas), len(ways) - 2)
        print(f"{sum(self.ended.values())} requests, {replies} replies of {len(self.shas)} kinds, "
              f"{settled} bytes held after {SETTLED}, {last} at the end")
        if WHOLE:
            self.assertLessEqual(last, settled + MEMORY_SLACK)


if __name__ == "__main__":
    support.main()
