"""What parallelize finds in a model, and whether it can be divided: else Refused, before anything has changed."""
from __future__ import annotations

import fnmatch
import inspect
import re

import torch

from ._library import Refused

_KNOWN = ((("gate_proj", "up_proj"), "down_proj"), (("q_proj", "k_proj", "v_proj"), "o_proj"))
_HEADS = r"(num|n)_(attention_|local_)?(heads?|key_value_heads|kv_heads?)"  # attributes that count heads


def planned(model, plan):
    """The plan's Linear modules by block: {name of block: (columns, row)}."""
    found, used = {}, set()
    for name, _ in model.named_modules():
        for pattern, style in plan.items():
            if not fnmatch.fnmatchcase(name, pattern):
                continue
            if style not in ("colwise", "rowwise"):
                raise Refused(f"plan: {pattern} is \"{style}\", and should be \"colwise\" or \"rowwise\"")
            used.add(pattern)
            block, _, child = name.rpartition(".")
            found.setdefault(block, ([], []))[style == "rowwise"].append(child)
            break
    for pattern in plan:
        if pattern not in used:
            raise Refused(f"plan: no module is named {pattern}")
    for block, (columns, rows) in found.items():
        if not columns or len(rows) != 1:
            raise Refused(f"plan: {block} has {len(columns)} \"colwise\" modules and {len(rows)} \"rowwise\": it needs one or more, and one")
    return {block: (columns, rows[0]) for block, (columns, rows) in found.items()}


def found_in(model):
    blocks = {}
    for name, module in model.named_modules():
        children = dict(module.named_children())
        for columns, row in _KNOWN:
            if all(x in children for x in (*columns, row)):
                blocks[name] = (list(columns), row)
    return blocks


def experts_in(model):
    """Names of modules that hold experts: gate_up_proj [E, 2 I, H] and down_proj [E, H, I], and nothing else."""
    found = []
    for name, module in model.named_modules():
        own = dict(module.named_parameters())
        if set(own) == {"gate_up_proj", "down_proj"} and all(x.ndim == 3 for x in own.values()):
            found.append(name)
    return found


def _check_place(comm, name, x):
    if x.device != comm._place and x.device.type != "meta":
        raise Refused(f"{name} is on {x.device}, and the communicator on {comm.device}")


def check_experts(comm, name, module):
    up, down = module.gate_up_proj, module.down_proj
    E, I2, H = up.shape
    if I2 % 2 or down.shape != (E, H, I2 // 2):
        raise Refused(f"{name}: gate_up_proj is {list(up.shape)} and down_proj {list(down.shape)}, and should be [E, 2 I, H] and [E, H, I]")
    if E % comm.world:
        raise Refused(f"{name} has {E} experts, which {comm.world} ranks do not divide")
    for child, x in (("gate_up_proj", up), ("down_proj", down)):
        if x.dtype is not torch.bfloat16:
            raise Refused(f"{name}.{child} is of {x.dtype}, and should be of torch.bfloat16: convert by model.to(torch.bfloat16)")
        _check_place(comm, f"{name}.{child}", x)
    with torch.no_grad():  # what its forward makes of two rows and its last expert is what moe_ffn makes
        if up.device.type == "meta":  # numbers in place of weights that are not there yet, alike for all experts
            up, down = (torch.empty(x.shape[1:], dtype=x.dtype, device=comm._place).normal_(0, x.shape[2] ** -0.5).expand(x.shape) for x in (up, down))
        x = torch.linspace(-2, 2, 2 * H, device=up.device).sin().reshape(2, H).bfloat16()
        gate, value = torch.nn.functional.linear(x, up[-1]).float().chunk(2, -1)
        right = 0.5 * torch.nn.functional.linear((torch.nn.functional.silu(gate) * value).bfloat16(), down[-1]).float()
        try:
            given = x, torch.full((2, 1), E - 1, device=up.device), torch.full((2, 1), 0.5, device=up.device)
            got = torch.func.functional_call(module, {"gate_up_proj": up, "down_proj": down}, given).float()
        except Exception as e:
            raise Refused(f"{name}: its forward should take rows [T, H], ids [T, K] and weights [T, K]: {e}") from None
        if got.shape != right.shape or not (got - right).norm() <= 0.05 * right.norm():
            raise Refused(f"{name}: its forward does not make the sum of weight * (silu(x gate) * (x up)) down, which is what moe_ffn makes")


class Seen:
    """A module whose forward was told by what it makes. Before a call that goes past that forward it is asked whether all is as it was: hooks, children,
    attributes, code. It says so of tensors alone that they have the same names: their values are read in each call."""

    def __init__(self, module):
        self.modules = [(x, type(x), _code(x), dict(x._modules), len(x._forward_pre_hooks), self._own(x)) for x in module.modules()]

    @staticmethod
    def _own(module):
        return {name: x for name, x in vars(module).items() if name not in _FREE}

    def still(self) -> bool:
        if _hooks._global_forward_hooks or _hooks._global_forward_pre_hooks:
            return False
        for i, (x, kind, code, children, hooks, own) in enumerate(self.modules):
            if i and (x._forward_hooks or x._forward_pre_hooks) or len(x._forward_pre_hooks) != hooks:
                return False
            if type(x) is not kind or x._modules != children or x._buffers or _code(x) != code:
                return False
            now = vars(x)
            if len(now) - sum(name in now for name in _FREE) != len(own):
                return False
            for name, y in own.items():
                z = now.get(name, self)
                if z is not y and not (type(z) is type(y) and type(y) in (int, float, bool, str) and z == y):
                    return False
        return True


_hooks = torch.nn.modules.module
_FREE = ("training", "mkernel_seen")  # what a forward makes is told in both modes


def _code(module) -> list:
    return [x.__dict__.get("forward") for x in type(module).__mro__]


def in_both_modes(module, tell):
    """What tell() says of a module, training or not; None where that differs."""
    modes = [(x, x.training) for x in module.modules()]
    try:
        said = [tell() for mode in (True, False) if module.train(mode)]
    finally:
        for x, mode in modes:
            x.training = mode
    return said[0] if said[0] == said[1] else None


_GATES = {"silu": torch.nn.functional.silu, "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh")}


