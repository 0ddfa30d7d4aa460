"""`serve` as a process: what it prints, when it is ready, how it ends."""

import json
import re
import signal
import socket
import subprocess
import time
import urllib.request

import support

TINY = "synth:tiny,format=bf16"


class Serve(support.CommandTest):
    def start(self, *arguments, **environment):
        process = subprocess.Popen(
            [support.BINARY, "serve", "--memory-limit-gib", "4", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=support.clean_environment(**environment),
        )
        self.addCleanup(self.end, process)
        line = process.stdout.readline()
        found = re.fullmatch(r"listening on (http://127\.0\.0\.1:(\d+))\n", line)
        if found is None:
            process.kill()
            self.fail(f"{line!r}, {process.stderr.read()}")
        return process, found.group(1), int(found.group(2))

    def end(self, process):
        if process.poll() is None:
            process.kill()
        process.communicate()

    def test_answers_and_stops_cleanly(self):
        process, url, _ = self.start("--port", "0", "--context", "2048", FLASHLANE_THREADS="2")
        with urllib.request.urlopen(url + "/health", timeout=60) as reply:
            self.assertEqual(reply.status, 200)
        body = {"messages": [{"role": "user", "content": "What is the capital of France?"}],
                "enable_thinking": False, "max_tokens": 16, "temperature": 0}
        request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as reply:
            choice = json.loads(reply.read())["choices"][0]
        self.assertIn("Paris", choice["message"]["content"])
        process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, said)
        self.assertEqual(out, "")
        for word in ("memory plan", "context = 2048 (--context)", "FLASHLANE_THREADS", "total"):
            self.assertIn(word, said)

    def test_interrupt_is_a_clean_end_too(self):
        process, _, _ = self.start(TINY, "--port", "0")
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, said)

    def test_a_port_in_use_is_one_line_and_exit_1(self):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            done = support.run("serve", TINY, "--port", port)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stdout, b"")
        last = done.stderr.decode().splitlines()[-1]
        self.assertTrue(last.startswith("flashlane: ") and str(port) in last, last)


class Interrupt(support.CommandTest):
    def test_generate_stops_and_says_130(self):
        process = subprocess.Popen(
            [support.BINARY, "generate", "--prompt", "Once", "--ignore-eos", "--max-tokens", "20000"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=support.clean_environment())
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.stdout.close)
        first = process.stdout.read(1)
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
        self.assertEqual(process.wait(timeout=60), 130)
        self.assertTrue((first + rest).endswith(b"\n"))


if __name__ == "__main__":
    support.main()
