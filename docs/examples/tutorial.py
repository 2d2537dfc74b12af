"""A tensor-parallel layer on W ranks, step by step: run it, read it, change it.

    python3 -m mkernel.launch -n 2 tutorial.py            # PyTorch where there is one, else numpy
    python3 -m mkernel.launch -n 2 tutorial.py --numpy    # numpy's arrays, on the CPU
    torchrun --nproc-per-node 2 tutorial.py               # on GPUs where there are any

Each rank prints what it sees. tests/ run it both ways.
"""
import os
import sys

torch = None  # then arrays are numpy's; mkernel takes PyTorch's where the program has imported it
if "--numpy" not in sys.argv:
    try:
        import torch
        import torch.distributed as dist
    except ImportError:
        pass
if torch is None:
    import numpy
import mkernel

# 1. Who the ranks are. With PyTorch they are those of torch.distributed, which also carries the job's secret from rank
#    0 to the others; without it the launcher's variables say it. Every rank calls init, and waits for the others.
#    On GPUs each rank says first which one is its own.
if torch and "RANK" in os.environ:
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
comm = mkernel.init(timeout_ns=120_000_000_000)  # of every wait in a launch; compiling on one rank may take that long
W = comm.world
print(f"rank {comm.rank} of {W} on {comm.device}")

# 2. A layer of two matrices, as Megatron has it: x [rows / W, D] is sharded by rows, w1 by columns and w2 by rows. The
#    AllGather of x hides behind the first product, the ReduceScatter behind the second.
ROWS, D, INNER = 64 * W, 128, 256


def numbers(seed, *shape):
    """The same bf16 numbers on every rank."""
    if torch:
        generator = torch.Generator().manual_seed(seed)
        return (torch.randn(shape, generator=generator) / 8).to(comm.device, torch.bfloat16)
    return mkernel.to_bf16(numpy.random.default_rng(seed).standard_normal(shape) / 8)


def columns(x):
    return x[:, comm.rank * INNER // W : (comm.rank + 1) * INNER // W]


whole_x, whole_w1, whole_w2 = numbers(1, ROWS, D), numbers(2, D, INNER), numbers(3, INNER, D)
x = whole_x[comm.rank * ROWS // W : (comm.rank + 1) * ROWS // W]
w1 = columns(whole_w1)  # not contiguous: mkernel copies it in each call, so make it contiguous once
w1 = w1.contiguous() if torch else numpy.ascontiguousarray(w1)
w2 = whole_w2[comm.rank * INNER // W : (comm.rank + 1) * INNER // W]

h = mkernel.ag_gemm(x, w1)  # [ROWS, INNER / W]: all rows, this rank's columns
y = mkernel.gemm_rs(h, w2, deterministic=True)  # [ROWS / W, D]: the sum over ranks, this rank's rows


# 3. Is it right? The same in one product, on this rank alone.
def floats(array):
    return array.float().cpu().numpy() if torch else mkernel.from_bf16(array)


def bf16(array):
    return torch.from_numpy(array).to(torch.bfloat16).float().numpy() if torch else floats(mkernel.to_bf16(array))


whole_h = bf16(floats(whole_x) @ floats(whole_w1))
right = (whole_h @ floats(whole_w2))[comm.rank * ROWS // W : (comm.rank + 1) * ROWS // W]
error = float(((floats(y) - right) ** 2).sum() ** 0.5 / (right**2).sum() ** 0.5)
print(f"rank {comm.rank}: y is {list(y.shape)}, relative error {error:.4f}")
assert error < 0.01

# 4. What mkernel chose. A plan is made in the first call with new shapes and kept.
for plan in comm.plans:
    print(f"rank {comm.rank}: {plan.op} {plan.shape}: {plan.options}; "
          f"{plan.flop / 1e6:.1f} MFLOP, {plan.nvlink_bytes} bytes from the other ranks")

# 5. An x that lives in the symmetric heap is read there: the other ranks need no copy of it first.
in_heap = mkernel.empty(x.shape)
in_heap[...] = x
again = mkernel.ag_gemm(in_heap, w1, out=mkernel.empty(h.shape))
assert (floats(again) == floats(h)).all()

# 6. Errors are exceptions with one sentence. Refused: nothing was started, and one can go on.
try:
    mkernel.ag_gemm(x, w1[:100])
except mkernel.Refused as e:
    print(f"rank {comm.rank}: refused: {e}")

# 7. torch.compile traces through the operators without a graph break (slow to start: only if asked for).
if torch and "--compile" in sys.argv:

    @torch.compile(fullgraph=True)
    def layer(x):
        return torch.nn.functional.silu(mkernel.gemm_rs(mkernel.ag_gemm(x, w1), w2, deterministic=True))

    compiled = layer(x)
    assert torch.allclose(compiled, torch.nn.functional.silu(y), rtol=1e-2)
    print(f"rank {comm.rank}: compiled, and the same")

# 8. PyTorch's autograd goes through them: each one's backward is another one, so all ranks go through it together. The loss
#    is the sum of the ranks' losses.
if torch:
    w1, w2 = w1.requires_grad_(), w2.clone().requires_grad_()
    losses = []
    for step in range(3):
        h = torch.nn.functional.silu(mkernel.ag_gemm(x, w1))
        loss = (mkernel.gemm_rs(h, w2) - x).float().square().mean()
        loss.backward()  # of ag_gemm: gemm_rs; of gemm_rs: ag_gemm; of the weights: all_gather and a product
        losses.append(loss.item())
        with torch.no_grad():
            for w in (w1, w2):
                w -= 4 * w.grad
                w.grad = None
    print(f"rank {comm.rank}: trained: losses {' '.join(f'{loss:.6f}' for loss in losses)}")
    assert losses[0] > losses[1] > losses[2]

# 9. Leave together. Arrays of the heap go first, as their memory is the communicator's.
del in_heap, again
rank = comm.rank
comm.close()
if torch and "RANK" in os.environ:
    dist.destroy_process_group()
print(f"tutorial: rank {rank} of {W} done")
