"""Modules with parameters that ranks hold parts of, and what PyTorch's own functions are told of it: state dicts, norms of gradients, wrappers.

Which parameters are divided is told by a module's class, not by marks on parameters or by names: frameworks copy, replace and wrap those.
"""
from __future__ import annotations

import functools
import inspect
import sys
import weakref

import torch
from torch.nn.utils import clip_grad
from torch.utils.weak import WeakTensorKeyDictionary

from . import operators
from ._library import Refused

_modules = weakref.WeakSet()
_used = WeakTensorKeyDictionary()  # tensors that stood in a module's place when a gradient was wanted (torch.func.functional_call) -> Parallel, dimension


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
            for name, dimension in self.divided.items():
                x = self._parameters[name]
                if x is not None and x.requires_grad:
                    _used[x] = self.of, dimension

    def __setattr__(self, name, value):  # by which fully_shard puts its parameters here
        if name in self.divided and _is_dtensor(value):
            _refuse_copies("fully_shard", "mesh=mesh[\"data\"]", self.of, value.device_mesh.mesh.flatten().tolist())
        super().__setattr__(name, value)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        """Parts as DTensors, so that torch.distributed.checkpoint writes the whole; with keep_vars the parameters themselves."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        for name, dimension in self.divided.items():
            x = destination.get(prefix + name)
            if x is None or keep_vars or self.of.comm.world == 1:
                continue
            if type(x) not in _PLAIN:
                raise Refused(f"state_dict(): {prefix}{name} is a {type(x).__name__} of this rank's part: mkernel.full_state_dict(model) gives the whole")
            x = torch.from_dlpack(x) if x.storage_offset() else x  # torch.save refuses a DTensor of a part of a storage
            destination[prefix + name] = _as_part_of_all(x, self.of, dimension)

    def _load_from_state_dict(self, state_dict, prefix, *more):
        for name, dimension in self.divided.items():
            x = state_dict.get(prefix + name)
            if _is_dtensor(x) and not _is_dtensor(self._parameters[name]):
                state_dict[prefix + name] = _part_of(x, self.of, dimension, prefix + name)
        super()._load_from_state_dict(state_dict, prefix, *more)


def _is_dtensor(x) -> bool:
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(x, tensor.DTensor)


def _as_part_of_all(x, of, dimension):
    from torch.distributed.tensor import DTensor, Shard

    return DTensor.from_local(x, of.mesh(), [Shard(dimension)], run_check=False)


def _part_of(x, of, dimension, name):
    """This rank's part of a DTensor."""
    comm = of.comm
    if x.device_mesh.size() != comm.world or not x.placements[0].is_shard(dimension):
        return x.full_tensor().chunk(comm.world, dimension)[comm.rank]
    rank = x.device_mesh.get_coordinate()[0]  # of torch.load: the one that saved
    if rank != comm.rank:
        raise Refused(f"{name} is rank {rank}'s part, and this is rank {comm.rank}: torch.save writes what the rank has that calls it. torch.distributed.checkpoint and "
                      "mkernel.save_checkpoint write the whole")
    return x.to_local()


def whole(x):
    return x.full_tensor() if _is_dtensor(x) else x


def dimensions(model) -> dict:
    """id of a parameter -> dimension that is divided."""
    return {id(x._parameters[name]): dimension for x in model.modules() if isinstance(x, Divided) for name, dimension in x.divided.items()
            if x._parameters[name] is not None}


def _found() -> dict:
    """id of a divided parameter, or of its gradient -> Parallel, dimension."""
    every = [(p, (x.of, dimension)) for x in list(_modules) for name, dimension in x.divided.items() if (p := x._parameters.get(name)) is not None]
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
            if id(x) in found and found[id(x)][0].comm.world > 1:
                parts.setdefault(found[id(x)][0].comm, []).append(x)
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


def _finite_everywhere(unscale):
    """In place of GradScaler's function, which tells where a gradient is not finite: a step that one rank leaves out all leave out."""

    @functools.wraps(unscale)
    def unscale_grads(self, optimizer, *arguments, **named):
        infinite = unscale(self, optimizer, *arguments, **named)  # device -> whether there is one
        found = _found()
        comms = {found[id(p)][0].comm for group in optimizer.param_groups for p in group["params"] if id(p) in found}
        for comm in sorted((x for x in comms if x.world > 1), key=lambda x: x.handle):
            said = torch.zeros(1, 4, device=comm._place)
            for x in infinite.values():
                said[0, 0] += x.to(said.device).sum()
            worst = operators.all_gather(said.view(torch.uint8), comm=comm).view(torch.float32).max().clamp(max=1)  # fused optimizers ask whether it is 1
            for x in infinite.values():
                x.fill_(worst)
        return infinite

    return unscale_grads


