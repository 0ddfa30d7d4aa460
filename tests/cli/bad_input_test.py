"""What the caller gets wrong is one line on stderr that names the thing, the value and the limit,
and exit code 2."""

import json
import pathlib
import shutil
import tempfile

import support
from support import MICRO

IDS = b"[1,2,3]"


class BadInput(support.CommandTest):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def file(self, name, text):
        path = self.folder / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def copy_of_micro(self):
        model = self.folder / "model"
        model.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copyfile(MICRO / name, model / name)
        return model

    def test_command_line(self):
        self.refuse(2, ["command"])
        self.refuse(2, ["--nonsense"], "score", "--nonsense")
        self.refuse(2, ["frobnicate"], "frobnicate")
        self.refuse(2, ["--threads", "'two'"], "info", "--threads", "two")
        self.refuse(2, ["--threads", "257", "0 to 256"], "info", "--threads", "257")
        self.refuse(2, ["--threads", "'+1'"], "info", "--threads", "+1")
        self.refuse(2, ["--top-p", "1.5", "0 to 1"], "generate", "--prompt", "a", "--top-p", "1.5")
        self.refuse(2, ["--top-p", "above 0"],
                    "generate", "--prompt", "a", "--temperature", "1", "--top-p", "0")
        for name in ("--top-k", "--top-p", "--min-p"):
            self.refuse(2, [name, "--temperature"], "generate", "--prompt", "a", name, "1")
        self.refuse(2, ["--temperature", "'1e-1'"],
                    "generate", "--prompt", "a", "--temperature", "1e-1")
        self.refuse(2, ["--backend", "'gpu'", "reference"], "info", "--backend", "gpu")
        self.refuse(2, ["cuda"], "info", "--backend", "cuda")
        self.refuse(2, ["--kv-dtype", "'int4'"], "info", "--kv-dtype", "int4")
        self.refuse(2, ["--context", "40000", "32768"], "info", "--context", "40000")
        self.refuse(2, ["'a'", "'b'"], "serve", "a", "--model", "b")

    def test_levels_that_the_processor_lacks_are_refused(self):
        have = self.succeed_json("--version", "--json")["isa_available"]
        for level in ("avx2", "avx512", "avx512_bf16", "amx"):
            if level in have:
                self.succeed("info", "--backend", "cpu", "--isa", level)
            else:
                self.refuse(2, [level, *have], "info", "--backend", "cpu", "--isa", level)

    def test_ids(self):
        score = ("score", "--model", MICRO, "--ids", "-", "--json")
        self.refuse(2, ["--ids"], "score", "--model", MICRO)
        self.refuse(2, ["index 1 holds 320", "0 to 319"], *score, stdin=b"[1,320,2]")
        self.refuse(2, ["index 0 holds -1"], *score, stdin=b"[-1]")
        self.refuse(2, ["index 1 holds 1E20", "319"], *score, stdin=b"[1,99999999999999999999]")
        self.refuse(2, ["index 2 holds 3.5E0", "whole number"], *score, stdin=b"[1,2,3.5]")
        self.refuse(2, ['index 0 holds "one"'], *score, stdin=b'["one"]')
        self.refuse(2, ["array"], *score, stdin=b'{"ids":[1]}')
        self.refuse(2, ["JSON"], *score, stdin=b"[1,2")
        self.refuse(2, ["JSON"], *score, stdin=b"")
        self.refuse(2, ["no token ids"], *score, stdin=b"[]")
        self.refuse(2, ["absent.json"], "score", "--model", MICRO, "--ids", "absent.json")
        limit = json.loads((MICRO / "config.json").read_text())
        limit = limit.get("text_config", limit)["max_position_embeddings"]
        long = json.dumps([1] * (limit + 1)).encode()
        self.refuse(2, [str(limit + 1), str(limit)], *score, stdin=long)
        self.refuse(2, [str(limit)], "generate", "--model", MICRO, "--prompt-ids", "-",
                    stdin=json.dumps([1] * limit).encode())
        self.refuse(2, ["--max-tokens", str(limit)], "generate", "--model", MICRO, "--prompt-ids",
                    "-", "--max-tokens", limit, stdin=IDS)

    def test_options_that_contradict(self):
        self.refuse(2, ["--rows"], "score", "--model", MICRO, "--ids", "-", "--rows", 2, stdin=IDS)
        self.refuse(2, ["--mtp"], "score", "--model", MICRO, "--ids", "-", "--mtp-depth", 2,
                    stdin=IDS)
        self.refuse(2, ["--rows", "16"], "score", "--model", MICRO, "--ids", "-", "--role", "decode",
                    "--rows", 17, stdin=IDS)
        self.refuse(2, ["--positions", "2"], "score", "--model", MICRO, "--ids", "-",
                    "--positions", "0,3", stdin=IDS)
        self.refuse(2, ["--prompt"], "generate")
        self.refuse(2, ["2 are given"], "generate", "--prompt", "a", "--chat", "b")
        self.refuse(2, ["--chat"], "generate", "--prompt", "a", "--no-thinking")
        self.refuse(2, ["--decode"], "tokenize", "--ids", "-", stdin=IDS)

    def test_text(self):
        self.refuse(2, ["byte 3"], "tokenize", "--json", stdin=b"abc\xffdef")
        self.refuse(2, ["byte 0"], "tokenize", "--json", stdin=b"\xed\xa0\x80")
        self.refuse(2, ["8192"], "tokenize", "--decode", "--ids", "-", stdin=b"[8192]")
        self.refuse(2, ["JSON"], "template", "--input", "-", stdin=b"{")
        self.refuse(2, ["object"], "template", "--input", "-", stdin=b"[]")
        self.refuse(2, ["tokenizer"], "tokenize", "--model", "synth:tiny", stdin=b"a")
        self.refuse(2, ["tokenizer"], "generate", "--model", "synth:tiny", "--prompt", "a")
        self.refuse(2, ["empty"], "generate", "--prompt", "")
        # The offset is one of the text as given, not of the rendered template.
        for option in ("--prompt", "--chat"):
            self.refuse(2, [option, "byte 1"], "generate", option, b"a\xff")

    def test_models(self):
        self.refuse(2, ["no-such-model"], "info", "--model", "no-such-model")
        self.refuse(2, ["nothing-like-it"], "info", "--model", "synth:nothing-like-it")
        self.refuse(2, ["config.json"], "info", "--model", self.folder)
        score = ("score", "--ids", "-", "--model")
        model = self.copy_of_micro()
        weights = model / "model.safetensors"
        whole = weights.read_bytes()
        weights.write_bytes(whole[:-1])
        self.refuse(2, ["model.safetensors"], *score, model, stdin=IDS)
        weights.write_bytes(whole[:4])
        self.refuse(2, ["model.safetensors"], *score, model, stdin=IDS)
        weights.write_bytes((1 << 60).to_bytes(8, "little") + whole[8:])
        self.refuse(2, ["model.safetensors"], *score, model, stdin=IDS)
        weights.write_bytes(whole.replace(b"lm_head.weight", b"lm_tail.weight", 1))
        self.refuse(2, ["lm_head.weight"], *score, model, stdin=IDS)
        weights.write_bytes(whole)
        config = json.loads((model / "config.json").read_text())
        text = config.get("text_config", config)
        text["num_experts_per_tok"] = text["num_experts"] + 1
        (model / "config.json").write_text(json.dumps(config))
        self.refuse(2, ["num_experts_per_tok"], *score, model, stdin=IDS)
        (model / "config.json").write_text("{")
        self.refuse(2, [f": {model}/config.json: not valid"], *score, model, stdin=IDS)

    def test_memory_limit_names_both_numbers(self):
        self.refuse(2, ["--memory-limit-gib 0.001", "1073741"], "score", "--ids", "-",
                    "--memory-limit-gib", "0.001", stdin=IDS)
        self.succeed("score", "--model", MICRO, "--ids", "-", "--memory-limit-gib", "1", stdin=IDS)

    def test_environment(self):
        def refuse(words, **variables):
            self.refuse(2, words, "info", environment=variables)

        refuse(["FLASHLANE_THRAEDS", "FLASHLANE_THREADS"], FLASHLANE_THRAEDS="1")
        refuse(["FLASHLANE_THREADS", "'1 '"], FLASHLANE_THREADS="1 ")
        refuse(["FLASHLANE_THREADS", "'0x2'"], FLASHLANE_THREADS="0x2")
        refuse(["FLASHLANE_NO_DRAFTS", "'true'", "0 or 1"], FLASHLANE_NO_DRAFTS="true")
        refuse(["FLASHLANE_PORT", "65536"], FLASHLANE_PORT="65536")
        refuse(["FLASHLANE_MEMORY_LIMIT_GIB", "'1e3'"], FLASHLANE_MEMORY_LIMIT_GIB="1e3")
        refuse(["FLASHNEXT_LOAD_LIMIT_GB", "'x'"], FLASHNEXT_LOAD_LIMIT_GB="x")
        refuse(["absent.toml"], FLASHLANE_CONFIG="absent.toml")
        self.succeed("info", environment={"FLASHLANE_THREADS": "", "FLASHLANE_NO_DRAFTS": "0"})

    def test_config_file(self):
        def refuse(words, text):
            self.refuse(2, ["c.toml", *words], "info", "--config", self.file("c.toml", text))

        refuse(["line 2"], "threads = 1\nthreads =\n")
        refuse(["thraeds", "threads"], "thraeds = 1\n")
        refuse(["threads", "whole number"], 'threads = "1"\n')
        refuse(["threads", "999"], "threads = 999\n")
        refuse(["[bake]"], "[bake]\nport = 1\n")
        refuse(["serve.prot", "port"], "[serve]\nprot = 1\n")
        refuse(["serve.no-drafts", "true or false"], "[serve]\nno-drafts = 1\n")

    def test_precedence_is_flags_then_file_then_environment(self):
        file = self.file("c.toml", "context = 2048\n[serve]\nport = 1234\n")
        environment = {"FLASHLANE_CONTEXT": "1024", "FLASHLANE_PREFILL_CHUNK": "64"}

        def plan(*arguments):
            return self.succeed_json("info", "--json", *arguments, environment=environment)["plan"]

        self.assertEqual(plan()["context"], 1024)
        self.assertEqual(plan("--config", file)["context"], 2048)
        self.assertEqual(plan("--config", file, "--context", 4096)["context"], 4096)
        self.assertEqual(plan("--config", file)["step_rows"], 64)

    def test_sized_sessions(self):
        def refuse(words, *arguments, **environment):
            self.refuse(2, words, "info", *arguments, environment=environment)

        for text, words in [
            ("", []), ("4096,", ["entry 2"]), ("4096x", ["4096x"]), ("0", ["'0'"]),
            ("4096x0", ["4096x0"]), ("-1", ["-1"]), (" 4096", [" 4096"]), ("4096 x2", ["4096 x2"]),
            ("4096x16", ["15"]), ("99999999999", ["99999999999"]), ("2147483647", ["2147483647"]),
            ("64x99999999999", ["64x99999999999"]), ("words", ["words"]),
        ]:
            refuse(["--session-contexts", *words], f"--session-contexts={text}")
        refuse(["--session-grow 8", "--session-contexts"], "--session-grow", "8")
        refuse(["--session-grow"], "--session-contexts", "4096", "--session-grow", "0")
        refuse(["--parallel 2", "3 sessions"], "--session-contexts", "4096x2", "--parallel", "2")
        refuse(["--session-contexts", "16 sessions", "GiB are left"],
               "--session-contexts", "32768x15", "--memory-limit-gib", "2")
        plan = self.succeed_json("info", "--json", "--prompt-cache-gib", "0", environment={
            "FLASHNEXT_SLOT_CONTEXTS": "16384x2,4096", "FLASHNEXT_SLOT_GROW": "100"})["plan"]
        self.assertEqual(plan["sequences"], 4)
        # Pages of 256 positions for 32 more than each says, and three of state.
        self.assertEqual(plan["pages"], 129 + 2 * 65 + 17 + 4 * 3)

    def test_pages_of_the_pool(self):
        for value in ["0", "-4", "65537", "words", " 256"]:
            self.refuse(2, ["--kv-page-rows"], "serve", f"--kv-page-rows={value}")
        self.refuse(2, ["--kv-page-rows", "page_rows is 62", "multiple of 4"], "serve",
                    "--kv-page-rows", "62")
        # The widest piece of the bundled model is one layer's recurrent state.
        self.refuse(2, ["page_rows is 52", "piece over page", "393216", "the least page rows are 56"],
                    "info", "--kv-page-rows", "52")
        self.succeed("info", "--kv-page-rows", "52", "--state-pages", "0")
        for value in ["2", "-1", "01", "true", " 1"]:
            self.refuse(2, ["TF_FLASHNEXT_STATE_PAGES", value.strip()], "info",
                        environment={"TF_FLASHNEXT_STATE_PAGES": value})
        plan = self.succeed_json("info", "--json", environment={
            "TF_FLASHNEXT_KV_PAGES": "60", "TF_FLASHNEXT_STATE_PAGES": "1"})["plan"]
        self.assertEqual(plan["page_rows"], 60)

    def test_how_many_replies_at_once(self):
        for value in ["0", "17", "-1", "2x", "many", "99999999999999999999"]:
            self.refuse(2, ["--parallel", "auto or a number from 1 to 16"], "serve",
                        f"--parallel={value}")
        # A context of 32,768 positions takes about 230 MiB, each further reply 35.
        self.refuse(2, ["--parallel 16", "does not fit", "--context 32768", "3 of state", "would fit"],
                    "serve", "--parallel", "16", "--memory-limit-gib", "0.6")
        for value in ["-0.1", "0.96", "half"]:
            self.refuse(2, ["--decode-share"], "serve", f"--decode-share={value}")


if __name__ == "__main__":
    support.main()
