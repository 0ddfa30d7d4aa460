"""Memory: what the plan says beside what the kernel counts, while loading, once loaded and while
sixteen long replies run, and that what does not fit is refused. The plan's own allowance for the process
is the only slack.

    memory_test.py BINARY [Memory | SlowMemory]
"""

import concurrent.futures
import random
import re

import support

MODELS = ("nano", "synth:nano,format=q4g32", "synth:nano,format=q8g64", "synth:nano,format=bf16")
SIZES = ("--context", "4096", "--threads", "2")
PARTS = ("weights_bytes", "scratch_bytes", "pool_bytes", "slots_bytes", "kept_bytes",
         "step_bytes", "process_bytes")
# Beyond a number of mappings and threads, the kernel's counters may lag by this much.
LAG = 1 << 20


def status_bytes(process):
    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
        text = file.read()
    return {name: int(number) * 1024
            for name, number in re.findall(r"^(\w+):\s+(\d+) kB$", text, re.M)}


class Memory(support.CommandTest):
    def plan(self, *arguments):
        plan = self.succeed_json("info", "--plan", "--json", *arguments)["plan"]
        self.assertEqual(plan["total_bytes"], sum(plan[part] for part in PARTS))
        return plan

    def test_the_plan_names_the_form_of_the_pool(self):
        for arguments, state_pages, sessions in (
                ([], 1, []), (["--state-pages", 0], 0, []),
                (["--session-contexts", "4096x2,512", "--session-grow", 256], 1,
                 [8192, 4096, 4096, 512])):
            plan = self.plan("--model", "nano", "--context", 8192, *arguments)
            margin = 32  # rows of a session beyond its context
            self.assertEqual((plan["state_pages"], plan["session_rows"]),
                             (state_pages, [context + margin for context in sessions]))

    def test_the_plan_is_what_is_held(self):
        for model in MODELS:
            with self.subTest(model):
                plan = self.plan("--model", model, *SIZES)
                counts, said = self.served("--model", model, *SIZES, look=status_bytes)
                held = counts["RssAnon"]
                self.assertLessEqual(held, 1.05 * plan["total_bytes"] + LAG)
                self.assertLessEqual(plan["total_bytes"], 1.15 * held + LAG)
                # All that was ever there at a time, less what files held in the end (program,
                # libraries, tables): loading needs no second copy of the weights.
                peak = counts["VmHWM"] - counts["RssFile"]
                self.assertLessEqual(peak, 1.05 * plan["total_bytes"] + LAG)
                self.assertIn("planned", said)
                self.assertRegex(said, r"resident: \d+\.\d MiB of \d+\.\d planned")

    def test_source_pages_are_given_back(self):
        weights = (support.ROOT / "models/flash-next-nano-6bit/model.safetensors").stat().st_size
        plan = self.plan("--model", "nano", *SIZES)
        self.assertLess(plan["file_bytes"], weights)
        mapped, _ = self.served("--model", "nano", *SIZES, look=status_bytes)
        without, _ = self.served("--model", "synth:tiny", *SIZES, look=status_bytes)
        pages = mapped["RssFile"] - without["RssFile"]
        self.assertLessEqual(pages, plan["file_bytes"] + (2 << 20))

    def test_generate_says_what_it_held(self):
        for model in MODELS[:2]:
            reply = self.succeed_json("generate", "--model", model, "--prompt-ids", "-",
                                      "--max-tokens", 4, "--json", "--threads", 2,
                                      stdin=b"[1,2,3]")
            memory = reply["memory"]
            self.assertEqual(list(memory), ["planned_bytes", "anonymous_bytes",
                                            "loading_peak_bytes", "file_bytes"])
            limit = 1.05 * memory["planned_bytes"]
            self.assertGreater(memory["loading_peak_bytes"], 1 << 20)
            self.assertLessEqual(memory["loading_peak_bytes"], limit)
            self.assertLessEqual(memory["anonymous_bytes"], limit)

    def test_true_layers_are_planned_at_once(self):
        ask = ("info", "--plan", "--model")
        unlimited = {"FLASHLANE_MEMORY_LIMIT_GIB": ""}
        text = self.succeed(*ask, "synth:true,layers=4,format=q4g32", environment=unlimited)
        for word in ("as the backend has them", "in files", "available now", "total"):
            self.assertIn(word, text.decode())
        total = {}
        for layers, bits in ((2, 4), (8, 4), (8, 6), (8, 8)):
            model = f"synth:true,layers={layers},format=q{bits}g64"
            plan = self.succeed_json(*ask, model, "--context", 4096, "--json",
                                     environment=unlimited)["plan"]
            total[layers, bits] = plan["total_bytes"]
            self.assertGreater(plan["available_bytes"], 0)
        self.assertGreater(total[8, 4], 2 * total[2, 4])
        # Codes above 4 bits take a byte each.
        self.assertGreater(total[8, 6], total[8, 4])
        self.assertGreaterEqual(total[8, 8], total[8, 6])

    def test_over_the_limit_is_refused_by_both_numbers(self):
        sizes = (*SIZES, "--parallel", "1", "--prompt-cache-gib", "0")
        plan = self.plan("--model", "nano", *sizes)
        gib = plan["total_bytes"] / (1 << 30)
        self.succeed("info", "--model", "nano", *sizes, "--memory-limit-gib", f"{gib * 1.001:.6f}")
        self.refuse(2, [str(plan["total_bytes"]), "--memory-limit-gib"],
                    "info", "--model", "nano", *sizes, "--memory-limit-gib", f"{gib * 0.999:.6f}")

    def test_seventy_per_cent_are_the_limit_that_nobody_asked_for(self):
        with open("/proc/meminfo") as file:
            total_gib = int(re.search(r"MemTotal:\s+(\d+) kB", file.read()).group(1)) / (1 << 20)
        asked = f"{0.72 * total_gib:.3f}"
        self.refuse(2, [f"--prompt-cache-gib {asked}", "are left"], "info", "--model", "nano", *SIZES,
                    "--prompt-cache-gib", asked)
        plan = self.plan("--model", "nano", *SIZES, "--parallel", "auto")
        self.assertLess(plan["total_bytes"] / (1 << 30), 0.7 * total_gib)

    def test_as_many_sequences_as_fit(self):
        sizes = ("--model", "nano", *SIZES, "--prompt-cache-gib", "0")
        one, two, eight = (self.plan(*sizes, "--parallel", n) for n in (1, 2, 8))
        default = self.plan(*sizes)
        self.assertEqual((default["sequences"], default["total_bytes"]), (8, eight["total_bytes"]))
        each = two["total_bytes"] - one["total_bytes"]
        self.assertEqual(eight["total_bytes"] - one["total_bytes"], 7 * each)
        # Three and a half fit: three are served, and asked for four the number that fits is named.
        gib = f"{(one['total_bytes'] + 2.5 * each) / (1 << 30):.6f}"
        for asked in ((), ("--parallel", "auto")):
            plan = self.plan(*sizes, "--memory-limit-gib", gib, *asked)
            self.assertEqual(plan["sequences"], 3)
        self.refuse(2, ["--parallel 4", "3 would"], "info", *sizes, "--memory-limit-gib", gib,
                    "--parallel", "4")

    def test_the_prompt_cache_is_taken_off_first(self):
        sizes = ("--model", "nano", *SIZES)
        default = self.plan(*sizes)
        self.assertLess(default["kept_bytes"], 0.1 * (4 << 30))
        self.assertGreater(default["kept_bytes"], 0.09 * (3.8 * (1 << 30)))
        asked = self.plan(*sizes, "--prompt-cache-gib", "2")
        self.assertEqual(asked["kept_bytes"] // (asked["kept_bytes"] // asked["kept_pages"]),
                         asked["kept_pages"])
        self.assertAlmostEqual(asked["kept_bytes"] / (2 << 30), 1, delta=0.01)
        self.assertEqual(self.plan(*sizes, "--prompt-cache-gib", "0")["kept_pages"], 0)
        # A quarter of a GiB is left for sequences: some run, but not eight.
        tight = self.plan(*sizes, "--prompt-cache-gib", "3.65")
        self.assertIn(tight["sequences"], range(1, 8))
        self.assertLessEqual(tight["total_bytes"], 4 << 30)
        self.refuse(2, ["--prompt-cache-gib 5", "does not fit", "GiB are left"], "info", *sizes,
                    "--prompt-cache-gib", "5")
        self.refuse(2, ["--prompt-cache-gib 0.001", "holds no state", "0.0068"], "info", *sizes,
                    "--prompt-cache-gib", "0.001")
        for value in ["-1", "much", "nan", "1e300"]:
            self.refuse(2, ["--prompt-cache-gib"], "info", f"--prompt-cache-gib={value}")

    def test_the_default_cache_leaves_what_was_asked_for(self):
        sizes = ("--model", "nano", *SIZES)
        for asked in ([], ["--parallel", "4"], ["--session-contexts", "2048x3,1024"]):
            bare = ("--prompt-cache-gib", "0", *([] if asked else ["--parallel", "1"]))
            least = self.plan(*sizes, *asked, *bare)
            gib = f"{least['total_bytes'] * 1.0001 / (1 << 30):.6f}"
            plan = self.plan(*sizes, *asked, "--memory-limit-gib", gib)
            self.assertEqual((plan["sequences"], plan["total_bytes"], plan["kept_pages"]),
                             (least["sequences"], least["total_bytes"], 0), asked)

    def test_the_report_counts_sessions_not_pages(self):
        said = self.succeed("info", "--plan", "--model", "nano", "--session-contexts", "4096x5")
        self.assertIn(b"holds 6 of 4096 positions, 1 of 16384 positions, 1 of 32768 positions", said)
        said = self.succeed("info", "--plan", "--model", "nano", "--context", "4096")
        self.assertEqual(said.count(b" of 4096 positions"), 2)  # a slot's, and what is held


