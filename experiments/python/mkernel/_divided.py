"""Modules with parameters that ranks hold parts of, and what PyTorch's own functions are told of it: state dicts, norms of gradients.

Which parameters are divided is told by a module's class, not by marks on parameters or by names: frameworks copy, replace and wrap those.
"""
from __future__ import annotations

import functools
import weakref

import torch
from torch.nn.utils import clip_grad
from torch.utils.weak import WeakTensorKeyDictionary

from . import operators
from ._library import Refused

_modules = weakref.WeakSet()
_used = WeakTensorKeyDictionary()  # tensors that stood in a module's place when a gradient was wanted (torch.func.functional_call) -> Parallel


class Divided(torch.nn.Module):
    """`of` is what its model shares (Parallel)."""

    divided = {}  # name of a parameter -> dimension

    def has(self, of):
        self.of = of
        _modules.add(self)

    def __setstate__(self, state):  # of a copy
        super().__setstate__(state)
        _modules.add(self)

    def uses(self):
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            for name in self.divided:
                x = self._parameters[name]
                if x is not None and x.requires_grad:
                    _used[x] = self.of

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        """Parts as DTensors, so that torch.distributed.checkpoint writes the whole; with keep_vars the parameters themselves."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, dimension in self.divided.items():
            x = destination.get(prefix + name)
            if x is None or keep_vars or self.of.comm.world == 1:
                continue
            if type(x) not in (torch.Tensor, torch.nn.Parameter):
                raise Refused(f"state_dict(): {prefix}{name} is a {type(x).__name__} of this rank's part: mkernel.full_state_dict(model) gives the whole")
            placed = [torch.distributed.tensor.Shard(dimension)]
            destination[prefix + name] = torch.distributed.tensor.DTensor.from_local(x, self.of.mesh(), placed, run_check=False)

    def _load_from_state_dict(self, state_dict, prefix, *more):
        for name, dimension in self.divided.items():
            x = state_dict.get(prefix + name)
            if _is_dtensor(x) and not _is_dtensor(self._parameters[name]):
                of_mesh = x.placements == (torch.distributed.tensor.Shard(dimension),) and x.device_mesh.size() == self.of.comm.world
                state_dict[prefix + name] = x.to_local() if of_mesh else x.full_tensor().chunk(self.of.comm.world, dimension)[self.of.comm.rank]
        super()._load_from_state_dict(state_dict, prefix, *more)


def _is_dtensor(x) -> bool:
    return torch.distributed.is_available() and isinstance(x, torch.distributed.tensor.DTensor)


def whole(x):
    return x.full_tensor() if _is_dtensor(x) else x


def dimensions(model) -> dict:
    """id of a parameter -> dimension that is divided."""
    return {id(x._parameters[name]): dimension for x in model.modules() if isinstance(x, Divided) for name, dimension in x.divided.items()
            if x._parameters[name] is not None}


def _found() -> dict:
    """id of a divided parameter, or of its gradient -> Parallel."""
    every = [(p, x.of) for x in list(_modules) for name in x.divided if (p := x._parameters.get(name)) is not None]
    every += list(_used.items())
    return {id(x): of for p, of in every for x in (p, p.grad if p.is_leaf else None) if x is not None}


def _of_all_ranks(total_norm):
    """In place of PyTorch's function, which clip_grad_norm_ calls with gradients: parts of one gradient on several ranks count together."""

    @functools.wraps(total_norm)
    @torch.no_grad()
    def norm_of(tensors, norm_type=2.0, error_if_nonfinite=False, foreach=None):
        tensors = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        found = _found()
        parts = {}
        for x in tensors:
            if id(x) in found and found[id(x)].comm.world > 1:
                parts.setdefault(found[id(x)].comm, []).append(x)
        if not parts:
            return total_norm(tensors, norm_type, error_if_nonfinite, foreach)
        divided = {id(x) for own in parts.values() for x in own}
        others = [x for x in tensors if id(x) not in divided]
        norms = [whole(total_norm(others, norm_type, False, foreach)).float()] if others else []
        for comm in sorted(parts, key=lambda x: x.handle):
            said = torch.zeros(1, 4, device=comm._place)
            said[0, 0] = whole(total_norm(parts[comm], norm_type, False, foreach))
            if norms:
                said[0, 1] = norms[0]
            every = operators.all_gather(said.view(torch.uint8), comm=comm).view(torch.float32)
            norms[:1] = [every[0, 1]] if others else []  # alike on all ranks to the bit
            norms += list(every[:, 0])
        return total_norm([torch.linalg.vector_norm(torch.stack([x.to(norms[0].device) for x in norms]), norm_type)], norm_type, error_if_nonfinite, foreach)

    norm_of.mkernel = True
    return norm_of


def tell_pytorch() -> None:
    """Makes torch.nn.utils.clip_grad_norm_ and get_total_norm right for divided parameters."""
    if not hasattr(clip_grad._get_total_norm, "mkernel"):
        torch.nn.utils.get_total_norm = clip_grad._get_total_norm = _of_all_ranks(clip_grad._get_total_norm)


class Saves:
    """Before the class of a model of `transformers`."""

    def save_pretrained(self, *arguments, **named):
        raise Refused("save_pretrained would write this rank's parts as the whole: mkernel.save_checkpoint(model, path) writes the whole, called by all ranks")
