"""PyTorch's matmul, then its all-reduce on symmetric memory (one-shot: every rank reads all of every other's; two-shot: it sums its
part and writes that to the others), as a baseline. Neither uses multicast. One process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 8 torch_gemm_ar.py [--fp8] M,N,K [M,N,K ...]

K is per rank, A is [M, K], B is [K, N]. torch_bench.py says what it prints.
"""
import torch_bench
from torch_bench import dist, torch, widened
from torch.distributed import _symmetric_memory

shared = None  # what the products are written to, in symmetric memory


def prepare(shapes, group):
    global shared
    shared = _symmetric_memory.empty(max(m * n for m, n, _ in shapes), dtype=torch.bfloat16, device="cuda")
    _symmetric_memory.rendezvous(shared, group)


def multiply(a, b):
    if isinstance(a, tuple):  # no fused operator, but the same two calls
        (a, of_a), (b, of_b) = a, b
        out = shared[: a.shape[0] * b.shape[1]].view(a.shape[0], b.shape[1])
        return torch.ops.aten._scaled_mm.out(a, b, of_a, of_b, out_dtype=torch.bfloat16, out=out)
    return torch.mm(a, b, out=shared[: a.shape[0] * b.shape[1]].view(a.shape[0], b.shape[1]))


def one_shot(a, b, group):
    return torch.ops.symm_mem.one_shot_all_reduce(multiply(a, b), "sum", group)


def two_shot(a, b, group):
    return torch.ops.symm_mem.two_shot_all_reduce_(multiply(a, b), "sum", group)


def some_rows(a, b, m):
    a, b = widened(a), widened(b)
    rows = torch.randperm(m, device=a.device, generator=torch.Generator(a.device).manual_seed(1))[:64]
    reference = a[rows] @ b
    dist.all_reduce(reference)
    return rows, reference


forms = {"one_shot": one_shot, "two_shot": two_shot}
torch_bench.main(lambda m, world: m, forms, some_rows, prepare, forms)
