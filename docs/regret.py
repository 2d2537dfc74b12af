#!/usr/bin/env python3
"""How far default plans are from the best that a search by simulated times finds, at shapes that nobody tuned.

usage: docs/regret.py MKERNEL FOLDER [than=OTHER] [seed=WORD] [OP[:fp8][@NODESxGPUS]...]
  FOLDER      gets the CSV file of each search; one that is there is not searched again
  than=OTHER  a folder that another program's searches have filled: both are compared with the best of either
  seed=WORD   draws other shapes
  OP...       of these alone, such as gemm_ar, gemm_ar:fp8, ag_gemm@2x8

Runs `mkernel tune OP --exec sim --verify` on two to 32 H200s for shapes drawn by a fixed seed and for layers of
models, and prints the default's time over the best one found: of each operator and cluster the median and the
worst (with OTHER's before them), of each cluster and of all also the one that nine of ten do not exceed and how
many are within 1.05, then the ten that are farthest, with their plans. Half an hour of two cores.
"""
import concurrent.futures
import os
import random
import re
import statistics
import subprocess
import sys

import measured

CLUSTERS = [(1, 2), (1, 4), (1, 8), (2, 8), (4, 8)]
GEMMS = ["ag_gemm", "gemm_rs", "gemm_ar"]
# All options but split-k: where pairs of CTAs take more than a wave, events promise a third that GPUs did not show (FIGURES.md).
SPACE = "tile;roles;chunk-rows;slices;pieces;pace;shots"
DRAWN = {"": 5, "fp8": 3}  # shapes of each operator, by type, beside the models' layers
# Of a model: hidden, columns of products behind a gather, inner columns of those whose sums are added.
LAYERS = [("Llama 8B", 4096, 28672, 14336), ("Llama 70B", 8192, 57344, 28672), ("Llama 70B", 8192, 10240, 8192),
          ("Qwen3 235B", 4096, 9216, 8192), ("DeepSeek-V3", 7168, 36864, 18432)]
# Hidden, inner, experts, experts of a token.
MOES = [("Qwen3 30B-A3B", 2048, 768, 128, 8), ("Qwen3 235B", 4096, 1536, 128, 8),
        ("DeepSeek-V3", 7168, 2048, 256, 8), ("Mixtral", 4096, 14336, 8, 2)]
# Heads of queries, of keys, their size.
HEADS = [("Llama 8B", 32, 8, 128), ("Llama 70B", 64, 8, 128), ("Qwen3 30B-A3B", 32, 4, 128), ("", 16, 16, 64)]


def between(draw, least, most, unit):
    """Evenly by the logarithm."""
    return max(1, round(least * (most / least) ** draw.random() / unit)) * unit


