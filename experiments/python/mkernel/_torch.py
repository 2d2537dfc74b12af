"""PyTorch's tensors as arguments of launches: custom operators with fake kernels, so that torch.compile traces
through them, the current stream, and ranks from torch.distributed."""
from __future__ import annotations

import ctypes
import functools
import os
import secrets
import socket
import sys

import torch
from torch._C import _functorch as functorch
from torch._functorch import eager_transforms
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.utils import flop_counter

from . import _communicator, _experts, _gradients, _quantize, _shapes, operators
from ._library import Refused

NAME = "torch"
_TYPES = {"bf16": (torch.bfloat16,), "fp16": (torch.float16,), "fp32": (torch.float32,), "uint32": (torch.int32, torch.uint32), "e4m3": (torch.float8_e4m3fn,),
          "uint8": (torch.uint8,)}


# ---- what launches ask of an array ----


def is_array(x) -> bool:
    return isinstance(x, torch.Tensor)


def type_is(x, word: str) -> bool:
    return x.dtype in _TYPES[word]


def types_of(word: str) -> str:
    return " or ".join(map(str, _TYPES[word]))


def is_contiguous(x) -> bool:
    return x.is_contiguous()


def is_writeable(x) -> bool:
    """PyTorch has no read-only tensors."""
    return True


def contiguous(x):
    return x.contiguous()


def pointers(inputs, outputs) -> list:
    """Addresses of the first elements."""
    return [x.data_ptr() for x in (*inputs, *outputs)]


def key(inputs, *flags) -> tuple:
    """What decides how a launch takes these inputs. None of what has no memory."""
    try:
        return (*flags, *[y for x in inputs for y in (x.shape, x.stride(), x.dtype, x.device, _kind(x))])
    except RuntimeError:  # sparse, nested
        return None


def _kind(x):
    """Whether a tensor's memory is its numbers, as PyTorch's dispatcher would see it."""
    if forward_ad._current_level >= 0:  # in torch.func.jvp a kernel behind the dispatcher does not see tangents
        if eager_transforms.JVP_NESTING or not functorch.is_functorch_wrapped_tensor(x) and forward_ad.unpack_dual(x).tangent is not None:
            return "dual"
    return torch._C._dispatch_keys(x).raw_repr()


@functools.lru_cache(None)
def _plain_kinds(device):
    """Of tensors outside and inside of torch.inference_mode."""
    made = []
    for mode in (True, False):
        with torch.inference_mode(mode):
            made.append(torch._C._dispatch_keys(torch.empty(0, device=device)).raw_repr())
    return made


_LAZY = (("dual", "has a tangent, and no operator has a derivative in forward mode: give x.detach()"), ("Negative", "has its sign in a bit beside the memory: give x.resolve_neg()"),
         ("Conjugate", "is conjugate by a bit beside the memory: give x.resolve_conj()"), ("ZeroTensor", "is a zero tensor without memory: give x.clone()"),
         ("FuncTorch", "is inside of torch.func (vmap, grad, jvp), which has no rule for operators"), ("Sparse", "is sparse: give x.to_dense()"), ("Quantized", "is quantized: give x.dequantize()"))


def unreadable(x) -> str:
    """Why the memory of a tensor is not its numbers; "": it is."""
    if x.device.type == "meta" or isinstance(x, FakeTensor) or (kind := _kind(x)) in _plain_kinds(x.device):
        return ""  # meta is another place than the communicator's; what a trace stands for is checked when it runs
    words = kind if kind == "dual" else str(torch._C._dispatch_keys(x))
    return next((sentence for word, sentence in _LAZY if word in words), f"is no tensor with plain memory: PyTorch calls it {words}")


def swapped(x):
    return x.transpose(-1, -2)


def place(x):
    return x.device


def place_of(device: str):
    return torch.device(device)


def aligned(x, was_swapped: bool):
    """A copy: PyTorch's own memory is aligned to 64 bytes at least. Of a swapped one the memory stays swapped."""
    return swapped(swapped(x).clone(memory_format=torch.contiguous_format)) if was_swapped else x.clone()


