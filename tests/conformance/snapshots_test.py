"""Kept states outlive the server, over HTTP on the bundled model: the next process goes on from them
with the tokens of a fresh prompt, also when the last one was killed; what memory has no room for is
read back; damaged and foreign files are dropped, and what is on a file is nobody else's (H4, E3).

    snapshots_test.py BINARY
"""

import pathlib
import signal
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cli"))
import support  # noqa: E402

STORY = "The ship left the harbour at dawn, and nobody on the pier waved. " * 12
TURNS = [STORY, STORY + "Then the wind turned.", "Count: 1, 2, 3, " * 30]


def body(prompt, **other):
    return {"prompt": prompt, "max_tokens": 24, "ignore_eos": True, "temperature": 0} | other


class SnapshotFiles(support.ServedTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name) / "states"

    def start(self, *arguments):
        self.serve("--unpriced", "--parallel", 2, "--prompt-cache-gib", 0.2,
                   "--snapshot-dir", self.folder, *arguments)

    def say(self, prompt, **other):
        return self.ask("/v1/completions", body(prompt, **other))

    def states(self):
        return sorted(self.folder.glob("*.state"))

    def await_count(self, name, count):
        deadline = time.monotonic() + 20
        now = lambda: self.status()["prompt_cache"][name]  # noqa: E731
        while now() < count and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertGreaterEqual(now(), count, name)

    def test_a_restart_goes_on(self):
        self.start()
        fresh = [self.say(prompt) for prompt in TURNS]
        seeded = self.say(STORY, temperature=0.8, seed=4)["token_sha"]
        self.stop()
        self.assertGreaterEqual(len(self.states()), len(TURNS))
        self.assertEqual(list(self.folder.glob("*.unfinished")), [])
        self.start()
        self.assertGreaterEqual(self.status()["prompt_cache"]["snapshots_restored"], len(TURNS))
        again = [self.say(prompt) for prompt in TURNS]
        self.assertEqual([r["token_sha"] for r in again], [r["token_sha"] for r in fresh])
        for reply in again:
            self.assertGreaterEqual(reply["cached_tokens"], reply["prompt_tokens"] - 1)
        self.assertEqual(self.say(STORY, temperature=0.8, seed=4)["token_sha"], seeded)
        # Nothing is written twice.
        written = {path: path.stat().st_ino for path in self.states()}
        self.stop()
        self.assertEqual({path: path.stat().st_ino for path in self.states()
                          if path in written}, written)

    def test_a_killed_server_leaves_whole_states(self):
        self.start()
        fresh = self.say(STORY)
        self.await_count("snapshots_saved", 1)
        self.server.send_signal(signal.SIGKILL)
        self.server.wait()
        (self.folder / "0123.state.unfinished").write_bytes(b"half")
        self.start()
        again = self.say(STORY)
        self.assertEqual(again["token_sha"], fresh["token_sha"])
        self.assertGreater(again["cached_tokens"], 0)
        self.assertEqual(list(self.folder.glob("*.unfinished")), [])

    def test_damaged_and_foreign_states_are_not_used(self):
        self.start()
        fresh = self.say(STORY)
        self.stop()
        for path in self.states():
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
        self.start()
        again = self.say(STORY)
        self.assertEqual((again["token_sha"], again["cached_tokens"]), (fresh["token_sha"], 0))
        self.stop()
        # Another layout's key: its states are not this one's.
        self.start("--kv-page-rows", 64)
        other = self.say(STORY)
        self.assertEqual((other["token_sha"], other["cached_tokens"]), (fresh["token_sha"], 0))

    def test_what_can_not_be_is_refused(self):
        self.start()
        self.refuse(1, ["in use"], "serve", "--port", 0, "--snapshot-dir", self.folder,
                    "--memory-limit-gib", 4)
        self.stop()
        self.refuse(2, ["--snapshot-dir", "--spill-gib 0"], "serve", "--snapshot-dir", self.folder,
                    "--spill-gib", 0)
        self.refuse(2, ["--spill-gib 1", "--prompt-cache-gib"], "serve", "--spill-gib", 1,
                    "--prompt-cache-gib", 0)
        self.refuse(2, ["--prompt-cache-gib"], "serve", "--snapshot-dir", self.folder,
                    "--prompt-cache-gib", 0)

    def test_states_beyond_the_context_stay_where_they_are(self):
        self.start()
        self.say(STORY)
        self.stop()
        held = self.states()
        self.serve("--unpriced", "--prompt-cache-gib", 0.2, "--snapshot-dir", self.folder, context=64)
        self.assertEqual(self.status()["prompt_cache"]["snapshots_restored"], 0)
        self.stop()
        self.assertEqual(self.states(), held)

    def test_evicted_states_are_read_back(self):
        # Memory has room for one of the two conversations; the files go with the server.
        with tempfile.TemporaryDirectory() as temporary:
            prompts = [f"{i} " + STORY * 3 for i in range(2)]
            self.serve("--unpriced", "--parallel", 2, "--prompt-cache-gib", 0.015, "--spill-gib", 1,
                       environment={"TMPDIR": temporary})
            own = pathlib.Path(temporary)
            fresh = []
            for prompt in prompts:
                saved = self.status()["prompt_cache"]["snapshots_saved"]
                fresh.append(self.say(prompt))
                self.await_count("snapshots_saved", saved + 1)
            self.assertGreater(self.status()["prompt_cache"]["evicted"], 0)
            for prompt, first in list(zip(prompts, fresh)) * 2:
                again = self.say(prompt)
                self.assertEqual(again["token_sha"], first["token_sha"])
                self.assertGreaterEqual(again["cached_tokens"], again["prompt_tokens"] - 1)
            self.await_count("snapshots_read_back", 3)
            self.assertEqual(len(list(own.glob("flashlane-spill-*"))), 1)
            self.stop()
            self.assertEqual(list(own.iterdir()), [])

    def test_old_states_make_room(self):
        self.start("--spill-gib", 0.02)
        for i in range(6):
            self.say(f"{i} " + STORY)
        self.stop()
        held = sum(path.stat().st_size for path in self.states())
        self.assertGreater(held, 0)
        self.assertLessEqual(held, 0.02 * (1 << 30))


if __name__ == "__main__":
    support.main()