def _states(optimizer, state, change):
    """Of an optimizer's state dict the one in which the states of divided parameters are what change(value, parameter, Parallel, dimension) makes of them."""
    found, states = _found(), dict(state["state"])
    for packed, group in zip(state["param_groups"], optimizer.param_groups):
        for number, p in zip(packed["params"], group["params"]):
            if id(p) in found and found[id(p)][0].comm.world > 1 and number in states:
                states[number] = {name: change(x, p, *found[id(p)]) if isinstance(x, torch.Tensor) and x.ndim else x for name, x in states[number].items()}
    return {**state, "state": states}


def _dimension_of(x, p, dimension):
    """Along which ranks' states make one: where they have not the parameter's shape (sums of rows, scales of blocks) they lie one behind another."""
    return dimension if x.ndim == p.ndim else 0


def _state_of_all(x, p, of, dimension):
    if type(x) not in _PLAIN or of.comm._peers is None:
        why = f"is a {type(x).__name__}" if of.comm._peers else "torch.distributed has not been initialised before mkernel.init"
        raise Refused(f"state_dict() of an optimizer would have this rank's parts alone, and cannot say so ({why}): optimizer.state is this rank's, save it by rank")
    return _as_part_of_all(x, of, _dimension_of(x, p, dimension))


def _state_of_rank(x, p, of, dimension):
    return _part_of(x, of, _dimension_of(x, p, dimension), "an optimizer's state") if _is_dtensor(x) and not _is_dtensor(p) else x


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _tells_states(state_dict):
    """In place of an optimizer's function: states of parts are DTensors, so that torch.distributed.checkpoint writes the whole."""

    @functools.wraps(state_dict)
    def states_of(self):
        return _states(self, state_dict(self), _state_of_all)

    states_of.mkernel = True
    return states_of


def _takes_states(load_state_dict):
    @functools.wraps(load_state_dict)
    def load(self, state_dict):
        load_state_dict(self, _states(self, state_dict, _state_of_rank))

    return load


def _refuse_copies(wrapper, named, of, ranks):
    """Where a wrapper joins `ranks`, numbers of torch.distributed, which hold different parts."""
    comm = of.comm
    parts = [x for x in ranks if x in (comm._peers or range(comm.world))]
    if len(parts) > 1:
        raise Refused(f"{wrapper} would take what ranks {', '.join(map(str, parts))} have for copies or a whole, and mkernel.parallelize has divided the model among them: they train it without a "
                      f"wrapper. Between groups of ranks, open each group's communicator by mkernel.init(group=mesh[\"model\"].get_group()) and wrap with {named}")


def _joins(init):
    """In place of DistributedDataParallel.__init__."""

    @functools.wraps(init)
    def joins(self, module, *arguments, **named):
        given = inspect.signature(init).bind(self, module, *arguments, **named).arguments
        mesh, group = given.get("device_mesh"), given.get("process_group")
        if mesh is not None:
            ranks = mesh.mesh.flatten().tolist()
        else:
            ranks = torch.distributed.get_process_group_ranks(torch.distributed.group.WORLD if group is None else group)
        for x in module.modules():
            if isinstance(x, Divided):
                _refuse_copies("DistributedDataParallel", "process_group=mesh[\"data\"].get_group()", x.of, ranks)
        init(self, module, *arguments, **named)

    return joins


def _flattens(init):
    """In place of FullyShardedDataParallel.__init__."""

    @functools.wraps(init)
    def flattens(self, module, *arguments, **named):
        if any(isinstance(x, Divided) for x in module.modules()):
            raise Refused("FullyShardedDataParallel takes parameters away from their modules, and those that mkernel.parallelize has divided stay: take "
                          "torch.distributed.fsdp.fully_shard")
        init(self, module, *arguments, **named)

    return flattens


def tell_pytorch() -> None:
    """Makes torch.nn.utils.clip_grad_norm_ and get_total_norm and the state dicts of optimizers right for divided parameters, GradScaler skip a step on all ranks or none, and
    wrappers refuse them where they would take them for something else."""
    if hasattr(clip_grad._get_total_norm, "mkernel"):
        return
    torch.nn.utils.get_total_norm = clip_grad._get_total_norm = _of_all_ranks(clip_grad._get_total_norm)
    scaler = torch.amp.GradScaler
    scaler._unscale_grads_ = _finite_everywhere(scaler._unscale_grads_)
    optimizer = torch.optim.Optimizer
    optimizer.state_dict, optimizer.load_state_dict = _tells_states(optimizer.state_dict), _takes_states(optimizer.load_state_dict)
    if torch.distributed.is_available():
        from torch.distributed.fsdp import FullyShardedDataParallel
        from torch.nn.parallel import DistributedDataParallel

        DistributedDataParallel.__init__ = _joins(DistributedDataParallel.__init__)
        FullyShardedDataParallel.__init__ = _flattens(FullyShardedDataParallel.__init__)


class Saves:
    """Before the class of a model of `transformers`."""

    def save_pretrained(self, *arguments, **named):
        raise Refused("save_pretrained would write this rank's parts as the whole: mkernel.save_checkpoint(model, path) writes the whole, called by all ranks")
