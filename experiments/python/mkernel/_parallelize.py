"""A PyTorch model over the ranks: column-parallel Linear modules by ag_gemm, row-parallel ones by gemm_rs or gemm_ar, experts by moe_ffn.

A block is a module with column-parallel Linear children, which read the block's input, and one row-parallel, which makes its
output: an MLP, an attention. In mode "sequence" a rank has, between the blocks, its part of the rows of [B, S, H], taken as one
matrix of B S rows; it is held as [B, S/W, H], so that every block knows B and S by its input alone: what is between blocks
(norms, sums) works row by row and does not care. The block's input is gathered within the product with all column-parallel
weights, one under another in memory; the block's forward gets that product in place of its input, with B and S as its shape says,
and each column-parallel module hands out its columns of it.

Where no gradient is wanted, an MLP that makes down(f(gate) * up) has that in the product's epilogue (Block.gate), and a row-parallel module gives a sum that waits for its residual and norm (_pending.py).

Experts are modules with gate_up_proj [E, 2 I, H] and down_proj [E, H, I]. A rank has E/W of them. In mode "sequence" it brings its own rows;
in mode "decode" all ranks have all rows: each brings a part of them, and the results are gathered.
"""
from __future__ import annotations

import copy
import functools

import torch

from . import _blocks, _communicator, _divided, _pending, operators
from ._divided import Divided
from ._library import Refused

MODES = ("sequence", "decode")


class Parallel:
    """What the blocks of one model share. Copies of the model share it, too."""

    def __init__(self, comm, mode):
        self.comm, self.mode = comm, mode
        self.norms = ""  # behind a sum over ranks and a residual: "faster" as _pending.FASTER says, "epilogue", "kernel", or "", the model's own
        self.leaving = None  # of the layers: a sum that waits for the model's last norm
        self.empty = False  # the model came on meta, and no weights have been loaded
        self.gates = False  # a block has one: in mode "decode", where all ranks have all rows, this rank's own communicator multiplies
        self.made_mesh = None  # mesh()
        self.runs = {}  # name of a parameter -> the tensors that it is in the checkpoint that was loaded
        self.inside = []  # modules of the layers that are computing for a gradient, the innermost last
        self.graded = []  # of the modules around the layers that are being called: whether gradients are wanted. A reentrant checkpoint hides that from the layers

    def begins(self, module, arguments):
        if not torch.compiler.is_compiling():
            self.graded.append(torch.is_grad_enabled())

    def ends(self, module, arguments, result):
        if not torch.compiler.is_compiling() and self.graded:
            self.graded.pop()

    def enter(self, mode):
        self.mode = mode
        if mode == "decode" and self.gates:
            self.comm.alone()  # not first within a capture

    def opens(self, layer, arguments):
        if torch.is_grad_enabled():
            if not torch.compiler.is_compiling():
                _share(self, layer)  # what has been put there since
            self.inside.append(layer)

    def closes(self, module, arguments, result):
        while self.inside and self.inside.pop() is not module:  # a module that raised before opens has left nothing
            pass

    def mesh(self):
        """Of the ranks, for DTensors. Refused where torch.distributed does not know them."""
        if self.comm._peers is None:
            raise Refused("state_dict() would have this rank's parts alone, and torch.distributed, which could say so, has not been initialised before "
                          "mkernel.init: mkernel.full_state_dict(model) gives the whole, mkernel.save_checkpoint writes it")
        if self.made_mesh is None:
            group = self.comm._group or torch.distributed.group.WORLD
            self.made_mesh = torch.distributed.device_mesh.DeviceMesh.from_group(group, self.comm._place.type)
        return self.made_mesh

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise Refused("a parallelised model cannot be pickled, its parts are of this job: mkernel.save_checkpoint(model, path) writes the whole")


