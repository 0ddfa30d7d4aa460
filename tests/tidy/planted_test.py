"""The tests of the tree can fail: each check must find the fault planted in a small tree for it."""

import pathlib
import subprocess
import sys
import tempfile

import tree

CLEAN = {
    "src/CMakeLists.txt": "flashlane_layer(base)\nflashlane_layer(tensor DEPENDS base)\n",
    "src/base/check.h": "#pragma once\n",
    "src/tensor/view.h": '#pragma once\n#include "base/check.h"\n',
    "src/scheduler/step_plan.h": "#pragma once\n",
    "src/scheduler/scheduler.h": "#pragma once\n",
    "tests/CMakeLists.txt": "flashlane_tests(base LAYERS base)\n",
    "tests/base/check_test.cc": "int x;\n",
    "docs/request_path.md": "`src/server/a.cc: serve`\n" * 10,
    "src/server/a.cc": "void serve() {}\n",
}
LAYERS = "tools/check_layers.py"
REGISTERED = "tests/tidy/registered_test.py"
PLACES = "tests/tidy/places_test.py"
REQUEST = "tests/tidy/request_path_test.py"
SIZE = "tests/tidy/size_test.py"
# (script, file, text, words that the report must hold)
PLANTED = [
    (LAYERS, "src/base/up.h", '#include "tensor/view.h"\n', "base may not include"),
    (LAYERS, "src/text/up.cc", '#include "server/a.h"\n', "is no file of src/"),
    (LAYERS, "src/runner/r.cc", '#include "scheduler/scheduler.h"\n', "plan and result"),
    (LAYERS, "src/scheduler/s.cc", "#include <thread>\n", "no threads and no clock"),
    (LAYERS, "src/scheduler/s.cc", "auto t = steady_clock::now();\n", "no threads and no clock"),
    (LAYERS, "src/model/m.cc", 'auto x = std::getenv("A");\n', "only cli/ reads"),
    (LAYERS, "src/engine/e.cc", "#include <boost/asio.hpp>\n", "sockets belong"),
    (LAYERS, "src/server/e.h", "#include <boost/asio.hpp>\n", "stay in source files"),
    (LAYERS, "src/odd/o.cc", "\n", "is no layer"),
    (LAYERS, "src/base/long.cc", "\n" * 601, "at most 600"),
    (LAYERS, "src/CMakeLists.txt", "flashlane_layer(base DEPENDS text)\n", "may not link"),
    (REGISTERED, "tests/nobody/a_test.cc", "\n", "no test binary"),
    (REGISTERED, "tests/fuzz/fuzz_x.cc", "\n", "holds no input"),
    (REGISTERED, "tests/base/b_test.cc", "GTEST_" + "SKIP();\n", "runs or goes"),
    (PLACES, "README.md", "see /ro" + "ot/x\n", "machine's path"),
    (PLACES, "README.md", "https://registry." + "npmjs.org\n", "a registry"),
    (PLACES, "a/package-lock.json", '{"resolved": "x"}\n', "lock file"),
    (REQUEST, "docs/request_path.md", "`src/server/a.cc: gone`\n" * 10, "holds no gone"),
    (REQUEST, "docs/request_path.md", "`src/server/b.cc: serve`\n" * 10, "does not exist"),
    (REQUEST, "docs/request_path.md", "nothing\n", "only 0 rows"),
    (SIZE, "tests/fixtures/a.json", "x" * 6_000_000, "must be below"),
]


def report(script, extra):
    with tempfile.TemporaryDirectory() as folder:
        for name, text in {**CLEAN, **extra}.items():
            path = pathlib.Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        command = [sys.executable, "-B", str(tree.ROOT / script), folder]
        result = subprocess.run(command, capture_output=True, text=True)
        return result.returncode, result.stdout + result.stderr


def check(_root):
    for script in sorted({row[0] for row in PLANTED}):
        code, output = report(script, {})
        if code != 0:
            yield f"{script} finds faults in a clean tree: {output}"
    for script, name, text, words in PLANTED:
        code, output = report(script, {name: text})
        if code == 0 or words not in output:
            yield f"{script} does not find '{words}' planted in {name}: {output}"


if __name__ == "__main__":
    tree.run(check)
