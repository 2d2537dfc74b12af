"""The Python package with PyTorch's CPU tensors, under torchrun: operators are right, torch.compile(fullgraph=True) traces through them and
gives what eager does, torch.distributed says who the ranks are, and what cannot be is refused."""
import functools
import os
import re
import sys
import tempfile
import unittest.mock

import torch
import torch.distributed as dist
from torch.utils.flop_counter import FlopCounterMode
import mkernel
from cases import case, environment, free_port, main, program, ranks, refuses, run, says, scene
from torch_ranks import LATE, bf16, end, gathered, near, start

TUTORIAL = "docs/examples/tutorial.py"


@scene
def operators(nodes):
    comm = start(nodes=int(nodes) or None, nic="soft" if int(nodes) else None)
    W, r = comm.world, comm.rank
    assert comm.nodes == (int(nodes) or 1)
    m, n, k = 64 * W, 72, 200
    a, b = bf16(m // W, k), bf16(k, n)
    whole = torch.cat(gathered(a))
    near(mkernel.ag_gemm(a, b), whole.double() @ b.double())
    assert torch.equal(mkernel.all_gather(a), whole)
    out = torch.full((m, n), float("nan"), dtype=torch.bfloat16)
    assert mkernel.ag_gemm(a, b, out) is out and torch.equal(out, mkernel.ag_gemm(a, b))
    bias = bf16(n)
    near(mkernel.ag_gemm(a, b, bias=bias), whole.double() @ b.double() + bias.double())
    near(mkernel.ag_gemm(a, b, activation="silu"), torch.nn.functional.silu(whole.double() @ b.double()))
    after = torch.nn.functional.gelu(whole.double() @ b.double() + bias.double(), approximate="tanh")
    near(mkernel.ag_gemm(a, b, out, bias=bias, activation="gelu_tanh"), after)
    assert "epilogue=bias+gelu_tanh" in comm.plans[-1].options
    gates, both = bf16(k, 80), bf16(80)
    gate, up = (whole.double() @ gates.double() + both.double()).chunk(2, 1)
    near(mkernel.ag_gemm(a, gates, bias=both, activation="silu", gated=True), torch.nn.functional.silu(gate) * up)
    gate, up = (whole.double() @ gates.double()).chunk(2, 1)
    gated = mkernel.ag_gemm(a, gates, activation="gelu_tanh", gated=True)
    near(gated, torch.nn.functional.gelu(gate, approximate="tanh") * up)
    assert torch.equal(mkernel.ag_gemm(a.view(-1, 4, k), gates, activation="gelu_tanh", gated=True).view(m, 40), gated)
    assert torch.equal(mkernel.ag_gemm(a, gates.t().contiguous().t(), activation="gelu_tanh", gated=True), gated)
    near(mkernel.ag_gemm(a.view(-1, 4, k), b, bias=bias), (whole.double() @ b.double() + bias.double()).view(-1, 4, n))

    # behind the sum over ranks: a residual alike on all, and a norm
    generator = torch.Generator().manual_seed(7)
    residual, norm = torch.randn(5, n, generator=generator).bfloat16(), torch.randn(n, generator=generator).bfloat16()
    few = bf16(5, k)
    added = (mkernel.gemm_ar(few, b, deterministic=True).double() + residual.double()).bfloat16()
    assert torch.equal(mkernel.gemm_ar(few, b, residual=residual, deterministic=True), added)
    normed, after = mkernel.gemm_ar(few, b, residual=residual, norm_weight=norm, eps=1e-5, deterministic=True)
    assert torch.equal(after, added) and "eps=" in comm.plans[-1].options
    near(normed, torch.nn.functional.rms_norm(added.double(), (n,), norm.double(), 1e-5))
    outs = torch.empty_like(added), torch.empty_like(added)
    assert mkernel.gemm_ar(few, b, outs, residual=residual, norm_weight=norm, deterministic=True)[0] is outs[0] and torch.equal(outs[1], added)

    # codes and scales of normed rows: those of mkernel.quantize, to the bit
    few, wide = bf16(6, k), bf16(k, 144)
    residual, norm = torch.randn(6, 144, generator=generator).bfloat16(), torch.randn(144, generator=generator).bfloat16()
    of = dict(residual=residual, norm_weight=norm, eps=1e-5, deterministic=True)
    normed, after = mkernel.gemm_ar(few, wide, **of)
    made = mkernel.gemm_ar(few, wide, quantize=True, **of)
    assert all(map(torch.equal, made, (*mkernel.quantize(normed), after))) and made[0].dtype is torch.float8_e4m3fn
    outs = tuple(map(torch.empty_like, made))
    folded = mkernel.gemm_ar(few.view(2, 3, k), wide, quantize=True, **(of | {"residual": residual.view(2, 3, -1)}))
    assert all(torch.equal(x.view(y.shape), y) for x, y in zip(folded, made)) and folded[0].shape == folded[2].shape == (2, 3, 144)
    assert mkernel.gemm_ar(few, wide, outs, quantize=True, **of)[1] is outs[1] and all(map(torch.equal, outs, made))
    assert all(map(torch.equal, torch.ops.mkernel.gemm_ar_residual_rmsnorm_quantize(few, wide, residual, norm, deterministic=True, options="eps=1e-5"), (after, *made[:2])))

    # FP8: codes, and a scale for each 1x128 of A and 128x128 of B.
    blocks = -(-k // 128)
    codes = [torch.randn(s).mul(100).clamp(-448, 448).to(torch.float8_e4m3fn) for s in ((m // W, k - 8), (n, k - 8))]
    scales = [torch.rand(blocks, m // W) + 0.5, torch.rand(-(-n // 128), 4) + 0.5]
    a8 = codes[0].float() * scales[0].t().repeat_interleave(128, 1)[:, : k - 8]
    b8 = codes[1].float() * scales[1].repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, : k - 8]
    c = mkernel.ag_gemm_fp8(codes[0], codes[1].t(), *scales)
    near(c, torch.cat(gathered(a8)).double() @ b8.double().t())
    assert c.dtype is torch.bfloat16 and torch.equal(torch.ops.mkernel.ag_gemm_fp8(codes[0], codes[1].t(), *scales), c)
    assert torch.equal(mkernel.ag_gemm_fp8(codes[0].view(-1, 4, k - 8), codes[1].t(), *scales).view(m, n), c)
    wide8, of_wide = torch.randn(272, k - 8).mul(100).clamp(-448, 448).to(torch.float8_e4m3fn), torch.rand(3, 4) + 0.5  # up begins in the gate's second block
    w8 = wide8.float() * of_wide.repeat_interleave(128, 0)[:272].repeat_interleave(128, 1)[:, : k - 8]
    gate, up = (torch.cat(gathered(a8)).double() * 1e-5 @ w8.double().t()).chunk(2, 1)
    gated8 = mkernel.ag_gemm_fp8(codes[0], wide8.t(), scales[0] * 1e-5, of_wide, activation="silu", gated=True)
    near(gated8, torch.nn.functional.silu(gate) * up)
    assert torch.equal(torch.ops.mkernel.ag_gemm_fp8_gated(codes[0], wide8.t(), scales[0] * 1e-5, of_wide, False, False, "epilogue=silu", 0), gated8)
    in_heap = mkernel.empty((m // W, k - 8), torch.float8_e4m3fn)
    in_heap.copy_(codes[0])
    assert torch.equal(mkernel.ag_gemm_fp8(in_heap, codes[1].t(), *scales, out=torch.empty_like(c)), c)
    assert comm.plans[-1].op == "ag_gemm" and "dtype=fp8" in comm.plans[-1].options
    assert torch.equal(mkernel.ag_gemm_fp8(codes[0], codes[1].t(), *scales, options=comm.plans[-1].options), c)
    del in_heap
    wide = [torch.randn(s).mul(100).clamp(-448, 448).to(torch.float8_e4m3fn) for s in ((m, k - 8), (n, k - 8))]
    of_a, of_b = torch.rand(blocks, m) + 0.5, torch.rand(-(-n // 128), 4) + 0.5
    product = ((wide[0].float() * of_a.t().repeat_interleave(128, 1)[:, : k - 8]).double()
               @ (wide[1].float() * of_b.repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, : k - 8]).double().t())
    total = sum(gathered(product))
    near(mkernel.gemm_ar_fp8(wide[0], wide[1].t(), of_a, of_b, deterministic=True), total)
    near(mkernel.gemm_rs_fp8(wide[0], wide[1].t(), of_a, of_b, deterministic=True), total.chunk(W)[r])
    # a scale for each row of A and one for B, or one for each: as those of blocks that are alike
    of_rows = torch.rand(m // W, 1) + 0.5
    for simple, of_one in ((of_rows, torch.tensor(0.75)), (torch.tensor([0.5]), torch.tensor([[2.0]]))):
        like = simple.reshape(-1).expand(m // W), of_one.reshape(1, 1).expand(-(-n // 128), 4)
        blockwise = mkernel.ag_gemm_fp8(codes[0], codes[1].t(), like[0].expand(blocks, -1).contiguous(), like[1].contiguous())
        assert torch.equal(mkernel.ag_gemm_fp8(codes[0], codes[1].t(), simple, of_one), blockwise)
    # a scale for each column of B, with what may follow
    of_columns, of_wide_columns = torch.rand(n) + 0.5, torch.rand(272) + 0.5
    unscaled = torch.cat(gathered(a8)).double()
    near(mkernel.ag_gemm_fp8(codes[0], codes[1].t(), scales[0], of_columns), unscaled @ codes[1].double().t() * of_columns.double())
    assert torch.equal(torch.ops.mkernel.ag_gemm_fp8(codes[0], codes[1].t(), scales[0], of_columns),
                       mkernel.ag_gemm_fp8(codes[0], codes[1].t(), scales[0], of_columns, options=comm.plans[-1].options))
    gate, up = (unscaled * 1e-5 @ wide8.double().t() * of_wide_columns.double()).chunk(2, 1)
    near(mkernel.ag_gemm_fp8(codes[0], wide8.t(), scales[0] * 1e-5, of_wide_columns, activation="silu", gated=True), torch.nn.functional.silu(gate) * up)
    product = (wide[0].float() * of_a.t().repeat_interleave(128, 1)[:, : k - 8]).double() @ wide[1].double().t() * of_columns.double()
    by_columns = mkernel.gemm_rs_fp8(wide[0], wide[1].t(), of_a, of_columns, deterministic=True)
    near(by_columns, sum(gathered(product)).chunk(W)[r])
    residual = bf16(m // W, n)
    assert torch.equal(mkernel.gemm_rs_fp8(wide[0], wide[1].t(), of_a, of_columns, residual=residual, deterministic=True),
                       (by_columns.double() + residual.double()).bfloat16())
    near(mkernel.gemm_ar_fp8(wide[0], wide[1].t(), torch.tensor(2.0), torch.tensor(1.0), deterministic=True),
         sum(gathered(wide[0].double() @ wide[1].double().t())) * 2)
    bias = bf16(n)
    near(mkernel.ag_gemm_fp8(codes[0], codes[1].t(), *scales, bias=bias), c.double() + bias.double())
    bias = bf16(272)
    gate, up = (torch.cat(gathered(a8)).double() * 1e-5 @ w8.double().t() + bias.double()).chunk(2, 1)
    near(mkernel.ag_gemm_fp8(codes[0], wide8.t(), scales[0] * 1e-5, of_wide, bias=bias, activation="silu", gated=True), torch.nn.functional.silu(gate) * up)
    codes8, of_b = torch.randn(144, k - 8, generator=generator).mul(100).clamp(-448, 448).to(torch.float8_e4m3fn), torch.rand(2, 4, generator=generator) + 0.5
    for sums, rows in ((mkernel.gemm_ar_fp8, slice(None)), (mkernel.gemm_rs_fp8, slice(r * m // W, (r + 1) * m // W))):
        residual = torch.randn(m, 144, generator=torch.Generator().manual_seed(8)).bfloat16()[rows]
        product = sums(wide[0], codes8.t(), of_a, of_b, deterministic=True)
        added = (product.double() + residual.double()).bfloat16()
        assert torch.equal(sums(wide[0], codes8.t(), of_a, of_b, residual=residual, deterministic=True), added)
        normed, after = sums(wide[0], codes8.t(), of_a, of_b, residual=residual, norm_weight=norm, deterministic=True)
        near(normed, torch.nn.functional.rms_norm(added.double(), (144,), norm.double(), 1e-6))
        made = sums(wide[0], codes8.t(), of_a, of_b, residual=residual, norm_weight=norm, quantize=True, deterministic=True)
        assert torch.equal(after, added) and all(map(torch.equal, made, (*mkernel.quantize(normed), after)))
    a, b = bf16(m, k), bf16(n, k).t()  # the weights of a torch.nn.Linear
    total = sum(x.double() @ y.double().t() for x, y in zip(gathered(a), gathered(b.t().contiguous())))
    near(mkernel.gemm_rs(a, b, deterministic=True), total[r * m // W : (r + 1) * m // W])
    near(mkernel.gemm_ar(a, b, deterministic=True), total)
    for rows in (1, 3):  # a decoder's: no multiple of the ranks
        some = sum(x.double() @ y.double().t() for x, y in zip(gathered(a[:rows]), gathered(b.t().contiguous())))
        near(mkernel.gemm_ar(a[:rows], b, deterministic=True), some)
        near(torch.ops.mkernel.gemm_ar(a[:rows], b, deterministic=True), some)
    assert any("gemm_rs" == p.op for p in comm.plans)

    B, S, H, D = 1, 32, 2, 64
    q, kk, v = bf16(B, S, H, D), bf16(B, S, H, D), bf16(B, S, H, D)
    o, lse = mkernel.ring_attention(q, kk, v)
    ks, vs = (torch.cat(gathered(x), 1).float().transpose(1, 2) for x in (kk, v))
    near(o, torch.nn.functional.scaled_dot_product_attention(q.float().transpose(1, 2), ks, vs).transpose(1, 2))
    assert lse.shape == (B, H, S) and lse.dtype == torch.float32

    T, E, I, K = 40, 4 * W, 48, 2
    x, b1, b2 = bf16(T, 64), bf16(E // W, 64, 2 * I), bf16(E // W, I, 64)
    weights, ids = torch.rand(T, E).topk(K)  # int64, as PyTorch's routers have them
    y = mkernel.moe_ffn(x, b1, ids, weights, b2, deterministic=True)
    b1s, b2s = torch.cat(gathered(b1)).float(), torch.cat(gathered(b2)).float()
    up = torch.einsum("th,tkhi->tki", x.float(), b1s[ids])
    act = torch.nn.functional.silu(up[..., :I]) * up[..., I:]
    near(y, (torch.einsum("tki,tkih->tkh", act, b2s[ids]) * weights[..., None]).sum(1), 0.02)
    c, rows = mkernel.moe_dispatch_gemm(x, b2.transpose(1, 2).contiguous(), ids)
    assert rows.dtype == torch.int32 and int(rows[:, 1].sum()) == sum(
        int(((i // (E // W)) == r).sum()) for i in gathered(ids))
    moved, counts = mkernel.moe_dispatch(x, ids, experts=E)
    assert torch.equal(counts, rows) and moved.shape == (c.shape[0], 64)
    assert torch.equal(mkernel.moe_combine(moved, ids, torch.full((T, K), 1 / K), experts=E), x)
    wide, none = ids.clone(), ids.clone()  # whole numbers of 64 bits of which 32 would be an expert
    for i, number in enumerate((-(2**63), 2**32, 2**62 + 1, 3 - 2**40)):
        wide[i::8, i % K], none[i::8, i % K] = number, -1
    assert all(torch.equal(*both) for both in zip(mkernel.moe_dispatch(x, wide, experts=E)[1:], mkernel.moe_dispatch(x, none, experts=E)[1:]))
    begun = mkernel.moe_dispatch(x, ids.to(torch.int64), experts=E, begin=True)
    meanwhile = mkernel.gemm_ar(a, b, deterministic=True)
    halves = begun.end()
    assert torch.equal(halves[1], counts) and torch.equal(meanwhile, mkernel.gemm_ar(a, b, deterministic=True))
    out = torch.empty_like(x)
    back = mkernel.moe_combine(halves[0], ids, torch.full((T, K), 1 / K), out, experts=E, begin=2)
    assert back() is out and torch.equal(out, x)
    refuses("begin= has no gradient", mkernel.moe_dispatch, x.clone().requires_grad_(), ids, experts=E, begin=True)
    for expert_map in (torch.arange(E - 1, -1, -1), torch.arange(E - 1, -1, -1).reshape(E, 1).to(torch.int32)):  # from the last one down
        by_map = mkernel.moe_dispatch(x, ids, experts=E, expert_map=expert_map)
        assert torch.equal(by_map[1], mkernel.moe_dispatch(x, E - 1 - ids, experts=E)[1]) and not torch.equal(by_map[1], counts)

    # What PyTorch counts is what the plans say.
    for name, arguments, options in (("ring_attention", (q, kk, v), {}), ("ring_attention", (q, kk, v), {"causal": True}), ("moe_ffn", (x, b1, ids, weights, b2), {}),
                                     ("moe_dispatch_gemm", (x, b2.transpose(1, 2).contiguous(), ids), {}), ("gemm_ar", (a, b), {}), ("moe_dispatch", (x, ids), {"experts": E})):
        call = functools.partial(getattr(mkernel, name), *arguments, **options)
        call()
        with FlopCounterMode(display=False) as counter:
            call()
        assert counter.get_total_flops() in [p.flop for p in comm.plans if p.op == name], (name, counter.get_flop_counts(), [(p.op, p.flop) for p in comm.plans])
    end(comm)


@case
def rank_0_is_found_where_it_is_by_ipv4_and_ipv6():
    """MASTER_ADDR may be another host's, and a host may have one kind of address alone."""
    import socket
    from mkernel import _torch

    for master, found in (("127.0.0.1", "127.0.0.1"), ("::1", "::1"), ("localhost", "localhost"), ("192.0.2.7", None)):
        with unittest.mock.patch.dict(os.environ, MASTER_ADDR=master):
            assert _torch._address() == found if found else _torch._address() != master, (master, _torch._address())
    for alone in (True, False):
        listener, address = _torch._listener(alone, 4)
        with listener:
            for host in (address, "127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() and not alone else [])):
                socket.create_connection((host, listener.getsockname()[1]), timeout=10).close()
    no_ipv4 = lambda family, address, call: "" if family == socket.AF_INET else "::1"
    with unittest.mock.patch.object(_torch, "_works", no_ipv4):
        listener, address = _torch._listener(True, 4)
        with listener:
            assert address == "::1" and listener.family == socket.AF_INET6


@case
def operators_of_two_ranks_are_right():
    ranks(2, operators, 0)


@case
def operators_of_two_nodes_are_right():
    ranks(2, operators, 2)


@scene
def halves():
    """torch.float16: products with their gradients, compiled, and a model that is divided."""
    comm = start()
    W, r = comm.world, comm.rank
    m, n, k = 16 * W, 72, 64
    half = lambda *shape: (torch.randn(shape) / 4).half()

    def close(got, wanted, bound=1e-3):
        assert got.dtype is torch.float16 and got.shape == wanted.shape
        near(got, wanted, bound)

    a, b = half(m // W, k), half(k, n)
    whole = torch.cat(gathered(a))
    product = whole.double() @ b.double()
    close(mkernel.ag_gemm(a, b), product)
    assert torch.equal(torch.compile(mkernel.ag_gemm, fullgraph=True)(a, b), mkernel.ag_gemm(a, b)) and "dtype=fp16" in comm.plans[-1].options
    assert (mkernel.ag_gemm(a * 0 + 128, b * 0 + 128)[0] == torch.inf).all()  # 64 * 128 * 128
    x, w = a.clone().requires_grad_(), b.clone().requires_grad_()
    mkernel.ag_gemm(x, w).sum().backward()
    ones = torch.ones(m, n, dtype=torch.double)
    close(w.grad, whole.double().t() @ ones)
    close(x.grad, (ones @ sum(y.double() for y in gathered(b)).t())[r * m // W : (r + 1) * m // W], 2e-3)
    x, w = whole.clone().requires_grad_(), b.clone().requires_grad_()
    mkernel.gemm_rs(x, w).sum().backward()
    close(x.grad, ones @ b.double().t())
    close(w.grad, whole.double().t() @ ones)
    refuses("B is of torch.bfloat16, and should be of torch.float16", mkernel.ag_gemm, a, b.bfloat16())
    refuses("there are no kernels for fp16, convert by Q.to(torch.bfloat16)", mkernel.ring_attention, *[half(1, 8, 1, 64)] * 3)

    class MLP(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_proj, self.up_proj, self.down_proj = (torch.nn.Linear(i, o, bias=False) for i, o in ((64, 96), (64, 96), (96, 64)))

        def forward(self, x):
            return self.down_proj(torch.nn.functional.silu(self.gate_proj(x)) * self.up_proj(x))

    torch.manual_seed(3)
    model, layer = torch.nn.Module(), torch.nn.Module()
    layer.mlp, layer.forward = MLP(), lambda x: x + layer.mlp(x)
    model.layers, model.forward = torch.nn.ModuleList([layer]), lambda x: layer(x)
    model.half()
    x = torch.randn(1, 4 * W, 64).half()
    wanted = model(x)
    close(mkernel.parallelize(model)(x), wanted.double(), 4e-3)
    end(comm)


@case
def fp16_is_taken_in_place_of_bf16():
    ranks(2, halves)


class Layer(torch.nn.Module):
    """Megatron's, sequence-parallel: the AllGather and the ReduceScatter are inside the products."""

    def __init__(self, d, inner, world):
        super().__init__()
        self.up = torch.nn.Linear(d, inner // world, bias=False, dtype=torch.bfloat16)
        self.down = torch.nn.Linear(inner // world, d, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        h = torch.nn.functional.silu(mkernel.ag_gemm(x, self.up.weight.t()))
        return x + mkernel.gemm_rs(h, self.down.weight.t(), deterministic=True)


@scene
def compiling():
    comm = start()
    taken_by_as_many(comm)
    layer, x = Layer(64, 128, comm.world), bf16(32, 64)
    with torch.no_grad():
        eager = layer(x)
        before = len(comm.plans)
        compiled = torch.compile(layer, fullgraph=True)
        assert torch.equal(compiled(x), eager), (compiled(x) - eager).abs().max()
        assert len(comm.plans) == before, comm.plans  # the weights are still read as they lie
        x = bf16(32, 64)
        assert torch.equal(compiled(x), layer(x))

        # Into a given tensor, whose old values nobody may take for the new.
        into = torch.compile(lambda a, b, out: (out.sum(), mkernel.ag_gemm(a, b, out) * 2), fullgraph=True)
        b, out = bf16(64, 48), torch.ones(32 * comm.world, 48, dtype=torch.bfloat16)
        old, twice = into(x, b, out)
        wanted = mkernel.ag_gemm(x, b)
        assert old == out.numel() and torch.equal(out, wanted) and torch.equal(twice, wanted * 2)

        # Two results, and one whose room only the plan knows.
        attend = torch.compile(lambda q: mkernel.ring_attention(q, q, q, causal=True)[1].exp(), fullgraph=True)
        q = bf16(1, 32, 2, 64)
        assert torch.allclose(attend(q), mkernel.ring_attention(q, q, q, causal=True)[1].exp())
        ids = torch.randint(0, 2 * comm.world, (8, 2), dtype=torch.int32)
        route = torch.compile(lambda x, b: mkernel.moe_dispatch_gemm(x, b, ids)[1] + 0, fullgraph=True)
        experts, tokens = bf16(2, 64, 16), bf16(8, 64)
        assert torch.equal(route(tokens, experts), mkernel.moe_dispatch_gemm(tokens, experts, ids)[1])

        reverse = mkernel.ExpertMap(torch.arange(2 * comm.world).flip(0))
        mapped = torch.compile(lambda x, b: mkernel.moe_dispatch_gemm(x, b, ids, expert_map=reverse)[1] + 0, fullgraph=True)
        assert torch.equal(mapped(tokens, experts), mkernel.moe_dispatch_gemm(tokens, experts, 2 * comm.world - 1 - ids)[1])

        out = torch.compile(lambda x: mkernel.moe_combine(mkernel.moe_dispatch(x, ids, experts=2 * comm.world)[0] * 2, ids,
                                                          torch.full((8, 2), 0.5), experts=2 * comm.world), fullgraph=True, backend="aot_eager")
        assert torch.equal(out(tokens), tokens * 2)

        # A sum over ranks with what follows it.
        norm = torch.compile(lambda x, b, r, w: mkernel.gemm_ar(x, b, residual=r, norm_weight=w, deterministic=True)[0] * 2, fullgraph=True,
                             backend="aot_eager")
        x, r, w = bf16(8, 64), torch.ones(8, 48, dtype=torch.bfloat16), torch.ones(48, dtype=torch.bfloat16)
        assert torch.equal(norm(x, b, r, w), mkernel.gemm_ar(x, b, residual=r, norm_weight=w, deterministic=True)[0] * 2)

        # Rows that vary: one graph, a plan for each number.
        some = torch.compile(lambda x: mkernel.ag_gemm(x, b) + 1, fullgraph=True, dynamic=True)
        for rows in (16, 24, 40):
            x = bf16(rows, 64)
            assert torch.equal(some(x), mkernel.ag_gemm(x, b) + 1)
    end(comm)


@scene
def kept():
    comm = start()
    taken_by_as_many(comm)
    end(comm)


def taken_by_as_many(comm):
    a, b = bf16(16, 64), bf16(64, 48)
    compiled = torch.compile(lambda a, b: mkernel.ag_gemm(a, b), fullgraph=True)
    assert torch.equal(compiled(a, b), mkernel.ag_gemm(a, b)) and len(compiled(a, b)) == 16 * comm.world


@case
def compiled_layers_are_equal_to_eager_and_what_one_rank_has_compiled_is_not_taken_by_two():
    """PyTorch keeps compiled programs on disk, by their graph and the shapes of inputs, which are the same for any number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        ranks(1, kept)
        ranks(2, compiling)
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]


@scene
def checking():
    """PyTorch's own checks of custom operators: schema, fake kernel, what compiling makes of them."""
    comm = start()
    ops, a, b = torch.ops.mkernel, bf16(16, 64), bf16(64, 48)
    q = bf16(1, 16, 2, 64)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static")
    flags = (False, False, "", 0)
    for op in (ops.ag_gemm, ops.gemm_rs, ops.gemm_ar):
        torch.library.opcheck(op.default, (a, b, *flags), test_utils=tests)
        wanting = a.clone().requires_grad_(), b.clone().requires_grad_()
        torch.library.opcheck(op.default, wanting, test_utils=("test_autograd_registration", "test_aot_dispatch_dynamic"))
        assert torch.equal(op(a, b), op(a, b, *flags)) and torch.equal(op(a, b, deterministic=True), op(a, b, False, True, "", 0))
    out = torch.empty(16, 48, dtype=torch.bfloat16)
    ops.ag_gemm_out(a, b, out)
    assert torch.equal(out, ops.ag_gemm(a, b))
    torch.library.opcheck(ops.ag_gemm_out.default, (a, b, torch.empty(16, 48, dtype=torch.bfloat16), *flags), test_utils=tests)
    torch.library.opcheck(ops.all_gather.default, (a, *flags), test_utils=tests)
    codes = [torch.ones(s).to(torch.float8_e4m3fn) for s in ((16, 64), (48, 64))]
    scales = torch.ones(1, 16), torch.ones(1, 4)
    torch.library.opcheck(ops.ag_gemm_fp8.default, (codes[0], codes[1].t(), *scales, *flags), test_utils=tests[1:])
    torch.library.opcheck(ops.ring_attention.default, (q, q, q, *flags), test_utils=tests)
    end(comm)


@case
def pytorch_finds_nothing_wrong_with_the_operators():
    ranks(1, checking)


@scene
def groups():
    """Ranks of a group of four: a communicator each of two, with its own numbers."""
    dist.init_process_group("gloo")
    pairs = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    mine = pairs[dist.get_rank() % 2]
    comm = mkernel.init(group=mine, timeout_ns=LATE)
    assert comm.world == 2 and comm.rank == dist.get_rank() // 2
    a = torch.full((8, 16), float(dist.get_rank()), dtype=torch.bfloat16)
    assert mkernel.all_gather(a)[::8, 0].tolist() == [dist.get_rank() % 2, dist.get_rank() % 2 + 2]
    end(comm)


@case
def a_group_has_a_communicator_of_its_own():
    ranks(4, groups)


@case
def ranks_must_be_numbered_node_by_node():
    from mkernel import _torch

    assert [_torch._own_devices(list(hosts), devices) for hosts, devices in (("xx", [2, 3]), ("xx", [3, 3]), ("xxyy", [0, 1, 0, 1]), ("xyx", [0, 0, 0]))] == [True, False, True, False]
    refuses("device='cuda:one': cpu, cuda, cuda:N or emulated", mkernel.init, device="cuda:one")
    assert _torch._nodes_of(["x"]) == 1 and _torch._nodes_of(list("xxyy")) == 2 and _torch._nodes_of(list("xyz")) == 3
    for hosts in ("xyxy", "xxy", "xyy", "xxyyy", "xyyx"):
        refuses("numbered node by node", _torch._nodes_of, list(hosts))


def tensors_whose_memory_is_not_their_numbers(comm, a, b):
    """Each is refused with a sentence, or the result is that of its numbers, in every way to call."""
    from torch.autograd import forward_ad

    wanted, scales = mkernel.ag_gemm(a, b), torch.ones(1, 16)
    ways = (mkernel.ag_gemm, torch.ops.mkernel.ag_gemm, lambda a, b: comm.launch("ag_gemm", (a, b))[0])
    negative = torch._neg_view(-a)
    assert torch.equal(negative, a) and negative.is_neg()
    half = torch.complex(a.float(), -a.float()).to(torch.complex32).conj().imag  # as it comes about
    assert half.is_neg()
    refuses("A has its sign in a bit beside the memory: give x.resolve_neg()", mkernel.ag_gemm, half, b.half())
    for way in ways:
        if way is ways[1]:  # the dispatcher resolves it
            assert torch.equal(way(negative, b), wanted)
        else:
            refuses("A has its sign in a bit beside the memory: give x.resolve_neg()", way, negative, b)
        with forward_ad.dual_level():
            refuses("A has a tangent, and no operator has a derivative in forward mode: give x.detach()", way, forward_ad.make_dual(a, a), b)
            assert torch.equal(way(a, b), wanted)
        for x, words in ((a.to_sparse(), "parse"), (a.to_sparse_csr(), "parse"), (a.to("meta"), "meta"), (torch._efficientzerotensor(16, 64, dtype=torch.bfloat16), "zero tensor")):
            try:
                got = way(x, b)
                assert way is ways[1] and (got.is_meta or not got.any()), words  # the dispatcher has ways for these
            except (mkernel.Refused, NotImplementedError, RuntimeError) as e:
                says(str(e), words) if isinstance(e, mkernel.Refused) else None
        for transform in (lambda f: torch.func.vmap(f)(a[None]), lambda f: (None, torch.func.jvp(f, (a,), (a,)))):
            try:
                got = transform(lambda x: way(x, b))[0]
                assert way is ways[1] and got is not None and torch.equal(got, wanted)  # vmap, one by one
            except (mkernel.Refused, RuntimeError) as e:
                assert not isinstance(e, mkernel.Refused) or "torch.func" in str(e) or "tangent" in str(e), e
        out = torch._neg_view(torch.zeros_like(wanted))
        if way is ways[0]:
            refuses("C has its sign in a bit beside the memory", way, a, b, out)
    refuses("has a tangent, and no operator has a derivative in forward mode", lambda: forward_of(lambda x: mkernel.ag_gemm(x, b.clone().requires_grad_()), a))
    refuses("quantize: x has a tangent", lambda: forward_of(mkernel.quantize, a))
    assert torch.equal(mkernel.quantize(negative)[0].view(torch.uint8), mkernel.quantize(a)[0].view(torch.uint8))
    # A trace records the operator, and runs it.
    traced = torch.jit.trace(lambda x, y: mkernel.ag_gemm(x, y) * 2, (a, b), check_trace=False)
    assert "mkernel::ag_gemm" in str(traced.graph)
    assert torch.equal(traced(a * 2, b), wanted * 4)


def forward_of(function, x):
    from torch.autograd import forward_ad

    with forward_ad.dual_level():
        return function(forward_ad.make_dual(x, x))


@scene
def refusals():
    refuses("a group, and torch.distributed has not been initialised", mkernel.init, group=object())
    comm = start()
    a, b = bf16(16, 64), bf16(64, 48)
    refuses("A is of torch.float32, and should be of torch.bfloat16", mkernel.ag_gemm, a.float(), b)
    refuses("B is of torch.float16, and should be of torch.bfloat16", mkernel.ag_gemm, a, b.half())
    refuses("B is a ndarray; all arguments are torch's arrays", comm.launch, "ag_gemm", (a, b.float().numpy()))
    refuses("A is on meta, and the communicator on cpu", mkernel.ag_gemm, a.to("meta"), b)
    refuses("B is on meta, and the communicator on cpu", comm.launch, "ag_gemm", (a, b.to("meta").t().contiguous().t()))
    refuses("should be [16, 48] of torch.bfloat16", mkernel.ag_gemm, a, b, torch.empty(16, 40, dtype=torch.bfloat16))
    refuses("written in place", mkernel.ag_gemm, a, b, torch.empty(48, 16, dtype=torch.bfloat16).t())
    codes, weight = torch.ones(16, 64).to(torch.float8_e4m3fn), torch.ones(64, 64).to(torch.float8_e4m3fn)
    scales = torch.ones(1, 16), torch.ones(1, 4)
    refuses("A is of torch.bfloat16, and should be of torch.float8_e4m3fn", mkernel.ag_gemm_fp8, a, weight.t(), *scales)
    refuses("A_scales is [16, 2], and should be [1, 16]", mkernel.ag_gemm_fp8, codes, weight.t(), scales[0].t().repeat(1, 2), scales[1])
    refuses("B_scales is [1, 2], and should be [1, 4]", mkernel.ag_gemm_fp8, codes, weight.t(), scales[0], scales[1][:, :2])
    for of_columns in (72,), (2, 64, 1):
        refuses(f"b_scales is {list(of_columns)}: it is one, one for each of B's 64 columns, or one for each 128x128, [1, 4]", mkernel.ag_gemm_fp8, codes, weight.t(), scales[0], torch.ones(of_columns))
    refuses("B_scales is [64, 2], and should be [1, 4]", mkernel.gemm_ar_fp8, codes, weight.t(), scales[0], torch.ones(64, 2))
    refuses("B is [64, 64] and B_scales [72]: N is one number", torch.ops.mkernel.ag_gemm_fp8, codes, weight.t(), scales[0], torch.ones(72))
    refuses("the shape of b_scales says whether they are of columns", mkernel.ag_gemm_fp8, codes, weight.t(), *scales, options="b_scales=columns")
    refuses("the shape of b_scales says whether they are of columns", mkernel.ag_gemm_fp8, codes, weight.t(), scales[0], torch.ones(64), options="b_scales=blocks")
    refuses("the function for FP8 is ag_gemm_fp8", mkernel.ag_gemm, a, b, options="dtype=fp8")
    refuses("B must lie [N, K] in memory, as w.t() of a contiguous w does: b.mT.contiguous().mT", mkernel.ag_gemm_fp8, codes, weight, *scales)
    refuses("B is [64, 48] and bias [40]", mkernel.ag_gemm, a, b, bias=bf16(40))
    refuses("activation='gelu': it is 'silu' or 'gelu_tanh'", mkernel.ag_gemm, a, b, activation="gelu")
    refuses("gated says what an activation is multiplied by", mkernel.ag_gemm, a, b, gated=True)
    refuses("N is 40, and should be a multiple of 16", mkernel.ag_gemm, a, b[:, :40].contiguous(), activation="silu", gated=True)
    refuses("that is an argument, of ag_gemm(..., gated=True)", mkernel.ag_gemm, a, b, options="epilogue=silu+gated")
    refuses("that is an argument, of ag_gemm_fp8(..., gated=True)", mkernel.ag_gemm_fp8, codes, weight.t(), *scales, options="epilogue=silu+gated")
    refuses("ag_gemm_gated has no backward", mkernel.ag_gemm, a.clone().requires_grad_(), b, activation="silu", gated=True)
    refuses("norm_weight norms C + residual", mkernel.gemm_ar, a, b, norm_weight=bf16(48))
    refuses("quantize is of normed rows", mkernel.gemm_ar, a, b, residual=bf16(a.shape[0], 48), quantize=True)
    refuses("a residual is an argument", mkernel.gemm_ar, a, b, options="epilogue=residual")
    refuses("gemm_ar_residual has no backward", mkernel.gemm_ar, a.clone().requires_grad_(), b, residual=bf16(a.shape[0], 48))
    refuses("a bias is an argument", mkernel.ag_gemm, a, b, options="epilogue=bias")
    refuses("with an activation has no backward", mkernel.ag_gemm, a.clone().requires_grad_(), b, activation="silu")
    refuses("ag_gemm_bias has no backward", mkernel.ag_gemm, a.clone().requires_grad_(), b, bias=bf16(48))
    h = mkernel.empty((16, 64))
    assert h.dtype is torch.bfloat16 and h.data_ptr() % 128 == 0 and not h.any()
    h.copy_(a)
    plans = len(comm.plans)
    assert torch.equal(mkernel.ag_gemm(h, b), mkernel.ag_gemm(a, b)) and len(comm.plans) == plans + 1
    refuses("1 arrays of mkernel.empty still exist", comm.close)
    assert mkernel.empty((4, 4), torch.float32).dtype is torch.float32
    del h
    tensors_whose_memory_is_not_their_numbers(comm, a, b)
    # Not aligned: a view from the second element on.
    odd = torch.empty(16 * 64 + 1, dtype=torch.bfloat16)[1:].view(16, 64).copy_(a)
    assert odd.data_ptr() % 16 and torch.equal(mkernel.ag_gemm(odd, b), mkernel.ag_gemm(a, b))
    end(comm)


@case
def what_makes_no_sense_is_refused_with_a_sentence():
    ranks(1, refusals)


@case
def the_tutorial_runs_under_torchrun():
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", str(free_port())]
    said = run([*command, TUTORIAL, "--compile"])
    says(said, "tutorial: rank 0 of 2 done", "tutorial: rank 1 of 2 done", "rank 1: compiled, and the same", "rank 1: trained: losses ", "refused: ag_gemm: A is [64, 128]")
    assert len(re.findall(r"rank \d of 2 on cpu", said)) == 2
    # without PyTorch's tensors, though there is a PyTorch
    says(run([sys.executable, "-m", "mkernel.launch", "-n", "2", TUTORIAL, "--numpy"]), "tutorial: rank 1 of 2 done")


def without_gpus():
    return unittest.mock.patch.dict(os.environ, CUDA_VISIBLE_DEVICES="")


@case
def what_bench_sets_a_moe_beside_computes_what_it_says():
    """The baselines check their results themselves; without a GPU their times mean nothing."""
    for script, words, options in (
        ("ffn", ("product", "second", "comm", "back", "in_turn"), ("--skew", "1.2", "--b-nk")),
        ("ffn", ("product", "second", "comm", "back", "in_turn"), ("--routing", "none")),
        ("dispatch_gemm", ("product", "comm", "in_turn"), ("--routing", "one")),
    ):
        with without_gpus():
            said = "".join(ranks(2, program, f"experiments/baselines/torch_moe_{script}.py", *options, "24,32,16,6,3", "40,32,16,4,2"))
        for shape in ("24,32,16,6,3", "40,32,16,4,2"):
            lines = re.findall(rf"^{shape},([a-z_]+),([\d.]+),([\d.]+),([\d.]+)$", said, re.M)
            assert sorted(line[0] for line in lines) == sorted(words), said
            assert all(float(least) <= float(ms) <= float(most) for _, ms, least, most in lines), said


@case
def what_a_norm_behind_gemm_ar_is_set_beside_computes_what_it_says():
    for options in ((), ("--quantize",)):
        with without_gpus():
            said = "".join(ranks(2, program, "experiments/baselines/torch_norm.py", *options, "64,32", "1", "5"))
        for rows in (1, 5):
            ways = re.findall(rf"^{rows},64,32 (\S+) +[\d.]+ us \([\d.]+ \.\. [\d.]+\)$", said, re.M)
            assert ways == ["gemm_ar+norm", "gemm_ar", "NCCL"], said


if __name__ == "__main__":
    main()
