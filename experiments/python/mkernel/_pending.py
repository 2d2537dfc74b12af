"""Sums over ranks that wait for what is done with them, so that the residual and the norm behind them are in the same launch.

A model's layers do `x = residual + block(...)` and then `norm(x)`, each in code of their own. Where no gradient is wanted, a row-parallel module gives
a Pending, which has a shape and no memory. A residual plus a Pending is a Pending; a norm that `of_model` has found takes that, and launches gemm_ar or
gemm_rs with both as its epilogue. Anything else that is done with a Pending launches what there is so far and goes on with the result. So no
layer's code has to be known, and a model that does something else gets what it asks for. All ranks run the same model, so they launch alike.
"""
from __future__ import annotations

import functools

import torch
from torch.utils._pytree import tree_map_only

from . import operators

FASTER = {"gemm_ar": "epilogue", "gemm_rs": "epilogue"}  # where the norm is: in their "epilogue", or by a "kernel" of PyTorch's behind the sum and the residual


class Pending(torch.Tensor):
    """A B summed over the ranks, and perhaps a residual added; B is weight [N, K] transposed."""

    @staticmethod
    def __new__(cls, of, rows, weight, lead, residual=None):
        self = torch.Tensor._make_wrapper_subclass(cls, (*lead, len(weight)), dtype=rows.dtype, device=rows.device)
        self.of, self.rows, self.weight, self.residual, self.result = of, rows, weight, residual, None
        self.sum = "gemm_rs" if of.mode == "sequence" else "gemm_ar"
        return self

    def launch(self, **epilogue):
        if self.residual is not None:
            epilogue["residual"] = self.residual.reshape(-1, self.shape[-1])
        return getattr(operators, self.sum)(self.rows, self.weight.t(), deterministic=torch.are_deterministic_algorithms_enabled(), comm=self.of.comm, **epilogue)

    def value(self):
        if self.result is None:
            self._done(self.launch().reshape(self.shape))
        return self.result

    def _done(self, result):
        self.result, self.rows, self.weight, self.residual = result, None, None, None

    def plus(self, residual):
        """Of a residual that can be in the epilogue, else None."""
        if self.result is not None or self.residual is not None:
            return None
        residual = value_of(residual)
        if type(residual) is not torch.Tensor or residual.shape != self.shape or residual.dtype is not self.dtype or residual.device != self.device:
            return None
        return Pending(self.of, self.rows, self.weight, self.shape[:-1], residual)

    def normed(self, norm):
        """By this norm, in the same launch or in one kernel behind it; None where that cannot be. The sum is there then, too."""
        if self.result is not None or self.residual is None:
            return None
        if (FASTER[self.sum] if self.of.norms == "faster" else self.of.norms) == "kernel":
            return torch.nn.functional.rms_norm(self.value(), (self.shape[-1],), norm.weight, norm.mkernel_eps)
        normed, result = self.launch(norm_weight=norm.weight.detach(), eps=norm.mkernel_eps)
        self._done(result.reshape(self.shape))
        return normed.reshape(self.shape)

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), named=None):
        if function is torch.ops.aten.add.Tensor and len(arguments) == 2 and not named:
            for one, other in (arguments, arguments[::-1]):
                made = one.plus(other) if isinstance(one, Pending) and isinstance(other, torch.Tensor) else None
                if made is not None:
                    return made
        arguments, named = values((arguments, named or {}))
        return function(*arguments, **named)


def settle(model, arguments, result):
    """A hook at a model's end: what left its layers and waits still is made now, on all ranks, not when one of them looks at it."""
    of = model.mkernel_of
    if of.leaving is not None:
        of.leaving.value()
        of.leaving = None
    return None if torch.compiler.is_compiling() else values(result)


def value_of(x):
    return x.value() if isinstance(x, Pending) else x


def values(result):
    """The same, of tensors that are there."""
    return tree_map_only(Pending, Pending.value, result)


def may_wait() -> bool:
    """Eager, without gradients, and nobody between who would have to see each operation."""
    return not (torch.is_grad_enabled() or torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack())


class Norm:
    """Before a norm's own class: an RMSNorm of which `_is_rmsnorm` has told eps."""

    def forward(self, x, *more, **named):
        if isinstance(x, Pending) and not more and not named and self.mkernel_seen.still() and _may_be_told(self, x.shape[-1]):
            normed = x.normed(self)
            if normed is not None:
                return normed
        return super().forward(value_of(x), *more, **named)


@functools.lru_cache(None)
def before(first, of):
    """A module's class with `first` before it."""
    return type(of.__name__, (first, of), {"__module__": of.__module__})


def _may_be_told(norm, columns) -> bool:
    """Whether weight is its one parameter, as the epilogue takes it."""
    weight = norm._parameters.get("weight")
    return len(norm._parameters) == 1 and type(weight) in (torch.Tensor, torch.nn.Parameter) and weight.shape == (columns,) and weight.dtype is torch.bfloat16


def _is_rmsnorm(module, columns, device):
    """The eps with which this module is RMSNorm, x weight / sqrt(mean(x^2) + eps), on numbers large and small; None: it is another thing."""
    own = dict(module.named_parameters())
    if any(True for _ in module.buffers()):
        return None
    if list(own) != ["weight"] or own["weight"].shape != (columns,) or own["weight"].dtype is not torch.bfloat16 or list(module.children()):
        return None
    every = [x for x in (getattr(module, name, None) for name in ("variance_epsilon", "eps")) if isinstance(x, float) and 0 < x <= 1]
    for eps in (*every, torch.finfo(torch.float32).eps, torch.finfo(torch.bfloat16).eps):  # the last two: what rms_norm of versions of PyTorch takes by itself
        wave = torch.arange(4 * columns, device=device).reshape(4, columns).float().mul(0.7).sin()
        x = (wave * torch.tensor([[1.0], [30.0], [eps**0.5], [eps**0.5 / 8]], device=device)).bfloat16()
        weight = wave[0].add(0.3).bfloat16()
        wanted = x.float() * (x.float().square().mean(-1, keepdim=True) + eps).rsqrt() * weight.float()
        try:
            got = torch.func.functional_call(module, {"weight": weight}, (x,))
        except Exception:
            return None
        if got.shape == x.shape and got.dtype is x.dtype and ((got.float() - wanted).abs() <= wanted.abs() / 128 + 1e-30).all():
            return eps
    return None


def find_norms(model, comm, columns) -> str:
    """Lets the model's RMSNorms of so many columns take sums that wait. Parallel.norms."""
    found = ""
    with torch.no_grad():
        for module in model.modules():
            eps = _is_rmsnorm(module, columns, comm._place)
            if eps is not None:
                module.mkernel_eps, module.__class__ = eps, before(Norm, type(module))
                found = "faster"
    return found
