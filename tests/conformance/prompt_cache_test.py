"""Prompts that begin like earlier ones, over HTTP on the bundled model: a later turn of a chat goes on
from a kept state, of 40, 1,000 and 3,000 tokens, drafted and plain, greedy and seeded, alone and in
company, and each reply has the tokens of a server that keeps nothing (E3, H4).

    prompt_cache_test.py BINARY [SIZES]    with a number, only so many of the sizes, for slow builds

Counts what it compared; that prompts were resumed, and kept states evicted, is demanded too.
"""

import concurrent.futures
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

CHAT = "/v1/chat/completions"
# About so many tokens, by the number of sentences.
SIZES = {"40": 1, "1k": 56, "3k": 166}
if len(sys.argv) > 2:
    SIZES = dict(list(SIZES.items())[:int(sys.argv.pop(2))])
LEAST_REUSED = 0.95
KINDS = ({"temperature": 0}, {"temperature": 0.8, "seed": 5})


def text(sentences, topic):
    return " ".join(f"The {topic} of year {1900 + i} was number {i * 37 % 101} of {i * 11 % 89}."
                    for i in range(sentences))


def turns(sentences, topic="harvest"):
    """The user's side of a chat."""
    return [text(sentences, topic) + " What came first?", "And what came next?", "Why?"]


class PromptCache(support.ServedTest):
    def chat(self, said, kind, draft, replies=None):
        """Figures of each turn's reply. The assistant's side is `replies`, else what comes."""
        messages = []
        figures = []
        for turn, line in enumerate(said):
            messages.append({"role": "user", "content": line})
            reply = self.ask(CHAT, {"messages": messages, "max_tokens": 16, "draft": draft} | kind)
            figures.append(reply)
            answer = reply["text"] if replies is None else replies[turn]["text"]
            messages.append({"role": "assistant", "content": answer or "None."})
        return figures

    def fresh(self, chats):
        """The same chats on a server that keeps nothing."""
        self.serve("--parallel", 4, "--prompt-cache-gib", 0, context=4096)
        figures = [self.chat(*chat) for chat in chats]
        for reply in (reply for chat in figures for reply in chat):
            self.assertEqual((reply["cached_tokens"], reply["miss"]), (0, None))
        self.assertEqual(self.status()["prompt_cache"]["pages"], 0)
        self.stop()
        return figures

    def test_later_turns_go_on_and_change_nothing(self):
        chats = [(turns(sentences, f"{size} {draft}"), KINDS[draft], draft)
                 for size, sentences in SIZES.items() for draft in (True, False)]
        fresh = self.fresh(chats)
        # Unpriced: whether drafts are made must not hang on what else the machine does.
        self.serve("--parallel", 4, "--prompt-cache-gib", 1, "--unpriced", context=4096)
        compared = 0
        for chat, known in zip(chats, fresh):
            figures = self.chat(*chat, replies=known)
            for turn, (reply, expected) in enumerate(zip(figures, known)):
                self.assertEqual(reply["token_sha"], expected["token_sha"], (chat[1:], turn))
                compared += 1
                if turn == 0:
                    continue
                before = figures[turn - 1]["prompt_tokens"]
                self.assertGreaterEqual(reply["cached_tokens"], LEAST_REUSED * before, (chat, turn))
                self.assertIsNone(reply["miss"])
            again = self.chat(*chat, replies=known)
            for reply, expected in zip(again, known):
                self.assertEqual(reply["token_sha"], expected["token_sha"])
                self.assertEqual(reply["cached_tokens"], reply["prompt_tokens"] - 1)
                compared += 1
            if chat[2]:
                self.assertGreater(sum(reply["drafts"]["accepted"] for reply in again), 0)
        self.assertEqual(compared, len(chats) * 6)
        cache = self.status()["prompt_cache"]
        self.assertEqual(cache["failed"], 0)
        self.assertGreaterEqual(cache["hits"], len(chats) * 5)
        print(f"{compared} comparisons, {cache['hits']} resumed, {cache['kept']} states kept")

    def test_drafts_make_no_difference_to_what_is_reused(self):
        self.serve("--parallel", 2)
        for draft in (True, False):
            figures = self.chat(turns(6, f"harbour {draft}"), KINDS[0], draft,
                                [{"text": "One."}] * 3)
            self.assertEqual([reply["cached_tokens"] for reply in figures],
                             [0, *(reply["prompt_tokens"] - 1 for reply in figures[:2])])

    def test_in_company(self):
        chats = [(turns(4 + i, "voyage"), KINDS[i % 2], i % 3 != 0) for i in range(8)]
        fresh = self.fresh(chats)
        self.serve("--parallel", 8, context=4096)
        for _ in range(2):
            with concurrent.futures.ThreadPoolExecutor(len(chats)) as pool:
                together = list(pool.map(
                    lambda i: self.chat(*chats[i], replies=fresh[i]), range(len(chats))))
            for figures, known in zip(together, fresh):
                self.assertEqual([reply["token_sha"] for reply in figures],
                                 [reply["token_sha"] for reply in known])
        self.assertGreater(self.status()["prompt_cache"]["hits"], 2 * len(chats))
        now = self.status()
        self.assertEqual(now["usage"], now["usage_at_load"])

    def test_what_is_evicted_is_made_again(self):
        chats = [(turns(8, f"field {i}"), KINDS[0], True) for i in range(6)]
        fresh = self.fresh(chats)
        # Room for about four states.
        self.serve("--parallel", 2, "--prompt-cache-gib", 0.03, context=4096)
        for _ in range(2):
            for chat, known in zip(chats, fresh):
                figures = self.chat(*chat, replies=known)
                self.assertEqual([reply["token_sha"] for reply in figures],
                                 [reply["token_sha"] for reply in known])
        cache = self.status()["prompt_cache"]
        self.assertGreater(cache["evicted"], len(chats))
        self.assertLessEqual(cache["pages_used"], cache["pages"])

    def test_a_miss_says_why(self):
        self.serve("--parallel", 1)
        first = self.ask(CHAT, {"messages": [{"role": "user", "content": text(20, "river")}],
                                "max_tokens": 2})
        self.assertEqual(first["miss"], {"reason": "empty"})
        other = self.ask(CHAT, {"messages": [{"role": "user", "content": "X" + text(20, "river")}],
                                "max_tokens": 2})
        self.assertEqual(other["miss"]["reason"], "differs")
        self.assertGreater(other["miss"]["first_difference"], 0)
        self.assertLess(other["miss"]["first_difference"], 10)

    def test_a_beginning_of_a_kept_prompt_is_shorter(self):
        self.serve("--parallel", 1)
        ids = [i * 7 % 500 + 20 for i in range(300)]
        ask = lambda prompt: self.ask("/v1/completions", {"prompt": prompt, "max_tokens": 1})  # noqa: E731
        self.assertEqual(ask(ids)["miss"], {"reason": "empty"})
        self.assertEqual(ask(ids[:299])["miss"], {"reason": "shorter", "first_difference": 299})
        self.assertEqual(ask(ids)["cached_tokens"], 299)

    def test_a_system_message_is_shared(self):
        self.serve("--parallel", 1)
        system = {"role": "system", "content": text(40, "rule")}
        reused = [self.ask(CHAT, {"messages": [system, {"role": "user", "content": question}],
                                  "max_tokens": 4})["cached_tokens"]
                  for question in ("Who are you?", "What is the capital of France?", "Why?")]
        self.assertEqual(reused[0], 0)
        self.assertGreater(reused[1], 500)
        self.assertEqual(reused[1], reused[2])


if __name__ == "__main__":
    support.main()
