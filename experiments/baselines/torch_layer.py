"""A tensor-parallel layer, silu(gather(X) W1) W2 with its sum scattered, by mkernel from Python beside PyTorch's own operators. One process a GPU:

    torchrun --nproc-per-node 2 experiments/baselines/torch_layer.py M,D,INNER [M,D,INNER ...]

X is [M / ranks, D], W1 [D, INNER / ranks], W2 [INNER / ranks, D], bf16. The ways: mkernel eager, compiled (fullgraph) and captured in a CUDA graph; PyTorch's
collectives and products in turn; PyTorch's fused operators (symmetric memory). All are checked against the products in fp32 on some rows. Rounds of the ways take
turns; a figure is the median over rounds of the slowest rank's median time of a launch in a burst, by events, with the least and the most. On the CPU (without a GPU)
the ways run over gloo, by the clock and without the last one, as a check of this program.
"""
import sys

import torch_measure
from torch_measure import GPU, dist, torch
import torch.nn.functional as F
import mkernel

BURST, ROUNDS = (20, 5) if GPU else (1, 1)
torch_measure.start()
comm = mkernel.init(timeout_ns=300_000_000_000, **({"heap_bytes": 8 << 30} if GPU else {}))
W, group = comm.world, dist.group.WORLD.group_name
if GPU:
    from torch.distributed._symmetric_memory import enable_symm_mem_for_group

    enable_symm_mem_for_group(group)
torch.manual_seed(comm.rank)


def layer(x, w1, w2):
    return mkernel.gemm_rs(F.silu(mkernel.ag_gemm(x, w1)), w2)


def in_turn(x, w1, w2):
    whole = torch.empty(x.shape[0] * W, x.shape[1], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(whole, x)
    y = F.silu(whole @ w1) @ w2
    if not GPU:  # gloo has no reduce_scatter of bf16
        dist.all_reduce(y)
        return y[comm.rank * x.shape[0] : (comm.rank + 1) * x.shape[0]]
    out = torch.empty_like(x)
    dist.reduce_scatter_tensor(out, y)
    return out


def fused(x, w1, w2):
    h = torch.ops.symm_mem.fused_all_gather_matmul(x, [w1], 0, group)[1][0]
    return torch.ops.symm_mem.fused_matmul_reduce_scatter(F.silu(h), w2, "sum", 0, group)


def captured(x, w1, w2):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = layer(x, w1, w2)
    return lambda *_: (graph.replay(), out)[1]


def reference(x, w1, w2):
    """The layer in fp32, of this rank's first rows."""
    rows = min(64, x.shape[0])
    some = torch.empty(W * rows, x.shape[1], dtype=x.dtype, device=x.device)
    dist.all_gather_into_tensor(some, x[:rows].contiguous())
    h = F.silu((some.float() @ w1.float()).to(x.dtype)).float() @ w2.float()
    dist.all_reduce(h)
    return rows, h[comm.rank * rows : (comm.rank + 1) * rows]


@torch.no_grad()
def measure(m, d, inner):
    x = torch.randn(m // W, d, device=comm.device).bfloat16()
    w1 = (torch.randn(inner // W, d, device=comm.device) / d**0.5).bfloat16().t()  # as torch.nn.Linear has it
    w2 = (torch.randn(d, inner // W, device=comm.device) / inner**0.5).bfloat16().t()
    arguments = x, w1, w2
    ways = {"mkernel": layer, "compiled": torch.compile(layer, fullgraph=True), "in turn": in_turn}
    layer(*arguments)  # its plans, before the capture
    comm.wait()
    if GPU:
        ways["CUDA graph"] = captured(*arguments)
        ways["PyTorch fused"] = fused
    rows, wanted = reference(*arguments)
    for name, call in ways.items():
        if comm.rank == 0:
            print(f"{m},{d},{inner}: checking {name}", flush=True)  # so that it is known where a failure was
        got = call(*arguments)[:rows].float()
        error = ((got - wanted).norm() / wanted.norm()).item()
        assert error < 0.02, f"{name} is wrong: relative error {error}"

    def burst(call):
        return lambda i: [call(*arguments) for _ in range(BURST)]

    times = torch_measure.in_turns({name: burst(call) for name, call in ways.items()}, BURST, ROUNDS)
    comm.wait()
    if comm.rank == 0:
        for name, (median, least, most) in times.items():
            print(f"{m},{d},{inner} ranks={W} {comm.device} {name:14s} {median:8.3f} ms ({least:.3f} .. {most:.3f})", flush=True)


for shape in sys.argv[1:] or ["8192,8192,28672" if GPU else "256,128,256"]:
    measure(*map(int, shape.split(",")))
comm.close()
dist.destroy_process_group()
