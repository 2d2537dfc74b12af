"""PyTorch's matmul, then its all-reduce on symmetric memory (one-shot: every rank reads all of every other's; two-shot: it sums its
part and writes that to the others), as a baseline. Neither uses multicast. One process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 8 torch_gemm_ar.py M,N,K [M,N,K ...]

K is per rank, A is [M, K], B is [K, N]. torch_bench.py says what it prints.
"""
import torch_bench
from torch_bench import dist, torch
from torch.distributed import _symmetric_memory

shared = None  # what the products are written to, in symmetric memory


def prepare(shapes, group):
    global shared
    shared = _symmetric_memory.empty(max(m * n for m, n, _ in shapes), dtype=torch.bfloat16, device="cuda")
    _symmetric_memory.rendezvous(shared, group)


def multiply(a, b):
    return torch.mm(a, b, out=shared[: a.shape[0] * b.shape[1]].view(a.shape[0], b.shape[1]))


def one_shot(a, b, group):
    return torch.ops.symm_mem.one_shot_all_reduce(multiply(a, b), "sum", group)


def two_shot(a, b, group):
    return torch.ops.symm_mem.two_shot_all_reduce_(multiply(a, b), "sum", group)


def some_rows(a, b, m):
    rows = torch.randperm(m, device="cuda", generator=torch.Generator("cuda").manual_seed(1))[:64]
    reference = a[rows].double() @ b.double()
    dist.all_reduce(reference)
    return rows, reference


torch_bench.main(lambda m, world: m, {"one_shot": one_shot, "two_shot": two_shot}, some_rows, prepare)
