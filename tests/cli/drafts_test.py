"""Drafts change the speed and never a token (E1): drafted and plain replies have the same token_sha,
greedy and with a seed, on prompts of code, prose, counting and copying; and drafts are accepted.

    drafts_test.py BINARY [PROMPTS]    with a number, that many prompts spread over the kinds
"""

import json
import pathlib
import sys

import support

WAYS = {"greedy": (), "seeded": ("--temperature", "0.8", "--seed", "11")}
PROMPTS = json.loads((pathlib.Path(__file__).parent / "prompts.json").read_text())
WANTED = int(sys.argv.pop(2)) if len(sys.argv) > 2 else len(PROMPTS)


class Drafts(support.CommandTest):
    def reply(self, prompt, *arguments):
        chat = ("--no-thinking",) if prompt["via"] == "chat" else ()
        return self.succeed_json("generate", f"--{prompt['via']}={prompt['text']}", *chat,
                                 "--max-tokens", 48, "--ignore-eos", "--json", *arguments)

    def test_drafted_equals_plain(self):
        self.assertEqual(len(PROMPTS), 20)
        chosen = PROMPTS[:: len(PROMPTS) // WANTED]
        self.assertEqual(len(chosen), WANTED)
        for way, arguments in WAYS.items():
            total = {"rounds": 0, "drafted": 0, "accepted": 0}
            for prompt in chosen:
                drafted = self.reply(prompt, *arguments)
                plain = self.reply(prompt, *arguments, "--no-drafts")
                self.assertEqual(drafted["token_sha"], plain["token_sha"], (way, prompt["name"]))
                self.assertEqual(len(plain["ids"]), 48, (way, prompt["name"]))
                self.assertEqual(plain["drafts"]["drafted"], 0, (way, prompt["name"]))
                for key in total:
                    total[key] += drafted["drafts"][key]
            print(f"{way}: {len(chosen)} prompts, {total}")
            self.assertGreater(total["accepted"], 0, way)
            self.assertLessEqual(total["accepted"], total["drafted"], way)


if __name__ == "__main__":
    support.main()