def gate_of(module, columns, row) -> str:
    return in_both_modes(module, lambda: _gate_of(module, columns, row)) or ""


def _gate_of(module, columns, row) -> str:
    """The activation f with which the module's forward makes row(f(gate(x)) * up(x)) of its two column-parallel modules, as ag_gemm's gated epilogue
    does; "": it makes something else. Told by what it makes of small weights in their place."""
    linears = [getattr(module, x) for x in (*columns, row)]
    own = {f"{name}.{kind}" for name, x in zip((*columns, row), linears) for kind, _ in x.named_parameters()}
    if len(columns) != 2 or any(True for _ in module.buffers()) or {name for name, _ in module.named_parameters()} != own or len({x.bias is None for x in linears[:2]}) != 1:
        return ""
    with torch.no_grad():
        wave = torch.arange(2000, device=linears[0].weight.device if linears[0].weight.device.type != "meta" else "cpu").float().mul(0.7).sin()
        weights, biases = [wave[:384].reshape(16, 24), wave[400:784].reshape(16, 24), wave[800:1184].reshape(24, 16)], [wave[1200:1216], wave[1216:1232], wave[1232:1256]]
        x = wave[1300:1348].reshape(2, 24) * 0.7
        given = {f"{name}.weight": w for name, w in zip((*columns, row), weights)}
        given.update({f"{name}.bias": b for name, b, y in zip((*columns, row), biases, linears) if y.bias is not None})
        gate, up = (torch.nn.functional.linear(x, w, given.get(f"{name}.bias")) for name, w in zip(columns, weights))
        try:
            got = torch.func.functional_call(module, given, (x,))
        except Exception:
            return ""
        for word, f in _GATES.items():
            right = torch.nn.functional.linear(f(gate) * up, weights[2], given.get(f"{row}.bias"))
            if isinstance(got, torch.Tensor) and got.shape == right.shape and (got.float() - right).norm() <= 3e-6 * right.norm():
                return word
    return ""


