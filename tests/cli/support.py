"""Running the binary under test: every test script gets its path as the first argument."""

import http.client
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
MICRO = FIXTURES / "micro_a"
# What computes under the tests that serve; else the default.
BACKEND = ("--backend", os.environ["TEST_BACKEND"]) if "TEST_BACKEND" in os.environ else ()
BINARY = pathlib.Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else None


def clean_environment(**variables):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLASHLANE_")}
    # No test may take a machine's memory.
    return {**kept, "FLASHLANE_MEMORY_LIMIT_GIB": "4", **variables}


def run(*arguments, stdin=b"", environment=None, timeout=600):
    return subprocess.run(
        [str(BINARY), *(a if isinstance(a, bytes) else str(a) for a in arguments)],
        input=stdin,
        capture_output=True,
        env=clean_environment(**(environment or {})),
        timeout=timeout,
        check=False,
    )


class CommandTest(unittest.TestCase):
    maxDiff = 2000

    def succeed(self, *arguments, **options):
        """Standard output of a run that must end well."""
        done = run(*arguments, **options)
        self.assertEqual(done.returncode, 0, f"{arguments}: {done.stderr.decode()}")
        return done.stdout

    def succeed_json(self, *arguments, **options):
        return json.loads(self.succeed(*arguments, **options))

    def served(self, *arguments, look=lambda process: None, **environment):
        """What `look` finds at a server that is ready, and all that it told on stderr; it is ended
        by SIGTERM, and must end well."""
        process = subprocess.Popen(
            [BINARY, "serve", "--port", "0", *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env=clean_environment(**environment))
        try:
            line = process.stdout.readline()
            found = look(process) if line else None
            process.send_signal(signal.SIGTERM)
            _, said = process.communicate(timeout=120)
        finally:
            if process.poll() is None:
                process.kill()
                process.communicate()
        self.assertTrue(line.startswith("listening on http://127.0.0.1:"), said)
        self.assertEqual(process.returncode, 0, said)
        return found, said

    def refuse(self, code, words, *arguments, **options):
        """A run that must end with `code`, one line on stderr that has all `words`, no output."""
        done = run(*arguments, **options)
        said = done.stderr.decode()
        self.assertEqual(done.returncode, code, f"{arguments}: {said}")
        self.assertEqual(done.stdout, b"", arguments)
        # A slow machine may say how far loading was.
        lines = [line for line in said.splitlines() if not line.startswith("loading: ")]
        self.assertEqual(len(lines), 1, f"{arguments}: {said}")
        self.assertTrue(lines[0].startswith("flashlane: "), said)
        for word in words:
            self.assertIn(word, lines[0], arguments)


class ServedTest(CommandTest):
    """A server, on the bundled model unless it says which, that each test has for itself."""
    PATIENCE_S = 300

    def serve(self, *arguments, context=2048, model="nano", log=subprocess.DEVNULL,
              environment=None):
        self.server = subprocess.Popen(
            [BINARY, "serve", "--port", "0", "--model", model, "--context", str(context),
             "--memory-limit-gib", "4", *BACKEND, *(str(argument) for argument in arguments)],
            stdout=subprocess.PIPE, stderr=log, text=True,
            env=clean_environment(**(environment or {})))
        self.addCleanup(self.stop)
        found = re.fullmatch(r"listening on http://127\.0\.0\.1:(\d+)\n",
                             self.server.stdout.readline())
        self.assertIsNotNone(found, "the server did not start")
        self.port = int(found.group(1))

    def stop(self):
        if self.server.poll() is None:
            self.server.terminate()
            self.server.communicate(timeout=60)

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=self.PATIENCE_S)

    def ask(self, path, body):
        """A whole reply's own figures: token_sha, cached_tokens, drafts, timings and the rest, with
        its text and its log probabilities."""
        connection = self.connect()
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
        connection.close()
        if response.status != 200:
            raise AssertionError(f"{response.status}: {text.decode()}")
        reply = json.loads(text)
        choice = reply["choices"][0]
        said = choice["message"]["content"] if "message" in choice else choice["text"]
        return reply["flashlane"] | {"logprobs": choice["logprobs"], "text": said}

    def status(self):
        connection = self.connect()
        connection.request("GET", "/status")
        now = json.loads(connection.getresponse().read())
        connection.close()
        return now


def main():
    if BINARY is None or not BINARY.is_file():
        sys.exit("the first argument must be the flashlane binary")
    unittest.main(argv=[sys.argv[0], *sys.argv[2:]])
