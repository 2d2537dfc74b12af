"""Gradients of the Python package's operators, on PyTorch's CPU tensors: those of float32 references, eager, checkpointed and compiled;
what has no gradient is refused with a sentence."""
import os
import tempfile

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
import mkernel
import torch_ranks
from cases import case, main, ranks, refuses, says, scene
from torch_ranks import bf16, end, gathered, start


def near(got, wanted, bound=0.01):
    assert got.shape == wanted.shape and got.dtype is torch.bfloat16, (got.shape, wanted.shape, got.dtype)
    torch_ranks.near(got, wanted, bound)


def everybody(x):
    """x of every rank in float32, by torch.distributed; this rank's requires a gradient, so that what all make of it is asked for."""
    return [x.float().requires_grad_() for x in gathered(x.detach().contiguous())]


def products(name, a, b):
    """What a product gives every rank, in float32, of A and B of every rank."""
    if name == "ag_gemm":
        return [torch.cat(a) @ y for y in b]
    total = sum(x @ y for x, y in zip(a, b))
    return list(total.chunk(len(a))) if name == "gemm_rs" else [total]


def layouts(b):
    """b as matrices lie: by rows, by columns, and as neither; all leaves."""
    wide = torch.empty(b.shape[0], 2 * b.shape[1], dtype=b.dtype)
    wide[:, ::2] = b
    wide.requires_grad_()
    weight = b.t().contiguous().requires_grad_()  # of a Linear
    rows = b.clone().requires_grad_()
    return (rows, rows, lambda g: g), (weight, weight.t(), lambda g: g.t()), (wide, wide[:, ::2], lambda g: g[:, ::2])


def products_are_right(comm):
    W, r = comm.world, comm.rank
    n, k = 40, 72
    for name in ("ag_gemm", "gemm_rs", "gemm_ar"):
        rows = 24 if name == "ag_gemm" else 24 * W
        op = getattr(mkernel, name)
        values, b = bf16(k, rows), bf16(k, n)
        for leaf, matrix, gradient_of in layouts(b):
            a = values.clone().requires_grad_()
            c = op(a.t(), matrix)  # A is not contiguous
            weights = bf16(*c.shape)
            if name == "gemm_ar":
                dist.broadcast(weights, 0)
            every_a, every_b = everybody(values.t()), everybody(b)
            results = products(name, every_a, every_b)
            of_results = everybody(weights)[: len(results)]
            sum((x * y.detach()).sum() for x, y in zip(results, of_results)).backward()
            (c * weights).sum().backward()
            near(a.grad.t(), every_a[r].grad)
            near(gradient_of(leaf.grad), every_b[r].grad)
            once = leaf.grad.clone()  # again: autograd adds
            (op(a.t(), matrix) * weights).sum().backward()
            near(a.grad.t(), 2 * every_a[r].grad)
            near(leaf.grad, 2 * once.float())
        # One of the two alone; and a gradient that is one number, spread.
        a, weight = values.t().contiguous().requires_grad_(), b.t().contiguous().requires_grad_()
        every_a, every_b = everybody(a), everybody(b)
        sum(x.sum() for x in products(name, every_a, every_b)).backward()
        op(a, weight.detach().t()).sum().backward()
        near(a.grad, every_a[r].grad)
        gradient, = torch.autograd.grad(op(a.detach(), weight.t()).sum(), weight)
        near(gradient.t(), every_b[r].grad)
        assert gradient.is_contiguous()  # so that .grad takes it as it is


def main_gradients_are_right(comm):
    """A weight's main_grad takes two steps of each product, one of fp32 nearer than bf16 gradients are; it gets no .grad. A compiled program makes .grad."""
    W, r = comm.world, comm.rank
    for name in ("ag_gemm", "gemm_rs", "gemm_ar"):
        op, rows = getattr(mkernel, name), 24 if name == "ag_gemm" else 24 * W
        a, b = bf16(rows, 72), bf16(72, 40)
        for leaf, matrix, main_of in layouts(b)[:2]:
            leaf.main_grad = torch.full(leaf.shape, 0.5)
            every_a, every_b = everybody(a), everybody(b)
            sum(x.sum() for x in products(name, every_a, every_b)).backward()
            for _ in range(2):
                op(a, matrix).sum().backward()
            wanted = 0.5 + 2 * every_b[r].grad
            assert leaf.grad is None
            assert (main_of(leaf.main_grad) - wanted).norm() < 1e-5 * wanted.norm()
            leaf.main_grad = torch.full(leaf.shape, 0.5, dtype=torch.bfloat16)
            op(a, matrix).sum().backward()
            assert leaf.grad is None
            near(main_of(leaf.main_grad), 0.5 + every_b[r].grad)
            for main, sentence in ((torch.zeros(8, 72), "a main_grad is [8, 72], and a parameter's"), (torch.zeros(leaf.shape).double(), "a main_grad is of torch.float64")):
                leaf.main_grad = main
                refuses(sentence, op, a, matrix)
            leaf.main_grad = torch.zeros(leaf.shape)
        compiled = torch.compile(lambda a, w: op(a, w.t()), fullgraph=True, backend="aot_eager")
        compiled(a, leaf).sum().backward()
        near(leaf.grad.t(), every_b[r].grad)


