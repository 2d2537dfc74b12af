#!python
"""The command `mkernel` of the wheel: becomes the program that lies in the package. pip puts its Python into the first line."""
import importlib.util
import os
import subprocess
import sys


def main():
    found = importlib.util.find_spec("mkernel")  # not imported: the program needs no Python
    program = os.path.join(os.path.dirname(found.origin), "mkernel") if found and found.origin else ""
    if not os.path.exists(program):
        sys.exit("mkernel: the package mkernel of this Python has no program: install the wheel")
    said = subprocess.run([program], env={**os.environ, "LD_TRACE_LOADED_OBJECTS": "1"}, stdout=subprocess.PIPE, text=True).stdout
    missing = [line.split()[0] for line in said.splitlines() if line.endswith("not found")]
    if missing:
        print(f"mkernel: this system has no {', '.join(missing)} (Debian: apt-get install libsqlite3-0 libopenblas0 libncursesw6)", file=sys.stderr)
        sys.exit(2)
    os.execv(program, ["mkernel", *sys.argv[1:]])


main()
