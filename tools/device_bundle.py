#!/usr/bin/env python3
"""Packs what a bare machine with a GPU needs to run tools/check --device there: nothing can be built
or installed on it.

    tools/device_bundle.py BUILD_FOLDER OUT.tar.xz

OUT has the folder `bundle`: flashlane and kernels_test, without symbols, and in lib/ every shared
library that they load but for the C library's own. It is at most 8 MiB; a larger one is not written.
There, beside a checkout:

    tar xf OUT.tar.xz && tools/check --device correct bundle/flashlane bundle/kernels_test
"""

import argparse
import io
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile

MOST_BYTES = 8 << 20
BINARIES = ("flashlane", "kernels_test")
# Of the C library: every machine has its own, which its loader belongs to.
SYSTEM = re.compile(r"(ld-linux|linux-vdso|libc\.|libm\.|libdl\.|librt\.|libpthread\.)")


def libraries(binary):
    """The shared libraries that a binary loads, by the names it loads them by."""
    said = subprocess.run(["ldd", binary], capture_output=True, text=True, check=True).stdout
    found = {}
    for line in said.splitlines():
        match = re.match(r"\s*(\S+) => (\S+|not found)", line)
        if match is None or SYSTEM.match(match.group(1)):
            continue
        if match.group(2) == "not found":
            sys.exit(f"device_bundle: {binary}: {match.group(1)} is not here")
        found[match.group(1)] = pathlib.Path(match.group(2))
    return found


def gather(build, folder):
    """The bundle's files in `folder`, all without symbols."""
    (folder / "lib").mkdir(parents=True)
    files = []
    for name in BINARIES:
        if not (build / name).is_file():
            sys.exit(f"device_bundle: {build / name} is not built")
        files.append((build / name, folder / name))
        files += [(path, folder / "lib" / soname)
                  for soname, path in libraries(build / name).items()]
    for source, target in files:
        shutil.copyfile(source.resolve(), target)
        target.chmod(0o755)
        subprocess.run(["strip", "--strip-unneeded", target], check=True)
    return len({target for _, target in files})


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, help="a release build")
    parser.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as temporary:
        count = gather(options.build, pathlib.Path(temporary) / "bundle")
        print(f"packing {count} files, about half a minute", flush=True)
        with tarfile.open(fileobj=packed, mode="w:xz", preset=9) as archive:
            archive.add(pathlib.Path(temporary) / "bundle", "bundle")
    size = len(packed.getvalue())
    if size > MOST_BYTES:
        sys.exit(f"device_bundle: {size:,} bytes packed, at most {MOST_BYTES:,}")
    options.out.write_bytes(packed.getvalue())
    print(f"{options.out}: {size:,} bytes of at most {MOST_BYTES:,}")


if __name__ == "__main__":
    main()
