"""The operators, one function each. The names below stand for: W ranks (`comm.world`), bf16 for torch.bfloat16 or
numpy's uint16 that holds the bits (`mkernel.to_bf16`). ag_gemm, gemm_rs, gemm_ar, all_gather, reduce_scatter and all_to_all take fp16 (torch.float16,
numpy.float16) in place of bf16, too: all 16-bit arrays of a call are of one type; what is beyond 65504 becomes infinity.

For all of them:
    Every rank calls, with arrays of the same shapes and the same options, in the same order.
    A matrix of rows, [M, K] below, may have leading dimensions in their place, [S, B, K], and then the result has them, too. Where ranks hold
    parts of the rows they are parts of the first dimension, as in Megatron's sequence parallelism: ag_gemm takes [S/W, B, K] and gives [S, B, N],
    gemm_rs the reverse. With the batch first each rank's parts would be of the batch; [1, S, K] is refused there: give x[0].
    Arrays are PyTorch's where the program imported torch before `mkernel.init`, else numpy's; all on the
    communicator's device. An input that is contiguous, or a B whose last two dimensions are swapped in memory (w.t()
    of a contiguous w), is read where it lies; any other is copied first. `out` is written in place.
    The first call with new shapes makes a plan, which takes ms and waits for the other ranks; it is kept.
    On the CPU a call returns when the results are there. On a GPU it returns at once and runs on the current
    stream; failures of a launch are raised by `comm.wait()`. Calls can be captured in a CUDA graph once their
    plan is made.
    options: choices of the plan in the words of `Plan.options`, as `mkernel tune` finds them: "tile=256,128 pace=310".
    comm: default the one of `mkernel.init`.
    Gradients (PyTorch): ag_gemm, gemm_rs, gemm_ar, all_gather, reduce_scatter and all_to_all have them. Their backward is collective, so the same inputs
    require a gradient on all ranks, and all ranks use the result. The loss is the sum of the ranks' losses; what all make
    alike of gemm_ar's C counts once. The others, calls with `out` and second derivatives are refused.
    Raises Refused (arguments, shapes; nothing has changed) or Error (the job has failed).
"""
from __future__ import annotations

import ctypes
import inspect
import math
import numbers
import operator

from . import _communicator, _experts, _shapes
from ._library import Refused, library

tensors = None  # the module for PyTorch's tensors, once torch is there


_SUMS = {0: 0, 1: 1, 2: 2, "everywhere": 2}  # enum mk_deterministic


def _launch(comm, op, inputs, outputs, causal=False, deterministic=False, options=""):
    first = inputs[0]
    try:
        deterministic = _SUMS[deterministic]
    except (KeyError, TypeError):
        raise Refused(f"{op}: deterministic={deterministic!r}: it is False, True or 'everywhere'") from None
    if getattr(first, "ndim", 0) > 2 and _shapes.OPERATORS[op].inputs[0][2] == 2:
        return _launch_folded(comm, op, inputs, outputs, causal, deterministic, options)
    if tensors is not None and tensors.is_array(first):
        return tensors.launch(comm, op, inputs, outputs, causal, deterministic, options)
    if comm is None:
        comm = _communicator.default()
    return comm.launch(op, inputs, outputs, causal, deterministic, options)


def _launch_folded(comm, op, inputs, outputs, *flags):
    """Leading dimensions are rows to a launch, and its results get them back."""
    of = _shapes.OPERATORS[op]
    of_comm = _communicator.default() if comm is None else comm
    folded, made = _shapes.leading(of, of_comm.world, [getattr(x, "shape", ()) for x in inputs])
    flat = [x.reshape(-1, x.shape[-1]) if i in folded else x for i, x in enumerate(inputs)]
    if outputs is None:
        results = _launch(comm, op, tuple(flat), None, *flags)
        return tuple(x if lead is None else x.reshape(*lead, *x.shape[1:]) for x, lead in zip(results, made))
    rows = []
    for x, lead, name in zip(outputs, made, of.outputs):
        if lead is not None:
            if getattr(x, "ndim", 0) != len(lead) + 1 or tuple(x.shape[:-1]) != lead:
                raise Refused(f"{op}: {name} is {list(getattr(x, 'shape', ()))}, and its leading dimensions should be {list(lead)}")
            if not of_comm._arrays.is_contiguous(x):
                raise Refused(f"{op}: {name} is written in place: it must be contiguous")
            x = x.reshape(-1, x.shape[-1])
        rows.append(x)
    _launch(comm, op, tuple(flat), tuple(rows), *flags)
    return outputs


