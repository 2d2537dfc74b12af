"""PyTorch's fused GEMM+ReduceScatter (symmetric memory), as a baseline. One process per GPU:

    python3 -m torch.distributed.run --nproc-per-node 8 torch_gemm_rs.py [--fp8] M,N,K [M,N,K ...]

K is per rank, A is [M, K], B is [K, N]. torch_bench.py says what it prints.
"""
import torch_bench
from torch_bench import dist, torch, widened


def fused(a, b, group):
    return torch.ops.symm_mem.fused_matmul_reduce_scatter(a, b, "sum", 0, group)


def fused_fp8(a, b, group):
    rows, columns = a[0].shape[0], b[0].shape[1]
    return torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
        a[0], b[0], a[1], b[1], "sum", 0, 0, group, [rows, columns], out_dtype=torch.bfloat16)


def some_rows(a, b, m):
    a, b = widened(a), widened(b)
    rank, world = dist.get_rank(), dist.get_world_size()
    rows = torch.randperm(m // world, device=a.device, generator=torch.Generator(a.device).manual_seed(1))[:64]
    reference = None
    for owner in range(world):  # every rank adds its part of the rows that are checked on each owner
        part = a[owner * (m // world) + rows] @ b
        dist.reduce(part, owner)
        reference = part if owner == rank else reference
    return rows, reference


torch_bench.main(lambda m, world: m, {"fused": fused}, some_rows, fp8={"fused": fused_fp8})
