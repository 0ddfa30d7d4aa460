"""What the commands print, and that score is equal to the bit however the rows are cut."""

import hashlib
import json
import pathlib
import shutil
import struct
import tempfile

import support
from support import FIXTURES, MICRO

TINY = "synth:tiny,format=bf16"


def ids_of(count, limit=500):
    return json.dumps([(7 * i + i * i) % limit for i in range(count)]).encode()


class Version(support.CommandTest):
    def test_json(self):
        version = self.succeed_json("--version", "--json")
        self.assertEqual(list(version), ["version", "build", "activations", "isa", "isa_available",
                                         "cuda"])
        self.assertRegex(version["version"], r"^\d+\.\d+\.\d+$")
        self.assertRegex(version["build"], r"^([0-9a-f]{12}|unknown)$")
        self.assertIn(version["activations"], ("bf16", "f32"))
        self.assertIn(version["isa"], version["isa_available"])
        if version["cuda"] is not None:  # there is a GPU
            self.assertEqual(list(version["cuda"]), ["device", "architecture", "memory_bytes"])
            self.assertRegex(version["cuda"]["architecture"], r"^sm_\d+$")
        self.assertIn(version["version"], self.succeed("--version").decode())

    def test_help_teaches(self):
        for command in ("serve", "generate", "score", "tokenize", "template", "info", "convert",
                        "bench"):
            text = self.succeed(command, "--help").decode()
            for word in ("Examples:", "Exit codes:", f"flashlane {command}", "default"):
                self.assertIn(word, text, command)
        self.assertIn("COMMAND --help", self.succeed("--help").decode())