def _written(*outputs):
    """The one or two results that a call writes in place; None: it makes new ones."""
    return None if outputs[0] is None and outputs[-1] is None else outputs


def _whole(name, number) -> int:
    try:
        return operator.index(number)
    except TypeError:
        raise Refused(f"{name}={number!r}: it is a whole number") from None


def _activated(op, options, activation):
    if activation and activation not in ("silu", "gelu_tanh"):
        raise Refused(f"{op}: activation={activation!r}: it is 'silu' or 'gelu_tanh'")
    return f"{options} epilogue={activation}" if activation else options


def ag_gemm(a, b, out=None, *, bias=None, activation: str = "", gated: bool = False, deterministic=False, options: str = "", comm=None):
    """C = f(gather(A) B + bias): the rows of A of all ranks, times this rank's B.

    a: [M/W, K] bf16, this rank's rows. Read in place where it begins where an array of `mkernel.empty` begins (on all
       ranks or on none).
    b: [K, N] bf16.
    bias: [N] bf16, added to each row.
    activation: "silu" or "gelu_tanh", of what is then there; neither it nor the sum is rounded before.
    gated: with an activation f: b's columns are a gate's and those that it lets through, N/2 each, and
        C = f(A gate + bias) (A up + bias), [M, N/2]: SwiGLU, GeGLU.
    out: [M, N] bf16. Returns it. Sums are fp32.
    deterministic: "everywhere": a row of C has the same bits whatever M, the plan and W. Else it has them in every run of a plan.
    """
    options = _activated("ag_gemm", options, activation)
    name = "ag_gemm" + "_gated" * bool(gated) + "_bias" * (bias is not None)
    return _launch(comm, name, (a, b) if bias is None else (a, b, bias), _written(out), False, deterministic, options)[0]


