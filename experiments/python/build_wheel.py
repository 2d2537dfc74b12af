"""Packs the wheel: the package, libmkernel, libsoftnic and the command as make built them, and their hashes. A wheel is a zip with
three text files, so this needs no package; it is also the backend that pip calls (PEP 517).

    python3 build_wheel.py BUILD FOLDER      # prints the wheel's path
"""
from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

METADATA = """Metadata-Version: 2.1
Name: mkernel
Version: {version}
Summary: Operators that compute and communicate in one launch, on several GPUs and nodes
License: {license}
Requires-Python: >=3.9
Requires-External: libsqlite3
Requires-External: libopenblas
Requires-External: libncursesw
Provides-Extra: numpy
Requires-Dist: numpy; extra == "numpy"
Provides-Extra: torch
Requires-Dist: torch>=2.4; extra == "torch"
"""

WHEEL = """Wheel-Version: 1.0
Generator: mkernel (build_wheel.py)
Root-Is-Purelib: false
Tag: {tag}
"""


def read(*path: str) -> str:
    with open(os.path.join(*path), encoding="utf-8") as f:
        return f.read()


def version() -> str:
    """Of the header; the package must say the same, as it refuses libraries of other versions."""
    of_header = re.search(r'#define MK_VERSION "([^"]*)"', read(ROOT, "core", "mkernel.h")).group(1)
    of_package = re.search(r'^VERSION = "([^"]*)"', read(HERE, "mkernel", "_library.py"), re.M).group(1)
    if of_header != of_package:
        sys.exit(f"build_wheel: core/mkernel.h is {of_header}, and mkernel/_library.py says {of_package}")
    return of_header


def binary(path: str) -> bytes:
    """The library or program without what only debuggers read, if strip is there."""
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copy(path, os.path.join(folder, "binary"))
        if shutil.which("strip"):
            subprocess.run(["strip", "--strip-debug", copy], check=True)
        with open(copy, "rb") as f:
            return f.read()


def contents(build: str, of: str) -> dict:
    """Name in the wheel -> bytes."""
    files = {}
    for name, inside in (("libmkernel.so", "libmkernel.so." + of.split(".")[0]), ("mkernel", "mkernel"), ("libsoftnic.so", "libsoftnic.so")):
        found = os.path.join(build, name)
        if os.path.exists(found):
            files["mkernel/" + inside] = binary(found)
        elif name != "libsoftnic.so":  # which there is where there are libibverbs' headers
            sys.exit(f"build_wheel: there is no {found}: run make first (MKERNEL_BUILD names another build folder)")
    for name in sorted(os.listdir(os.path.join(HERE, "mkernel"))):
        if name.endswith(".py") or name == "py.typed":
            files["mkernel/" + name] = read(HERE, "mkernel", name).encode()
    for inside, folder, ending in (("baselines", "experiments/baselines", ".py"), ("experiments", "docs/experiments", ".yaml")):
        for name in sorted(os.listdir(os.path.join(ROOT, folder))):
            if name.endswith(ending):
                files[f"mkernel/{inside}/{name}"] = read(ROOT, folder, name).encode()
    return files


def pack(build: str, folder: str) -> str:
    """Writes the wheel into `folder`, the same bytes for the same files. Returns its name."""
    of = version()
    tag = "py3-none-" + re.sub("[-.]", "_", sysconfig.get_platform())
    name, info = f"mkernel-{of}-{tag}.whl", f"mkernel-{of}.dist-info/"
    files = contents(build, of)
    files[f"mkernel-{of}.data/scripts/mkernel"] = read(HERE, "command.py").encode()
    first_line = read(ROOT, "LICENSE").strip().splitlines()[0]
    files[info + "LICENSE"] = read(ROOT, "LICENSE").encode()
    files[info + "METADATA"] = METADATA.format(version=of, license=first_line).encode()
    files[info + "WHEEL"] = WHEEL.format(tag=tag).encode()
    record = ""
    for path, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    files[info + "RECORD"] = (record + info + "RECORD,,\n").encode()
    os.makedirs(folder, exist_ok=True)
    whole = os.path.join(folder, name)
    with zipfile.ZipFile(whole + ".tmp", "w", zipfile.ZIP_DEFLATED) as z:
        for path, data in files.items():
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr, entry.compress_type = (0o100755 if path in ("mkernel/mkernel", f"mkernel-{of}.data/scripts/mkernel") else 0o100644) << 16, zipfile.ZIP_DEFLATED
            z.writestr(entry, data)
    os.replace(whole + ".tmp", whole)
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """What pip calls."""
    return pack(os.environ.get("MKERNEL_BUILD", os.path.join(ROOT, "build")), wheel_directory)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: build_wheel.py BUILD FOLDER")
    print(os.path.join(sys.argv[2], pack(sys.argv[1], sys.argv[2])))
