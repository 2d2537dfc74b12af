"""The Python package with numpy arrays, from the wheel and over the host executor: every operator is right on two ranks and in
every layout, plans and memory live as long as the documents say, and what cannot be is an exception with mkernel's sentence."""
import errno
import gc
import os
import re
import signal
import sys
import tempfile
import threading
import time
import warnings

import numpy
import mkernel
from cases import Skip, case, main, ranks, refuses, run, says, scene

MINUTE = 60_000_000_000  # ns: ranks of a loaded machine are late


def bf16(rng, *shape):
    return mkernel.to_bf16(rng.standard_normal(shape) / 4)


def everywhere(comm):
    """The bits of a row are those that it has alone, in one shot and in two, in gemm_rs as in gemm_ar, and on one rank."""
    r, W = comm.rank, comm.world
    draw = numpy.random.default_rng(5)
    a, b = (mkernel.to_bf16(draw.standard_normal(shape).astype(numpy.float32)) for shape in ((8 * W, 512), (512, 40)))
    if W not in (1, 2, 4, 8):
        return
    cut, own = slice(r * 512 // W, (r + 1) * 512 // W), slice(r * 8, r * 8 + 8)
    a_cut, b_cut = a[:, cut].copy(), b[cut].copy()
    c = mkernel.gemm_ar(a_cut, b_cut, deterministic="everywhere", options="shots=2")
    assert (mkernel.gemm_ar(a_cut[3:4], b_cut, deterministic="everywhere")[0] == c[3]).all()
    assert (mkernel.gemm_rs(a_cut, b_cut, deterministic="everywhere") == c[own]).all()
    near(c, mkernel.from_bf16(a).astype(float) @ mkernel.from_bf16(b).astype(float))
    gathered = mkernel.ag_gemm(a[own], b, deterministic="everywhere")
    assert (mkernel.ag_gemm(a[own][:1], b, deterministic="everywhere")[r] == gathered[r * 8]).all()
    x, b1, b2 = (mkernel.to_bf16(draw.standard_normal(shape).astype(numpy.float32)) for shape in ((6, 40), (8, 40, 48), (8, 24, 40)))
    ids, weights, here = draw.permuted(numpy.tile(numpy.arange(8, dtype=numpy.int32), (6, 1)), axis=1)[:, :5], draw.random((6, 5), numpy.float32), slice(r * 8 // W, (r + 1) * 8 // W)
    layer = lambda rows, **more: mkernel.moe_ffn(x[rows], b1[here], ids[rows].copy(), weights[rows], b2[here], deterministic="everywhere", **more)
    assert (layer(slice(3, 4), options="tile=16,32")[0] == layer(slice(6))[3]).all()
    q, k, v = (mkernel.to_bf16(draw.standard_normal((1, 384 * W, 1, 64)).astype(numpy.float32)) for _ in range(3))
    attend = lambda rows, **how: mkernel.ring_attention(*(mkernel.ring_attention_shard(x[:, :rows], causal=True, **how) for x in (q, k, v)), causal=True, deterministic="everywhere", **how)[0]
    known, part = attend(384 * W, split="contiguous"), attend(256 * W)
    place = [i for run in mkernel.ring_attention_rows(256 * W, causal=True) for i in run]
    both = [i for i in place if 384 * r <= i < 384 * r + 384]
    assert (part[0, [place.index(i) for i in both]] == known[0, [i - 384 * r for i in both]]).all() and (both or r)
    refuses("'everywhere'", mkernel.gemm_ar, a_cut, b_cut, deterministic="always")
    refuses("a multiple of 64", mkernel.gemm_ar, a_cut[:, :8].copy(), b_cut[:8], deterministic="everywhere")


def near(got, wanted, bound=0.01):
    """Relative error in the Frobenius norm; bf16 rounds by 2^-9 at most, twice where a product is between."""
    wanted = numpy.asarray(wanted, numpy.float64)
    error = numpy.linalg.norm(mkernel.from_bf16(got) - wanted) / numpy.linalg.norm(wanted)
    assert error < bound, f"relative error {error}"


def floats(x):
    return mkernel.from_bf16(x).astype(numpy.float64)


def everyone(comm, x):
    """x of every rank, by the operator that only copies."""
    whole = mkernel.all_gather(x.reshape(1, -1))
    return whole.reshape(comm.world, *x.shape)


# ---- the operators ----


@scene
def gemms(nodes):
    comm = mkernel.init(nodes=int(nodes), nic="soft" if int(nodes) > 1 else None, timeout_ns=MINUTE, heap_bytes=8 << 20)
    rng, W = numpy.random.default_rng(comm.rank), comm.world
    assert (comm.nodes, comm.gpus, W) == (int(nodes), 2 // int(nodes), 2) and comm.device == "cpu"
    for m, n, k in ((24, 40, 16), (64 * W, 72, 200)):
        poison = lambda *shape: numpy.full(shape, 0xFFFF, numpy.uint16)  # NaN: what is not written is seen
        a, b, c = bf16(rng, m // W, k), bf16(rng, k, n), poison(m, n)
        whole = everyone(comm, a)
        assert (whole[comm.rank] == a).all() and not (whole[0] == whole[1]).all()
        part, c = m // W // W, poison(m // W, k)
        assert mkernel.all_to_all(a, c) is c and mkernel.all_to_all(a=a).shape == a.shape
        assert (c == whole[:, comm.rank * part : (comm.rank + 1) * part].reshape(m // W, k)).all()
        c = poison(m, n)
        assert mkernel.ag_gemm(a, b, c) is c
        near(c, floats(whole).reshape(m, k) @ floats(b))
        a, c = bf16(rng, m, k), poison(m // W, n)
        total = sum(floats(x) @ floats(y) for x, y in zip(everyone(comm, a), everyone(comm, b)))
        assert mkernel.gemm_rs(a, b, c, deterministic=True) is c
        near(c, total[comm.rank * m // W : (comm.rank + 1) * m // W])
        near(mkernel.gemm_rs(a, b), total[comm.rank * m // W : (comm.rank + 1) * m // W], 0.02)
        near(mkernel.gemm_ar(a, b, deterministic=True), total)
    for m in (1, 3, 17):  # no multiple of the ranks; what lies around A and C is NaN, and stays
        around_a, around_c, b = poison(m + 40, 200), poison(m + 40, 72), bf16(rng, 200, 72)
        a, c = around_a[20 : 20 + m], around_c[20 : 20 + m]
        a[:] = bf16(rng, m, 200)
        total = sum(floats(x) @ floats(y) for x, y in zip(everyone(comm, a), everyone(comm, b)))
        for options in ("", "shots=1", "shots=2") if comm.nodes == 1 else ("",):
            c[:] = 0xFFFF
            assert mkernel.gemm_ar(a, b, c, deterministic=True, options=options) is c
            near(c, total)
        near(mkernel.gemm_ar(a, b), total, 0.02)
        for array in (around_a, around_c):
            assert (array[:20] == 0xFFFF).all() and (array[20 + m :] == 0xFFFF).all()
    comm.close()


@case
def gemms_of_two_ranks_are_right():
    ranks(2, gemms, 1)


@case
def gemms_of_two_nodes_over_softnic_are_right():
    """Which also shows that the wheel's libsoftnic is found beside its libmkernel."""
    if not any(name.startswith("libsoftnic") for name in os.listdir(os.path.dirname(mkernel.__file__))):
        raise Skip("this build has no softnic")
    ranks(2, gemms, 2)


@scene
def halves(device):
    """numpy.float16 in place of bf16."""
    comm = mkernel.init(timeout_ns=MINUTE, device=device)
    rng, W, r, m, n, k = numpy.random.default_rng(comm.rank), comm.world, comm.rank, 48, 72, 200
    fp16 = lambda *shape: (rng.standard_normal(shape) / 4).astype(numpy.float16)

    def close(got, wanted, bound=4e-4):
        assert got.dtype == numpy.float16 and got.shape == wanted.shape
        assert numpy.linalg.norm(got.astype(float) - wanted) < bound * numpy.linalg.norm(wanted)

    a, b, bias = fp16(m // W, k), fp16(k, n), fp16(n)
    whole = mkernel.all_gather(a)
    assert whole.dtype == numpy.float16 and (whole[r * m // W : (r + 1) * m // W] == a).all()
    product = whole.astype(float) @ b.astype(float)
    out = numpy.full((m, n), numpy.nan, numpy.float16)
    assert mkernel.ag_gemm(a, b, out) is out and "dtype=fp16" in comm.plans[-1].options
    close(out, product)
    close(mkernel.ag_gemm(a, b, bias=bias), product + bias)
    at_home = mkernel.empty((m // W, k), numpy.float16)
    at_home[:] = a
    assert (mkernel.ag_gemm(at_home, numpy.ascontiguousarray(b.T).T) == out).all()
    del at_home
    assert mkernel.all_to_all(whole).dtype == numpy.float16
    own = slice(r * m // W, (r + 1) * m // W)
    every = sum(x.astype(float) @ y.astype(float) for x, y in zip(everyone(comm, whole), everyone(comm, b)))
    close(mkernel.gemm_rs(whole, b, deterministic=True), every[own])
    close(mkernel.gemm_rs(whole, b), every[own], 1e-3)
    sums = mkernel.gemm_ar(whole[:3], b, deterministic=True)
    close(sums, every[:3])
    residual, weight = numpy.ones((3, n), numpy.float16), numpy.full(n, 2, numpy.float16)
    normed, after = mkernel.gemm_ar(whole[:3], b, residual=residual, norm_weight=weight, deterministic=True)
    assert (after == (sums.astype(numpy.float32) + 1).astype(numpy.float16)).all()
    close(normed, 2 * after.astype(float) / numpy.sqrt((after.astype(float) ** 2).mean(1, keepdims=True) + 1e-6), 1e-3)
    close(mkernel.reduce_scatter(whole), sum(x.astype(float) for x in everyone(comm, whole))[own])
    large = numpy.full((8, 8), 128, numpy.float16)  # 8 * 128 * 128: beyond 65504
    assert (mkernel.ag_gemm(large, large) == numpy.inf).all() and (mkernel.gemm_ar(large, -large) == -numpy.inf).all()
    assert mkernel.ag_gemm(mkernel.to_bf16(a), mkernel.to_bf16(b)).dtype == numpy.uint16  # a plan of its own
    refuses("B is of uint16, and should be of float16", mkernel.ag_gemm, a, mkernel.to_bf16(b))
    refuses("B is of float16, and should be of uint16 or bfloat16", mkernel.ag_gemm, mkernel.to_bf16(a), b)
    refuses("C is [48, 72] of uint16, and should be [48, 72] of float16", mkernel.ag_gemm, a, b, numpy.zeros((m, n), numpy.uint16))
    refuses("the arrays say the type", mkernel.ag_gemm, a, b, options="dtype=bf16")
    refuses("the same bits everywhere with dtype=fp16: of gemm_ar it is for bf16", mkernel.gemm_ar, fp16(8, 512), fp16(512, 8), deterministic="everywhere")
    refuses("K is of float16, and should be of uint16 or bfloat16", mkernel.ring_attention, *[numpy.zeros((1, 8, 1, 64), t) for t in ("uint16", "float16", "uint16")])
    comm.close()


@case
def fp16_is_taken_in_place_of_bf16():
    ranks(2, halves, "cpu")


@case
def fp16_is_taken_by_emulated_gpus_too():
    ranks(2, halves, "emulated")


@scene
def leading():
    comm = mkernel.init(timeout_ns=MINUTE)
    rng, W, r = numpy.random.default_rng(comm.rank), comm.world, comm.rank
    S, B, n, k = 6 * W, 3, 40, 16
    b = bf16(rng, k, n)
    shard, whole = bf16(rng, S // W, B, k), bf16(rng, S, B, k)
    joined = numpy.concatenate(list(everyone(comm, shard)))
    bias = bf16(rng, n)
    near(mkernel.ag_gemm(shard, b, bias=bias), floats(joined) @ floats(b) + floats(bias))
    near(mkernel.ag_gemm(shard, b), floats(joined) @ floats(b))
    assert (mkernel.all_gather(shard) == joined).all()
    out = numpy.full((S, B, n), 0xFFFF, numpy.uint16)
    assert mkernel.ag_gemm(shard, b, out) is out and (out == mkernel.ag_gemm(shard, b)).all()
    total = sum(floats(x) @ floats(y) for x, y in zip(everyone(comm, whole), everyone(comm, b)))
    near(mkernel.gemm_rs(whole, b, deterministic=True), total[r * S // W : (r + 1) * S // W])
    near(mkernel.gemm_ar(whole, b, deterministic=True), total)
    everywhere(comm)
    near(mkernel.gemm_ar(whole[None, :1], b, deterministic=True), total[None, :1])  # [1, 1, B, K]: no parts of rows
    alike = numpy.random.default_rng(5)
    residual, weight = bf16(alike, S, B, n), bf16(alike, n)
    after = total + floats(residual)
    near(mkernel.gemm_ar(whole, b, residual=residual, deterministic=True), after)
    normed, new_residual = mkernel.gemm_ar(whole, b, residual=residual, norm_weight=weight, eps=1e-3, deterministic=True)
    near(new_residual, after)
    wanted = after / numpy.sqrt((after**2).mean(-1, keepdims=True) + 1e-3) * floats(weight)
    near(normed, wanted)
    own = slice(r * S // W, (r + 1) * S // W)
    near(mkernel.gemm_rs(whole, b, residual=residual[own], deterministic=True), after[own])
    normed, new_residual = mkernel.gemm_rs(whole, b, residual=residual[own], norm_weight=weight, eps=1e-3, deterministic=True)
    near(new_residual, after[own])
    near(normed, wanted[own])
    blocks = everyone(comm, whole)[:, r * S // W : (r + 1) * S // W]
    assert (mkernel.all_to_all(whole) == blocks.reshape(whole.shape)).all()
    near(mkernel.reduce_scatter(whole), sum(floats(x) for x in blocks))
    codes = rng.integers(0, 256, (S // W, B, 32), numpy.uint8)
    moved = mkernel.all_gather(codes)
    assert moved.dtype == numpy.uint8 and (moved[r * S // W :][: S // W] == codes).all() and moved.shape == (S, B, 32)
    a, a_scales = mkernel.quantize(numpy.ones((S // W, B, 32), numpy.float32))
    assert (a.view(numpy.uint8) == 0x7E).all() and (a_scales == numpy.float32(1) / 448).all() and a_scales.shape == (1, B * S // W)
    ones, scales = numpy.full((S // W, 2, 32), 0x38, numpy.uint8), numpy.ones((1, 2 * S // W), numpy.float32)  # e4m3 codes of 1
    c = mkernel.ag_gemm_fp8(ones, numpy.full((n, 32), 0x38, numpy.uint8).T, scales, numpy.full((1, 4), 0.5, numpy.float32))
    assert c.dtype == numpy.uint16 and c.shape == (S, 2, n) and (floats(c) == 16).all()
    # Tokens of FP8 bring their scales, in one array.
    tokens, ids8 = numpy.full((5, 144), 2, numpy.float32), numpy.full((5, 1), r, numpy.int32)
    records = mkernel.quantize(tokens, "records")
    assert records.dtype == numpy.uint8 and records.shape == (5, 160) and (records[:, :144] == 0x7E).all()
    b8 = numpy.full((1, 24, 144), 0x38, numpy.uint8)
    c, rows = mkernel.moe_dispatch_gemm_fp8(records, b8.transpose(0, 2, 1), ids8, numpy.full((1, 1, 4), 0.5, numpy.float32))
    assert rows.tolist() == [[0, 5]] and c.dtype == numpy.uint16 and (floats(c[:5]) == 144).all()
    refuses("a record of H = 144 elements has 160 bytes", mkernel.moe_dispatch_gemm_fp8, records[:, :144].copy(), b8.transpose(0, 2, 1), ids8,
            numpy.full((1, 1, 4), 0.5, numpy.float32))
    # A layer of FP8: gates of 144 are themselves, 144 * 144 is its own scale's largest, and sums of 32 of them are exact in fp32.
    gated, down8 = numpy.full((1, 64, 144), 0x30, numpy.uint8), numpy.full((1, 144, 32), 0x38, numpy.uint8)
    y = mkernel.moe_ffn_fp8(records, gated.transpose(0, 2, 1), ids8, numpy.full((5, 1), 0.25, numpy.float32), down8.transpose(0, 2, 1),
                            numpy.ones((1, 2, 1, 4), numpy.float32), numpy.full((1, 2, 4), 0.5, numpy.float32))
    assert y.dtype == numpy.uint16 and y.shape == (5, 144) and (abs(floats(y) / (144 * 144 * 32 / 8) - 1) < 2.0 ** -8).all()
    refuses("B1_scales is [1, 2, 1, 3], and should be [1, 2, 1, 4]", mkernel.moe_ffn_fp8, records, gated.transpose(0, 2, 1), ids8,
            numpy.ones((5, 1), numpy.float32), down8.transpose(0, 2, 1), numpy.ones((1, 2, 1, 3), numpy.float32), numpy.ones((1, 2, 4), numpy.float32))
    # Tokens stay with their rank, with ids and weights.
    E, H, I, K = 2 * W, k, 24, 2
    x, b1, b2 = bf16(rng, 2, 5, H), bf16(rng, 2, H, 2 * I), bf16(rng, 2, I, H)
    ids, weights = rng.integers(0, E, (2, 5, K)).astype(numpy.int32), rng.random((2, 5, K), numpy.float32)
    flat = x.reshape(10, H), b1, ids.reshape(10, K), weights.reshape(10, K), b2
    y = mkernel.moe_ffn(x, b1, ids, weights, b2, deterministic=True)
    assert y.shape == x.shape and (y.reshape(10, H) == mkernel.moe_ffn(*flat, deterministic=True)).all()
    c, rows = mkernel.moe_dispatch_gemm(x, b1, ids)
    c_flat, rows_flat = mkernel.moe_dispatch_gemm(flat[0], b1, flat[2])
    assert c.shape == c_flat.shape and (rows == rows_flat).all()
    # What could mean two things, or nothing.
    refuses("ranks hold parts of the first dimension, which is 1; of a batch of one give A[0]", mkernel.ag_gemm, shard[None, :, 0], b)
    refuses("A is [1, 12, 16]: ranks hold parts of the first", mkernel.gemm_rs, numpy.ascontiguousarray(whole[None, :, 0]), b)
    refuses("the first dimension is divided among 2 ranks, and 3 is no multiple", mkernel.gemm_rs, whole[:3].repeat(2, 1), b)
    refuses("the first dimension is divided among 2 ranks, and 3 is no multiple", mkernel.all_to_all, whole[:3].repeat(2, 1))
    refuses("X is [2, 5, 16] and ids [10, 2]: their leading dimensions are not alike", mkernel.moe_ffn, x, *flat[1:])
    refuses("A is [18, 16] and B [24, 40]: K is one number", mkernel.ag_gemm, shard, bf16(rng, 24, n))
    refuses("C is [36, 40], and its leading dimensions should be [12, 3]", mkernel.ag_gemm, shard, b, out.reshape(S * B, n))
    refuses("C is written in place: it must be contiguous", mkernel.ag_gemm, shard, b, numpy.empty((B, S, n), numpy.uint16).swapaxes(0, 1))
    comm.close()


@case
def leading_dimensions_are_rows():
    ranks(2, leading)


@scene
def attention():
    comm = mkernel.init(timeout_ns=MINUTE)
    rng, W = numpy.random.default_rng(comm.rank), comm.world
    B, S, H, G, D = 2, 32 * W, 4, 2, 64
    q, k, v = bf16(rng, B, S // W, H, D), bf16(rng, B, S // W, G, D), bf16(rng, B, S // W, G, D)
    qs, ks, vs = (numpy.concatenate(list(floats(everyone(comm, x))), axis=1) for x in (q, k, v))
    refuses("'zigzag' or 'contiguous'", mkernel.ring_attention, q, k, v, split="zig")
    refuses(f"rank {W} of {W} ranks", mkernel.ring_attention_rows, S, rank=W, world=W)
    for causal, split in ((False, "zigzag"), (True, "zigzag"), (True, "contiguous")):
        o, lse = mkernel.ring_attention(q, k, v, causal=causal, split=split)
        assert o.shape == q.shape and lse.shape == (B, H, S // W) and lse.dtype == numpy.float32
        block = S // W // 2
        places = [r * (S // W) + i for r in range(W) for i in range(S // W)]
        if causal and split == "zigzag":  # where the rows that the ranks have stand in the sequence
            places = [p * block + i for r in range(W) for p in (r, 2 * W - 1 - r) for i in range(block)]
        order = numpy.array(places)
        mine = order[comm.rank * (S // W) : (comm.rank + 1) * (S // W)]
        rows = mkernel.ring_attention_rows(S, causal=causal, split=split)
        assert [i for run in rows for i in run] == list(mine)
        whole = numpy.arange(B * S).reshape(B, S)
        assert (mkernel.ring_attention_shard(whole, causal=causal, split=split) == whole[:, mine]).all()
        for b in range(B):
            for h in range(H):
                scores = floats(q)[b, :, h] @ ks[b, :, h // (H // G)].T / D**0.5
                if causal:
                    scores[order[None, :] > mine[:, None]] = -numpy.inf
                top = scores.max(1, keepdims=True)
                weights = numpy.exp(scores - top)
                near(o[b, :, h], weights / weights.sum(1, keepdims=True) @ vs[b, :, h // (H // G)])
                assert numpy.allclose(lse[b, h], (numpy.log(weights.sum(1)) + top[:, 0]), atol=1e-3)
    comm.close()


@case
def attention_of_two_ranks_is_right():
    ranks(2, attention)


@scene
def attention_of_any_length():
    comm = mkernel.init(timeout_ns=MINUTE)
    rng, W = numpy.random.default_rng(5), comm.world  # all ranks make the whole tensors
    B, H, G, D = 2, 4, 2, 64
    for S in (1, 17, 193):
        q, k, v = bf16(rng, B, S, H, D), bf16(rng, B, S, G, D), bf16(rng, B, S, G, D)
        for causal, split in ((False, "zigzag"), (True, "zigzag"), (True, "contiguous")):
            mine = [mkernel.ring_attention_shard(x, causal=causal, split=split) for x in (q, k, v)]
            rows = [i for run in mkernel.ring_attention_rows(S, causal=causal, split=split) for i in run]
            refuses(f"and of a sequence of {S + 900} rank", mkernel.ring_attention, *mine, causal=causal, split=split, sequence=S + 900)
            o, lse = mkernel.ring_attention(*mine, causal=causal, split=split, sequence=S)
            assert o.shape == (B, len(rows), H, D) and lse.shape == (B, H, len(rows))
            for b in range(B):
                for h in range(H):
                    scores = floats(q)[b, :, h] @ floats(k)[b, :, h // (H // G)].T / D**0.5
                    if causal:
                        scores[numpy.triu_indices(S, 1)] = -numpy.inf
                    top = scores.max(1, keepdims=True)
                    weights = numpy.exp(scores - top)
                    right = weights / weights.sum(1, keepdims=True) @ floats(v)[b, :, h // (H // G)]
                    if rows:
                        near(o[b, :, h], right[rows])
                        assert numpy.allclose(lse[b, h], (numpy.log(weights.sum(1)) + top[:, 0])[rows], atol=1e-3)
    comm.close()


@case
def attention_is_right_of_sequences_of_any_length():
    ranks(2, attention_of_any_length)
    ranks(3, attention_of_any_length)


@scene
def experts():
    comm = mkernel.init(timeout_ns=MINUTE)
    rng, W = numpy.random.default_rng(comm.rank), comm.world
    T, H, I, E, K = 40, 64, 48, 4 * W, 2
    mine = E // W
    x, b, b1, b2 = bf16(rng, T, H), bf16(rng, mine, H, I), bf16(rng, mine, H, 2 * I), bf16(rng, mine, I, H)
    ids = rng.integers(0, E, (T, K)).astype(numpy.int32)
    ids[3] = -1  # a token without experts
    weights = rng.random((T, K), numpy.float32)
    bits = everyone(comm, ids.view(numpy.uint16))  # numbers move as the bits of others
    all_ids = bits.reshape(W, T, 2 * K).copy().view(numpy.int32)
    all_x = floats(everyone(comm, x))

    c, rows = mkernel.moe_dispatch_gemm(x, b, ids)
    assert rows.shape == (mine, 2) and rows.dtype == numpy.uint32 and c.shape[1] == I
    for e in range(mine):
        tokens = [all_x[r, t] for r in range(W) for t in range(T) for k in range(K)
                  if all_ids[r, t, k] == comm.rank * mine + e]
        first, count = rows[e]
        assert count == len(tokens) and first + count <= c.shape[0]
        if count:
            near(c[first : first + count], numpy.array(tokens) @ floats(b)[e])

    # The same without a product: rows, and back by weight.
    rows, counts = mkernel.moe_dispatch(x, ids, experts=E)
    assert counts.shape == (mine, 2) and counts.dtype == numpy.uint32 and rows.shape[1] == H and (counts[:, 0] % 32 == 0).all()
    for e in range(mine):
        tokens = [all_x[r, t] for r in range(W) for t in range(T) for k in range(K) if all_ids[r, t, k] == comm.rank * mine + e]
        first, count = counts[e]
        assert count == len(tokens) and (not count or (floats(rows[first : first + count]) == numpy.array(tokens)).all())
    halves = numpy.full((T, K), 1 / K, numpy.float32)
    y = mkernel.moe_combine(rows, ids, halves, experts=E)
    once = numpy.array([[all_ids[comm.rank, t, k] >= 0 for k in range(K)] for t in range(T)]).any(1)
    assert y.shape == x.shape and (y[once] == x[once]).all() and not floats(y[~once]).any()
    kept = numpy.empty_like(y)
    assert mkernel.moe_combine(rows, ids, weights, kept, experts=E) is kept
    near(kept, floats(x) * numpy.where(ids >= 0, weights, 0).sum(1, keepdims=True))
    folded = mkernel.moe_dispatch(x.reshape(8, 5, H), ids.reshape(8, 5, K), experts=E)
    assert all((a == b).all() for a, b in zip(folded[1:], (counts,))) and folded[0].shape == rows.shape
    roomy, _ = mkernel.moe_dispatch(x, ids, experts=E, capacity=rows.shape[0])
    assert roomy.shape[0] <= rows.shape[0]
    refuses("'capacity=-1' is not valid", mkernel.moe_dispatch, x, ids, experts=E, capacity=-1)
    refuses("does not divide by", mkernel.moe_dispatch, x, ids, experts=E + 1)
    refuses("of these ids and experts it has", mkernel.moe_combine, rows[:-1], ids, weights, experts=E)
    refuses("E, experts, is what no array says: give experts=", comm.launch, "moe_dispatch", (x, ids))
    records = mkernel.quantize(x, "records")
    moved, of_fp8 = mkernel.moe_dispatch_fp8(records, ids, experts=E, hidden=H)
    assert moved.dtype == numpy.uint8 and moved.shape == (rows.shape[0], records.shape[1]) and (of_fp8 == counts).all()
    bits = everyone(comm, records.reshape(T, -1).view(numpy.uint16)).reshape(W, T, -1)
    for e in range(mine):
        at = [bits[r, t] for r in range(W) for t in range(T) for k in range(K) if all_ids[r, t, k] == comm.rank * mine + e]
        first, count = of_fp8[e]
        assert not count or (moved[first : first + count].view(numpy.uint16) == numpy.array(at)).all()
    refuses("a record of H = 80 elements has 96 bytes", mkernel.moe_dispatch_fp8, records, ids, experts=E, hidden=80)

    # A count, another on each rank and in each call of one plan: tokens behind it, which name experts, are not looked at.
    for call in range(6):
        now = (call * 9 + comm.rank * 11) % (T + 1) if call else 0
        few, count = ids.copy(), numpy.array([now], numpy.int32)
        few[now:] = -1
        _, wanted = mkernel.moe_dispatch(x, few, experts=E)
        moved, counts = mkernel.moe_dispatch(x, ids, experts=E, count=count)
        _, of_gemm = mkernel.moe_dispatch_gemm(x, b, ids, count=count[0:1].view(numpy.uint32))
        assert (counts == wanted).all() and (of_gemm[:, 1] == wanted[:, 1]).all()
        back, y = numpy.full_like(x, 0xffff), numpy.full_like(x, 0xffff)
        mkernel.moe_combine(moved, ids, halves, back, experts=E, count=count)
        assert (back[:now] == mkernel.moe_combine(moved, few, halves, experts=E)[:now]).all() and (back[now:] == 0xffff).all()
        assert mkernel.moe_ffn(x, b1, ids, weights, b2, y, count=count) is y
        assert (y[:now] == mkernel.moe_ffn(x, b1, few, weights, b2)[:now]).all() and (y[now:] == 0xffff).all()
    refuses("count is [2], and", mkernel.moe_ffn, x, b1, ids, weights, b2, count=numpy.array([1, 2], numpy.int32))

    y = mkernel.moe_ffn(x, b1, ids, weights, b2, deterministic=True)
    all_b1, all_b2 = (floats(everyone(comm, w)).reshape(E, *w.shape[1:]) for w in (b1, b2))
    wanted = numpy.zeros((T, H))
    for t in range(T):
        for k in range(K):
            if 0 <= ids[t, k] < E:
                up = floats(x)[t] @ all_b1[ids[t, k]]
                gate = up[:I]
                wanted[t] += weights[t, k] * ((gate / (1 + numpy.exp(-gate)) * up[I:]) @ all_b2[ids[t, k]])
    near(y, wanted, 0.02)
    assert not y[3].any()
    back = mkernel.moe_ffn(x, b1, ids, weights, b2, options="back=fp8")
    near(back, wanted, 0.06)
    assert (back != mkernel.moe_ffn(x, b1, ids, weights, b2)).any()
    refuses("back=fp8 with deterministic sums", mkernel.moe_ffn, x, b1, ids, weights, b2, deterministic=True, options="back=fp8")
    comm.close()


@case
def experts_of_two_ranks_are_right():
    ranks(2, experts)


@scene
def in_halves(device, nodes):
    """Two batches under way at once, and another operator between."""
    comm = mkernel.init(device=device, nodes=int(nodes), nic="soft" if int(nodes) > 1 else None, timeout_ns=MINUTE)
    rng, W = numpy.random.default_rng(comm.rank), comm.world
    T, H, E, K = 24, 64, 4 * W, 2
    weights = rng.random((T, K), numpy.float32)
    for launch in range(3):
        x, ids = [bf16(rng, T, H) for _ in range(2)], [rng.integers(-1, E, (T, K)).astype(numpy.int32) for _ in range(2)]
        wanted = [mkernel.moe_dispatch(*of, experts=E) for of in zip(x, ids)]
        begun = [mkernel.moe_dispatch(*of, experts=E, begin=1 + i) for i, of in enumerate(zip(x, ids))]
        refuses("a launch of this plan of moe_dispatch has begun and not ended: call mk_launch_end first", mkernel.moe_dispatch, x[0], ids[0], experts=E, begin=True)
        everyone(comm, x[0])
        got = [hook() if launch else hook.end() for hook in begun]
        refuses("this launch of moe_dispatch has been ended", begun[1].end)
        for i in range(2):
            assert (got[i][1] == wanted[i][1]).all()
            for first, count in wanted[i][1]:
                assert (got[i][0][first : first + count] == wanted[i][0][first : first + count]).all()
        sums, out = [mkernel.moe_combine(rows, of, weights, experts=E) for (rows, _), of in zip(wanted, ids)], numpy.empty_like(x[1])
        back = [mkernel.moe_combine(got[0][0], ids[0], weights, experts=E, begin=7), mkernel.moe_combine(got[1][0], ids[1], weights, out, experts=E, begin=8)]
        back = [hook.end() for hook in reversed(back)]
        assert back[0] is out and (out == sums[1]).all() and (back[1] == sums[0]).all()
    records = mkernel.quantize(x[0], "records")
    few = mkernel.moe_dispatch_fp8(records, ids[0], experts=E, hidden=H, count=numpy.array([5], numpy.int32), begin=True)
    assert few.end()[1][:, 1].sum() <= 5 * K * W
    refuses("all_gather has whole launches; it is of moe_dispatch and moe_combine", comm.begin, "all_gather", (x[0],))
    lost = mkernel.moe_dispatch(x[0], ids[0], experts=E, begin=True)
    del lost  # the next of its number ends it
    again = mkernel.moe_dispatch(x[0], ids[0], experts=E, begin=True).end()
    assert (again[1] == wanted[0][1]).all()
    mkernel.moe_dispatch(x[0], ids[0], experts=E, begin=True)  # and is never ended: nobody waits for that
    comm.close()


@case
def tokens_travel_while_a_program_computes():
    ranks(2, in_halves, "cpu", 1)
    ranks(2, in_halves, "cpu", 2)
    ranks(2, in_halves, "emulated", 1)


# ---- experts that several ranks hold ----


@scene
def copies():
    """What comes out is what logical experts make, whichever ranks hold them; and another map is told between launches of one plan."""
    comm = mkernel.init(timeout_ns=MINUTE)
    W, same, own = comm.world, numpy.random.default_rng(3), numpy.random.default_rng(10 + comm.rank)
    T, H, I, K, mine = 24, 64, 48, 2, 4
    E, L = mine * W, mine * W - W
    all_b, all_b1, all_b2 = bf16(same, L, H, I), bf16(same, L, H, 2 * I), bf16(same, L, I, H)
    x, weights = bf16(own, T, H), own.random((T, K), numpy.float32)
    ids = numpy.array([own.permutation(L)[:K] for _ in range(T)], numpy.int32)
    ids[own.random((T, K)) < 0.4] = 0  # the first has the most to do; some name it twice
    ids[3], ids[4, 0] = -1, L  # no expert of the model's, though ranks hold more
    wanted = numpy.zeros((T, H))
    for t in range(T):
        for k in range(K):
            if 0 <= ids[t, k] < L:
                up = floats(x)[t] @ floats(all_b1)[ids[t, k]]
                wanted[t] += weights[t, k] * ((up[:I] / (1 + numpy.exp(-up[:I])) * up[I:]) @ floats(all_b2)[ids[t, k]])
    loads = numpy.bincount(ids[(ids >= 0) & (ids < L)], minlength=E)
    loads = sum(floats(everyone(comm, mkernel.to_bf16(loads.astype(numpy.float32))).reshape(W, E)))[:L]
    balanced = mkernel.balance_experts(loads, E)
    assert balanced.logical == L and sum(slot >= 0 for slot in balanced.slots[0]) == W and mkernel.balance_experts(list(loads), E, ranks=W).slots == balanced.slots
    reverse = numpy.full((L, 3), -1, numpy.int64)  # one copy each, from the last slot down, then some more
    reverse[:, 1] = E - 1 - numpy.arange(L)
    reverse[: E - L, 2] = numpy.arange(E - L)
    plain = list(range(L))
    for expert_map in (balanced, reverse, plain, balanced, mkernel.ExpertMap(reverse)):
        held = (expert_map if isinstance(expert_map, mkernel.ExpertMap) else mkernel.ExpertMap(expert_map)).held(E)
        here = held[comm.rank * mine : (comm.rank + 1) * mine]  # of slots that hold nothing the last one's weights, which nobody multiplies
        b1, b2, b = (w[here] for w in (all_b1, all_b2, all_b))
        near(mkernel.moe_ffn(x, b1, ids, weights, b2, expert_map=expert_map), wanted, 0.02)
        rows, counts = mkernel.moe_dispatch(x, ids, experts=E, expert_map=expert_map)
        c, of_gemm = mkernel.moe_dispatch_gemm(x, b, ids, expert_map=expert_map)
        assert (of_gemm[:, 1] == counts[:, 1]).all()
        for slot, (first, count) in enumerate(counts):
            assert here[slot] >= 0 or not count
            if count:
                near(c[of_gemm[slot, 0] : of_gemm[slot, 0] + count], floats(rows[first : first + count]) @ floats(b)[slot])
        back = mkernel.moe_combine(rows, ids, weights, experts=E, expert_map=expert_map)
        near(back, floats(x) * numpy.where((ids >= 0) & (ids < L), weights, 0).sum(1, keepdims=True))
        again = mkernel.moe_ffn(x, b1, ids, weights, b2, expert_map=expert_map)
        assert (again == mkernel.moe_ffn(x, b1, ids, weights, b2, expert_map=expert_map)).all()
    assert len(comm.plans) == 5, comm.plans  # all_gather's, and one of each operator, whatever maps it was told
    lost = numpy.arange(L)
    lost[0] = -1  # an expert that no rank holds: its places are left out
    dropped = mkernel.moe_combine(mkernel.moe_dispatch(x, ids, experts=E, expert_map=lost)[0], ids, weights, experts=E, expert_map=lost)
    near(dropped, floats(x) * numpy.where((ids > 0) & (ids < L), weights, 0).sum(1, keepdims=True))
    refuses(f"expert 1 has a copy in slot {E}: the ranks have slots 0 to {E - 1}", mkernel.moe_dispatch, x, ids, experts=E, expert_map=[0, E, *range(2, L)])
    refuses("slot 1 is of expert 1 and of expert 2", mkernel.moe_dispatch, x, ids, experts=E, expert_map=[0, 1, 1, *range(3, L)])
    refuses("is an array of whole numbers", mkernel.moe_dispatch, x, ids, experts=E, expert_map=[0.5, 1])
    refuses("is an array of whole numbers", mkernel.ExpertMap, [[0, 1], [2]])
    refuses("there is no such map", comm.launch, "moe_dispatch", (x, ids), options=f"experts={E} logical={L} expert_map=99999")
    refuses("copies lie at several places", mkernel.moe_ffn, x, b1, ids, weights, b2, expert_map=balanced, deterministic="everywhere")
    refuses("these are as many as the logical ones or more", mkernel.balance_experts, loads, L - 1, ranks=1)
    for hostile in ({"experts": 2**32 + E}, {"ranks": 2**32 + 1, "experts": (2**32 + 1) * E}, {"nodes": 2**32 + 1, "ranks": 2**32 + 1}, {"copies": 2**32 + 1},
                    {"copies": -1}, {"nodes": -1}, {"ranks": -1}):
        refuses("these are as many as the logical ones or more", mkernel.balance_experts, **{"loads": loads, "experts": E, "ranks": 1, **hostile})
    refuses("loads are finite numbers", mkernel.balance_experts, [1.0, float("nan")], 2, ranks=1)
    assert (dropped == mkernel.moe_combine(mkernel.moe_dispatch(x, ids, experts=E, expert_map=lost)[0], ids, weights, experts=E, expert_map=lost)).all()
    comm.close()


@case
def copies_of_experts_are_right():
    for count in (2, 4):
        ranks(count, copies)


# ---- layouts ----


@scene
def layouts():
    comm = mkernel.init(timeout_ns=MINUTE)
    rng = numpy.random.default_rng(1)
    a, b = bf16(rng, 32, 64), bf16(rng, 64, 48)
    c = mkernel.ag_gemm(a, b)
    # Swapped in memory: no copy, so another plan, of a B that is [N, K]; the same products.
    swapped = numpy.ascontiguousarray(b.T).T
    near(mkernel.ag_gemm(a, swapped), floats(c))
    assert len(comm.plans) == 2
    # Neither way, or not aligned: copied.
    wide = numpy.zeros((32, 80), numpy.uint16)
    wide[:, 3:67] = a
    assert (mkernel.ag_gemm(wide[:, 3:67], b) == c).all()
    raw = numpy.zeros(a.size + 1, numpy.uint16)
    odd = raw[1:].reshape(a.shape)
    odd[...] = a
    assert odd.ctypes.data % 16 and odd.flags.c_contiguous
    assert (mkernel.ag_gemm(odd, b) == c).all()
    raw = numpy.zeros(b.size + 1, numpy.uint16)
    odd = raw[1:].reshape(b.shape[::-1]).T
    odd[...] = b
    assert odd.ctypes.data % 16 and (mkernel.ag_gemm(a, odd) == mkernel.ag_gemm(a, swapped)).all()
    assert len(comm.plans) == 2, comm.plans  # none of these needs another
    # What is written must lie as it is.
    refuses("C is written in place", mkernel.ag_gemm, a, b, numpy.zeros((32, 96), numpy.uint16)[:, ::2])
    at_odds = numpy.zeros(32 * 48 + 1, numpy.uint16)[1:].reshape(32, 48)
    refuses("C is written in place: it must be aligned to 16 bytes", mkernel.ag_gemm, a, b, at_odds)
    refuses("C is a list, and the inputs are numpy's arrays", mkernel.ag_gemm, a, b, [1])
    refuses("C is [32, 47] of uint16, and should be [32, 48]", mkernel.ag_gemm, a, b, numpy.zeros((32, 47), numpy.uint16))
    refuses("C is [32, 48] of float32", mkernel.ag_gemm, a, b, numpy.zeros((32, 48), numpy.float32))
    comm.close()


@case
def an_input_is_read_where_it_lies_or_copied():
    ranks(1, layouts)


@scene
def uneven():
    """Causal zigzag of an odd number of rows a rank, where ranks hold other numbers than their arrays have, is refused on all ranks: also on one (rank 2
    of 5 with 3 rows each) that holds as many."""
    comm = mkernel.init(timeout_ns=MINUTE)
    for each in (3, 37):
        x = numpy.zeros((1, each, 2, 64), numpy.uint16)
        held = [sum(map(len, mkernel.ring_attention_rows(each * comm.world, causal=True, rank=rank))) for rank in range(comm.world)]
        e = refuses(f"Q has {each} rows, and of a sequence of {each * comm.world} ranks hold {held[0]} (rank 0), {held[1]} (rank 1)", mkernel.ring_attention, x, x, x, causal=True)
        says(str(e), "give sequence= and the rows that ring_attention_shard cuts")
        assert mkernel.ring_attention(x, x, x)[0].shape == x.shape  # without a mask, and contiguous, ranks hold what the arrays have
        assert mkernel.ring_attention(x, x, x, causal=True, split="contiguous")[0].shape == x.shape
    comm.close()


@case
def uneven_rows_of_attention_are_refused():
    ranks(2, uneven)
    ranks(5, uneven)


@scene
def arrays_of_numpy():
    """What numpy says of an array beside shape and type counts, and in a call that a call of a plain array has made ready: byte order, whether it may be
    written, masks; and what is pasted into options is one word, a number or a known name."""
    comm = mkernel.init(timeout_ns=MINUTE, heap_bytes=8 << 20)
    rng = numpy.random.default_rng(3)
    a, b, x = bf16(rng, 16 * comm.world, 32), bf16(rng, 32, 24), bf16(rng, 8, 32)
    ids = rng.integers(0, 4, (8, 2)).astype(numpy.int32)
    out, residual = numpy.empty((16 * comm.world, 24), numpy.uint16), bf16(rng, 16 * comm.world, 24)
    plain = mkernel.gemm_ar(a, b, out, deterministic=True).copy()
    mkernel.moe_dispatch(x, ids, experts=4)
    refuses("ids is of >i4", mkernel.moe_dispatch, x, ids.astype(">i4"), experts=4)
    refuses("A is of >u2", mkernel.gemm_ar, a.astype(">u2"), b, out, deterministic=True)
    refuses("A is a MaskedArray", mkernel.gemm_ar, numpy.ma.masked_array(a), b, out, deterministic=True)
    refuses("x is of >f4", mkernel.quantize, numpy.zeros((4, 128), ">f4"), "row")
    refuses("x is of >u2", mkernel.from_bf16, a.astype(">u2"))
    swapped = out.astype(">u2")
    refuses("C is [", mkernel.gemm_ar, a, b, swapped, deterministic=True)
    out[:] = 7
    out.flags.writeable = False
    refuses("C is read-only, and is written in place", mkernel.gemm_ar, a, b, out, deterministic=True)
    assert (out == 7).all()
    a.flags.writeable = False  # an input may be
    assert (mkernel.gemm_ar(a, b, deterministic=True) == plain).all()
    assert (mkernel.gemm_ar(a[::-1][::-1], b[:, ::-1][:, ::-1], deterministic=True) == plain).all()
    refuses("C and residual of mk_gemm_ar share memory", mkernel.gemm_ar, a, b, residual, residual=residual)
    own = residual[comm.rank * 16 : comm.rank * 16 + 16].copy()
    refuses("C and residual of mk_gemm_rs share memory", mkernel.gemm_rs, a, b, own, residual=own)
    c, weight, wanted = numpy.empty_like(residual), bf16(rng, 24), residual.copy()
    normed = mkernel.gemm_ar(a, b, residual=residual, norm_weight=weight, deterministic=True)
    mkernel.gemm_ar(a, b, (c, residual), residual=residual, norm_weight=weight, deterministic=True)  # a norm's residual is updated in place
    assert (c == normed[0]).all() and (residual == normed[1]).all() and (residual != wanted).any()
    refuses("activation='silu pace=3': it is 'silu' or 'gelu_tanh'", mkernel.ag_gemm, a, b, activation="silu pace=3")
    refuses("eps='1e-6 pace=3': it is a number", mkernel.gemm_ar, a, b, residual=wanted, norm_weight=weight, eps="1e-6 pace=3")
    refuses("experts=4.5: it is a whole number", mkernel.moe_dispatch, x, ids, experts=4.5)
    refuses("capacity='9 pace=3': it is a whole number", mkernel.moe_dispatch, x, ids, experts=4, capacity="9 pace=3")
    refuses("a sequence of 18446744073709551690", mkernel.ring_attention, *[numpy.zeros((1, 37, 2, 64), numpy.uint16)] * 3, sequence=2**64 + 74)
    refuses("has a 0 in it", mkernel.ag_gemm, a[:16], b, options="tile=32,32\0pace=3")
    refuses("less than 2^63 bytes", mkernel.empty, (1 << 62, 16))
    refuses("dimensions are whole numbers", mkernel.empty, (8, 2.5))
    comm.close()


@case
def an_array_is_taken_as_numpy_has_it_or_refused():
    ranks(2, arrays_of_numpy)


@scene
def refusals():
    refuses("there is no communicator: call mkernel.init first", mkernel.ag_gemm, numpy.zeros((8, 8), numpy.uint16), None)
    refuses("device='gpu': cpu, cuda, cuda:N or emulated", mkernel.init, device="gpu")
    refuses("import torch before mkernel.init", mkernel.init, device="cuda")
    refuses("there is no setting 'heap'; these are: exec, rank", mkernel.init, heap=5)
    comm = mkernel.init(timeout_ns=MINUTE, heap_bytes=1 << 20)
    a, b = numpy.zeros((32, 64), numpy.uint16), numpy.zeros((64, 48), numpy.uint16)
    refuses("A is of float32, and should be of uint16 or bfloat16", mkernel.ag_gemm, a.astype(numpy.float32), b)
    refuses("A is a list; all arguments are numpy's arrays", mkernel.ag_gemm, [1, 2], b)
    refuses("64 is not 60", mkernel.gemm_rs, a, b[:60])
    refuses("B has 1 dimensions, [64], and should have 2", mkernel.gemm_ar, a, b[:, 0].copy())
    e = refuses("the next N that works is 48", mkernel.ag_gemm, a, b[:, :44].copy())  # the library's own
    assert e.errno == 22 and isinstance(e, ValueError) and isinstance(e, mkernel.Error)
    refuses("'tyle=1' is no option of a plan", mkernel.ag_gemm, a, b, options="tyle=1")
    refuses("options='tile=16,16\\x00pace=3' has a 0 in it", mkernel.ag_gemm, a, b, options="tile=16,16\0pace=3")
    refuses("tuning='a\\x00b' has a 0 in it", mkernel.init, tuning="a\0b")
    ids = numpy.zeros((32, 2), numpy.uint32)
    refuses("besides them sms, dtype, capacity, logical, overflow, tokens, launch, engine", mkernel.moe_dispatch, a, ids, experts=4, options="tyle=1")
    refuses("experts=four: it is a number, as in experts=64", comm.launch, "moe_dispatch", (a, ids), options="experts=four")
    refuses("open the communicator with heap_bytes of at least", mkernel.all_gather, numpy.zeros((4096, 512), numpy.uint16))
    refuses("each dimension is 1 at least", mkernel.empty, (0, 8))
    refuses("are free; open it with more heap_bytes", mkernel.empty, (1 << 20,))
    assert mkernel.ag_gemm(a, b, options="tile=16,16").shape == (32, 48)  # it is still open
    says(comm.plans[-1].options, "tile=16,16")
    plan = comm.plans[-1]
    comm.close()
    refuses("closed", lambda: plan.options)
    refuses("closed", mkernel.ag_gemm, a, b)


@case
def what_makes_no_sense_is_refused_with_a_sentence():
    ranks(1, refusals)


@case
def bf16_rounds_as_the_library_does():
    x = numpy.array([1.0, -2.5, 1 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, numpy.inf, numpy.nan], numpy.float32)
    bits = mkernel.to_bf16(x)
    assert list(bits[:7]) == [0x3F80, 0xC020, 0x3F80, 0x3F80, 0x3F82, 0x7F80, 0x7F80], [hex(b) for b in bits]
    assert numpy.isnan(mkernel.from_bf16(bits)[7]) and (mkernel.from_bf16(bits)[:2] == x[:2]).all()


# ---- plans, memory, lifetimes ----


@scene
def caching():
    comm = mkernel.init(timeout_ns=MINUTE)
    rng = numpy.random.default_rng(comm.rank)
    a, b = bf16(rng, 32, 64), bf16(rng, 64, 48)
    for _ in range(5):
        mkernel.ag_gemm(a, b)
    assert len(comm.plans) == 1
    plan = comm.plans[0]
    assert plan.op == "ag_gemm" and plan.shape == (64, 48, 64) and plan.flop == 2 * 64 * 48 * 64
    assert plan.tiles > 0 and plan.nvlink_bytes == 32 * 64 * 2 and plan.network_bytes == 0 and plan.heap_bytes > 0
    mkernel.ag_gemm(a, b, options=plan.options)
    assert len(comm.plans) == 2 and comm.plans[1].options == plan.options
    # In the heap A is not copied in first: a plan of its own, for arrays that begin there alone.
    h = mkernel.empty((64, 64))
    assert not h.any() and h.dtype == numpy.uint16 and h.ctypes.data % 128 == 0
    h[:32] = a
    wanted = mkernel.ag_gemm(a, b)
    assert (mkernel.ag_gemm(h[:32], b) == wanted).all() and len(comm.plans) == 3
    h[32:] = a
    assert (mkernel.ag_gemm(h[32:], b) == wanted).all() and len(comm.plans) == 3
    # Another communicator beside it has its own plans; `comm` chooses.
    del h
    comm.close()


@scene
def churn():
    """300 shapes that are more than the heap has room for, then 300 that are more plans than are kept. A trace tells them apart."""
    comm = mkernel.init(timeout_ns=MINUTE, heap_bytes=1 << 20, trace_events=256)
    rng, room = numpy.random.default_rng(comm.rank), 1 << 20
    b, first, taken = bf16(rng, 64, 16), None, 0
    for rows in range(1, 301):
        a = bf16(rng, rows, 64)
        c = mkernel.ag_gemm(a, b)
        near(c[comm.rank * rows : (comm.rank + 1) * rows], floats(a) @ floats(b))
        taken += comm.plans[-1].heap_bytes
        first = first or comm.plans[0]
    assert taken > 10 * room > room >= sum(plan.heap_bytes for plan in comm.plans) > room // 2, taken
    refuses("the plan was dropped for others", lambda: first.options)
    says(repr(first), "ag_gemm 2,16,64 dropped")
    e = refuses("needs", mkernel.ag_gemm, bf16(rng, 5000, 64), b)  # never fits: nothing goes for it
    assert e.errno == errno.E2BIG
    assert len(comm.plans) > 1
    a = bf16(rng, 1, 64)
    for columns in range(8, 8 * 301, 8):
        b = bf16(rng, 64, columns)
        near(mkernel.ag_gemm(a, b)[comm.rank : comm.rank + 1], floats(a) @ floats(b))
        if columns == 8:
            kept = mkernel.ag_gemm(a, b)
            used, oldest = b, comm.plans[-1]
        elif columns % 400 == 0:  # used again and again: it stays
            assert (mkernel.ag_gemm(a, used) == kept).all() and oldest in comm.plans
    assert len(comm.plans) == 256 and comm.plans[-1].shape == (2, 2400, 64)
    columns = (8 * 290, 8 * 274, 8 * 258, 8 * 290)  # their plans' numbers have the same low bits
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "churn.db")
        with mkernel.trace(path):
            for n in columns:
                mkernel.ag_gemm(a, bf16(rng, 64, n))
        if comm.rank == 0:
            assert list(mkernel.frame(path, "SELECT plan.n FROM launch JOIN plan ON plan.id = launch.plan ORDER BY launch.id")["n"]) == list(columns)
    comm.close()


@case
def hundreds_of_shapes_pass_through_one_communicator():
    ranks(2, churn)


@case
def plans_are_made_once_for_a_shape():
    ranks(2, caching)


@scene
def lifetimes():
    comm = mkernel.init(timeout_ns=MINUTE)
    h = mkernel.empty((16, 16))
    view = h[4:8].T
    refuses("1 arrays of mkernel.empty still exist: delete them before close()", comm.close)
    del h
    gc.collect()
    refuses("1 arrays of mkernel.empty still exist", comm.close)  # its view still does
    view[...] = 7
    assert (view == 7).all()
    del view
    gc.collect()
    comm.close()
    comm.close()  # twice is once
    # An array keeps its communicator, which nobody else names any more.
    other = mkernel.Communicator(comm._arrays, "cpu", rank=0, nodes=1, gpus=1)
    kept = other.empty((8, 8), numpy.float32)
    del other
    gc.collect()
    kept[...] = 5
    assert (kept == 5).all() and kept.dtype == numpy.float32


@case
def an_array_of_the_heap_keeps_the_communicator():
    ranks(1, lifetimes)


@scene
def several():
    """Two communicators of a process; the second is used where it is named."""
    first = mkernel.init(timeout_ns=MINUTE)
    second = mkernel.Communicator(first._arrays, "cpu", rank=0, nodes=1, gpus=1)
    a, b = numpy.zeros((32, 64), numpy.uint16), numpy.zeros((64, 48), numpy.uint16)
    mkernel.ag_gemm(a, b, comm=second)
    assert not first.plans and len(second.plans) == 1 and mkernel.default() is first
    with second:
        pass
    assert second.closed and not first.closed
    # Threads wait for each other.
    wrong = []

    def work(seed):
        rng = numpy.random.default_rng(seed)
        x, w = bf16(rng, 32, 64), bf16(rng, 64, 48)
        wanted = floats(x) @ floats(w)
        for _ in range(50):
            c = mkernel.ag_gemm(x, w)
            if numpy.linalg.norm(floats(c) - wanted) > 0.01 * numpy.linalg.norm(wanted):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong and len(first.plans) == 1


@case
def communicators_and_threads_do_not_mix():
    ranks(1, several)


@scene
def waiting(pipe):
    """While a launch waits for another rank, other threads of Python go on."""
    comm = mkernel.init(timeout_ns=MINUTE)
    a, b = numpy.zeros((32, 64), numpy.uint16), numpy.zeros((64, 48), numpy.uint16)
    mkernel.ag_gemm(a, b)
    if comm.rank:
        with open(pipe) as f:  # until the other rank's thread has counted
            f.read(1)
        mkernel.ag_gemm(a, b)
    else:
        counted = []

        def count():
            while len(counted) < 1000:
                counted.append(1)
            with open(pipe, "w") as f:
                f.write("x")

        thread = threading.Thread(target=count)
        threading.Timer(0.2, thread.start).start()  # by then the launch waits
        mkernel.ag_gemm(a, b)  # which ends only once the thread has counted
        assert len(counted) == 1000
    comm.close()


@case
def a_launch_that_waits_does_not_hold_the_interpreter():
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        ranks(2, waiting, pipe)


@scene
def alone(nodes):
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "MKERNEL_TOKEN"):
        del os.environ[name]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        comm = mkernel.init(nodes=int(nodes) or None, nic="soft" if int(nodes) else None, timeout_ns=MINUTE)
    assert comm.world == 2 and comm.nodes == (int(nodes) or 1)
    said = [str(one.message) for one in said]
    assert len(said) == (0 if comm.rank else 1 if int(nodes) else 2), said
    if said:
        says(said[-1], "the launcher gives the job no secret")
    if len(said) == 2:
        says(said[0], "all are taken for one node's; nodes=N says otherwise")
    comm.close()


@case
def ranks_without_local_numbers_are_one_node_s_and_rank_0_says_so_and_that_there_is_no_secret():
    ranks(2, alone, 0)
    ranks(2, alone, 2)


@scene
def ending(how):
    """Rank 1 ends in the middle of things; rank 0 waits for it in a launch and learns at once which rank left, and why."""
    comm = mkernel.init(timeout_ns=MINUTE)
    a, b = numpy.zeros((32, 64), numpy.uint16), numpy.zeros((64, 48), numpy.uint16)
    if comm.rank == 1:
        mkernel.ag_gemm(a, b)
    if comm.rank == 1 and how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if comm.rank == 1 and how == "with":
        with comm:
            raise ValueError("a bad\0batch")
    if comm.rank == 1 and how == "exit":
        sys.exit(1)
    if comm.rank == 1:
        raise ValueError("a bad batch")
    began = time.monotonic()
    try:
        mkernel.ag_gemm(a, b)
        mkernel.ag_gemm(a, b)
    except mkernel.Error as e:
        said = str(e)
    says(said, {"killed": "rank 1 is lost", "exit": "rank 1 closes its communicator"}.get(how, "rank 1 could not go on: it left with ValueError: a bad batch"))
    assert time.monotonic() - began < 20, "told late"  # of 60; 1 where the machine is idle
    print("told", flush=True)
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(1)


@case
def a_rank_that_leaves_by_an_exception_or_is_killed_is_named_at_once():
    for how in ("raises", "with", "exit"):
        says(ranks(2, ending, how, status=1)[0], "told")
    says(ranks(2, ending, "killed", status=-signal.SIGKILL)[0], "told")


@scene
def interrupted(where, done):
    """Ctrl-C acts while rank 0 waits in C, and rank 1 learns of it in its next call, which it makes behind that."""
    if where == "init" and os.environ["RANK"] == "1":
        sys.exit(0)
    signal.signal(signal.SIGUSR1, lambda *_: None)  # a handler that goes on ends no wait
    a, b, out = numpy.zeros((32, 64), numpy.uint16), numpy.zeros((64, 48), numpy.uint16), None
    began = time.monotonic()

    def strike(when):
        if os.environ["RANK"] == "0":
            threading.Timer(when / 2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            threading.Timer(when, os.kill, (os.getpid(), signal.SIGINT)).start()

    if where == "init":
        strike(0.6)
    try:
        comm = mkernel.init(timeout_ns=MINUTE)
        mkernel.ag_gemm(a, b)
        while comm.rank == 1 and not os.path.exists(done):
            time.sleep(0.1)
        strike(0.6)
        began = time.monotonic()
        if where == "plan":
            mkernel.ag_gemm(a, b[:, :40].copy())
        elif where == "close":
            comm.close()
        else:
            mkernel.ag_gemm(a, b)
    except KeyboardInterrupt:
        assert os.environ["RANK"] == "0"
        assert time.monotonic() - began < 20, "late"  # of 60
        open(done, "w").close()
        return
    except mkernel.Error as e:
        assert comm.rank == 1
        says(str(e), "rank 0 could not go on: it was interrupted")
        return
    assert where == "close" and comm.rank == 1


@case
def ctrl_c_acts_while_a_rank_waits():
    for where in ("launch", "plan", "close", "init"):
        with tempfile.TemporaryDirectory() as folder:
            ranks(2, interrupted, where, os.path.join(folder, "done"))


@scene
def forking():
    comm = mkernel.init(timeout_ns=MINUTE)
    a, b = numpy.zeros((32, 64), numpy.uint16), numpy.zeros((64, 48), numpy.uint16)
    mkernel.ag_gemm(a, b)
    child = os.fork()
    if not child:
        refuses("this process was forked from the one that opened the communicator", mkernel.ag_gemm, a, b)
        comm.close()  # nothing to do
        sys.exit(17)  # by way of atexit
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 17
    mkernel.ag_gemm(a, b)  # and here it is as it was
    comm.close()


@case
def a_forked_process_has_no_communicator():
    ranks(2, forking)


@scene
def leaving():
    comm = mkernel.init(timeout_ns=5 * MINUTE)
    kept.append(mkernel.empty((16, 16)))
    mkernel.all_gather(numpy.zeros((32, 64), numpy.uint16))
    for _ in range(20 * comm.rank):  # rank 0's process ends first: it waits for this rank, which misses nobody
        time.sleep(0.05)
        comm.wait()


kept = []


@case
def the_end_of_the_process_closes_what_is_open():
    began = time.monotonic()
    ranks(2, leaving)
    assert time.monotonic() - began < 200  # no rank waited for the other's timeout


# ---- traces and files ----


@scene
def tracing(path):
    comm = mkernel.init(timeout_ns=MINUTE, trace_events=4096)
    a, b = numpy.zeros((32, 64), numpy.uint16), numpy.zeros((64, 48), numpy.uint16)
    mkernel.ag_gemm(a, b)
    with mkernel.trace(path):
        for _ in range(3):
            mkernel.ag_gemm(a, b)
    mkernel.ag_gemm(a, b)
    try:
        with comm.trace(path + ".none"):
            raise KeyError("mine")
    except KeyError:
        pass
    assert not os.path.exists(path + ".none")
    if comm.rank == 0:
        try:
            with comm.trace("/nowhere/at/all.db"):
                pass
            raise AssertionError("no exception")
        except mkernel.Error as e:
            says(str(e), "/nowhere/at/all.db")
    else:
        with comm.trace("/nowhere/at/all.db"):
            pass
    mkernel.ag_gemm(a, b)
    comm.close()


@scene
def tracing_without_room():
    mkernel.init()
    refuses("opened without trace_events", mkernel.trace("x.db").__enter__)


@case
def a_block_is_traced_and_read_as_a_frame():
    ranks(1, tracing_without_room)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "of a 100% #1?.db")
        ranks(2, tracing, path)
        for without in (True, False):
            if without:
                kept_module = sys.modules.pop("pandas", None)
                sys.modules["pandas"] = None  # so that its import fails
            launches = mkernel.frame(path)
            events = mkernel.frame(path, "SELECT rank, count(*) AS n FROM events WHERE kind = 'tile' GROUP BY rank")
            assert len(launches["launch"]) == 3, launches
            assert list(events["rank"]) == [0, 1] and min(events["n"]) >= 3
            refuses("has no nonsense; it has", mkernel.frame, path, "nonsense")
            refuses("no such column: nonsense", mkernel.frame, path, "SELECT nonsense FROM events")
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()  # Ctrl-C in a query that does not end
            try:
                mkernel.frame(path, "WITH RECURSIVE r(id) AS (SELECT 0 UNION ALL SELECT id + 1 FROM r) "
                                    "SELECT max(id) FROM r")
                raise AssertionError("a query that nobody ends")
            except KeyboardInterrupt:
                pass
            if without:
                assert isinstance(launches, dict)
                del sys.modules["pandas"]
                if kept_module:
                    sys.modules["pandas"] = kept_module
        refuses("there is no file", mkernel.frame, path + ".none")


@case
def a_file_of_results_is_read_as_a_frame():
    """One that `mkernel sweep` has made, where it is built beside the wheel."""
    command = os.path.join(os.path.dirname(os.path.abspath(os.environ["MK_WHEEL"])), "mkernel")
    if not os.path.exists(command):
        raise Skip("no mkernel beside the wheel")
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "first.db")
        run([command, "sweep", "--vary", "op=ag_gemm:gemm_rs;exec=host;shape=64,64,64;iters=5", "--repeats", "2", "--out", path])
        samples, jobs = mkernel.frame(path), mkernel.frame(path, "jobs")
        assert sorted(set(jobs["op"])) == ["ag_gemm", "gemm_rs"] and len(jobs["op"]) == 4
        refuses("has no jobs; DROP", mkernel.frame, path, "jobs; DROP")
        refuses("has no \"; it has", mkernel.frame, path, '"')
        assert list(mkernel.frame(path, " ")) == list(samples)
        assert set(jobs["verdict"]) == {"right"} and min(samples["ms"]) > 0 and len(samples["ms"]) >= 20


@scene
def emulating():
    comm = mkernel.init(device="emulated", timeout_ns=MINUTE, heap_bytes=8 << 20)
    rng = numpy.random.default_rng(comm.rank)
    a, b = bf16(rng, 64, 64), bf16(rng, 64, 64)
    near(mkernel.ag_gemm(a, b), floats(numpy.concatenate(list(rows_of(comm, 64, 64)))) @ floats(b))
    assert "compute=20" in comm.plans[0].options, comm.plans  # a block on each SM of a small GPU, as no plan of the host has
    comm.close()


def rows_of(comm, *shape):
    return [bf16(numpy.random.default_rng(r), *shape) for r in range(comm.world)]


@case
def the_emulated_gpu_runs_the_kernels_themselves():
    said = run([sys.executable, "-c", "import mkernel\ntry:\n mkernel.init(device='emulated')\nexcept mkernel.Error as e:\n print(e)"])
    if "this build has no" in said:
        raise Skip(said.strip())
    ranks(2, emulating)


# ---- failures ----


@scene
def failing():
    comm = mkernel.init(timeout_ns=2_000_000_000)
    a, b = numpy.zeros((32, 64), numpy.uint16), numpy.zeros((64, 48), numpy.uint16)
    if comm.rank == 0:
        mkernel.ag_gemm(a, b)
        try:
            mkernel.ag_gemm(a, b)  # the other rank does not
        except mkernel.Error as e:
            assert not isinstance(e, mkernel.Refused) and e.errno == 5
            print(f"said: {e}", flush=True)
    else:
        mkernel.ag_gemm(a, b)
        try:
            for _ in range(1200):  # it has nothing to wait for, and learns of the failure all the same
                comm.wait()
                time.sleep(0.05)
        except mkernel.Error as e:
            print(f"said: {e}", flush=True)
    comm.close()


@case
def a_rank_that_does_not_come_is_named_on_every_rank():
    said = [re.search("^said: (.*)$", text, re.M).group(1) for text in ranks(2, failing)]
    assert said[0] == said[1], said
    says(said[0], "ag_gemm: rank 0", "waited 2.", "rank 1")


if __name__ == "__main__":
    main()