def _scales(op, a, b, a_scales, b_scales):
    """Those of blocks, of a tensor's one scale or of one for each row of A; B's [N] where it has one for each column. Where A's rows are no multiple of
    4, a place for some more."""

    def spread(x, *shape):
        if tensors is not None and tensors.is_array(x):
            return x.expand(shape).contiguous()
        import numpy

        return numpy.ascontiguousarray(numpy.broadcast_to(x, shape))

    def widen(x, more):
        if tensors is not None and tensors.is_array(x):
            wide = x.new_ones(x.shape[0], x.shape[1] + more)
            wide[:, : x.shape[1]] = x
            return wide
        import numpy

        return numpy.pad(x, ((0, 0), (0, more)), constant_values=1)

    blocks = -(-a.shape[-1] // 128)
    rows = math.prod(a.shape[:-1])
    if math.prod(a_scales.shape) in (1, rows) and tuple(a_scales.shape) != (blocks, rows):
        a_scales = spread(a_scales.reshape(1, -1), blocks, rows)
    if rows % 4 and tuple(a_scales.shape) == (blocks, rows):
        a_scales = widen(a_scales, -rows % 4)
    n = b.shape[-1]
    of_blocks = -(-n // 128), -(-blocks // 4) * 4
    if math.prod(b_scales.shape) == 1:
        b_scales = spread(b_scales.reshape(1, 1), *of_blocks)
    elif tuple(b_scales.shape) in {(n,), (n, 1), (1, n)} - {of_blocks}:
        b_scales = b_scales.reshape(n)
    elif b_scales.ndim != 2:
        raise Refused(f"{op}: b_scales is {list(b_scales.shape)}: it is one, one for each of B's {n} columns, or one for each 128x128, {list(of_blocks)}")
    return a_scales, b_scales


def ag_gemm_fp8(a, b, a_scales, b_scales, out=None, *, bias=None, activation: str = "", gated: bool = False, options: str = "", comm=None):
    """ag_gemm of FP8: numbers are codes times the scale of their block.

    a: [M/W, K] e4m3 (torch.float8_e4m3fn; numpy: uint8, the codes), this rank's rows; K is a multiple of 16.
    b: [K, N] e4m3, with its two dimensions swapped in memory: w.t() of a contiguous w [N, K].
    a_scales: [ceil(K/128), M/W] fp32, one for each row and 128 of K: scale_a.t() of what torch's scaled_mm takes. Or [M/W] or
        [M/W, 1], one for each row, or one: copied to all their places.
    b_scales: [ceil(N/128), ceil(K/128) rounded up to a multiple of 4] fp32, one for each 128x128: scale_b.t(). Or [N], [1, N] or [N, 1], one for
        each column (RowWise). Or one.
    bias, activation, gated: as ag_gemm has them; with scales of blocks N/2 of gated columns is a multiple of 128 on Hopper, of 32 on other GPUs.
    out: [M, N] bf16. Returns it. Sums are fp32.
    """
    options = _activated("ag_gemm_fp8", options, activation)
    name = "ag_gemm_fp8" + "_gated" * bool(gated) + "_bias" * (bias is not None)
    inputs = (a, b, *_scales(name, a, b, a_scales, b_scales))
    return _launch(comm, name, inputs if bias is None else (*inputs, bias), _written(out), options=options)[0]


def _gemm_sum(name, inputs, out, residual, norm_weight, quantize, eps, deterministic, options, comm):
    if residual is None and norm_weight is not None:
        raise Refused(f"{name}: norm_weight norms C + residual: give residual, too")
    if norm_weight is None:
        if quantize:
            raise Refused(f"{name}: quantize is of normed rows: give residual and norm_weight, too")
        of = (name, inputs) if residual is None else (name + "_residual", (*inputs, residual))
        return _launch(comm, *of, _written(out), False, deterministic, options)[0]
    of = (name + "_residual_rmsnorm" + "_quantize" * bool(quantize), (*inputs, residual, norm_weight))
    if quantize and out is not None:
        out = (out[2], *out[:2])
    if not isinstance(eps, numbers.Real):
        raise Refused(f"{name}: eps={eps!r}: it is a number")
    made = tuple(_launch(comm, *of, out, False, deterministic, f"{options} eps={float(eps)!r}"))
    return (*made[1:], made[0]) if quantize else made


def gemm_rs(a, b, out=None, *, residual=None, norm_weight=None, quantize: bool = False, eps: float = 1e-6, deterministic=False, options: str = "", comm=None):
    """C = this rank's rows of the sum over ranks of A B.

    a: [M, K] bf16. b: [K, N] bf16; K are this rank's columns of the whole product.
    out: [M/W, N] bf16. Returns it.
    deterministic: sum over ranks in fp32 and in rank order, the same bits on every run. Else partial sums may be
        bf16 and are added in any order. "everywhere": a row of C has the same bits whatever M, the plan and W are, for W of
        1, 2, 4 or 8 and a K that is a multiple of 64, at least 512 over all ranks.
    residual: [M/W, N] bf16, this rank's rows: returns C + residual, in fp32 of the rounded C, rounded to bf16.
    norm_weight: [N] bf16, with a residual: returns (normed, new residual), as gemm_ar does, of this rank's rows.
    quantize: returns (codes, scales, new residual), as gemm_ar does, of this rank's rows.
    """
    return _gemm_sum("gemm_rs", (a, b), out, residual, norm_weight, quantize, eps, deterministic, options, comm)


def gemm_rs_fp8(a, b, a_scales, b_scales, out=None, *, residual=None, norm_weight=None, quantize: bool = False, eps: float = 1e-6, deterministic: bool = False,
                options: str = "", comm=None):
    """gemm_rs of FP8: a [M, K], b [K, N] e4m3 and their scales as ag_gemm_fp8 has them, of this rank's K.

    a_scales: [ceil(K/128), M] fp32 (or M rounded up to a multiple of 4, as the operator has them: else they are copied). out: [M/W, N] bf16. Returns it. Sums over ranks, and what follows them, as in gemm_rs.
    """
    return _gemm_sum("gemm_rs_fp8", (a, b, *_scales("gemm_rs_fp8", a, b, a_scales, b_scales)), out, residual, norm_weight, quantize, eps, deterministic, options, comm)


def gemm_ar_fp8(a, b, a_scales, b_scales, out=None, *, residual=None, norm_weight=None, quantize: bool = False, eps: float = 1e-6, deterministic: bool = False,
                options: str = "", comm=None):
    """gemm_ar of FP8: arguments as gemm_rs_fp8 has them, any M from 1. out: [M, N] bf16. Returns it. What follows the sum is as in gemm_ar."""
    return _gemm_sum("gemm_ar_fp8", (a, b, *_scales("gemm_ar_fp8", a, b, a_scales, b_scales)), out, residual, norm_weight, quantize, eps, deterministic, options, comm)


def gemm_ar(a, b, out=None, *, residual=None, norm_weight=None, quantize: bool = False, eps: float = 1e-6, deterministic=False, options: str = "", comm=None):
    """C = the sum over ranks of A B, the same bits on every rank.

    a: [M, K] bf16, any M from 1. b: [K, N] bf16. out: [M, N] bf16. Returns it. Sums as in gemm_rs.
    residual: [M, N] bf16, alike on all ranks: returns C + residual, in fp32 of the rounded C, rounded to bf16.
    norm_weight: [N] bf16, with a residual: returns (normed, new residual), of which the latter is C + residual and
        normed = that * norm_weight / sqrt(mean(that^2 of a row) + eps), in fp32. out is then a pair. Forward only.
    quantize: with a norm_weight: returns (codes, scales, new residual), of which the first two are mkernel.quantize(normed):
        [M, N] e4m3 and [ceil(N/128), M] fp32, the a and a_scales of an FP8 product. N is a multiple of 16.
    """
    return _gemm_sum("gemm_ar", (a, b), out, residual, norm_weight, quantize, eps, deterministic, options, comm)


def _contiguous(split):
    if split not in ("zigzag", "contiguous"):
        raise Refused(f"ring_attention: split={split!r}: it is 'zigzag' or 'contiguous'")
    return split == "contiguous"


def ring_attention_rows(sequence: int, *, causal: bool = False, split: str = "zigzag", rank=None, world=None, comm=None):
    """The rows of a sequence that a rank holds in ring_attention: a tuple of ranges, two where causal and zigzag.

    rank, world: default this rank and the ranks of `comm`. Does not communicate.
    """
    if rank is None or world is None:
        comm = _communicator.default() if comm is None else comm
        rank, world = comm.rank if rank is None else rank, comm.world if world is None else world
    begin, count = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 2)()
    sequence, rank, world = _whole("sequence", sequence), _whole("rank", rank), _whole("world", world)
    if not (0 <= sequence < 1 << 63 and world < 1 << 32):
        raise Refused(f"ring_attention_rows: a sequence of {sequence} over {world} ranks")
    runs = library.mk_ring_attention_rows(sequence, world, rank, causal, _contiguous(split), begin, count) if 0 <= rank < world else -1
    if runs < 0:
        raise Refused(f"ring_attention_rows: rank {rank} of {world} ranks")
    return tuple(range(begin[i], begin[i] + count[i]) for i in range(runs))


def ring_attention_shard(x, *, dim: int = 1, causal: bool = False, split: str = "zigzag", rank=None, world=None, comm=None):
    """A rank's rows of a whole tensor, [B, S, H, D] of Q, K or V: what ring_attention takes. A copy, of torch or numpy as x is.

    dim: which dimension the sequence is. The others as in ring_attention_rows.
    """
    rows = ring_attention_rows(x.shape[dim], causal=causal, split=split, rank=rank, world=world, comm=comm)
    of_all = (slice(None),) * (dim % len(x.shape))
    parts = [x[(*of_all, slice(run.start, run.stop))] for run in rows]
    if tensors is not None and tensors.is_array(x):
        return tensors.torch.cat(parts, dim)
    import numpy

    return numpy.concatenate(parts, dim)


def ring_attention(q, k, v, *, causal: bool = False, split: str = "zigzag", sequence=None, out=None, lse=None, deterministic=False, options: str = "", comm=None):
    """O = softmax(Q K^T / sqrt(D)) V over the sequence of all ranks, the same bits on every run.

    q: [B, S/W, H, D] bf16, this rank's rows of the sequence; D is 64 or 128.
    k, v: [B, S/W, G, D] bf16, where G divides H.
    causal: a row sees no later rows. The rows of rank r are block r of 2 W, then block 2 W - 1 - r.
    split: "contiguous": under a mask, too, the rows of rank r are block r of W; the last rank has the most to do.
        ring_attention_rows says which rows a rank has, and ring_attention_shard cuts them from a whole tensor.
    sequence: S, where ranks do not hold equal numbers of rows: a rank's rows are then those that ring_attention_rows says, perhaps none.
        Of causal zigzag that is also where S/W is odd.
    out: [B, S/W, H, D] bf16. lse: [B, H, S/W] fp32, natural logarithm of the softmax's sums. Both or neither.
    deterministic: "everywhere": a row has the same bits whatever the ranks, the split, the plan and, under a mask, the places behind it;
        a rank's runs of rows are multiples of 128. Else it has them in every run of a plan.
    Returns (out, lse).
    """
    if _contiguous(split):
        options = f"split=contiguous {options}".strip()
    if sequence is not None:
        options = f"sequence={_whole('sequence', sequence)} {options}".strip()
    return tuple(_launch(comm, "ring_attention", (q, k, v), _written(out, lse), causal, deterministic, options))


def _roomy(options, capacity, expert_map):
    return " ".join(filter(None, (options, f"capacity={_whole('capacity', capacity)}" if capacity else "", _experts.words(expert_map))))


def balance_experts(loads, experts: int, *, copies=None, ranks=None, nodes=None, comm=None) -> _experts.ExpertMap:
    """A map of experts in which the ranks have about the same to do: those with the most have copies on several.

    loads: [L] numbers, what each logical expert has to do, as the rows of the last launches. experts: E, of all ranks, L or more.
    copies: the most that an expert gets; default as many as there are ranks, or more than L experts.
    ranks, nodes: default those of `comm`; of `ranks` alone one node. Copies of an expert are spread over nodes. Does not communicate: of the same loads all ranks make the same.
    Returns an ExpertMap; its `held(E)` says which weights each of the ranks' experts has.
    """
    if ranks is None:
        of = _communicator.default() if comm is None else comm
        ranks, nodes = of.world, of.nodes if nodes is None else nodes
    return _experts.balance(loads, _whole('experts', experts), 1 if nodes is None else _whole('nodes', nodes), _whole('ranks', ranks),
                            copies if copies is None else _whole('copies', copies))


def _begin(comm, op, inputs, outputs, number, options, alone=False):
    if tensors is not None and tensors.is_array(inputs[0]):
        inputs = tensors.to_begin(op, inputs)
    return (_communicator.default() if comm is None else comm).begin(op, inputs, outputs, options, number, alone)


def _counted(op, inputs, count):
    """The operator and its inputs; with a count, of the plan that reads one."""
    return (op, inputs) if count is None else (op + "_counted", (*inputs, count.reshape(1) if getattr(count, "ndim", 1) == 0 else count))


def moe_dispatch_gemm(x, b, ids, *, out=None, rows=None, deterministic=False, count=None, capacity: int = 0, expert_map=None, options: str = "", comm=None):
    """C = the tokens of each of this rank's experts, times its B.

    x: [T, H] bf16, this rank's tokens; T is the same on all ranks.
    b: [E/W, H, I] bf16, this rank's experts.
    ids: [T, K] int32 (numpy: uint32 or int32), the experts of each token, of all ranks' E; below 0, or E and more,
         for none. PyTorch's int64 is converted.
    out: [room, I] bf16: the rows of one expert after those of another, ordered by source rank, token and place; room
         is enough for any ids. Rows between experts are not written.
    rows: [E/W, 2] int32 (numpy: uint32): first row and number of rows of each expert. Both or neither.
    count: [1] int32 (numpy: uint32 or int32), read by the launch: how many tokens this rank has now, 0 to T; what lies behind them is not looked at. None:
         T. So one captured graph serves every batch: write it, ids and x, and replay. All ranks give one or none. Others than 0 to T end the launch
         on all ranks, with a sentence.
    capacity: rows of its experts that a rank has room for, the same on all ranks; 0: on up to 8 ranks all that can come, which is what "any ids" above
         rests on, else a multiple of the mean. Where more come the launch fails on all ranks and says so.
    expert_map: an ExpertMap, or its array [L] or [L, copies]: ids name L logical experts, 0 to L-1, and E are those of the ranks, of which the map says the
         ones that hold each. A token takes one of its own rank, else of its node, else any, these in turn by rank. Of an expert that no rank holds its
         tokens leave the place out. In each call another may be given, and another on each rank, if the weights are where it says; a new one waits for the launches so far.
    deterministic: as in ag_gemm.
    Returns (out, rows).
    """
    return tuple(_launch(comm, *_counted("moe_dispatch_gemm", (x, b, ids), count), _written(out, rows), False, deterministic, _roomy(options, capacity, expert_map)))


def moe_dispatch_gemm_fp8(x, b, ids, b_scales, *, out=None, rows=None, count=None, capacity: int = 0, expert_map=None, options: str = "", comm=None):
    """moe_dispatch_gemm of FP8: numbers are codes times the scale of their block.

    x: [T, record] uint8, tokens with their scales, mkernel.quantize(tokens, "records"); H, the elements of a token, is a multiple of 16.
    b: [E/W, H, I] e4m3, whose memory is [E/W, I, H] (b.transpose(1, 2)). ids, out and rows as in moe_dispatch_gemm.
    b_scales: [E/W, ceil(I/128), ceil(H/128) rounded up to a multiple of 4] fp32: of each expert's [I, H] as mkernel.quantize(w, (128, 128)) gives them.
    Returns (out, rows).
    """
    return tuple(_launch(comm, *_counted("moe_dispatch_gemm_fp8", (x, b, ids, b_scales), count), _written(out, rows), options=_roomy(options, capacity, expert_map)))


def moe_dispatch(x, ids, *, experts: int, out=None, counts=None, count=None, capacity: int = 0, expert_map=None, begin: int = 0, options: str = "", comm=None):
    """This rank's tokens to the ranks of their experts, for those who compute there by themselves.

    x: [T, H] bf16. ids: [T, K], as in moe_dispatch_gemm. experts: E, of all ranks; each has E/W.
    out: [room, H] bf16: the rows of one of this rank's experts after those of another, ordered by source rank, token and place;
         room is enough for any ids. Rows between experts are not written.
    counts: [E/W, 2] int32 (numpy: uint32): first row, a multiple of 128 (on the CPU: 32), and number of rows of each expert. Both or neither.
    count: as in moe_dispatch_gemm.
    begin: True, or a number: only the first half of the launch, which sends and waits for no other rank. Returns a Begun, whose end() launches the second half,
           which takes what has come, and returns (out, counts). Between them the stream's kernels have all SMs, while tokens travel. x and ids may not be
           changed before. Launches of different numbers can be under way at once, and other operators between. Has no gradient, and is not compiled.
    Returns (out, counts), the same bits on every run.
    """
    return _whole_or_begun(comm, "moe_dispatch", (x, ids), count, _written(out, counts), begin, f"experts={_whole('experts', experts)} {_roomy(options, capacity, expert_map)}".strip())


def _whole_or_begun(comm, op, inputs, count, outputs, begin, options, alone=False):
    op, inputs = _counted(op, inputs, count)
    if begin:
        return _begin(comm, op, inputs, outputs, _whole('begin', begin), options, alone)
    made = _launch(comm, op, inputs, outputs, options=options)
    return made[0] if alone else tuple(made)


def moe_dispatch_fp8(x, ids, *, experts: int, hidden: int, out=None, counts=None, count=None, capacity: int = 0, expert_map=None, begin: int = 0, options: str = "", comm=None):
    """moe_dispatch of FP8: x is [T, record] uint8, tokens of `hidden` elements with their scales, mkernel.quantize(tokens, "records"); hidden is a
    multiple of 16. out: [room, record] uint8; a row is a record."""
    return _whole_or_begun(comm, "moe_dispatch_fp8", (x, ids), count, _written(out, counts), begin,
                           f"experts={_whole('experts', experts)} hidden={_whole('hidden', hidden)} {_roomy(options, capacity, expert_map)}".strip())


def moe_combine(rows, ids, weights, out=None, *, experts: int, count=None, capacity: int = 0, expert_map=None, begin: int = 0, options: str = "", comm=None):
    """Y = for each token the sum over its K experts of weight * row: what experts have made of moe_dispatch's rows, back where tokens are from.

    rows: [room, H] bf16, row by row what this rank's experts have made of the rows that moe_dispatch gave for the same ids and experts.
    ids: [T, K], experts: as there. weights: [T, K] fp32.
    out: [T, H] bf16. Returns it, the same bits on every run. A token without experts gets zeros. Rows of no token are not read. Sums are fp32;
         what is sent between ranks is rounded to bf16.
    count: as dispatch had it: rows of out behind it are not written.
    begin: as in moe_dispatch; end() returns out. The first half sends, and waits for the other ranks to have begun theirs.
    """
    return _whole_or_begun(comm, "moe_combine", (rows, ids, weights), count, _written(out), begin, f"experts={_whole('experts', experts)} {_roomy(options, capacity, expert_map)}".strip(), alone=True)


def moe_ffn(x, b1, ids, weights, b2, out=None, *, deterministic=False, count=None, capacity: int = 0, expert_map=None, options: str = "", comm=None):
    """Y = each token through its experts: the sum over its K of weight * (silu(x G) * (x U)) B2.

    x: [T, H] bf16. ids: [T, K], as in moe_dispatch_gemm. weights: [T, K] fp32.
    b1: [E/W, H, 2 I] bf16: the columns of G, then those of U. b2: [E/W, I, H] bf16.
    out: [T, H] bf16. Returns it. A token without experts gets zeros.
    count: as in moe_dispatch_gemm; rows of out behind it are not written.
    deterministic: what is sent between ranks is not rounded to bf16. "everywhere": a token's row follows from the token,
        its experts and weights alone, for W of 1, 2, 4 or 8.
    options: with "back=fp8" sums of tokens come back as e4m3 with a scale for each 128, half the bytes of bf16 and 2.6e-2 of error for each rank or node.
    """
    return _launch(comm, *_counted("moe_ffn", (x, b1, ids, weights, b2), count), _written(out), False, deterministic, _roomy(options, capacity, expert_map))[0]


def moe_ffn_fp8(x, b1, ids, weights, b2, b1_scales, b2_scales, out=None, *, deterministic: bool = False, count=None, capacity: int = 0, expert_map=None, options: str = "", comm=None):
    """moe_ffn of FP8: numbers are codes times the scale of their block, and the activation is quantised, 128 of a row by a scale, between the products.

    x: [T, record] uint8, tokens with their scales, mkernel.quantize(tokens, "records"); H and I are multiples of 16.
    b1: [E/W, H, 2*I] e4m3, whose memory is [E/W, 2*I, H] (b1.transpose(1, 2)); b2: [E/W, I, H] e4m3, whose memory is [E/W, H, I]. ids, weights, out as in moe_ffn.
    b1_scales: [E/W, 2, ceil(I/128), ceil(H/128) rounded up to a multiple of 4] fp32: of each expert's gate [I, H], then its up, as mkernel.quantize(w, (128, 128)) gives them.
    b2_scales: [E/W, ceil(H/128), ceil(I/128) rounded up to a multiple of 4] fp32: of each expert's [H, I].
    """
    return _launch(comm, *_counted("moe_ffn_fp8", (x, b1, ids, weights, b2, b1_scales, b2_scales), count), _written(out), False, deterministic, _roomy(options, capacity, expert_map))[0]


def _of_kind(of: _shapes.Operator, x) -> str:
    """The operator for arrays of x's type; its own name where there is none."""
    if tensors is not None and tensors.is_array(x):
        arrays = tensors
    elif hasattr(x, "dtype"):
        from . import _numpy as arrays
    else:
        return of.name
    for name in (of.name, *of.kinds):
        if arrays.type_is(x, _shapes.OPERATORS[name].inputs[0][1]):
            return name
    return of.name


def _make(of: _shapes.Operator):
    """The function of an operator of which no more is to be said than the library does."""
    names = [name.lower() for name, _, _ in of.inputs]
    keywords = ["causal"] * of.causal + ["deterministic"] * of.deterministic
    outs = ["out"] if len(of.outputs) == 1 else [f"out_{name.lower()}" for name in of.outputs]
    plain, only = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    signature = inspect.Signature(
        [inspect.Parameter(name, plain) for name in names]
        + [inspect.Parameter(name, plain if len(outs) == 1 else only, default=None) for name in outs]
        + [inspect.Parameter(name, only, default=False, annotation=bool) for name in keywords]
        + [inspect.Parameter("options", only, default="", annotation=str), inspect.Parameter("comm", only, default=None)])

    def function(*arguments, **named):
        bound = signature.bind(*arguments, **named)
        bound.apply_defaults()
        of_call = bound.arguments
        outputs = tuple(of_call[name] for name in outs)
        op = _of_kind(of, of_call[names[0]]) if of.kinds else of.name
        made = _launch(of_call["comm"], op, tuple(of_call[name] for name in names),
                       None if outputs[0] is None else outputs, of_call.get("causal", False),
                       of_call.get("deterministic", False), of_call["options"])
        return made[0] if len(outs) == 1 else tuple(made)

    others = ", ".join(["fp16"] * bool(of.half) + [_shapes.OPERATORS[name].inputs[0][1] for name in of.kinds])
    arrays = [f"    {name}: [{formula.replace(',', ', ')}] {word}{' (or ' + others + ')' if others else ''}." for name, formula, word in
              zip(names + outs, of.formulas, [word for _, word, _ in of.inputs] + list(of.types))]
    function.__name__ = function.__qualname__ = of.name
    function.__signature__ = signature
    function.__doc__ = "\n".join([f"{of.help[0].upper()}{of.help[1:]}.", "", *arrays, f"    Returns {', '.join(outs)}.", "    "])
    return function


for _of in map(_shapes.OPERATORS.get, _shapes.FUNCTIONS):
    globals().setdefault(_of.name, _make(_of))
