"""What stands between two layers of a decoder, RMSNorm(X W + residual) with X W summed over ranks, by mkernel.gemm_ar from Python beside PyTorch's operators. One
process a GPU:

    torchrun --nproc-per-node 2 experiments/baselines/torch_norm.py [--quantize] N,K [ROWS ...]

X is [ROWS, K], W [K, N], bf16, K of one rank. The ways: gemm_ar with residual and norm behind its sum; gemm_ar alone; torch.mm, then NCCL's all-reduce, or one-shot or
two-shot of symmetric memory (no multicast), then one Triton kernel that adds the residual and norms. With --quantize the normed rows become codes of e4m3 and scales
of 1x128, in gemm_ar's launch and in that kernel. Each is a CUDA graph of 12 launches over operands that rotate through
more than L2 holds; the ways take turns, a figure is the median of the slowest rank's us a launch, with least and most. Results are checked against fp64. Without a GPU
the ways run over gloo, by the clock, as a check of this program.
"""
import sys

import torch_measure
from torch_measure import DEVICE, GPU, dist, torch
import mkernel

TOGETHER, ROUNDS, EPS = (12, 5, 1e-6) if GPU else (1, 1, 1e-6)
QUANTIZE, words = "--quantize" in sys.argv, [word for word in sys.argv[1:] if word != "--quantize"]
torch_measure.start()
comm = mkernel.init(timeout_ns=60_000_000_000)
torch.manual_seed(comm.rank)
shared = None
if GPU:
    import triton
    import triton.language as tl
    from torch.distributed import _symmetric_memory

    group = dist.group.WORLD.group_name
    _symmetric_memory.enable_symm_mem_for_group(group)

    @triton.jit
    def norm_kernel(c, residual, weight, after, normed, scales, n, eps, BLOCK: tl.constexpr, QUANTIZE: tl.constexpr):
        row, col = tl.program_id(0), tl.arange(0, BLOCK)
        inside = col < n
        at = row * n + col
        x = (tl.load(c + at, inside, 0).to(tl.float32) + tl.load(residual + at, inside, 0).to(tl.float32)).to(tl.bfloat16)
        tl.store(after + at, x, inside)
        y = x.to(tl.float32)
        scale = tl.rsqrt(tl.sum(y * y) / n + eps)
        y = y * scale * tl.load(weight + col, inside, 0).to(tl.float32)
        if QUANTIZE:
            block = tl.arange(0, BLOCK // 128)
            y = tl.reshape(y.to(tl.bfloat16).to(tl.float32), (BLOCK // 128, 128))
            of = tl.max(tl.abs(y), 1) / 448
            tl.store(scales + block * tl.num_programs(0) + row, of, block * 128 < n)
            y = tl.reshape(y / tl.where(of > 0, of, 1)[:, None], (BLOCK,))
        tl.store(normed + at, y.to(normed.dtype.element_ty), inside)


def norm(c, residual, weight):
    if not GPU:
        after = c + residual
        normed = torch.nn.functional.rms_norm(after, weight.shape, weight, EPS)
        return (*mkernel.quantize(normed), after) if QUANTIZE else (normed, after)
    after, normed = torch.empty_like(c), torch.empty_like(c, dtype=torch.float8_e4m3fn if QUANTIZE else c.dtype)
    scales = torch.empty(-(-c.shape[1] // 128), c.shape[0], device=DEVICE) if QUANTIZE else None
    norm_kernel[(c.shape[0],)](c, residual, weight, after, normed, scales, c.shape[1], EPS, triton.next_power_of_2(c.shape[1]), QUANTIZE, num_warps=8)
    return (normed, scales, after) if QUANTIZE else (normed, after)


def multiply(x, w):
    return torch.mm(x, w, out=shared[: x.shape[0] * w.shape[1]].view(x.shape[0], w.shape[1]))


def by_nccl(x, w, residual, weight):
    c = torch.mm(x, w)
    dist.all_reduce(c)
    return norm(c, residual, weight)


ways = {
    "gemm_ar+norm": lambda x, w, residual, weight: mkernel.gemm_ar(x, w, residual=residual, norm_weight=weight, quantize=QUANTIZE, eps=EPS),
    "gemm_ar": lambda x, w, residual, weight: (None, mkernel.gemm_ar(x, w)),
    "NCCL": by_nccl,
}
if GPU:
    ways["one-shot"] = lambda x, w, residual, weight: norm(torch.ops.symm_mem.one_shot_all_reduce(multiply(x, w), "sum", group), residual, weight)
    ways["two-shot"] = lambda x, w, residual, weight: norm(torch.ops.symm_mem.two_shot_all_reduce_(multiply(x, w), "sum", group), residual, weight)


def captured(call, sets):
    if not GPU:
        return lambda i: call(*sets[i % len(sets)])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(TOGETHER):
            call(*sets[i % len(sets)])
    return lambda i: graph.replay()


def check(name, results, x, w, residual, weight):
    total = x.double() @ w.double()
    dist.all_reduce(total)
    after = total + residual.double() if results[0] is not None else total
    wanted = torch.nn.functional.rms_norm(after, weight.shape, weight.double(), EPS)
    normed = results[0]
    if len(results) == 3:
        normed = normed.double() * results[1].t().double().repeat_interleave(128, 1)[:, : normed.shape[1]]
    for got, right, bound in ((results[-1], after, 0.01), (normed, wanted, 0.04 if QUANTIZE else 0.01)):
        error = 0 if got is None else ((got.double() - right).norm() / right.norm()).item()
        assert error < bound, f"{name} is wrong: relative error {error}"


def measure(rows, n, k):
    alike = torch.Generator(DEVICE).manual_seed(7)  # the residual is alike on all ranks
    sets = []
    for _ in range(max(2, int(200e6 // (2 * n * k)) + 1) if GPU else 2):
        sets.append((torch.randn(rows, k, device=DEVICE).bfloat16(), (torch.randn(k, n, device=DEVICE) / k**0.5).bfloat16(),
                     torch.randn(rows, n, device=DEVICE, generator=alike).bfloat16(), torch.randn(n, device=DEVICE, generator=alike).bfloat16()))
    runs = {}
    for name, call in ways.items():
        check(name, call(*sets[0]), *sets[0])
        runs[name] = captured(call, sets)
    for name, (median, least, most) in torch_measure.in_turns(runs, TOGETHER, ROUNDS).items():
        if comm.rank == 0:
            print(f"{rows},{n},{k} {name:13s} {median * 1e3:8.2f} us ({least * 1e3:.2f} .. {most * 1e3:.2f})", flush=True)


n, k = map(int, (words[0] if words else "8192,4096" if GPU else "256,128").split(","))
all_rows = list(map(int, words[1:])) or ([1, 8, 16, 64, 128, 256, 512] if GPU else [1, 5])
if GPU:
    shared = _symmetric_memory.empty(max(all_rows) * n, dtype=torch.bfloat16, device=DEVICE)
    _symmetric_memory.rendezvous(shared, group)
with torch.no_grad():
    for rows in all_rows:
        measure(rows, n, k)
comm.close()
dist.destroy_process_group()