class Info(support.CommandTest):
    def test_json(self):
        info = self.succeed_json("info", "--json", "--backend", "reference")
        self.assertEqual(info["shape"]["vocabulary"], 8192)
        self.assertEqual(info["plan"]["context"], 32768)
        self.assertEqual(info["plan"]["kv_dtype"], "f32")
        weights = (support.ROOT / "models/flash-next-nano-6bit/model.safetensors").stat().st_size
        self.assertLessEqual(abs(info["bytes"] - weights), weights // 100)
        plan = info["plan"]
        self.assertGreater(plan["total_bytes"], plan["weights_bytes"] + plan["pool_bytes"])

    def test_the_true_shape_needs_no_weights(self):
        true = ("info", "--model", "synth:true,format=q4g32", "--json")
        info = self.succeed_json(*true, environment={"FLASHLANE_MEMORY_LIMIT_GIB": ""})
        self.assertEqual(info["shape"]["layers"], 48)
        self.assertGreater(info["bytes"], 60e9)
        self.refuse(2, [str(info["plan"]["total_bytes"]), str(4 << 30)], *true)
        self.assertIn("memory plan", self.succeed("info", "--plan").decode())


class Score(support.CommandTest):
    def score(self, *arguments, model=TINY, ids=ids_of(150)):
        return self.succeed("score", "--model", model, "--ids", "-", "--json", *arguments,
                            stdin=ids)

    def test_lines(self):
        lines = [json.loads(line) for line in self.score("--top", 3).splitlines()]
        self.assertEqual([line["position"] for line in lines], list(range(150)))
        self.assertEqual([line["token"] for line in lines], json.loads(ids_of(150)))
        for line in lines:
            self.assertEqual(list(line), ["position", "token", "logsumexp", "top"])
            self.assertEqual(len(line["top"]), 3)
            logits = [logit for _, logit in line["top"]]
            self.assertEqual(logits, sorted(logits, reverse=True))
            self.assertGreater(line["logsumexp"], logits[0])

    def test_every_chunk_gives_the_same_bytes(self):
        for backend in ("reference", "cpu"):
            whole = self.score("--backend", backend, "--chunk", 150, "--mtp")
            for chunk in (1, 7, 64):
                part = self.score("--backend", backend, "--chunk", chunk, "--mtp")
                self.assertEqual(part, whole, (backend, chunk))

    def test_every_window_and_thread_count_gives_the_same_bytes(self):
        for backend in ("reference", "cpu"):
            decode = ("--backend", backend, "--role", "decode", "--mtp", "--mtp-depth", 3)
            one = self.score(*decode)
            for rows in (2, 4, 7, 16):
                self.assertEqual(self.score(*decode, "--rows", rows), one, (backend, rows))
            self.assertEqual(self.score(*decode, "--threads", 3), one, backend)

    def test_head_depths(self):
        deep = [json.loads(line) for line in self.score("--mtp", "--mtp-depth", 3).splitlines()]
        flat = [json.loads(line) for line in self.score("--mtp").splitlines()]
        for line, shallow in zip(deep[:-1], flat):
            self.assertEqual(len(line["mtp"]), 3)
            self.assertEqual(line["mtp"][0]["top"], line["mtp_top"])
            self.assertEqual(shallow["mtp_top"], line["mtp_top"])
            self.assertNotIn("mtp", shallow)
        for line in (deep[-1], flat[-1]):
            self.assertNotIn("mtp_top", line)
            self.assertNotIn("mtp", line)

    def test_positions_pick_lines_of_the_whole(self):
        options = ("--mtp", "--mtp-depth", 2)
        lines = self.score(*options).splitlines()
        picked = self.score(*options, "--positions", "5,0,149,64").splitlines()
        self.assertEqual(picked, [lines[i] for i in (0, 5, 64, 149)])

    def test_config_and_weights_are_enough(self):
        # micro_a has no tokenizer and sizes of its own.
        lines = self.score("--top", 1000, model=MICRO, ids=ids_of(40, 300)).splitlines()
        self.assertEqual(len(json.loads(lines[-1])["top"]), 320)

    def test_one_token(self):
        line = json.loads(self.score("--mtp", ids=b"[7]"))
        self.assertEqual((line["position"], line["token"]), (0, 7))
        self.assertNotIn("mtp_top", line)


class Text(support.CommandTest):
    def test_round_trip_keeps_every_byte(self):
        text = "  def f(x):\n\treturn 'ä€𝄞'\r\n<|im_start|>\n\n".encode()
        ids = self.succeed("tokenize", "--json", stdin=text)
        array = json.dumps(json.loads(ids)["ids"]).encode()
        back = self.succeed("tokenize", "--decode", "--ids", "-", stdin=array)
        self.assertEqual(back, text)
        skipped = self.succeed("tokenize", "--decode", "--ids", "-", "--skip-special", stdin=array)
        self.assertEqual(skipped, text.replace(b"<|im_start|>", b""))
        plain = self.succeed_json("tokenize", "--no-special", "--json", stdin=text)["ids"]
        self.assertGreater(len(plain), len(json.loads(array)))

    def test_fixture_cases(self):
        # The text tests hold every case; a few here show that the command passes bytes through.
        for case in json.loads((FIXTURES / "tokenizer_strings.json").read_text())[::20]:
            ids = self.succeed_json("tokenize", "--json", stdin=case["text"].encode())["ids"]
            self.assertEqual(ids, case["ids"])
        for case in json.loads((FIXTURES / "chat_template_cases.json").read_text()):
            given = json.dumps(case["input"]).encode()
            if "error" in case:
                self.refuse(2, [case["error"]], "template", "--input", "-", "--json", stdin=given)
                continue
            out = self.succeed_json("template", "--input", "-", "--json", stdin=given)
            self.assertEqual(out["text"], case["text"])
            self.assertEqual(out["ids"], case["ids"])


class Generate(support.CommandTest):
    def test_json(self):
        reply = self.succeed_json("generate", "--prompt", "def add(a, b):", "--max-tokens", 12,
                                  "--json")
        self.assertLessEqual(len(reply["ids"]), 12)
        joined = ",".join(str(token) for token in reply["ids"]).encode()
        self.assertEqual(reply["token_sha"], hashlib.sha256(joined).hexdigest())
        self.assertEqual(set(reply["drafts"]), {"rounds", "drafted", "accepted", "head", "copied"})
        self.assertIn(reply["finish_reason"], ("stop", "length"))
        text = self.succeed("generate", "--prompt", "def add(a, b):", "--max-tokens", 12).decode()
        self.assertEqual(text, reply["text"] + "\n")

    def test_a_checkpoint_without_the_mtp_head_that_its_config_names(self):
        with tempfile.TemporaryDirectory() as folder:
            target = pathlib.Path(folder)
            shutil.copy(MICRO / "config.json", target)
            stored = (MICRO / "model.safetensors").read_bytes()
            length = struct.unpack("<Q", stored[:8])[0]
            data, header, kept = b"", {}, json.loads(stored[8:8 + length])
            for name, entry in kept.items():
                if name.startswith("__") or ".mtp." in f".{name}":
                    continue
                begin, end = entry["data_offsets"]
                header[name] = {**entry, "data_offsets": [len(data), len(data) + end - begin]}
                data += stored[8 + length:][begin:end]
            self.assertLess(len(header), len(kept) - 1)
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            (target / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
            generate = ("generate", "--prompt-ids", "-", "--max-tokens", 8, "--json", "--model")
            without = self.succeed_json(*generate, target, stdin=b"[1,2,3]")
            whole = self.succeed_json(*generate, MICRO, "--no-drafts", stdin=b"[1,2,3]")
            self.assertEqual(without["token_sha"], whole["token_sha"])
            self.assertEqual(without["drafts"]["drafted"], 0)

    def test_end_token_stops_and_is_counted(self):
        ask = ("generate", "--chat", "What is the capital of France?", "--no-thinking", "--json")
        reply = self.succeed_json(*ask)
        self.assertEqual(reply["finish_reason"], "stop")
        self.assertIn(reply["ids"][-1], (8160, 8162))
        self.assertNotIn("<|", reply["text"])
        longer = self.succeed_json(*ask, "--ignore-eos", "--max-tokens", len(reply["ids"]) + 5)
        self.assertEqual(longer["finish_reason"], "length")
        self.assertEqual(longer["ids"][: len(reply["ids"])], reply["ids"])

    def test_a_model_without_tokenizer_gives_ids(self):
        generate = ("generate", "--model", TINY, "--prompt-ids", "-", "--max-tokens", 5)
        reply = self.succeed_json(*generate, "--json", stdin=b"[1,2,3]")
        self.assertIsNone(reply["text"])
        printed = self.succeed(*generate, stdin=b"[1,2,3]")
        self.assertEqual(printed.decode().split(), [str(token) for token in reply["ids"]])

    def test_seeds(self):
        def sha(*arguments):
            return self.succeed_json("generate", "--prompt", "Once", "--max-tokens", 16, "--json",
                                     "--temperature", "1.5", *arguments)["token_sha"]

        self.assertEqual(sha("--seed", 7), sha("--seed", 7))
        self.assertNotEqual(sha("--seed", 7), sha("--seed", 8))
        self.assertEqual(sha(), sha())
        self.assertNotEqual(sha("--seed", 7), sha("--seed", 7, "--top-k", 1))


if __name__ == "__main__":
    support.main()
