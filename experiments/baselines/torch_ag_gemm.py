"""PyTorch's fused AllGather+GEMM (symmetric memory), as a baseline. One process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 8 torch_ag_gemm.py M,N,K [M,N,K ...]

N is per rank, A is [M / ranks, K], B is [K, N]. torch_bench.py says what it prints.
"""
import torch_bench
from torch_bench import dist, torch


def fused(a, b, group):
    return torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, group)[1][0]


def some_rows(a, b, m):
    gathered = torch.empty(m, a.shape[1], device="cuda", dtype=torch.bfloat16)
    dist.all_gather_into_tensor(gathered, a)
    rows = torch.randperm(m, device="cuda")[:256]
    return rows, gathered[rows].double() @ b.double()


torch_bench.main(lambda m, world: m // world, {"fused": fused}, some_rows)