def gemm_shapes(op, kind, world, draw):
    """Drawn ones, then the layers of models with drawn numbers of tokens."""
    shapes = [(between(draw, 64, 16384, 32), between(draw, 1024, 32768, 1024), between(draw, 1024, 32768, 1024))
              for _ in range(DRAWN[kind])]
    if op == "ag_gemm":
        shapes = [(m, max(128, n // world), min(k, 16384)) for m, n, k in shapes]
    else:
        shapes = [(m, min(n, 16384), max(128, k // world)) for m, n, k in shapes]
    for i, (_, hidden, out, inner) in enumerate(LAYERS):
        m = between(draw, 64, 16384, 32)
        if i % 2 == (kind == "fp8"):
            shapes.append((m, out // world, hidden) if op == "ag_gemm" else (m, hidden, inner // world))
    unit = 4 * world if op == "ag_gemm" and kind else 1  # scales of 16 bytes
    return [(-(-m // unit) * unit, n, k) for m, n, k in shapes]


def cases(op, kind, nodes, gpus, seed=""):
    """Options of the shapes of an operator on a cluster; the same each time."""
    world, draw = nodes * gpus, random.Random("%s %s %dx%d%s" % (op, kind, nodes, gpus, seed))
    if op in GEMMS:
        return [["--shape", "%d,%d,%d" % s] for s in gemm_shapes(op, kind, world, draw)]
    if op == "ring_attention":
        return [["--attention", "%d,%d,%d,%d,%d" % (between(draw, 1, 4, 1), 128 * world * between(draw, 2, 32, 1), *h)] +
                ["--causal"] * (i % 2) for i, (_, *h) in enumerate(HEADS)]
    return [["--moe", "%d,%d,%d,%d,%d" % (between(draw, 8, 8192, 8), *moe)]
            for _, *moe in MOES if moe[2] % world == 0]


def search(mkernel, folder, op, kind, nodes, gpus, options):
    """Label, milliseconds of the default and of the best, their words; None: the shape is refused."""
    label = "%s%s %s on %dx%d" % (op, kind and ":" + kind, " ".join(o.replace("--", "") for o in options[1:]), nodes, gpus)
    file = os.path.join(folder, re.sub(r"[^\w,.]+", "_", label) + ".csv")
    if mkernel and not os.path.exists(file):
        command = [mkernel, "tune", op, "--exec", "sim", "--verify", "--cluster", "%dx%d" % (nodes, gpus), *options,
                   "--tuning", "none", "--rounds", "2", "--space", SPACE, "--jobs", "1", "--quiet", "--csv", file]
        if kind:
            command += ["--dtype", kind, "--b-layout", "nk"]
        done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        if not os.path.exists(file):
            print("%s: %s" % (label, done.stderr.strip()), file=sys.stderr)
    if not os.path.exists(file):
        return None
    rows = list(measured.rows(file))
    default, best = next(r for r in rows if r["default"] == "1"), min(rows, key=lambda r: r["ms"])
    return label, default["ms"], best["ms"], default["made"], best["made"]


def regrets(pairs, which):
    """Of searches here and there, defaults here (0) or there (1) over the best of both, the least first."""
    return sorted((p[which][1] / min(x[2] for x in p if x), p[which]) for p in pairs if p[0] and p[which])


def said(pairs, sides, words):
    texts = []
    for side in sides:
        found = [r for r, _ in regrets(pairs, side)]
        if found:
            nine = found[(9 * len(found) - 1) // 10]
            texts.append(words.format(statistics.median(found), found[-1], nine, sum(r <= 1.05 for r in found), len(found)))
    return " → ".join(texts)


def main():
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    mkernel, folder, only = sys.argv[1], sys.argv[2], [w for w in sys.argv[3:] if "=" not in w]
    other, seed = ([w[5:] for w in sys.argv[3:] if w.startswith(name)] + [""] for name in ("than=", "seed="))
    other, seed = other[0], seed[0]
    sides = [1, 0] if other else [0]
    os.makedirs(folder, exist_ok=True)
    kinds = [(op, kind) for op in GEMMS for kind in ("", "fp8")] + [
        ("ring_attention", ""), ("moe_dispatch_gemm", ""), ("moe_dispatch_gemm", "fp8"), ("moe_ffn", ""), ("moe_ffn", "fp8")]
    found = {}
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        for nodes, gpus in CLUSTERS:
            for op, kind in kinds:
                name = op + (kind and ":" + kind)
                if not only or name in only or "%s@%dx%d" % (name, nodes, gpus) in only:
                    where = (op, kind, nodes, gpus)
                    found[where] = [(pool.submit(search, mkernel, folder, *where, o),
                                     search(None, other, *where, o) if other else None) for o in cases(*where, seed)]
    found = {where: [(job.result(), there) for job, there in jobs] for where, jobs in found.items()}
    print("| operator | " + " | ".join("%d×%d" % c for c in CLUSTERS) + " |\n" + "|---" * (1 + len(CLUSTERS)) + "|")
    for op, kind in kinds:
        cells = [said(found.get((op, kind, *c), []), sides, "{:.2f} {:.2f}") for c in CLUSTERS]
        if any(cells):
            print("| %s%s | %s |" % (op, kind and ", FP8", " | ".join(cells)))
    every = [pair for pairs in found.values() for pair in pairs]
    print("\n| | median, worst, nine of ten, within 1.05 |\n|---|---|")
    for c in CLUSTERS:
        print("| %d×%d | %s |" % (*c, said([p for w, pairs in found.items() if w[2:] == c for p in pairs], sides,
                                         "{:.3f} {:.2f} {:.2f} {} of {}")))
    print("| all | %s |\n" % said(every, sides, "{:.3f} {:.2f} {:.2f} {} of {}"))
    for regret, (label, _, _, default, best) in reversed(regrets(every, 0)[-10:]):
        print("%.3f %s: %s\n      %s" % (regret, label, default, best))


if __name__ == "__main__":
    main()