def moves_are_right(comm):
    W, r = comm.world, comm.rank
    a = bf16(6 * W, 16)
    for name in ("all_gather", "reduce_scatter", "all_to_all"):
        x = a.clone().requires_grad_()
        every = everybody(a)
        blocks = [y.chunk(W) for y in every]
        of_rank = {"all_gather": lambda i: torch.cat(every), "all_to_all": lambda i: torch.cat([y[i] for y in blocks]),
                   "reduce_scatter": lambda i: sum(y[i] for y in blocks)}[name]
        results = [of_rank(i) for i in range(W)]
        c = getattr(mkernel, name)(x)
        near(c.detach(), results[r].detach())
        weights = bf16(*c.shape)
        sum((y * w.detach()).sum() for y, w in zip(results, everybody(weights))).backward()
        (c * weights).sum().backward()
        near(x.grad, every[r].grad)


class Layer(torch.nn.Module):
    """Megatron's, sequence-parallel: the AllGather and the ReduceScatter are inside the products."""

    def __init__(self, d, inner, world):
        super().__init__()
        self.up = torch.nn.Linear(d, inner // world, bias=False, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(inner // world, d, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        h = torch.nn.functional.silu(mkernel.ag_gemm(x, self.up.weight.t()))
        return x + mkernel.gemm_rs(h, self.down.weight.t(), deterministic=True)


def step(layer, forward, x):
    """The gradients of a training step: of x, of the weights."""
    layer.zero_grad()
    x = x.clone().requires_grad_()
    forward(x).square().sum().backward()
    return [x.grad, *[p.grad for p in layer.parameters()]]


def autocast_is_right(comm):
    """Under autocast products and attention take fp32, as PyTorch's do: results are of its type, gradients fp32. What only moves converts nothing."""
    a, b = torch.randn(24, 72), torch.randn(72, 40)
    every_a, every_b = everybody(a), everybody(b)
    sum(x.sum() for x in products("ag_gemm", every_a, every_b)).backward()
    calls = (mkernel.ag_gemm, torch.compile(mkernel.ag_gemm, fullgraph=True, backend="aot_eager"))
    for call in calls:
        x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            c = call(x, w)
        near(c.detach(), products("ag_gemm", every_a, every_b)[comm.rank].detach())
        c.sum().backward()
        for got, of in ((x, every_a), (w, every_b)):
            assert got.grad.dtype is torch.float32
            torch_ranks.near(got.grad, of[comm.rank].grad, 0.01)
    q = torch.randn(1, 16, 2, 64)
    with torch.autocast("cpu", torch.float16):
        assert mkernel.gemm_rs(a, b).dtype is torch.float16
    with torch.autocast("cpu", torch.bfloat16):
        assert mkernel.gemm_ar(a.half(), b).dtype is mkernel.ring_attention(q, q, q)[0].dtype is torch.bfloat16
        refuses("A is of torch.float32, and should be of torch.bfloat16 or torch.float16", mkernel.all_gather, a)
        with torch.autocast("cpu", enabled=False):
            refuses("A is of torch.float32, and should be of torch.bfloat16 or torch.float16", mkernel.ag_gemm, a, b)


def a_step_is_traced(layer, x):
    """A trace of a training step has the launches of both ways."""
    path = os.path.join(tempfile.gettempdir(), f"mkernel-step-{os.environ['MASTER_PORT']}.db")
    try:
        with mkernel.trace(path):
            step(layer, layer, x)
        if dist.get_rank() == 0:
            of = mkernel.frame(path, "SELECT plan.op, count(*) AS launches FROM launch JOIN plan ON plan.id = launch.plan GROUP BY plan.op ORDER BY plan.op")
            assert list(zip(of["op"], of["launches"])) == [("ag_gemm", 2), ("all_gather", 2), ("gemm_rs", 2)], of
            of = mkernel.frame(path, "SELECT DISTINCT plan.shape FROM launch JOIN plan ON plan.id = launch.plan WHERE plan.op = 'all_gather'")
            assert list(of["shape"]) == [f"{32 * dist.get_world_size()},64"], of
    finally:
        if dist.get_rank() == 0 and os.path.exists(path):
            os.remove(path)


def training_is_right(comm):
    torch.use_deterministic_algorithms(True)
    layer, x = Layer(64, 128, comm.world), bf16(32, 64)
    wanted = step(layer, layer, x)
    plans = len(comm.plans)
    mkernel.gemm_rs(bf16(32 * comm.world, 128 // comm.world), bf16(128 // comm.world, 64), deterministic=True)
    assert len(comm.plans) == plans  # it is the one that x's gradient took

    # By hand in float32, for the layer as a whole.
    every = [everybody(p) for p in layer.parameters()]
    xs = everybody(x)
    up, down = torch.cat(every[0]), torch.cat(every[1], 1)
    whole = torch.cat(xs)
    (whole + torch.nn.functional.silu(whole @ up.t()) @ down.t()).square().sum().backward()
    for got, of in zip(wanted, (xs, *every)):
        near(got, of[comm.rank].grad, 0.02)

    # Kept or computed again: the same.
    for reentrant in (False, True):
        again = step(layer, lambda x: checkpoint(layer, x, use_reentrant=reentrant), x)
        assert all(map(torch.equal, again, wanted)), reentrant

    # A profiler sees the launches of both ways.
    with torch.profiler.profile() as profile:
        step(layer, layer, x)
    seen = {event.key: event.count for event in profile.key_averages()}
    rows, inner = 32 * comm.world, 128 // comm.world
    work = f"{rows},{inner},64: {2e-9 * rows * inner * 64:.4g} GFLOP"
    assert seen["mkernel::ag_gemm"] == 2 and seen["mkernel::gemm_rs"] == 2 and seen["mkernel::all_gather"] == 2, seen
    assert seen[f"ag_gemm {work}"] == 2, seen
    with FlopCounterMode(display=False) as counter:  # forward and backward of both products; weights' gradients by PyTorch
        step(layer, layer, x)
    counted = counter.get_flop_counts()["Global"]
    assert {of: counted[getattr(torch.ops.mkernel, of)] for of in ("ag_gemm", "gemm_rs")} == dict.fromkeys(("ag_gemm", "gemm_rs"), 2 * 2 * rows * inner * 64), counted

    a_step_is_traced(layer, x)

    # [S/W, B, D], and that compiled in one graph.
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for forward in (layer, compiled, compiled):
        of_x, *of_weights = step(layer, forward, x.view(16, 2, 64))
        assert of_x.shape == (16, 2, 64) and all(map(torch.equal, (of_x.view(32, 64), *of_weights), wanted)), forward
    there_and_back = lambda x: mkernel.reduce_scatter(mkernel.all_to_all(mkernel.all_gather(x)))
    moves = torch.compile(there_and_back, fullgraph=True, backend="aot_eager")
    assert all(map(torch.equal, step(layer, moves, x)[:1], step(layer, there_and_back, x)))
    torch.use_deterministic_algorithms(False)


def what_has_no_gradient_says_so(comm):
    a, b = bf16(16, 64).requires_grad_(), bf16(64, 48)
    # A second derivative.
    grad, = torch.autograd.grad(mkernel.ag_gemm(a, b).sum(), a)
    assert not grad.requires_grad
    for op in (mkernel.ag_gemm, mkernel.gemm_rs, mkernel.gemm_ar):
        c = op(a, b)
        refuses(f"mkernel.{op.__name__} has no second derivative", lambda: torch.autograd.grad(c.sum(), a, create_graph=True))
    # A result that is written in place.
    out = torch.empty(16 * comm.world, 48, dtype=torch.bfloat16)
    refuses("mkernel.ag_gemm with out has no backward: call it under torch.no_grad()", mkernel.ag_gemm, a, b, out)
    w = bf16(48).requires_grad_()
    loss = (out * w).sum()
    mkernel.ag_gemm(a.detach(), b, out)
    try:
        loss.backward()
        raise AssertionError("the product's old values were kept for the backward, and are gone")
    except RuntimeError as e:
        says(str(e), "modified by an inplace operation")
    # Operators without a backward.
    q = bf16(1, 16, 2, 64).requires_grad_()
    x, b1, b2 = bf16(8, 64).requires_grad_(), bf16(2, 64, 32), bf16(2, 16, 64)
    ids, weights = torch.zeros(8, 2, dtype=torch.int32), torch.ones(8, 2)
    for op, arguments in (("ring_attention", (q, q, q)), ("moe_ffn", (x, b1, ids, weights, b2)), ("moe_dispatch_gemm", (x, b1, ids))):
        sentence = f"mkernel.{op} has no backward: call it under torch.no_grad(), or detach its inputs"
        refuses(sentence, getattr(mkernel, op), *arguments)
        refuses(sentence, getattr(torch.ops.mkernel, op), *arguments)
        try:
            torch.compile(lambda *x: getattr(mkernel, op)(*x), fullgraph=True, backend="aot_eager")(*arguments)
            raise AssertionError(f"{op} was compiled")
        except Exception as e:
            says(str(e), sentence)
        with torch.no_grad():
            getattr(mkernel, op)(*arguments)


@scene
def gradients(also=""):
    comm = start(trace_events=1 << 12)
    products_are_right(comm)
    main_gradients_are_right(comm)
    moves_are_right(comm)
    if also:
        autocast_is_right(comm)
        training_is_right(comm)
        what_has_no_gradient_says_so(comm)
    end(comm)


@case
def gradients_of_two_ranks_are_right_kept_checkpointed_and_compiled_and_what_has_none_says_so():
    ranks(2, gradients, "training and refusals")


@case
def gradients_of_four_ranks_are_right():
    ranks(4, gradients)


if __name__ == "__main__":
    main()
