"""What each operator takes and gives: the shapes of its arrays and the numbers of its problem.

Pure arithmetic on tuples: the fake kernels of torch.compile and the launches share it. `world` is the number of
ranks. Types are mkernel's words: "bf16", "fp32", "uint32".
"""
from __future__ import annotations

from typing import Callable, NamedTuple

from ._library import Refused


class Problem(NamedTuple):
    shape: tuple  # the numbers of mk_spec.shape
    outputs: tuple  # (shape, type) of each output; a shape of None is the plan's to say


class Operator(NamedTuple):
    name: str
    inputs: tuple  # (name, type, dimensions) of each, in the order of the launch
    outputs: tuple  # names
    order: tuple  # of the launch's arguments: indexes into inputs + outputs
    problem: Callable  # (world, shapes of the inputs) -> Problem
    matrices: tuple = ()  # inputs whose last two dimensions may be swapped in memory, all alike
    heap: int = -1  # the input whose schedule is another where it lies in the symmetric heap


def _same(op, what, x, y, why):
    if x != y:
        raise Refused(f"{op}: {what}: {why}, and {x} is not {y}")


def _gemm(op, gathers, scatters):
    def problem(world, shapes):
        (m, k), (k_of_b, n) = shapes
        _same(op, f"A is [{m}, {k}] and B [{k_of_b}, {n}]", k, k_of_b, "A has as many columns as B has rows")
        rows = m * world if gathers else m
        if scatters and rows % world:
            raise Refused(f"{op}: A has {rows} rows, which do not divide by {world} ranks")
        return Problem((rows, n, k), (((rows // world if scatters else rows, n), "bf16"),))

    return problem


def _all_gather(world, shapes):
    ((m, k),) = shapes
    return Problem((m * world, k), (((m * world, k), "bf16"),))


def _ring_attention(world, shapes):
    (b, s, h, d), (b_of_k, s_of_k, g, d_of_k), v = shapes
    what = f"Q is [{b}, {s}, {h}, {d}] and K [{b_of_k}, {s_of_k}, {g}, {d_of_k}]"
    _same("ring_attention", what, (b, s, d), (b_of_k, s_of_k, d_of_k), "batch, rows and head size are alike")
    _same("ring_attention", "K and V", tuple(shapes[1]), tuple(v), "their shapes are alike")
    return Problem((b, s * world, h, g, d), (((b, s, h, d), "bf16"), ((b, h, s), "fp32")))


def _moe_dispatch_gemm(world, shapes):
    (t, h), (experts, h_of_b, i), (t_of_ids, k) = shapes
    _same("moe_dispatch_gemm", "X and B", h, h_of_b, "X has as many columns as each expert's B has rows")
    _same("moe_dispatch_gemm", "X and ids", t, t_of_ids, "ids has a row for each token")
    return Problem((t, h, i, experts * world, k), ((None, "bf16"), ((experts, 2), "uint32")))


def _moe_ffn(world, shapes):
    (t, h), (experts, h_of_b1, inner2), (t_of_ids, k), weights, (e_of_b2, i, h_of_b2) = shapes
    _same("moe_ffn", "X and B1", h, h_of_b1, "X has as many columns as each expert's B1 has rows")
    _same("moe_ffn", "B1 and B2", (experts, inner2, h), (e_of_b2, 2 * i, h_of_b2),
          "B1 is [E/W, H, 2 I] and B2 [E/W, I, H]")
    _same("moe_ffn", "X and ids", t, t_of_ids, "ids has a row for each token")
    _same("moe_ffn", "ids and weights", (t, k), tuple(weights), "each place of ids has a weight")
    return Problem((t, h, i, experts * world, k), (((t, h), "bf16"),))


_AB = (("A", "bf16", 2), ("B", "bf16", 2))

OPERATORS = {
    op.name: op
    for op in (
        Operator("ag_gemm", _AB, ("C",), (0, 1, 2), _gemm("ag_gemm", True, False), (1,), heap=0),
        Operator("gemm_rs", _AB, ("C",), (0, 1, 2), _gemm("gemm_rs", False, True), (1,)),
        Operator("gemm_ar", _AB, ("C",), (0, 1, 2), _gemm("gemm_ar", False, False), (1,)),
        Operator("all_gather", (("A", "bf16", 2),), ("C",), (0, 1), _all_gather),
        Operator("ring_attention", (("Q", "bf16", 4), ("K", "bf16", 4), ("V", "bf16", 4)), ("O", "lse"),
                 (0, 1, 2, 3, 4), _ring_attention),
        Operator("moe_dispatch_gemm", (("X", "bf16", 2), ("B", "bf16", 3), ("ids", "uint32", 2)), ("C", "rows"),
                 (0, 1, 2, 3, 4), _moe_dispatch_gemm, (1,)),
        Operator("moe_ffn", (("X", "bf16", 2), ("B1", "bf16", 3), ("ids", "uint32", 2), ("weights", "fp32", 2),
                             ("B2", "bf16", 3)), ("Y",), (0, 1, 2, 3, 4, 5), _moe_ffn, (1, 4)),
    )
}


def problem_of(op: Operator, world: int, shapes) -> Problem:
    """Checks the numbers of dimensions, then what the operator says of its shapes."""
    for (name, _, dimensions), shape in zip(op.inputs, shapes):
        if len(shape) != dimensions:
            raise Refused(f"{op.name}: {name} has {len(shape)} dimensions, {list(shape)}, and should have {dimensions}")
    return op.problem(world, shapes)