def new(shape, word: str, like):
    return torch.empty(shape, dtype=_TYPES[word][0], device=like.device)


def item_bytes(dtype) -> int:
    return (dtype or torch.bfloat16).itemsize


class _DeviceMemory:
    """Heap memory of a GPU, as torch.as_tensor reads it; the tensor keeps this object, and so its owner."""

    def __init__(self, address, count, owner):
        self.owner = owner
        self.__cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "data": (address, False), "version": 3}


def at(address: int, shape, dtype, owner):
    """A tensor over memory that `owner` has; the tensor keeps `owner` alive."""
    dtype = dtype or torch.bfloat16
    count = dtype.itemsize
    for n in shape:
        count *= n
    device = owner.comm.device
    if device == "cpu":
        buffer = (ctypes.c_uint8 * count).from_address(address)
        buffer.owner = owner
        return torch.frombuffer(buffer, dtype=dtype).view(shape)
    return torch.as_tensor(_DeviceMemory(address, count, owner), device=device).view(dtype).view(shape)


# ---- devices and streams ----


def default_device() -> str:
    return "cuda" if torch.cuda.is_available() else "cpu"


def opened_device() -> str:
    """The communicator's GPU has become this thread's current device."""
    return f"cuda:{torch.cuda.current_device()}"


def stream(device: str) -> int:
    """The cudaStream_t of the current stream."""
    return torch._C._cuda_getCurrentRawStream(int(device[5:]))


def is_capturing() -> bool:
    return torch.cuda.is_current_stream_capturing()


def follow(last, device: str) -> None:
    """Makes the current stream wait for what is on `last` now. A capture begins after a synchronisation, and what
    is captured is ordered where it is replayed."""
    if last is None or is_capturing():
        return
    before = torch.cuda.ExternalStream(last, device=device) if last else torch.cuda.default_stream(device)
    torch.cuda.current_stream(device).wait_stream(before)


# ---- ranks ----


def _host() -> str:
    """Ranks that read the same run on one kernel, and so share memory and GPUs."""
    with open("/proc/sys/kernel/random/boot_id") as f:
        return f.read().strip()


def _nodes_of(hosts) -> int:
    """How many nodes the ranks are on: node by node, as many on each."""
    firsts = [i for i, host in enumerate(hosts) if i == 0 or host != hosts[i - 1]]
    gpus = len(hosts) // len(firsts)
    if len(set(hosts)) != len(firsts) or firsts != list(range(0, len(hosts), gpus)):
        raise Refused("ranks must be numbered node by node, as many on each: these are on the hosts "
                      + " ".join(str(sorted(set(hosts)).index(host)) for host in hosts))
    return len(firsts)


def _addresses(host) -> list:
    """Family and address of each that a host's name has."""
    try:
        return [(family, address) for family, _, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)]
    except OSError:
        return []


def _works(family, address, call) -> str:
    """The own address of a socket after bind or connect, which send nothing; "" where that cannot be."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as s:
            getattr(s, call)(address)
            return s.getsockname()[0]
    except OSError:
        return ""


def _address() -> str:
    """Where ranks of other hosts reach this one: MASTER_ADDR, by which they reach torch.distributed, where it is this host's, else the address from which
    this host reaches it."""
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    found = _addresses(master)
    if any(_works(family, (address[0], 0, *address[2:]), "bind") for family, address in found):
        return master
    return next(filter(None, (_works(family, address, "connect") for family, address in found)), socket.gethostname())


def _listener(alone: bool, backlog: int):
    """Where rank 0 listens, and the address that the other ranks know: of one host, or in IPv4 and IPv6."""
    if alone:
        for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
            if _works(family, (address, 0), "bind"):
                return socket.create_server((address, 0), family=family, backlog=backlog), address
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True), _address()
    return socket.create_server(("", 0), backlog=backlog), _address()


def _own_devices(hosts, devices) -> bool:
    """Whether no two ranks of a host have the same current device."""
    return len(set(zip(hosts, devices))) == len(hosts)


def join(group, nodes, device: str):
    """The device, and settings of this rank, if torch.distributed has been initialised; else {}: the environment says them."""
    dist = torch.distributed
    if not (dist.is_available() and dist.is_initialized()):
        if group is not None:
            raise Refused("a group, and torch.distributed has not been initialised")
        return device, {}
    rank, world = dist.get_rank(group), dist.get_world_size(group)
    said = [None] * world
    dist.all_gather_object(said, (_host(), torch.cuda.current_device() if device == "cuda" else 0), group=group)
    hosts, devices = zip(*said)
    if device == "cuda" and _own_devices(hosts, devices):
        device = f"cuda:{devices[rank]}"
    found = _nodes_of(hosts)
    nodes = nodes or found
    if world % nodes:
        raise Refused(f"nodes={nodes} does not divide {world} ranks")
    meet = [None]
    joined = {"rank": rank, "nodes": nodes, "gpus": world // nodes}
    if rank == 0:
        listener, address = _listener(found == 1, world)
        meet = [(address, listener.getsockname()[1], secrets.token_hex(16))]
        joined["listen_fd"] = listener.detach()
    dist.broadcast_object_list(meet, src=0 if group is None else dist.get_global_rank(group, 0), group=group)
    joined["host"], joined["port"], joined["token"] = meet[0]
    return device, joined


def peers(group) -> tuple:
    """The numbers that the group's ranks have among all."""
    return tuple(torch.distributed.get_process_group_ranks(torch.distributed.group.WORLD if group is None else group))


