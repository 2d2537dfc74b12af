"""PyTorch's fused AllGather+GEMM (symmetric memory), as a baseline. One process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 8 torch_ag_gemm.py [--fp8] M,N,K [M,N,K ...]

N is per rank, A is [M / ranks, K], B is [K, N]. torch_bench.py says what it prints.
"""
import torch_bench
from torch_bench import dist, torch, widened


def fused(a, b, group):
    return torch.ops.symm_mem.fused_all_gather_matmul(a, [b], 0, group)[1][0]


def fused_fp8(a, b, group):
    return torch.ops.symm_mem.fused_all_gather_scaled_matmul(
        a[0], [b[0]], a[1], [b[1]], 0, group, [None], [None], [torch.bfloat16], [False])[1][0]


def some_rows(a, b, m):
    mine = widened(a).float()
    gathered = torch.empty(m, mine.shape[1], device=mine.device)
    dist.all_gather_into_tensor(gathered, mine)
    rows = torch.randperm(m, device=mine.device)[:256]
    return rows, gathered[rows].double() @ widened(b)


torch_bench.main(lambda m, world: m // world, {"fused": fused}, some_rows, fp8={"fused": fused_fp8})
