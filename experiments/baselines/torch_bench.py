"""What the baselines of PyTorch's operators on symmetric memory have in common: one process per GPU times the operator for each
shape of the command line, M,N,K, on operands that rotate through more than L2 holds. Launches are replayed from a CUDA graph, so
that Python's own time is no part of theirs; where PyTorch cannot capture the operator, they are launched one by one. Rank 0 prints
one line per shape: M,N,K,ms,min_ms,max_ms,relative_error (median of the slowest rank), of the fastest form where there are several,
and before it a line for each form with its name behind K. Exit status 0, or 77 where this PyTorch has no such operator.

With --fp8 A and B are e4m3, each operand a pair of codes and scales. PyTorch's fused operators take one scale (form one_scale) or one
for each row of A and column of B (row_scales), none for blocks; sums are the exact ones of cuBLAS, as ours are.
"""
import os
import sys

import torch_measure
from torch_measure import dist, torch

try:
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group
except ImportError:
    sys.exit(77)

TOGETHER = 12  # launches of a measurement, where they are replayed: two, three or four sets of operands have as many each


def all_could(done):
    """Whether every rank could: so all do the same from here on."""
    flag = torch.tensor([int(done)], device="cuda")
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())


def captured(run):
    """Replays TOGETHER launches; None where this PyTorch cannot capture them."""
    graph, done = torch.cuda.CUDAGraph(), True
    try:
        with torch.cuda.graph(graph):
            for i in range(TOGETHER):
                run(i)
    except Exception:
        done = False
    return graph.replay if all_could(done) else None


def measure(run):
    """(median, least, most) of the slowest rank, ms of a launch."""
    replay = captured(run)
    return torch_measure.measure(lambda i: replay(), TOGETHER, 1) if replay else torch_measure.measure(run, before=0)


FP8 = {"one_scale": lambda rows: (), "row_scales": lambda rows: (rows, 1)}  # shapes of scales


def drawn(rows, k):
    return torch.rand(rows, k, device=torch_measure.DEVICE).mul_(2).sub_(1)


def coded(rows, k, name):
    """[rows, k] as codes and scales; one scale is the same on all ranks."""
    scales = torch.full(FP8[name](rows), 1 / 448, device=torch_measure.DEVICE)
    return drawn(rows, k).mul_(448).to(torch.float8_e4m3fn), scales.uniform_(1 / 896, 1 / 448) if scales.dim() else scales


def widened(x):
    """bf16, or codes and scales, as float64."""
    return x[0].double() * x[1].double() if isinstance(x, tuple) else x.double()


def main(rows_of_a, forms, some_rows, prepare=None, fp8=None):
    """rows_of_a(m, world): of a rank's A [rows, K]; its B is [K, N]. forms: by name, functions of (a, b, group) that return the
    operator's result. some_rows(a, b, m): numbers of some rows of this rank's result, and what they should be, in float64.
    prepare(shapes, group), once before all. fp8: of codes and scales, functions as forms has them, each of every form in FP8."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch_measure.start()
    group = dist.group.WORLD.group_name
    enable_symm_mem_for_group(group)
    quantised = "--fp8" in sys.argv
    shapes = [tuple(map(int, text.split(","))) for text in sys.argv[1:] if text != "--fp8"]
    if quantised:
        forms = {f"{name}_{scales}".removeprefix("fused_"): (form, scales) for name, form in fp8.items() for scales in FP8}
    else:
        forms = {name: (form, None) for name, form in forms.items()}
    if prepare:
        prepare(shapes, group)
    for m, n, k in shapes:
        sets = max(2, int(200e6 // ((1 if quantised else 2) * (rows_of_a(m, world) * k + k * n))) + 1)
        lines = []
        for name, (form, scales) in forms.items():
            if quantised:
                a = [coded(rows_of_a(m, world), k, scales) for _ in range(sets)]
                b = [tuple(t.t() for t in coded(n, k, scales)) for _ in range(sets)]  # K-major
            elif not lines:
                a = [drawn(rows_of_a(m, world), k).bfloat16() for _ in range(sets)]
                b = [drawn(k, n).bfloat16() for _ in range(sets)]

            def run(i):
                return form(a[i % sets], b[i % sets], group)

            for i in range(3):
                c = run(i)
            rows, reference = some_rows(a[2 % sets], b[2 % sets], m)
            error = ((c[rows].double() - reference).norm() / reference.norm()).item()
            slow, worst = measure(run), torch.tensor([error], device=torch_measure.DEVICE)
            dist.all_reduce(worst, dist.ReduceOp.MAX)
            lines.append((slow, ",".join(f"{v:.4g}" for v in slow) + f",{worst.item():.3g}", name))
        if rank == 0:
            for _, text, name in lines if len(lines) > 1 else []:
                print(f"{m},{n},{k},{name},{text}")
            print(f"{m},{n},{k},{min(lines)[1]}", flush=True)
    dist.destroy_process_group()
