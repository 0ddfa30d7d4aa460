"""One reply, whatever computes it: `generate` gives one token_sha for 1, 2 and 3 threads, drafts on and
off, at every instruction level of this machine that keeps the written order of sums (E1, E5).

    same_reply_test.py BINARY [PROMPTS]    with a number, that many prompts spread over the kinds

The 20 prompts of the draft test and one of 3,000 tokens. `avx512_bf16` has an order of its own
(docs/row_rule.md): one token_sha too, but not the others'.
"""

import json
import pathlib
import sys
import tempfile

import support

sys.path.insert(0, str(support.ROOT / "tools"))
import compare_fixtures  # noqa: E402

PROMPTS = json.loads((pathlib.Path(__file__).parent / "prompts.json").read_text())
WANTED = int(sys.argv.pop(2)) if len(sys.argv) > 2 else len(PROMPTS)
LONG = support.FIXTURES / "nano" / "golden_long3000.safetensors"
OWN_ORDER = {"avx512_bf16"}
REPLY_TOKENS = 32


def arguments_of(prompt):
    chat = ("--no-thinking",) if prompt["via"] == "chat" else ()
    return (f"--{prompt['via']}={prompt['text']}", *chat)


class SameReply(support.CommandTest):
    def shas(self, arguments, levels):
        """token_sha of every way to compute this reply, by the way."""
        found = {}
        for level in levels:
            for threads in (1, 2, 3):
                for drafts in ((), ("--no-drafts",)):
                    reply = self.succeed_json(
                        "generate", *arguments, "--backend", "cpu", "--isa", level, "--threads", threads,
                        "--max-tokens", REPLY_TOKENS, "--ignore-eos", "--json", *drafts)
                    self.assertEqual(len(reply["ids"]), REPLY_TOKENS)
                    found[level, threads, drafts] = reply["token_sha"]
        return found

    def test_one_sha(self):
        levels = self.succeed_json("--version", "--json")["isa_available"]
        alike = [level for level in levels if level not in OWN_ORDER]
        apart = [level for level in levels if level in OWN_ORDER]
        self.assertEqual(len(PROMPTS), 20)
        chosen = PROMPTS[:: len(PROMPTS) // WANTED]
        self.assertEqual(len(chosen), WANTED)
        ids = list(compare_fixtures.read_safetensors(LONG)["tokens"].values)
        self.assertGreaterEqual(len(ids), 3000)
        different = set()
        compared = 0
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(ids, file)
            file.flush()
            ways = {prompt["name"]: arguments_of(prompt) for prompt in chosen}
            ways["3,000 tokens"] = ("--prompt-ids", file.name)
            for name, arguments in ways.items():
                for group in filter(None, (alike, apart)):
                    shas = self.shas(arguments, group)
                    self.assertEqual(len(set(shas.values())), 1, (name, shas))
                    compared += len(shas)
                different.add(next(iter(shas.values())))
        # Replies that are all the same would say nothing.
        self.assertEqual(len(different), len(ways))
        print(f"{len(ways)} prompts at {', '.join(levels)}: {compared} replies, one token_sha a prompt")


if __name__ == "__main__":
    support.main()
