#!/usr/bin/env python3
"""Writes docs/PREDICTIONS.md: what the simulator says of clusters that nobody has measured.

usage: docs/predictions.py MKERNEL [check]
       docs/predictions.py MKERNEL measure GPUS FOLDER [SECONDS]
       docs/predictions.py MKERNEL compare FOLDER
  MKERNEL   the program, build/mkernel
  check     compares every fourth row of the tables of few rows with the page: status 1 and the first line
            that differs, where it is no longer what the simulator says
  measure   on a host with so many Hopper GPUs: the page's tables by `mkernel bench`, a CSV file each in FOLDER,
            those first that say most; what has not begun in SECONDS (1200) is left out. Then compares
  compare   prints what the page says beside what the files in FOLDER say, and how far off it is
"""
import glob
import json
import os
import re
import statistics
import subprocess
import sys
import time

import measured

PAGE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "PREDICTIONS.md")
CLUSTERS = [  # title, machine file, nodes, GPUs of a node
    ("4×H200", "8xH200-cx7", 1, 4),
    ("8×H200", "8xH200-cx7", 1, 8),
    ("4×H100", "8xH100-cx7", 1, 4),
    ("8×H100", "8xH100-cx7", 1, 8),
    ("2×8 H200, CX-7", "8xH200-cx7", 2, 8),
]
FEW = [1, 2, 3, 8, 16, 17, 32, 64, 100, 128, 256, 384, 512, 768, 1024, 1500, 2048]


def gemm(shape):
    return ["--shape", shape]


def fp8(*options):
    return [*options, "--dtype", "fp8", "--b-layout", "nk"]


# Title, operator, what a row says, rows (label and options, which may depend on the number of ranks W),
# whether `check` makes it. Shapes are those of FIGURES.md: N of a gathered A and K of added products are a
# rank's own.
TABLES = [
    ("AllGather+GEMM", "ag_gemm", "M,N,K", [(s, gemm(s)) for s in (
        "4096,512,4096", "8192,1024,8192", "16384,2048,16384", "32768,4096,32768", "2048,4096,8192",
        "4096,3584,8192", "8192,3584,8192", "8192,8192,8192", "16384,3584,8192", "3072,7168,4096")], False),
    ("GEMM+ReduceScatter", "gemm_rs", "M,N,K", [(s, gemm(s)) for s in (
        "8192,8192,1024", "16384,16384,2048", "32768,32768,4096", "8192,8192,3584", "16384,8192,3584",
        "2048,8192,4096", "2048,4096,4096")], False),
    ("GEMM+AllReduce", "gemm_ar", "M,N,K", [(s, gemm(s)) for s in (
        "8192,8192,1024", "16384,16384,2048", "32768,32768,4096", "8192,8192,3584", "16384,8192,3584",
        "2048,8192,4096", "2048,4096,4096")], False),
    ("GEMM+AllReduce, few rows of 8192,4096", "gemm_ar", "M", [
        (str(m), gemm("%d,8192,4096" % m)) for m in FEW], True),
    ("GEMM+AllReduce, few rows of 4096,8192", "gemm_ar", "M", [
        (str(m), gemm("%d,4096,8192" % m)) for m in FEW], True),
    ("AllGather+GEMM of FP8", "ag_gemm", "M,N,K", [(s, fp8("--shape", s)) for s in (
        "8192,1024,8192", "8192,8192,8192", "16384,2048,16384", "4096,3584,8192")], False),
    ("GEMM+ReduceScatter of FP8", "gemm_rs", "M,N,K", [(s, fp8("--shape", s)) for s in (
        "8192,8192,1024", "16384,16384,2048", "8192,8192,3584", "2048,8192,4096")], False),
    ("GEMM+AllReduce of FP8", "gemm_ar", "M,N,K", [(s, fp8("--shape", s)) for s in (
        "8192,8192,1024", "16384,16384,2048", "8192,8192,3584", "2048,8192,4096")], False),
    ("Ring attention: 4 sequences, 16 heads of 128", "ring_attention", "rows a rank", [
        ("%d%s" % (r, ", causal" if causal else ""),
         lambda w, r=r, causal=causal: ["--attention", "4,%d,16,16,128" % (r * w)] + causal)
        for causal in ([], ["--causal"]) for r in (768, 1536, 3072, 6144, 12288)], False),
    ("MoE dispatch+GEMM: H 7168, I 2048, 256 experts, top 8", "moe_dispatch_gemm", "tokens a rank", [
        (str(t), ["--moe", "%d,7168,2048,256,8" % t]) for t in (128, 1024, 4096, 8192)], False),
    ("MoE layer: H 7168, I 2048, 256 experts, top 8", "moe_ffn", "tokens a rank", [
        (str(t), ["--moe", "%d,7168,2048,256,8" % t]) for t in (1, 16, 128, 1024, 8192)], False),
    ("MoE layer of FP8: H 7168, I 2048, 256 experts, top 8", "moe_ffn", "tokens a rank", [
        (str(t), fp8("--moe", "%d,7168,2048,256,8" % t)) for t in (16, 128, 1024, 8192)], False),
    ("MoE layer of FP8: H 4096, I 2048, 256 experts, top 6", "moe_ffn", "tokens a rank", [
        (str(t), fp8("--moe", "%d,4096,2048,256,6" % t)) for t in (64, 512, 2048, 8192)], False),
    ("MoE layer: H 2048, I 768, 128 experts, top 8", "moe_ffn", "tokens a rank", [
        (str(t), ["--moe", "%d,2048,768,128,8" % t]) for t in (16, 128, 1024, 8192)], False),
]