class SlowMemory(support.ServedTest):
    STREAMS = 16
    PROMPT = 3000
    REPLY = 500
    # A stream's own: texts, events, log probabilities, its threads' heaps; more than twice of what it is.
    STREAM_BYTES = 1 << 20

    def long_reply(self, number):
        dice = random.Random(number)
        body = {"prompt": [dice.randrange(8000) for _ in range(self.PROMPT)], "seed": number,
                "max_tokens": self.REPLY, "ignore_eos": True, "draft": number % 4 != 0}
        if number % 3 == 0:
            body["logprobs"] = 5
        self.assertEqual(self.ask("/v1/completions", body)["cached_tokens"], 0)

    def test_sixteen_long_replies_stay_within_the_plan(self):
        sizes = ("--context", 4096, "--threads", 2, "--parallel", self.STREAMS)
        plan = self.succeed_json("info", "--plan", "--json", "--model", "nano", *sizes)["plan"]
        self.serve(*sizes[2:], context=sizes[1])
        loaded = status_bytes(self.server)["RssAnon"]
        together = 0
        with concurrent.futures.ThreadPoolExecutor(self.STREAMS) as pool:
            replies = [pool.submit(self.long_reply, number) for number in range(self.STREAMS)]
            while concurrent.futures.wait(replies, timeout=0.5).not_done:
                together = max(together, self.status()["running"])
        for reply in replies:
            reply.result()
        self.assertEqual(together, self.STREAMS)
        now = self.status()
        self.assertEqual(now["reply_tokens_total"], self.STREAMS * self.REPLY)
        # All pages for kept states were in use.
        self.assertGreater(now["prompt_cache"]["evicted"], 0)
        counts = status_bytes(self.server)
        peak = counts["VmHWM"] - counts["RssFile"]
        print(f"{peak} bytes at most, {loaded} once loaded, {plan['total_bytes']} planned")
        self.assertLessEqual(peak, 1.05 * plan["total_bytes"] + LAG)
        self.assertLessEqual(peak, loaded + self.STREAMS * self.STREAM_BYTES + LAG)


if __name__ == "__main__":
    support.main()