# ---- custom operators ----

_namespace = torch.library.Library("mkernel", "DEF")


_with_gradient = {}  # operator -> its eager call where a gradient is wanted, or None
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _handle_of(comm) -> int:
    """The communicator, 0 for the default one, and its ranks. Results' shapes depend on those, and PyTorch keeps compiled programs on disk, where
    nothing else would tell a job of another size that they are not its own."""
    return _communicator.default().world if comm is None else comm.handle << 20 | comm.world


def _of_handle(handle: int):
    return _communicator.by_handle(handle >> 20)


_INTEGERS = {name: tuple(i for i, (_, word, _) in enumerate(of.inputs) if word == "uint32") for name, of in _shapes.OPERATORS.items()}


# What autocast converts: the 16-bit factors of products and of attention, and what is added to these. What only moves stays as it is.
_FACTORS = {name: tuple(i for i, (_, word, _) in enumerate(of.inputs) if word == "bf16") if of.matrices or of.causal else () for name, of in _shapes.OPERATORS.items()}


def _autocast(op, inputs):
    device = inputs[0].device.type
    if device not in ("cpu", "cuda") or not torch.is_autocast_enabled(device):
        return inputs
    to = torch.get_autocast_dtype(device)
    return tuple(x.to(to) if i in _FACTORS[op] and is_array(x) and x.dtype in (torch.float32, torch.float16, torch.bfloat16) else x for i, x in enumerate(inputs))


def _converted(op, inputs):
    """As autocast has them, and whole numbers in 32 bits: one that has more is of no expert, and no number of tokens, and stays so."""
    if torch._C._is_any_autocast_enabled():
        inputs = _autocast(op, inputs)
    for i in _INTEGERS[op]:
        if getattr(inputs[i], "dtype", None) is torch.int64:
            inputs = (*inputs[:i], inputs[i].clamp(-1, 2**31 - 1).to(torch.int32), *inputs[i + 1 :])
    return inputs


def to_begin(op, inputs):
    """The inputs of a launch in halves."""
    if torch.compiler.is_compiling():
        raise Refused(f"{op}: begin= in compiled code: call it outside, or keep torch.compile from it (torch.compiler.disable)")
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs):
        raise Refused(f"{op}: begin= has no gradient: call it under torch.no_grad(), or without begin=")
    return _converted(op, inputs)