FINDINGS = """
## What looks wrong in these tables
- **GEMM+AllReduce of 100 to 1500 rows of 8192,4096 on four GPUs**, in tiles that ranks share: four H200s were faster by 9 to 17 % (512 rows 87 us). The simulator lets the warp that adds and
  sends wait longer than it does; so eight GPUs may be faster, too.
- **The same on eight GPUs**: from 64 rows to 100 it is 43 to 55 us, a step from 64x64 tiles to larger ones, and 256 rows and more are in blocks of columns
  (`--shots column_blocks`), which no GPU has run.
- **Few rows on two nodes**, in blocks of columns: of the 82 us of one row of 8192,4096 the product takes 26; sums of seven peers are added one by one
  at a price that does not follow how few rows they have, and C is delivered for 8 us. Both are guesses, so the truth may be faster.
- **The MoE layer of FP8 of 64 tokens, H 4096, on eight GPUs**: 342 us, where reading a rank's experts takes 179 and others have published 266 (below); of
  512 and more tokens it is within 11 % of what they have (398, 1065, 3336 us; 413, 959, 3269).
- **Ring attention, 1536 rows on 2×8**: 0.66 where 768 rows have 0.86, by the same plan: products are 58 % of the chain where they are 20. Not looked into.
"""

# What others have published at such shapes (each by the project that it names).
PUBLISHED = """
## What others have published near these shapes
bf16, TFLOP/s a GPU unless a unit is given. Other clusters, drivers and clocks: a place to look, not a comparison.

| what | where | figure |
|---|---|---|
| AllGather+GEMM, M = K of 8192, 16384, 32768, N = M/16 | mKernel, 2×8 H200, CX-7, multicast | 105, 264, 492 |
| GEMM+AllReduce, the same sizes | mKernel, 2×8 H200, CX-7, multicast | 101, 215, 409 |
| GEMM+ReduceScatter, the same sizes | mKernel, 2×8 H200, CX-7, multicast | 81, 236, 461 |
| GEMM+ReduceScatter, 32768,32768,4096 | ParallelKittens, 8×H100, multicast | 744 |
| GEMM+AllReduce, 32768,32768,4096 | ParallelKittens, 8×H100, multicast | 624 |
| all-reduce alone of 0.5, 1, 2, 4 MB | NCCL, 8 Hopper GPUs | 24, 25, 37, 50 us |
| the same, two shots without and with multicast | 8 Hopper GPUs | 15, 17, 22, 37 and 11, 14, 18, 27 us |
| ring attention, 4 sequences, 16 heads of 128 | mKernel, 2×8 H200, CX-7 | 123 to 572 |
| MoE layer, H 2048, I 768, 128 experts, top 8 | LigerCute, 1, 2, 4, 8 H200s | 345, 307, 274, 238 |
| MoE dispatch+GEMM, H 7168, I 2048, 256 experts, top 8, 8K to 131K tokens | mKernel, 2×8 H200, CX-7 | 155 to 277 |
| MoE layer of FP8, H 4096, I 2048, 256 experts, top 6, of 64, 512, 2048, 8192 tokens a rank | DeepGEMM (PR 383), 8×H200 | 266, 413, 959, 3269 us |
"""

