"""What the baselines of PyTorch's operators on symmetric memory have in common: one process per GPU times the operator for each
shape of the command line, M,N,K, on operands that rotate through more than L2 holds. Launches are replayed from a CUDA graph, so
that Python's own time is no part of theirs; where PyTorch cannot capture the operator, they are launched one by one. Rank 0 prints
one line per shape: M,N,K,ms,min_ms,max_ms,relative_error (median of the slowest rank), of the fastest form where there are several,
and before it a line for each form with its name behind K. Exit status 0, or 77 where this PyTorch has no such operator.
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


def main(rows_of_a, forms, some_rows, prepare=None):
    """rows_of_a(m, world): of a rank's A [rows, K]; its B is [K, N]. forms: by name, functions of (a, b, group) that return the
    operator's result. some_rows(a, b, m): numbers of some rows of this rank's result, and what they should be, in float64.
    prepare(shapes, group), once before all."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch_measure.start()
    group = dist.group.WORLD.group_name
    enable_symm_mem_for_group(group)
    shapes = [tuple(map(int, text.split(","))) for text in sys.argv[1:]]
    if prepare:
        prepare(shapes, group)
    for m, n, k in shapes:
        sets = max(2, int(200e6 // (2 * (rows_of_a(m, world) * k + k * n))) + 1)
        a = [torch.rand(rows_of_a(m, world), k, device="cuda").mul_(2).sub_(1).bfloat16() for _ in range(sets)]
        b = [torch.rand(k, n, device="cuda").mul_(2).sub_(1).bfloat16() for _ in range(sets)]
        lines = []
        for name, form in forms.items():

            def run(i):
                return form(a[i % sets], b[i % sets], group)

            for i in range(3):
                c = run(i)
            rows, reference = some_rows(a[2 % sets], b[2 % sets], m)
            error = ((c[rows].double() - reference).norm() / reference.norm()).item()
            slow, worst = measure(run), torch.tensor([error], device="cuda")
            dist.all_reduce(worst, dist.ReduceOp.MAX)
            lines.append((slow, ",".join(f"{v:.4g}" for v in slow) + f",{worst.item():.3g}", name))
        if rank == 0:
            for _, text, name in lines if len(lines) > 1 else []:
                print(f"{m},{n},{k},{name},{text}")
            print(f"{m},{n},{k},{min(lines)[1]}", flush=True)
    dist.destroy_process_group()