def launch(comm, op, inputs, outputs, causal, deterministic, options):
    """What mkernel.ag_gemm and its like do with tensors; torch.compile traces through it."""
    deterministic = int(deterministic)
    inputs = _converted(op, inputs)
    if not (torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or _is_profiled() or torch._C._get_tracing_state()):
        grad, wanted = torch.is_grad_enabled(), False
        for x in inputs:
            if type(x) not in _PLAIN:
                break
            if grad and x.requires_grad:
                wanted = True
        else:  # eager: nobody stands between who would have to see an operator, and the dispatcher takes 4 us
            if not wanted:
                made = (_communicator.default() if comm is None else comm).launch(op, inputs, outputs, causal, deterministic, options)
                if outputs is not None:
                    wrote(outputs)
                return made
            if outputs is None and _with_gradient[op]:
                return (_with_gradient[op](*inputs, causal, deterministic, options, _handle_of(comm)),)
    if outputs is None:
        made = getattr(torch.ops.mkernel, op)(*inputs, causal, deterministic, options, _handle_of(comm))
        return made if isinstance(made, (tuple, list)) else (made,)
    getattr(torch.ops.mkernel, op + "_out")(*inputs, *outputs, causal, deterministic, options, _handle_of(comm))
    return outputs


def _is_profiled() -> bool:
    return getattr(torch.autograd.profiler, "_is_profiler_enabled", False)


def _run(comm, of, inputs, outputs, *flags):
    """A launch by way of the dispatcher. A profiler sees the operator's range, and in it one that says the problem and this rank's FLOP."""
    if not _is_profiled():
        return comm.launch(of.name, inputs, outputs, *flags)
    plan = comm.ready(of, inputs, outputs, *flags).plan
    with torch.profiler.record_function(f"{of.name} {','.join(map(str, plan.shape))}: {plan.flop / 1e9:.4g} GFLOP"):
        return comm.launch(of.name, inputs, outputs, *flags)


def wrote(outputs) -> None:
    """Tells autograd, which may have kept one of them for a backward."""
    for x in outputs:
        if not x.is_inference():
            torch.autograd.graph.increment_version(x)


def _backward_of(handle: int):
    """How a backward launches."""
    comm = _of_handle(handle) if handle >> 20 else None

    def run(op, *inputs):
        exact = _shapes.OPERATORS[op].deterministic and torch.are_deterministic_algorithms_enabled()
        return launch(comm, op, inputs, None, False, exact, "")[0]

    return run


def _refuse_gradients(name: str, sentence: str) -> None:
    """mkernel::NAME refuses tensors that require a gradient."""
    overload = getattr(torch.ops.mkernel, name).default

    def autograd(*arguments):
        if torch.is_grad_enabled() and any(isinstance(x, torch.Tensor) and x.requires_grad for x in arguments):
            raise Refused(sentence)
        with torch._C._AutoDispatchBelowAutograd():
            return overload(*arguments)

    _namespace.impl(name, autograd, "Autograd")


_FLAGS = "bool causal=False, int deterministic=0, str options='', int comm=0"
_DEFAULTS = (False, 0, "", 0)


def _filled(arguments, tensors: int) -> tuple:
    """PyTorch leaves out what equals the schema's defaults at the end."""
    return (*arguments, *_DEFAULTS[len(arguments) - tensors :])