HEAD = """# Predictions

What `mkernel sim` says of clusters with four GPUs and more, **written down before anybody measured them** with this code. `make predictions` writes this page from the machine files
(`experiments/machines/`) and default plans; `build/tests/test_tutorial` says when the tables of few rows are no longer what the simulator says. Where a shape is refused, the cell says so.

A cell is: time of a launch in us, as `mkernel bench` measures it (GPUs that rest between turns, C of gemm_ar in the heap; mean of three back to back,
of few rows of twelve in a CUDA graph; of a MoE one, with the experts that `bench`'s tokens name) · efficiency · what most of the longest chain of
causes consists of, and its share. The efficiency is the simulator's *ideal* over that time: the longest of products at the rate of a GPU whose clock
is not held back (864 TFLOP/s), memory, NVLink and network. A benchmark's efficiency has cuBLAS on the same warm GPU in its numerator, which takes a
fifth longer where power is the limit: .75 here is about .95 there at the large shapes.

How far off may it be? On two H200s, of 80 plans of shapes to which no number was fitted the simulator was 3.9 % off in the median, 15 % at worst with
a default plan ([SIMULATION.md](SIMULATION.md)); on two H100s 1.8 % in the median, since the machine file has H200 numbers beside an H100's memory. **Four
H200s were measured on 2026-11-26**: of 50 cells this page, as it was then, was 8 % off in the median and 24 % at worst. Measured again that day, of
87 cells, FP8's among them, it was 10.5 and 41 % off while it had C elsewhere, GPUs that do not rest and launches of a stream, which is not what
`bench` measures; said as that, with no number fitted to four GPUs, **4.2 % in the median and 21 % at worst**, the MoE cells that are written down
since 2.7 and 10 %, where two numbers are fitted to four of these cells ([SIMULATION.md](SIMULATION.md), *MoE* and *Peers that push at once*). (All of
it: [FIGURES.md](FIGURES.md), *Four H200s*.) `make measure-predictions OUT=FOLDER` measures its tables on a host with such GPUs, at most 20 minutes,
and prints both. What two and four GPUs cannot show, and so may be further off:

- joint pushes of seven peers: each direction of a GPU is one queue, and where n peers push at once (n - 1) / n of 16 % of it are lost, which was
  measured of three. 4 H200s once reached 290 of 366 GB/s where peers were not in step;
- the power limit: eight GPUs of one host were seen 3 % slower at 32768 rows than four;
- NICs: rates of data sheets, a put's costs from softnic. 2×8 is the least certain column: take 20 %;
- launches of few rows, whose fixed parts of some us were measured with one peer: take 5 us.
"""


def simulate(mkernel, op, cluster, options, few):
    """A cell, of launches as `measurements` has them."""
    _, machine, nodes, gpus = cluster
    if callable(options):
        options = options(nodes * gpus)
    done = subprocess.run(
        [mkernel, "sim", op, "--machine", machine, "--cluster", "%dx%d" % (nodes, gpus), "--rested",
         "--quiet", "--json", "/dev/stdout"] + ["--c-in-heap"] * (op == "gemm_ar") +
        (["--launches", "12", "--graph"] if few else
         # a MoE's tokens name the same experts in each launch of `mkernel bench`
         ["--launches", "1" if op.startswith("moe_") else "3"]) + options,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=600,
        env=dict(os.environ, MKERNEL_TUNING="/dev/null"))  # the plans that are compiled in, no user's
    if done.returncode == 2:
        return "refused"
    if done.returncode:
        sys.exit("predictions: %s %s: %s" % (op, " ".join(options), done.stderr.strip()))
    r = json.loads(done.stdout)
    name, share = max(r["chain_ms"].items(), key=lambda part: part[1])
    us, whole = r["ms"] * 1e3, sum(r["chain_ms"].values())
    return "%s · %.2f · %s %.0f %%" % ("%.1f" % us if us < 100 else "%.0f" % us, r["efficiency"],
                                      name, 100 * share / whole)


def table(mkernel, title, op, heading, rows, few):
    lines = ["", "## " + title, "| %s | %s |" % (heading, " | ".join(c[0] for c in CLUSTERS)),
             "|---" * (len(CLUSTERS) + 1) + "|"]
    for label, options in rows:
        lines.append("| %s | %s |" % (label, " | ".join(simulate(mkernel, op, c, options, few) for c in CLUSTERS)))
    return lines


def measurements(gpus):
    """File name and options of `mkernel bench` of each table, those first that say most."""
    first = [t for t in TABLES if t[4]] + [t for t in TABLES if t[1] == "moe_ffn"]
    for title, op, _, rows, few in first + [t for t in TABLES if t not in first]:
        groups = {}
        for _, options in rows:
            options = options(gpus) if callable(options) else options
            groups.setdefault(tuple(options[2:]), []).append(options[1])
        for more, shapes in groups.items():
            options = [op, "--shapes", ":".join(shapes), *more]
            options += ["--iters", "60", "--burst", "12"] if few else ["--iters", "12"]
            if op in ("ag_gemm", "gemm_rs", "gemm_ar") and "fp8" not in more:  # PyTorch's of FP8 has no blocks
                options += ["--vs", "torch"]
            yield re.sub("[^a-z0-9]+", "_", (title + " ".join(more)).lower()) + ".csv", options


