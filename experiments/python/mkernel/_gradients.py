"""The operators' gradients, for PyTorch's autograd: each operator's backward is another operator, or a product of this rank alone.

The loss is the sum over the ranks of what each makes of its own results. Of a result that all ranks have alike, gemm_ar's, they
all make the same, which counts once: its gradient is alike on all ranks, too. Rows of other ranks are gathered anew for the
gradient of a B: kept since the forward they would take W times the memory of A. A parameter with a `main_grad` of fp32 or bf16 has its
gradients, fp32 sums, added there, and no .grad, as Megatron has it.
"""
from __future__ import annotations

import torch

from ._library import Refused


class Context:
    """What a backward has beside the gradient of the operator's result."""

    def __init__(self, ctx, run):
        self.run = run  # run(operator, *inputs): a launch, and its result
        self.needs = ctx.needs_input_grad
        self._ctx = ctx

    def factors(self):
        """A and B of a product: A where B's gradient is wanted, B where A's is, else None."""
        return self._ctx.saved_tensors

    def of_b(self, a, gradient):
        """A^T gradient, in memory as B lies there, so that the .grad of a Linear's weight needs no copy; None where it went to main gradients."""
        swapped, mains = self._ctx.swapped, self._ctx.mains
        left, right = (gradient.t(), a) if swapped else (a.t(), gradient)
        if not mains:
            return (left @ right).t() if swapped else left @ right
        product = torch.mm(left, right, out_dtype=torch.float32) if left.is_cuda else left.float() @ right.float()
        for main, rows in zip(mains, product.split([len(x) for x in mains])):
            main.add_(rows)
        return None


def _mains_of(b, swapped: bool) -> list:
    """Main gradients of B's rows, or, where it is swapped, of the rows of what it is the transpose of. Of several parameters under one another
    (_parallelize.Block) they are a list."""
    main = getattr(b, "main_grad", None)
    if main is not None:
        return [main.t() if swapped else main]
    whole = b._base
    main = getattr(whole, "main_grad", None)
    if main is None or not swapped or whole.shape != b.shape[::-1] or whole.stride() != b.stride()[::-1]:
        return []
    return main if isinstance(main, list) else [main]


_MAIN = (torch.float32, torch.bfloat16)


def _checked_mains(name: str, b, swapped: bool) -> list:
    mains, (rows, columns) = _mains_of(b, swapped), b.shape[::-1] if swapped else b.shape
    for main in mains:
        if main.dtype not in _MAIN:
            raise Refused(f"mkernel.{name}: a main_grad is of {main.dtype}, and should be of {' or '.join(map(str, _MAIN))}")
        if main.ndim != 2 or main.shape[1] != columns or sum(map(len, mains)) != rows:
            raise Refused(f"mkernel.{name}: a main_grad is {list(main.shape)}, and a parameter's {[rows, columns]}" + " in all" * (len(mains) > 1))
    return mains


def _ag_gemm(of, gradient):
    a, b = of.factors()
    return (of.run("gemm_rs", gradient, b.t()) if of.needs[0] else None,
            of.of_b(of.run("all_gather", a), gradient) if of.needs[1] else None)


def _gemm_rs(of, gradient):
    a, b = of.factors()
    return (of.run("ag_gemm", gradient, b.t()) if of.needs[0] else None,
            of.of_b(a, of.run("all_gather", gradient)) if of.needs[1] else None)


def _gemm_ar(of, gradient):
    a, b = of.factors()
    return gradient @ b.t() if of.needs[0] else None, of.of_b(a, gradient) if of.needs[1] else None


def _all_gather(of, gradient):
    return (of.run("reduce_scatter", gradient),)


def _reduce_scatter(of, gradient):
    return (of.run("all_gather", gradient),)


def _all_to_all(of, gradient):
    return (of.run("all_to_all", gradient),)


_BACKWARD = {"ag_gemm": _ag_gemm, "gemm_rs": _gemm_rs, "gemm_ar": _gemm_ar, "all_gather": _all_gather, "reduce_scatter": _reduce_scatter,
             "all_to_all": _all_to_all}


def register(library, name: str, tensors: int, forward, runner):
    """Gives mkernel::NAME of so many tensors its gradient. None where it has none; else what an eager call applies to the arguments of `forward`:
    PyTorch's way through the dispatcher to the same functions takes 20 us more, 40 with the backward. runner(handle): run."""
    function = _BACKWARD.get(name)
    if function is None:
        return None

    def setup_context(ctx, inputs, output):
        if any(ctx.needs_input_grad) and any(isinstance(x, str) and "epilogue=" in x for x in inputs):
            raise Refused(f"mkernel.{name} with an activation has no backward: call it under torch.no_grad(), or detach its inputs")
        ctx.handle = inputs[-1]
        if tensors == 2:
            a, b = inputs[:2]
            ctx.save_for_backward(a if ctx.needs_input_grad[1] else None, b if ctx.needs_input_grad[0] else None)
            ctx.swapped = b.stride(0) == 1 and b.stride(1) != 1
            ctx.mains = _checked_mains(name, b, ctx.swapped) if ctx.needs_input_grad[1] else []

    def backward(ctx, gradient):
        if torch.is_grad_enabled():
            raise Refused(f"mkernel.{name} has no second derivative: no backward with create_graph=True goes through it")
        gradients = function(Context(ctx, runner(ctx.handle)), gradient)
        return (*gradients, *[None] * (len(ctx.needs_input_grad) - len(gradients)))

    torch.library.register_autograd(f"mkernel::{name}", backward, setup_context=setup_context, lib=library)

    def eager(ctx, *inputs):  # in one function: PyTorch inspects the signature in each call where setup_context is its own
        output = forward(*inputs)
        setup_context(ctx, inputs, output)
        return output

    def forward_mode(ctx, *tangents):
        raise Refused(f"mkernel.{name}: an input has a tangent, and no operator has a derivative in forward mode: give x.detach()")

    return type(name, (torch.autograd.Function,), {"forward": staticmethod(eager), "backward": staticmethod(backward), "jvp": staticmethod(forward_mode)}).apply