def _define(of: _shapes.Operator) -> None:
    """mkernel::NAME, which returns new tensors, and mkernel::NAME_out, which writes given ones."""
    inputs, outputs = len(of.inputs), len(of.outputs)
    names = ", ".join(f"Tensor {name.lower()}" for name, _, _ in of.inputs)
    outs = ", ".join(f"Tensor({'abc'[i]}!) out_{name.lower()}" for i, name in enumerate(of.outputs))
    result = "Tensor" if outputs == 1 else "(" + ", ".join(["Tensor"] * outputs) + ")"
    tags = (torch.Tag.pt2_compliant_tag,)
    _namespace.define(f"{of.name}({names}, {_FLAGS}) -> {result}", tags=tags)
    _namespace.define(f"{of.name}_out({names}, {outs}, {_FLAGS}) -> ()", tags=tags)

    def run(*arguments):
        *flags_of, handle = _filled(arguments, inputs)[inputs:]
        made = _run(_of_handle(handle), of, arguments[:inputs], None, *flags_of)
        return made[0] if outputs == 1 else made

    def run_out(*arguments):
        *flags_of, handle = _filled(arguments, inputs + outputs)[inputs + outputs :]
        results = arguments[inputs : inputs + outputs]
        _run(_of_handle(handle), of, arguments[:inputs], results, *flags_of)
        wrote(results)

    def problem(comm, arguments):
        return _shapes.problem_of(_shapes.typed(of, sys.modules[__name__], arguments), comm.world, [x.shape for x in arguments[:inputs]],
                                  _shapes.said(of, _experts.taken(arguments[-2])[1])[0])

    def fake(*arguments):
        arguments = _filled(arguments, inputs)
        comm = _of_handle(arguments[-1])
        made = []
        for shape, word in problem(comm, arguments).outputs:
            if None in shape:  # which only the plan knows: all ranks trace alike, so all make it now
                ready = comm.ready(of, arguments[:inputs], None, *arguments[inputs:-1])
                shape = ready.outputs[len(made)][0]
            made.append(arguments[0].new_empty(shape, dtype=_TYPES[word][0]))
        return made[0] if outputs == 1 else tuple(made)

    def flop(*arguments, tensors=inputs, **_):
        arguments = _filled(arguments, tensors)
        comm = _of_handle(arguments[-1])
        return _shapes.flop(of, comm.world, [x.shape for x in arguments[:inputs]], problem(comm, arguments).shape, arguments[-4])

    flop_counter.register_flop_formula(getattr(torch.ops.mkernel, of.name), get_raw=True)(flop)
    flop_counter.register_flop_formula(getattr(torch.ops.mkernel, of.name + "_out"), get_raw=True)(functools.partial(flop, tensors=inputs + outputs))
    for key in ("CPU", "CUDA"):
        _namespace.impl(of.name, run, key)
        _namespace.impl(of.name + "_out", run_out, key)
    torch.library.register_fake(f"mkernel::{of.name}", fake, lib=_namespace)
    torch.library.register_fake(f"mkernel::{of.name}_out", lambda *arguments: None, lib=_namespace)
    ways = "call it under torch.no_grad(), or detach its inputs"
    _with_gradient[of.name] = _gradients.register(_namespace, of.name, inputs, run, _backward_of)
    if not _with_gradient[of.name]:
        _refuse_gradients(of.name, f"mkernel.{of.name} has no backward: {ways}")
    _refuse_gradients(of.name + "_out", f"mkernel.{of.name} with out has no backward: {ways}")


for _operator in _shapes.OPERATORS.values():
    _define(_operator)


# ---- quantize, which is no launch of a communicator ----


def quantize(x, scaling: int):
    return torch.ops.mkernel.quantize(x, scaling)


def _quantize_new(x, scaling: int):
    """Codes and scales to be written; of 128x128 not all scales are."""
    _quantize.word_of(sys.modules[__name__], x)
    shape = _quantize.scales_of(x.shape, scaling)
    scales = (x.new_zeros if scaling == 1 else x.new_empty)(shape, dtype=torch.float32)
    dtype = torch.uint8 if _quantize.BLOCKS[scaling] == "records" else torch.float8_e4m3fn
    return torch.empty(_quantize.codes_of(x.shape, scaling), dtype=dtype, device=x.device), scales


def _quantize_run(x, scaling: int = 0):
    if unreadable(x):
        raise Refused(f"quantize: x {unreadable(x)}")
    codes, scales = _quantize_new(x, scaling)
    whole = x.contiguous()
    if whole.data_ptr() & 15:
        whole = whole.clone()
    of = scaling, _quantize.word_of(sys.modules[__name__], x), x.shape, pointers((whole,), (codes, scales))
    if x.is_cuda:
        with torch.cuda.device(x.device):
            _quantize.launch(_quantize.CUDA, *of, stream(str(x.device)))
    else:
        _quantize.launch(_quantize.HOST, *of, None)
    return codes, scales


_namespace.define("quantize(Tensor x, int scaling=0) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,))
for _key in ("CPU", "CUDA"):
    _namespace.impl("quantize", _quantize_run, _key)
torch.library.register_fake("mkernel::quantize", lambda x, scaling=0: _quantize_new(x, scaling), lib=_namespace)
_refuse_gradients("quantize", "mkernel.quantize has no backward: call it under torch.no_grad(), or detach its input")
operators.tensors = sys.modules[__name__]