def measure(mkernel, gpus, folder, seconds):
    os.makedirs(folder, exist_ok=True)
    end = time.monotonic() + seconds
    # no NVLink multicast in the baselines either
    quiet = dict(os.environ, NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1", NVSHMEM_DISABLE_NVLS="1")
    for name, options in measurements(gpus):
        left = end - time.monotonic()
        if left < 20:
            print("predictions: no time left for %s" % name, file=sys.stderr)
            continue
        command = [mkernel, "bench", *options, "--exec", "cuda", "--gpus", str(gpus), "--timeout", "10",
                   "--csv", os.path.join(folder, name)]
        try:
            done = subprocess.run(command, env=quiet, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  timeout=min(left, 180))
        except subprocess.TimeoutExpired:
            print("predictions: %s was cut off" % name, file=sys.stderr)
            continue
        if done.returncode:
            print("predictions: %s: %s" % (name, done.stderr.strip()), file=sys.stderr)


def predicted():
    """Of each cell of the page: (title, label, column) to us."""
    known, title = {}, ""
    with open(PAGE, encoding="utf-8") as page:
        for line in page:
            if line.startswith("## "):
                title = line[3:].strip()
            cells = [c.strip() for c in line.strip().strip("|").split("|")]
            for cluster, cell in zip(CLUSTERS, cells[1:]):
                us = re.match(r"([0-9.]+) ·", cell)
                if us:
                    known[title, cells[0], cluster[0]] = float(us.group(1))
    return known


def labels(row):
    """What the page may call a row of bench's CSV: titles and labels."""
    tables = [t for t in TABLES if t[1] == row["op"] and ("FP8" in t[0]) == (row.get("dtype") == "fp8")]
    if "batch" in row:
        causal = ", causal" if row["causal"] == "1" else ""
        for title, *_ in tables:
            yield title, "%d%s" % (int(row["sequence"]) // int(row["gpus"]), causal)
    elif "tokens" in row:
        shape = "H %s, I %s, %s experts, top %s" % tuple(
            row[c] for c in ("hidden", "inner", "experts", "experts_per_token"))
        for title, *_ in tables:
            if title.endswith(shape):
                yield title, row["tokens"]
    else:
        for title, _, heading, *_ in tables:
            if heading == "M,N,K":
                yield title, "%s,%s,%s" % (row["m"], row["n"], row["k"])
            elif title.endswith(" of %s,%s" % (row["n"], row["k"])):
                yield title, row["m"]


def compare(folder):
    known, off = predicted(), []
    print("| table, row | predicted | measured | off | efficiency | in turn | PyTorch |\n|---|---|---|---|---|---|---|")
    for path in sorted(glob.glob(os.path.join(folder, "*.csv"))):
        for row in measured.rows(path):
            column, us = "%s×%s" % (row.get("gpus"), (row.get("device") or "").split(" ")[-1]), row["ms"] * 1e3
            for cell in labels(row):
                if cell + (column,) not in known:
                    continue
                guess = known[cell + (column,)]
                off.append(abs(guess / us - 1) * 100)
                turn, torch = (next((float(row[c]) * 1e3 / us for c in columns if row.get(c)), None) for columns in (
                    ("cublas_nccl_ms", "nccl_cudnn_ms", "torch_nccl_ms"), ("torch_fused_ms",)))
                print("| %s: %s | %.1f | %.1f | %+.0f %% | %s | %s | %s |" % (
                    *cell, guess, us, (guess / us - 1) * 100, row["efficiency"],
                    "" if turn is None else "%.2f" % turn, "" if torch is None else "%.2f" % torch))
                break
    if not off:
        print("predictions: %s has no row that docs/PREDICTIONS.md predicts" % folder, file=sys.stderr)
        return 1
    print("\n%d cell%s: off by %.1f %% in the median, %.0f %% at worst" % (
        len(off), "s" * (len(off) > 1), statistics.median(off), max(off)))
    return 0


def main():
    mode = sys.argv[2:]
    if mode[:1] == ["compare"] and len(mode) == 2:
        return compare(mode[1])
    if mode[:1] == ["measure"] and len(mode) in (3, 4) and all(n.isdigit() for n in mode[1:2] + mode[3:]):
        measure(sys.argv[1], int(mode[1]), mode[2], int(mode[3]) if mode[3:] else 1200)
        return compare(mode[2])
    if len(sys.argv) not in (2, 3) or mode not in ([], ["check"]):
        print(__doc__.strip(), file=sys.stderr)
        return 2
    mkernel, check = sys.argv[1], len(sys.argv) == 3
    tables = [t for t in TABLES if t[4] or not check]
    made = [line for t in tables for line in table(mkernel, *t[:3], t[3][::4] if check else t[3], t[4])]
    if check:
        with open(PAGE, encoding="utf-8") as f:
            known = set(f.read().split("\n"))
        for line in made:
            if line not in known:
                print("docs/PREDICTIONS.md lacks: %s" % line)
                return 1
        return 0
    with open(PAGE, "w", encoding="utf-8") as f:
        f.write(HEAD + "\n".join(made) + "\n" + FINDINGS + PUBLISHED)
    return 0


sys.exit(main())