def _heads(name, module, linears, world):
    """The numbers of heads, (attribute, heads), to divide. Refused where the forward cannot be right with a rank's heads."""
    if not any(hasattr(module, x) for x in ("q_proj", "head_dim")) and not any(re.fullmatch(_HEADS, x) for x in vars(module)):
        return []
    counts = [(x, n) for x, n in vars(module).items() if re.fullmatch(_HEADS, x) and isinstance(n, int)]
    dim = getattr(module, "head_dim", None)
    if not isinstance(dim, int):
        if not counts:
            raise Refused(f"{name} has neither head_dim nor num_heads, so its heads cannot be told")
        dim = linears[0].out_features // max(n for _, n in counts)
    for child, x in _linears_of(module):
        if x in linears and x.out_features // dim % world:
            raise Refused(f"{name}.{child} has {x.out_features // dim} heads, which {world} ranks do not divide")
    for x, n in counts:
        if n % world:
            raise Refused(f"{name}.{x} is {n}, which {world} ranks do not divide")
    try:
        source = inspect.getsource(type(module).forward)
    except (OSError, TypeError):
        source = ""
    uses = re.search(rf"config\.({_HEADS}|hidden_size)\b|self\.(hidden_size|embed_dim)\b", source)
    if uses and world > 1:
        raise Refused(f"{name}: its forward shapes by {uses.group(0)}, which is all ranks', not a rank's")
    return counts


def _linears_of(module):
    return [(name, x) for name, x in module.named_children() if isinstance(x, torch.nn.Linear)]


def check(comm, name, module, columns, row):
    """The block's column-parallel modules and the row-parallel one, fit to be divided."""
    W = comm.world
    linears, last = [getattr(module, x) for x in columns], getattr(module, row)
    for child, x in (*zip(columns, linears), (row, last)):
        if type(x) is not torch.nn.Linear:
            raise Refused(f"{name}.{child} is a {type(x).__name__}, and should be a torch.nn.Linear")
        if x.weight.dtype not in (torch.bfloat16, torch.float16):
            raise Refused(f"{name}.{child}.weight is of {x.weight.dtype}, and should be of torch.bfloat16 or torch.float16: convert by model.to(torch.bfloat16)")
        if x.weight.dtype is not last.weight.dtype:
            raise Refused(f"{name}.{child}.weight is of {x.weight.dtype} and {row}'s of {last.weight.dtype}: they should be alike")
        _check_place(comm, f"{name}.{child}.weight", x.weight)
    if len({x.in_features for x in linears}) != 1 or linears[0].in_features != last.out_features:
        raise Refused(f"{name}: {', '.join(columns)} should take as many columns as {row} makes")
    for child, x in zip(columns, linears):
        if x.out_features % W:
            raise Refused(f"{name}.{child} has {x.out_features} rows, which {W} ranks do not divide")
    if last.in_features % W:
        raise Refused(f"{name}.{row} has {last.in_features} columns, which {W} ranks do not divide")
    for child, x in module.named_children():
        if x not in linears and x is not last:
            for weight in x.parameters():
                if weight.numel() in {y.out_features for y in linears} - {getattr(module, "head_dim", None)} or weight.ndim > 1:
                    raise Refused(f"{name}.{child} has a parameter {list(weight.shape)} for all ranks' columns: it cannot work on a rank's")
    return linears, last, _heads(name, module, linears, W)


def layers_of(model, blocks, experts):
    """The ModuleList or Sequential all blocks and experts are in, whose modules are alike. What stands beside experts (a router, the gate of a
    shared expert) works row by row, and is whole on every rank."""
    blocks = [*blocks, *experts]
    for name, module in model.named_modules():
        if isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)) and all(x.startswith(f"{name}." if name else "") for x in blocks):
            break
    else:
        raise Refused("the blocks are not in one ModuleList or Sequential of layers")
    within = {}
    for x in blocks:
        layer, _, rest = x[len(name) + 1 if name else 0 :].partition(".")
        within.setdefault(layer, set()).add(rest)
    for layer, child in module.named_children():
        if within.get(layer) != within.get("0"):
            raise Refused(f"{name}.{layer} has not the blocks that {name}.0 has")
        for path, x in child.named_modules():
            inside = any(path == b or path.startswith(b + ".") or b == "" for b in within[layer])
            inside = inside or f"{name}.{layer}.{path}".rpartition(".")[0] in {e.rpartition(".")[0] for e in experts}
            big = [list(w.shape) for w in x.parameters(recurse=False) if w.ndim > 1]
            if big and not inside:
                raise Refused(f"{name}.{layer}.{path} has a weight {big[0]} and is in no block: give a plan that names it, or take another model")
    return module
