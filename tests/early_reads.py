"""Reads of registers before they are zero, in the machine code of kernels.

ptxas 13.0 zeroes a pair of registers by CS2R, which takes some 15 cycles, and where it knows that an
instruction reads the pair it waits so long. Where a predicated write of the pair lies between, it waits for
that alone: 5 cycles were too few on an H200 (docs/DESIGN.md, "A pointer is not tested for NULL"); 6 are what
other kernels have, and are right.

Usage: early_reads.py OBJECT...
    Objects with kernels, the library, or cubins: their code for sm_90 and newer, and what ptxas makes of PTX
    for older GPUs on sm_90. Needs cuobjdump, nvdisasm and ptxas in PATH.
Each such read is a line. Status 1: there is one; 2: a tool is missing."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

LEAST = 6  # cycles
ONE = re.compile(r"/\*([0-9a-f]{4,6})\*/\s+(?:@!?(?:UP|P)(\w+)\s+)?(\S+)\s*(.*?)\s*;\s*/\* 0x[0-9a-f]{16} \*/"
                 r"\n\s*/\* 0x([0-9a-f]{16}) \*/")  # address, predicate, name, operands, control bits
STORES = ("ST", "RED", "BRA", "BAR", "SYNCS", "WARPSYNC", "ISETP", "FSETP", "DSETP", "HSETP2", "PLOP3", "LDGSTS",
          "UBLKCP")  # no first operand that is written
WIDE = ("IMAD.WIDE", "CS2R", "LDC.64", ".64")


def registers(operand, wide):
    """The numbers of the registers that an operand names."""
    found = set()
    for number, pair in re.findall(r"\bR(\d+)(\.64)?", operand):
        found |= {int(number), int(number) + 1} if wide or pair else {int(number)}
    return found


def reads_and_writes(name, operands):
    all_of = operands.split(",")
    first = [] if name.startswith(STORES) else all_of[:1]
    read = set()
    for at, operand in enumerate(all_of[len(first) :]):
        read |= registers(operand, name.startswith("IMAD.WIDE") and at == len(all_of) - len(first) - 1)
    width = 4 if ".128" in name else 2 if any(w in name for w in WIDE) and ".32" not in name else 1
    written = {n + more for n in registers(",".join(first), False) for more in range(width)}
    return read, written


def early(text):
    """(address, reader's address, cycles) of each early read in a kernel's code."""
    code = [(m[1], m[2], m[3], m[4], int(m[5], 16) >> 41 & 15) for m in ONE.finditer(text)]
    for i, (address, _, name, operands, cycles) in enumerate(code):
        zeroed = re.match(r"R(\d+), SRZ", operands)
        if name != "CS2R" or not zeroed:
            continue
        pair, between = {int(zeroed[1]), int(zeroed[1]) + 1}, False
        for reader, predicate, what, of, stall in code[i + 1 : i + 1 + LEAST]:
            read, written = reads_and_writes(what, of)
            if read & pair and between and cycles < LEAST:
                yield address, reader, cycles
            if read & pair or what.startswith(("BRA", "EXIT", "RET")) or (written & pair and predicate is None):
                break
            between |= bool(written & pair)
            cycles += max(stall, 1)


def run(*command, cwd=None):
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=True).stdout


def cubins(path, folder):
    if path.suffix == ".cubin":
        return [path]
    run("cuobjdump", "-xelf", "all", "-xptx", "all", path, cwd=folder)
    for ptx in folder.glob("*.ptx"):
        if re.search(r"sm_[89]\d\.", ptx.name):
            run("ptxas", "-arch=sm_90", "-o", f"{ptx}.sm_90.cubin", ptx)
    return sorted(c for c in folder.glob("*.cubin") if not re.search(r"sm_8\d[a-z]?\.cubin$", c.name))


def main():
    found = 0
    for tool in ("cuobjdump", "nvdisasm", "ptxas"):
        if not shutil.which(tool):
            print(f"early_reads.py: {tool} of the CUDA toolkit is not in PATH", file=sys.stderr)
            return 2
    for path in map(pathlib.Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            for cubin in cubins(path.absolute(), pathlib.Path(folder)):
                code = run("nvdisasm", "-hex", "-c", cubin)
                for part in re.split(r"\n\s*\.section\s+\.text\.", code)[1:]:
                    kernel = part.split(",")[0][:120]
                    for address, reader, cycles in early(part):
                        found += 1
                        print(f"{path}, {cubin.name}, {kernel}: zero at {address} is read {cycles} cycles later, at {reader}")
    print(f"{found} reads before zeros are there")
    return int(found > 0)


sys.exit(main())
