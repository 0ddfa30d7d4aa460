"""tools/device_bundle.py packs what runs without this machine's libraries, and refuses in one line.

    bundle_test.py BINARY    beside it the test of the kernels
"""

import pathlib
import subprocess
import sys
import tarfile
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402

TOOL = support.ROOT / "tools" / "device_bundle.py"


def pack(build, out):
    return subprocess.run([sys.executable, TOOL, build, out], capture_output=True, text=True,
                          check=False)


class Bundle(unittest.TestCase):
    def test_runs_with_its_own_libraries_alone(self):
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            done = pack(support.BINARY.parent, folder / "out.tar.xz")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertLessEqual((folder / "out.tar.xz").stat().st_size, 8 << 20)
            with tarfile.open(folder / "out.tar.xz") as archive:
                archive.extractall(folder)
            bundle = folder / "bundle"
            alone = {"LD_LIBRARY_PATH": str(bundle / "lib")}
            said = subprocess.run([bundle / "flashlane", "--version"], env=alone, text=True,
                                  capture_output=True, check=True).stdout
            built = subprocess.run([support.BINARY, "--version"], text=True, capture_output=True,
                                   check=True).stdout
            self.assertEqual(said, built)
            tests = subprocess.run([bundle / "kernels_test", "--gtest_list_tests"], env=alone,
                                   text=True, capture_output=True, check=True).stdout
            self.assertIn("RowRule.", tests)
            loaded = subprocess.run(["ldd", bundle / "flashlane"], text=True, capture_output=True,
                                    env=alone | {"PATH": "/usr/bin:/bin"}, check=True).stdout
            foreign = [line for line in loaded.splitlines()
                       if "=>" in line and "/bundle/lib/" not in line and "libc." not in line
                       and "libm." not in line]
            self.assertEqual(foreign, [])

    def test_refuses_what_is_not_built(self):
        with tempfile.TemporaryDirectory() as temporary:
            out = pathlib.Path(temporary) / "out.tar.xz"
            done = pack(temporary, out)
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, r"^device_bundle: .*flashlane is not built\n$")
            self.assertFalse(out.exists())


if __name__ == "__main__":
    support.main()