class Block:
    """Of one block: names of its column-parallel modules, and their weights as one matrix, their biases as one vector."""

    def __init__(self, of, name, columns, row):
        self.of, self.name, self.columns, self.row = of, name, columns, row
        self.whole = {"weight": None, "bias": None}
        self.laid = {"weight": (), "bias": ()}  # the parameters that are views of these
        self.kept = None  # the row-parallel weight, where nobody else gives and takes its memory (FSDP does)
        self.product = None  # in the block's forward: the product, and whether it has the biases
        self.gate = ""  # the activation, where its forward is row(f(gate) * up)
        self.seen = None  # the module as `gate` was told of it
        self.hidden = None  # in such a forward, where no gradient is wanted: f(gate) * up

    def linears(self, module):
        found = [getattr(module, name) for name in self.columns]
        for name, x, of in (*zip(self.columns, found, (Column,) * len(found)), (self.row, getattr(module, self.row), Row)):
            if not isinstance(x, of):
                raise Refused(f"{self.name}.{name} is a {type(x).__name__}, which was put there after mkernel.parallelize: an adapter or another module in a "
                              "divided one's place cannot be computed")
        return found

    def lay(self, module):
        """Puts the weights one under another in memory, and the biases; parameters become views. Where others stand in their place (FSDP's), nothing is moved."""
        linears = self.linears(module)
        for kind in self.whole:
            parts = [x._parameters.get(kind) for x in linears]
            if any(type(x) is not torch.nn.Parameter for x in parts) or len({(x.dtype, x.device) for x in parts}) != 1:
                self.whole[kind], self.laid[kind] = None, ()
            elif not _holds(self.whole[kind], parts):
                with torch.no_grad():
                    self.whole[kind] = torch.cat([x.detach() for x in parts])
                    for x, part in zip(parts, self.whole[kind].split([len(x) for x in parts])):
                        x.data = part
            self.laid[kind] = tuple(parts) if self.whole[kind] is not None else ()
        self.kept = getattr(module, self.row)._parameters["weight"]

    def __deepcopy__(self, memo):
        new = memo[id(self)] = Block(self.of, self.name, self.columns, self.row)  # and the copied module lays its own
        new.gate, new.seen = self.gate, copy.deepcopy(self.seen, memo)
        return new

    def read(self, module):
        """The modules, the weights one under another and the biases, None where not all have one."""
        linears = self.linears(module)
        return linears, self._read("weight", linears), None if any(x.bias is None for x in linears) else self._read("bias", linears)

    def _read(self, kind, linears):
        """Of parameters that do not lie in `whole` a copy: who put them there (a functional call, FSDP) may go on with their memory."""
        parts, whole = [getattr(x, kind) for x in linears], self.whole[kind]
        for x in linears:
            x.uses()
        for x, part in zip(linears, parts):
            if len(part) != x.out_features:
                raise Refused(f"{self.name}: a {kind} of {len(part)} rows was put in the place of this rank's {x.out_features}: mkernel.load_full_state_dict "
                              "takes whole tensors")
        if torch.compiler.is_compiling():
            held = len(self.laid[kind]) == len(parts) and all(x is y for x, y in zip(parts, self.laid[kind]))
        else:
            held = _holds(whole, parts)
            if not held:
                self.whole[kind], self.laid[kind] = None, ()  # nor is memory kept that FSDP has taken over
        if not held:
            with torch.no_grad():
                whole = torch.cat([x.detach() for x in parts])
        if torch.is_grad_enabled() and any(x.requires_grad for x in parts):
            mains = [getattr(x, "main_grad", None) for x in parts]
            whole.main_grad = None if any(x is None for x in mains) else mains
            return _Together.apply(whole, *parts)
        return whole


def _holds(whole, parts):
    if whole is None:
        return False
    at = whole.data_ptr()
    for x in parts:
        if type(x) not in _PLAIN or x.data_ptr() != at or x.dtype is not whole.dtype:
            return False
        at += x.numel() * x.element_size()
    return True


_PLAIN = (torch.Tensor, torch.nn.Parameter)


class _Together(torch.autograd.Function):
    """Parameters that lie one under another in `whole`, as one matrix; no copy."""

    @staticmethod
    def forward(ctx, whole, *weights):
        ctx.rows = [len(x) for x in weights]
        ctx.set_materialize_grads(False)
        return whole.view_as(whole)

    @staticmethod
    def backward(ctx, gradient):
        return (None, *([None] * len(ctx.rows) if gradient is None else gradient.split(ctx.rows)))


def _own(comm, x):
    """This rank's rows of x [B, S, H], as [B, S/W, H]."""
    rows = x.reshape(-1, x.shape[-1]).chunk(comm.world)[comm.rank]
    return rows.reshape(*x.shape[:-2], x.shape[-2] // comm.world, x.shape[-1])


def _whole(comm, x):
    rows = operators.all_gather(x.reshape(-1, x.shape[-1]), comm=comm)
    return rows.reshape(*x.shape[:-2], x.shape[-2] * comm.world, x.shape[-1])


class _Enter(torch.autograd.Function):
    """From what all ranks have to this rank's rows."""

    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return _own(comm, x).clone()

    @staticmethod
    def backward(ctx, gradient):
        return _whole(ctx.comm, gradient.contiguous()), None


class _Leave(torch.autograd.Function):
    """From this rank's rows to what all ranks have. They all make the same loss of it, which counts once."""

    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return _whole(comm, x.contiguous())

    @staticmethod
    def backward(ctx, gradient):
        return _own(ctx.comm, gradient), None


class _Shared(torch.autograd.Function):
    """A parameter that all ranks have and use for their own rows or heads: its gradient is the sum over the ranks."""

    @staticmethod
    def forward(ctx, x, comm):
        ctx.comm = comm
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        W = ctx.comm.world
        flat = gradient.reshape(-1)
        flat = flat if flat.dtype is torch.float16 else flat.bfloat16()
        columns = -(-len(flat) // (8 * W)) * 8
        room = flat.new_zeros(W, columns)
        room.view(-1)[: len(flat)] = flat
        summed = operators.all_gather(operators.reduce_scatter(room, comm=ctx.comm), comm=ctx.comm)
        return summed.reshape(-1)[: len(flat)].reshape(gradient.shape).to(gradient.dtype), None


class _Shares:
    """Before the class of a module in the layers with parameters that all ranks have. While a layer computes they are read through _Shared, so the sum is part of
    the graph, whatever Parameter is there; else they are what they were."""

    shared = ()  # their names

    def forward(self, *arguments, **named):
        of = self.mkernel_of
        of.inside.append(self)
        try:
            return super().forward(*arguments, **named)
        finally:
            of.closes(self, None, None)


def _read_shared(name):
    def read(self):
        x = self._parameters.get(name)
        if x is None:
            return self.__getattr__(name)
        of = self.mkernel_of
        return _Shared.apply(x, of.comm) if of.inside and x.requires_grad and torch.is_grad_enabled() and of.mode == "sequence" and of.comm.world > 1 else x

    return property(read)


@functools.lru_cache(None)
def _sharing(of, names):
    return type(of.__name__, (_Shares, of), {"__module__": of.__module__, "shared": names, **{name: _read_shared(name) for name in names}})


def _share(of, layer):
    """For all modules that are in it now, and parameters that they have now."""
    for module in layer.modules():
        names = tuple(name for name, x in module._parameters.items() if x is not None and name not in getattr(module, "divided", ()))
        if set(names) - set(getattr(type(module), "shared", ())):
            module.mkernel_of = of
            module.__class__ = _sharing(type(module), names)


class Column(Divided, torch.nn.Linear):
    """Column-parallel: this rank's rows of the weight [N/W, K]. Its block has computed the product."""

    divided = {"weight": 0, "bias": 0}

    def forward(self, x):
        block = self.block
        if block.product is None or x is not block.product[0]:
            raise Refused(f"{block.name}: its Linear modules {', '.join(block.columns)} have to be given the input of {block.name} "
                          "itself: another forward cannot be parallelised so")
        y = x[..., self.start : self.start + self.out_features]
        return y if self.bias is None or block.product[1] else y + self.bias


class Row(Divided, torch.nn.Linear):
    """Row-parallel: this rank's columns of the weight [N, K/W]. The bias is added once, to the sum."""

    divided = {"weight": 1}

    def forward(self, x):
        of = self.of
        self.uses()
        exact = torch.are_deterministic_algorithms_enabled()
        rows = x.reshape(-1, x.shape[-1])
        lead = (*x.shape[:-2], x.shape[-2] // of.comm.world) if of.mode == "sequence" else x.shape[:-1]
        if of.norms and self.bias is None and self.weight is self.block.kept and not any(of.graded) and _pending.may_wait():
            return _pending.Pending(of, rows, self.weight.detach(), lead)
        if of.mode == "sequence":
            y = operators.gemm_rs(rows, self.weight.t(), deterministic=exact, comm=of.comm)
        else:
            y = operators.gemm_ar(rows, self.weight.t(), deterministic=exact, comm=of.comm)
        y = y.reshape(*lead, y.shape[-1])
        return y if self.bias is None else y + self.bias


class _Whole:
    """Before the class of a block's module."""

    def __setstate__(self, state):  # of a copy
        super().__setstate__(state)
        self.mkernel_block.lay(self)

    def _apply(self, *arguments, **named):
        made = super()._apply(*arguments, **named)
        self.mkernel_block.lay(self)
        return made

    def forward(self, *arguments, **named):
        hidden = self.mkernel_block.hidden
        return super().forward(*arguments, **named) if hidden is None else getattr(self, self.mkernel_block.row)(hidden)


class Experts(Divided):
    """This rank's experts, gate_up_proj [E/W, 2 I, H] and down_proj [E/W, H, I]. In place of a module that is called with rows, ids and weights."""

    divided = {"gate_up_proj": 0, "down_proj": 0}

    def forward(self, x, ids, weights):
        of, W = self.of, self.of.comm.world
        if not self.mkernel_seen.still():
            raise Refused(f"{self.mkernel_name} has changed since mkernel.parallelize (a hook, an activation, an attribute): experts are computed by moe_ffn, which "
                          "does not know")
        if torch.is_grad_enabled() and (x.requires_grad or weights.requires_grad or self.gate_up_proj.requires_grad or self.down_proj.requires_grad):
            raise Refused(f"{self.mkernel_name}: experts are computed by moe_ffn, which has no backward: call the model under torch.no_grad()")
        rows = x.reshape(-1, x.shape[-1])
        ids, weights = ids.reshape(len(rows), -1), weights.reshape(len(rows), -1).float()
        count = len(rows)
        if of.mode == "decode" and W > 1:
            share = -(-count // W)
            extra = share * W - count  # rows of no expert
            mine = slice(of.comm.rank * share, (of.comm.rank + 1) * share)
            rows = torch.nn.functional.pad(rows, (0, 0, 0, extra))[mine]
            ids = torch.nn.functional.pad(ids, (0, 0, 0, extra), value=-1)[mine]
            weights = torch.nn.functional.pad(weights, (0, 0, 0, extra))[mine]
        exact = torch.are_deterministic_algorithms_enabled()
        y = operators.moe_ffn(rows, self.gate_up_proj.transpose(1, 2), ids, weights, self.down_proj.transpose(1, 2), deterministic=exact, comm=of.comm)
        if of.mode == "decode" and W > 1:
            y = operators.all_gather(y, comm=of.comm)[:count]
        return y.reshape(x.shape)


def _block_begins(module, arguments, named):
    """Puts the product with all column-parallel weights in the place of the block's input."""
    block = module.mkernel_block
    of = block.of
    linears, weight, biases = block.read(module)
    every = [(i, x) for i, x in (*enumerate(arguments), *named.items()) if isinstance(x, torch.Tensor) and x.ndim > 1 and x.is_floating_point()
             and x.shape[-1] == weight.shape[1]]
    if len(every) != 1:
        raise Refused(f"{block.name}: its input should be one tensor [..., {weight.shape[1]}], and there are {len(every)}")
    (where, x), = every
    rows = x.reshape(-1, x.shape[-1])
    graded = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in (rows, weight, *(x.bias for x in linears)))
    bias = None if graded else biases  # the product's epilogue has no backward
    if block.gate and not graded and block.seen.still() and (of.mode == "sequence" or len(rows) > 32):  # of fewer cuBLAS's products of gate and up by themselves are 1 to 2 % of a step faster
        comm = of.comm if of.mode == "sequence" else of.comm.alone()
        hidden = operators.ag_gemm(rows, weight.t(), bias=bias, activation=block.gate, gated=True, comm=comm)
        block.hidden = hidden.reshape(*x.shape[:-2], x.shape[-2] * comm.world, hidden.shape[-1])
        return None
    if of.mode == "sequence":
        y = operators.ag_gemm(rows, weight.t(), bias=bias, comm=of.comm)
        lead = (*x.shape[:-2], x.shape[-2] * of.comm.world)
    else:
        if graded:
            raise Refused(f"{block.name}: mode \"decode\" has no backward: call the model under torch.no_grad(), or take mode \"sequence\"")
        y, lead = torch.nn.functional.linear(rows, weight, bias), x.shape[:-1]
    y = y.reshape(*lead, y.shape[-1])
    block.product = (y, bias is not None)
    if isinstance(where, int):
        return (*arguments[:where], y, *arguments[where + 1 :]), named
    return arguments, {**named, where: y}


def _loaded(module, keys):
    module.mkernel_block.lay(module)


def _block_ends(module, arguments, result):
    module.mkernel_block.product = module.mkernel_block.hidden = None


def _first_tensor(arguments, named):
    for where, x in (*enumerate(arguments), *named.items()):
        if isinstance(x, torch.Tensor) and x.is_floating_point() and x.ndim > 1:
            return where, x
    raise Refused("the first of the parallelised layers has no input [B, S, H]")


def _layers_begin(module, arguments, named):
    of = module.mkernel_of
    if of.empty:
        raise Refused("the model was parallelised on meta, and its weights have not been loaded: mkernel.load_checkpoint brings them")
    if of.mode != "sequence":
        return None
    where, x = _first_tensor(arguments, named)
    if x.shape[-2] % of.comm.world:
        raise Refused(f"the sequence is {x.shape[-2]} long, and {of.comm.world} ranks do not divide it: pad it, or take mode \"decode\"")
    x = _Enter.apply(x, of.comm)
    if isinstance(where, int):
        return (*arguments[:where], x, *arguments[where + 1 :]), named
    return arguments, {**named, where: x}


def _layers_end(module, arguments, result):
    of = module.mkernel_of
    if of.mode != "sequence" and isinstance(result, _pending.Pending):
        of.leaving = result
        return None
    result = _pending.values(result)
    if of.mode != "sequence":
        return result
    if isinstance(result, tuple):
        return (_Leave.apply(result[0], of.comm), *result[1:])
    return _Leave.apply(result, of.comm)


def parallelize(model, comm, mode, plan):
    comm = comm or _communicator.default()
    if mode not in MODES:
        raise Refused(f"mode is \"{mode}\", and should be \"sequence\" or \"decode\"")
    if comm._arrays.NAME != "torch":
        raise Refused("the communicator's arrays are numpy's: import torch before mkernel.init")
    if any(hasattr(x, "mkernel_of") or hasattr(x, "mkernel_block") for x in model.modules()):
        raise Refused("the model is parallelised already")
    if any(isinstance(x, torch.nn.parallel.DistributedDataParallel) for x in model.modules()):
        raise Refused("the model is in DistributedDataParallel: divide it by mkernel.parallelize first, then wrap it")
    for name, x in model.named_parameters():
        if type(x) is not torch.nn.Parameter:
            raise Refused(f"{name} is a {type(x).__name__}: divide the model by mkernel.parallelize first, then wrap it")
    blocks = _blocks.planned(model, plan) if plan is not None else _blocks.found_in(model)
    experts = _blocks.experts_in(model)
    if not blocks:
        raise Refused("no module of the model has gate_proj, up_proj and down_proj, or q_proj, k_proj, v_proj and o_proj: name its Linear "
                      "modules in plan={\"layers.*.fc1\": \"colwise\", \"layers.*.fc2\": \"rowwise\"}")
    layers = _blocks.layers_of(model, blocks, experts)
    names = {}
    for name, weight in model.named_parameters(remove_duplicate=False):
        names.setdefault(weight, []).append(name)
    checked = {}
    for name, (columns, row) in blocks.items():
        module = model.get_submodule(name)
        checked[name] = linears, last, heads = _blocks.check(comm, name, module, columns, row)
        for x in (*linears, last):
            if len(names[x.weight]) > 1:
                raise Refused(f"{' and '.join(names[x.weight])} are one parameter, which cannot be divided")
    for name in experts:
        module = model.get_submodule(name)
        _blocks.check_experts(comm, name, module)
        for x in module.parameters():
            if len(names[x]) > 1:
                raise Refused(f"{' and '.join(names[x])} are one parameter, which cannot be divided")
    of = Parallel(comm, mode)
    buffers = _buffers(model, comm) if _on_meta(model) else {}
    for name, (columns, row) in blocks.items():  # nothing is refused from here on
        module = model.get_submodule(name)
        gate = _blocks.gate_of(module, columns, row)
        _divide(of, module, name, columns, row, *checked[name])
        module.__class__ = _pending.before(_Whole, type(module))
        if gate and sum(x.out_features for x in checked[name][0]) % 16 == 0:
            module.mkernel_block.gate, of.gates = gate, True
    for name in experts:
        module = model.get_submodule(name)
        for child, x in module.named_parameters():
            x.data = x.data.chunk(comm.world)[comm.rank].clone()
        module.__class__, module.mkernel_name = Experts, name
        module.has(of)
    if _on_meta(model):
        _give_memory(model, comm, buffers)
        of.empty = True
    for name in blocks:
        module = model.get_submodule(name)
        module.mkernel_block.lay(module)
        module.register_load_state_dict_post_hook(_loaded)
    of.norms = _pending.find_norms(model, comm, last.out_features)
    _share(of, layers)
    for layer in layers:
        layer.register_forward_pre_hook(of.opens)
        layer.register_forward_hook(of.closes, always_call=True)
    of.enter(mode)
    layers[0].register_forward_pre_hook(_layers_begin, with_kwargs=True)
    layers[-1].register_forward_hook(_layers_end)
    for name, module in model.named_modules():
        if module is not layers and any(x is layers for x in module.modules()):
            module.register_forward_pre_hook(of.begins)
            module.register_forward_hook(of.ends, always_call=True)
    model.register_forward_hook(_pending.settle)
    model.mkernel_of = layers[0].mkernel_of = layers[-1].mkernel_of = of
    for module in model.modules():
        if hasattr(type(module), "save_pretrained"):
            module.__class__ = _pending.before(_divided.Saves, type(module))
    for name in blocks:
        module = model.get_submodule(name)
        module.mkernel_block.seen = _blocks.Seen(module) if module.mkernel_block.gate else None
    for name in experts:
        module = model.get_submodule(name)
        module.mkernel_seen = _blocks.Seen(module)
    for module in model.modules():
        if isinstance(module, _pending.Norm):
            module.mkernel_seen = _blocks.Seen(module)
    _divided.tell_pytorch()
    return model


def _on_meta(model):
    """Whether the model has no memory yet. Refused where some of it has."""
    there, absent = [], []
    for name, x in model.named_parameters():
        (absent if x.device.type == "meta" else there).append(name)
    if there and absent:
        raise Refused(f"{absent[0]} is on meta and {there[0]} is not: make the whole model under torch.device(\"meta\"), or none of it")
    return bool(absent)


def _buffers(model, comm):
    """The buffers on meta, as {module: {name: tensor}}. Those that no checkpoint has (a rotary embedding's frequencies) are computed as `transformers` does it."""
    made = {}
    for name, module in model.named_modules():
        absent = {child: x for child, x in module._buffers.items() if x is not None and x.device.type == "meta"}
        if not absent:
            continue
        new = {child: torch.zeros(x.shape, dtype=x.dtype, device=comm._place) for child, x in absent.items()}
        unsaved = [child for child in new if child in module._non_persistent_buffers_set]
        for child in unsaved:
            new[child].fill_(float("nan") if new[child].is_floating_point() else -1)
        if unsaved and hasattr(model, "_init_weights") and not module._parameters:
            module._buffers.update(new)
            with torch.no_grad():
                model._init_weights(module)
            module._buffers.update(absent)
        for child in unsaved:
            if (new[child].isnan() if new[child].is_floating_point() else new[child] == -1).any():
                raise Refused(f"{name}.{child} is a buffer on meta that no checkpoint has and the model does not compute anew: make the model with its buffers on {comm.device}")
        made[module] = new
    return made


def _give_memory(model, comm, buffers):
    """In place of each parameter on meta, which is cut to this rank's part, one with memory."""
    made = {}
    for module in model.modules():
        for child, x in module._parameters.items():
            if x is not None:
                if x not in made:
                    made[x] = torch.nn.Parameter(torch.full(x.shape, float("nan"), dtype=x.dtype, device=comm._place), x.requires_grad)
                module._parameters[child] = made[x]
        module._buffers.update(buffers.get(module, {}))


def _divide(of, module, name, columns, row, linears, last, heads):
    W, rank = of.comm.world, of.comm.rank
    block = module.mkernel_block = Block(of, name, columns, row)
    start = 0
    with torch.no_grad():
        for child, x in zip(columns, linears):
            x.weight.data = x.weight.chunk(W)[rank].clone()
            if x.bias is not None:
                x.bias.data = x.bias.chunk(W)[rank].clone()
            x.out_features //= W
            x.__class__, x.block, x.start = Column, block, start
            x.has(of)
            start += x.out_features
        last.weight.data = last.weight.chunk(W, 1)[rank].contiguous().clone()
        last.in_features //= W
        last.__class__, last.block = Row, block
        last.has(of)
    for attribute, n in heads:
        setattr(module, attribute, n // W)
    module.register_forward_pre_hook(_block_begins, with_kwargs=True)
    module.register_forward_hook(_block_ends, always_call=True)


def of_model(model) -> Parallel:
    of = getattr(model, "mkernel_of", None)
    if of is None:
        raise Refused("the model has not been parallelised")
    return of


def set_mode(model, mode):
    of = of_model(model)
    if mode not in MODES:
        raise Refused(f"mode is \"{mode}\", and should be \"sequence\" or \"decode\"")
    of.enter(mode)
