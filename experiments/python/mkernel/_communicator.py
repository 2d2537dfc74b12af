"""The communicator: who the ranks are, the plans by shape, launches, and memory of the symmetric heap."""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import math
import operator
import os
import re
import sys
import threading
import warnings
import weakref
from typing import Optional, Sequence, Union

from . import _experts, _library, _shapes
from ._library import Error, Refused, library
from ._plan import Begun, Plan, Ready

_communicators = {}  # handle -> Communicator, while it is open
_default: Optional["Communicator"] = None
_next_handle = 1


PLANS_KEPT = 256  # of a communicator; the least recently used goes


class Communicator:
    """Joins the ranks of a job, one process a rank. `mkernel.init` opens one.

    One launch at a time; threads wait for each other. After an `Error` that is not `Refused` the job has failed:
    then only `close` is useful. A process that is forked from this one cannot use it.
    """

    def __init__(self, arrays, device: str, **settings):
        """`arrays`: the module for the kind of arrays (_numpy, _torch). `device`: "cpu", "cuda", "cuda:1" or "emulated".
        `settings`: fields of struct mk_config."""
        global _next_handle
        device, _, number = device.partition(":")
        if number:
            settings["device"] = int(number) + 1
        self._arrays = arrays
        self._lock = threading.RLock()
        self._address = None
        self._ready = {}  # inputs as arrays.key tells them, and flags -> Ready
        self._plans = {}  # problem and flags -> (Plan, arguments)
        self._launches = 0  # so far: by them a plan's last use is told
        self._tracing = False
        self._blocks = {}  # first address of a heap array -> offset
        self._lent = weakref.WeakSet()  # what heap arrays keep alive
        self._foreign = False  # this process is a fork of the one that opened it
        self._stream = None  # of the last launch, where there are streams
        self._exec, self._host, self._alone = device, device != "cuda", None
        address = ctypes.c_void_p()
        words = _library.settings(exec="host" if device == "cpu" else device, **settings)
        result = library.mk_comm_open_settings(ctypes.byref(address), _library.VERSION_NUMBER, words)
        if result:
            failure = _library.error(result, _sentence(address.value))
            library.mk_comm_close(address.value)
            raise failure
        self._address = address.value
        self.device: str = "cpu" if self._host else arrays.opened_device()  # "cuda:0"
        self._place = arrays.place_of(self.device)
        self.rank: int = library.mk_comm_rank(self._address)
        self.nodes: int = library.mk_comm_nodes(self._address)
        self.gpus: int = library.mk_comm_gpus(self._address)  # ranks of each node
        self.world: int = self.nodes * self.gpus  # ranks in all
        self._peers = self._group = None  # the ranks' numbers in torch.distributed, and their group (None: all), where it has said who they are
        self.handle: int = _next_handle
        _next_handle += 1
        _communicators[self.handle] = self

    def alone(self) -> "Communicator":
        """This rank by itself, on the same device, for products that the ranks do not share: another communicator, with next to no heap, which is closed with
        this one. Not collective."""
        if self._alone is None and self.world > 1:
            self._alone = Communicator(self._arrays, self._exec if self._host else self.device, rank=0, nodes=1, gpus=1, heap_bytes=1 << 20)
        return self._alone or self

    def __repr__(self):
        state = "closed" if self.closed else f"rank {self.rank} of {self.nodes} x {self.gpus} on {self.device}"
        return f"<mkernel.Communicator {state}>"

    @property
    def closed(self) -> bool:
        return self._address is None

    def _check(self):
        if self._address is None:
            raise Refused("the communicator is closed")
        if self._foreign:
            raise Refused("this process was forked from the one that opened the communicator, and has none: "
                          "start it by spawn, or call mkernel.init in it")

    def _fail(self, result: int):
        raise _library.error(result, _sentence(self._address))

    def _raise(self, result: int):
        if result:
            self._fail(result)

    # ---- launches ----

    def launch(self, op: str, inputs: Sequence, outputs: Optional[Sequence] = None, causal: bool = False,
               deterministic: bool = False, options: str = "", _function=None) -> tuple:
        """One launch of any operator, by name: what `mkernel.ag_gemm` and its like call. Collective. Autograd does not see it.

        inputs: arrays in the order of the operator's own function.
        outputs: arrays to write, or None: new ones.
        Returns the outputs. On the CPU they are complete; on a GPU they are so in the order of the stream.
        """
        of, arrays = _shapes.OPERATORS[op], self._arrays
        with self._lock:
            ready = self.ready(of, inputs, outputs, causal, deterministic, options)
            if not ready.direct:
                inputs = [self._readable(x, ready.swap and i in of.matrices) for i, x in enumerate(inputs)]
            if outputs is None:
                outputs = tuple([arrays.new(shape, word, inputs[0]) for shape, word in ready.outputs])
            pointers = arrays.pointers(inputs, outputs)
            for x in pointers:
                if x & 15:
                    inputs = self._aligned(of, ready, inputs, outputs)
                    pointers = arrays.pointers(inputs, outputs)
                    break
            arguments = ready.arguments
            arguments[:] = [pointers[i] for i in of.order] if of.order else pointers
            plan = ready.plan
            if ready.map is not None and ready.map is not plan._map:
                self._place_experts(plan, ready.map)
            self._launches = plan._used = self._launches + 1
            if self._host:
                stream = None
            else:
                stream = self._order_streams()
                if not plan._captured and arrays.is_capturing():
                    plan._captured = True
            if _function is not None:
                if plan._begun is not None and plan._begun[0]() is None:  # nobody can end it any more
                    self._end(plan, plan._begun[2])
                return _function(plan, arguments, ready.count, stream, inputs, outputs)
            result = library.mk_launch(plan._address, arguments, ready.count, stream)
            if not result and self._host:
                result = library.mk_wait(self._address)
            if result:
                self._fail(result)
        return outputs

    def begin(self, op: str, inputs: Sequence, outputs: Optional[Sequence] = None, options: str = "", number: int = 1, alone: bool = False) -> Begun:
        """The first half of a launch, of operators that have halves: what `begin=` of `mkernel.moe_dispatch` calls. Launches of different numbers, each
        of a plan of its own, can be under way at once. Returns what ends it; alone: its one output is not in a tuple."""
        return self.launch(op, inputs, outputs, options=f"{options} launch=halves begin={int(number)}",
                           _function=lambda *launch: self._begin(*launch, alone))

    def _begin(self, plan, arguments, count, stream, inputs, outputs, alone):
        self._raise(library.mk_launch_begin(plan._address, arguments, count, stream))
        begun = Begun(plan, inputs, outputs, alone)
        plan._begun = weakref.ref(begun), inputs, outputs
        return begun

    def _end(self, plan, outputs):
        with self._lock:
            self._check()
            self._raise(library.mk_launch_end(plan._address, None if self._host else self._order_streams()))
            plan._begun = None
            if self._host:
                self._raise(library.mk_wait(self._address))
            self._arrays.wrote(outputs)

    def ready(self, of: _shapes.Operator, inputs, outputs=None, causal=False, deterministic=False, options="") -> Ready:
        """The plan for such inputs, made where there is none yet (then collective). Such arrays have been checked."""
        arrays = self._arrays
        offset = 0
        try:
            every = inputs if outputs is None else (*inputs, *outputs)
            key = arrays.key(every, of.name, causal, deterministic, options)
            if of.heap >= 0 and self._blocks and key is not None:
                offset = self._blocks.get(arrays.pointers(inputs[of.heap : of.heap + 1], ())[0], 0)
                key = *key, offset
        except AttributeError:  # of what is no array
            key = None
        with self._lock:
            ready = self._ready.get(key)
            if ready is None:
                ready = self._make_ready(of, inputs, offset, causal, deterministic, options)
                if outputs is not None:
                    self._check_outputs(of, ready, outputs)
                self._ready[key] = ready
            return ready

    def _make_ready(self, of, inputs, offset, causal, deterministic, options):
        """Checks the inputs, which need no check again while their key is the same."""
        arrays = self._arrays
        self._check()
        of = _shapes.typed(of, arrays, inputs)
        for i, ((name, word, _), x) in enumerate(zip(of.inputs, inputs)):
            if not arrays.is_array(x):
                raise Refused(f"{of.name}: {name} is a {type(x).__name__}; all arguments are {arrays.NAME}'s arrays")
            if not arrays.type_is(x, word):
                half = f": there are no kernels for fp16, convert by {name}.to(torch.bfloat16)" if word == "bf16" and not of.half and str(x.dtype) == "torch.float16" else ""
                wanted = [word, "fp16"] if of.half and i == 0 else [word]  # the first says which, and is neither
                raise Refused(f"{of.name}: {name} is of {x.dtype}, and should be of {' or '.join(map(arrays.types_of, wanted))}{half}")
            if arrays.place(x) != self._place:
                raise Refused(f"{of.name}: {name} is on {arrays.place(x)}, and the communicator on {self.device}")
            if arrays.unreadable(x):
                raise Refused(f"{of.name}: {name} {arrays.unreadable(x)}")
        expert_map, options = _experts.taken(options)
        more, options = _shapes.said(of, options)
        problem = _shapes.problem_of(of, self.world, [tuple(x.shape) for x in inputs], more)
        problem, options = self._of_any_length(of, problem, causal, options)
        swap = bool(of.matrices) and _are_swapped(arrays, [inputs[i] for i in of.matrices])
        if of.matrices and not swap and "dtype=fp8" in of.settings:
            names = " and ".join(of.inputs[i][0] for i in of.matrices)
            raise Refused(f"{of.name}: FP8 is multiplied along K, so {names} must lie [N, K] in memory, as w.t() of a contiguous w does: b.mT.contiguous().mT")
        direct = all(swap and i in of.matrices or arrays.is_contiguous(x) for i, x in enumerate(inputs))
        number, options = _begin_number(options)
        plan, arguments = self._plan(of, problem, swap, offset, causal, deterministic, options, number)
        rows = library.mk_moe_rows(plan._address)
        for (name, _, _), formula, x in zip(of.inputs, of.formulas, inputs):
            if formula.startswith("rows,") and x.shape[0] != rows:
                raise Refused(f"{of.name}: {name} is {list(x.shape)}, and of these ids and experts it has {rows} rows")
        outputs = tuple((tuple(rows if n is None else n for n in shape), word) for shape, word in problem.outputs)
        held = [(name, tuple(x.shape), x.nbytes) for (name, _, _), x in zip(of.inputs, inputs)]
        held += [(name, shape, math.prod(shape) * _shapes.BYTES[word]) for name, (shape, word) in zip(of.outputs, outputs)]
        for i, at in enumerate(of.order or range(len(held))):
            (name, shape, has), wanted = held[at], library.mk_plan_argument_bytes(plan._address, i)
            if has != wanted:
                raise Refused(f"{of.name}: {name} is {list(shape)}, {has} bytes, and on rank {self.rank} the plan reads or writes {wanted}")
        return Ready(plan, arguments, len(arguments), outputs, swap, direct, expert_map)

    def _of_any_length(self, of, problem, causal, options):
        """The problem with the sequence that "sequence=S" among the options says, of which this rank holds as many rows as its arrays have; and
        the other options, which are the plan's. Without it every rank holds as many rows as this one."""
        if not of.causal:
            return problem, options
        words = options.split()
        said = [word[9:] for word in words if word.startswith("sequence=")]
        at, name = of.letters.index("S"), of.inputs[0][0]
        sequence, rows = problem.shape[at], problem.shape[at] // self.world
        if said:
            if not said[0].isdecimal() or not 0 < int(said[0]) < 1 << 32:
                raise Refused(f"{of.name}: a sequence of {said[0]}: it is a number from 1 on")
            sequence = int(said[0])
        begin, count = (ctypes.c_uint64 * 2)(), (ctypes.c_uint64 * 2)()
        held = [library.mk_ring_attention_rows(sequence, self.world, rank, causal, "split=contiguous" in words, begin, count) and sum(count)
                for rank in range(self.world)]
        if said and held[self.rank] != rows:
            raise Refused(f"{of.name}: {name} has {rows} rows, and of a sequence of {sequence} rank {self.rank} of {self.world} "
                          f"holds {held[self.rank]}")
        if not said and any(n != rows for n in held):  # on all ranks alike, also on one that holds so many
            raise Refused(f"{of.name}: {name} has {rows} rows, and of a sequence of {sequence} ranks hold "
                          + ", ".join(f"{n} (rank {rank})" for rank, n in enumerate(held[:16])) + ", ..." * (len(held) > 16)
                          + ": give sequence= and the rows that ring_attention_shard cuts, or an even number of rows")
        shape = (*problem.shape[:at], sequence, *problem.shape[at + 1 :])
        return problem._replace(shape=shape), " ".join(word for word in words if not word.startswith("sequence="))

    def _readable(self, x, swapped):
        """The input itself, or a contiguous copy."""
        return x if swapped or self._arrays.is_contiguous(x) else self._arrays.contiguous(x)

    def _aligned(self, of, ready, inputs, outputs):
        """Copies of the inputs that are not aligned to 16 bytes; an output must be."""
        arrays = self._arrays
        for name, x in zip(of.outputs, arrays.pointers((), outputs)):
            if x & 15:
                raise Refused(f"{of.name}: {name} is written in place: it must be aligned to 16 bytes")
        return [arrays.aligned(x, ready.swap and i in of.matrices) if at & 15 else x
                for i, (x, at) in enumerate(zip(inputs, arrays.pointers(inputs, ())))]

    def _check_outputs(self, of, ready, outputs):
        arrays = self._arrays
        for name, (shape, word), x in zip(of.outputs, ready.outputs, outputs):
            if not arrays.is_array(x):
                raise Refused(f"{of.name}: {name} is a {type(x).__name__}, and the inputs are {arrays.NAME}'s arrays")
            if x.shape != shape or not arrays.type_is(x, word):
                raise Refused(f"{of.name}: {name} is {list(x.shape)} of {x.dtype}, and should be {list(shape)} of "
                              f"{arrays.types_of(word)}")
            if not arrays.is_contiguous(x) or arrays.place(x) != self._place:
                raise Refused(f"{of.name}: {name} is written in place: it must be contiguous and on {self.device}")
            if arrays.unreadable(x):
                raise Refused(f"{of.name}: {name} {arrays.unreadable(x)}")
            if not arrays.is_writeable(x):
                raise Refused(f"{of.name}: {name} is read-only, and is written in place")

    def _place_experts(self, plan, to):
        """From the next launch on the plan's tokens go by this map. What was made ready with the one before is made again where it comes back."""
        if not self._host and self._arrays.is_capturing():
            raise Refused(f"{plan.op}: the map of experts is another than in the launch before, and a capture can't change it: call it once before")
        self._raise(library.mk_moe_set_experts(plan._address, to._array, to.logical, to.copies))
        plan._map = to
        self._ready = {key: ready for key, ready in self._ready.items() if ready.plan is not plan or ready.map in (None, to)}

    def _order_streams(self):
        """The current stream, behind the launch before: two launches of a communicator must not overlap."""
        stream = self._arrays.stream(self.device)
        if stream != self._stream:
            self._arrays.follow(self._stream, self.device)
            self._stream = stream
        return stream

    # ---- plans ----

    def _plan(self, of, problem, swap, offset, causal, deterministic, options, number=None):
        """The plan, and room for the arguments of its launches; of launches in halves that of this number."""
        key = (of.name, of.settings, problem.shape, swap, offset, causal, deterministic, options, number)
        if key in self._plans:
            return self._plans[key]
        if not self._host:
            if self._arrays.is_capturing():
                raise Refused(f"{of.name} has no plan for this shape yet, and a capture can make none: call it once "
                              "before the capture")
            self.wait()  # loading a kernel may wait for launches in the driver
        for word in options.split():  # a plan of another type would read and write other bytes than the arrays have
            if word.startswith("dtype=") and word not in (of.settings.split() if "dtype=" in of.settings else ["dtype=bf16"]):
                way = f"the function for FP8 is {of.op}_fp8" if word == "dtype=fp8" and not of.kinds else "the arrays say the type"
                raise Refused(f"{of.name}: options={options!r}: {way}")
            if word.startswith("b_scales=") and word not in (of.settings.split() if "b_scales=" in of.settings else ["b_scales=blocks"]):
                raise Refused(f"{of.name}: options={options!r}: the shape of b_scales says whether they are of columns")
        for word, argument in (("gated", "that is an argument, of {}(..., gated=True)"), ("bias", "a bias is an argument, of {}(..., bias=...)"), ("residual", "a residual is an argument, of {}(..., residual=...)")):
            if "epilogue=" in options and word in options and "epilogue=" not in of.settings:
                raise Refused(f"{of.name}: options={options!r}: {argument.format(of.name)}")
        address = ctypes.c_void_p()
        words = _library.settings(
            op=of.op, shape=",".join(str(int(n)) for n in problem.shape), causal=int(causal) or None,
            b_transposed=int(swap) or None, deterministic=int(deterministic) or None, a_offset=offset or None,
            options=f"{of.settings} {options}".strip() or None)
        while len(self._plans) >= PLANS_KEPT and self._drop_oldest():
            pass
        while True:
            result = library.mk_plan_create_settings(ctypes.byref(address), self._address, words)
            if result != -errno.ENOSPC or not self._drop_oldest():
                break
        if result:
            self._fail(result)
        count = library.mk_plan_arguments(address.value)
        names = [library.mk_plan_argument_name(address.value, i).decode() for i in range(count)]
        written = [name for name, _, _ in of.inputs] + list(of.outputs)
        if names != [written[i] for i in of.order or range(len(written))]:
            raise Error(f"the library's {of.name} takes {' '.join(names)}, which is not what this package was written for")
        made = Plan(self, address.value, of.op, problem.shape), (ctypes.c_void_p * count)()
        made[0]._used = self._launches
        self._plans[key] = made
        return made

    def _drop_oldest(self) -> bool:
        """Gives the plan back that was used longest ago: all ranks launch alike, so it is the same on all. False: there
        is none that may go."""
        free = [key for key, (plan, _) in self._plans.items() if not plan._captured and not plan._begun]
        if not free or self._tracing:
            return False
        oldest = min(free, key=lambda key: self._plans[key][0]._used)
        plan = self._plans[oldest][0]
        self._raise(library.mk_plan_destroy(plan._address))
        plan._address = None
        del self._plans[oldest]
        self._ready = {key: ready for key, ready in self._ready.items() if ready.plan is not plan}
        return True

    @property
    def plans(self) -> list:
        """The plans that are kept, in the order of their making, as `Plan`s: at most 256, and what fits in the heap. Where
        there is no room for another, the least recently used goes."""
        return [plan for plan, _ in self._plans.values()]

    # ---- the heap ----

    def empty(self, shape: Union[int, Sequence[int]], dtype=None):
        """An array of zeros at the start in the symmetric heap. Collective: all ranks, in the same order.

        shape: elements. dtype: default bf16 (torch.bfloat16; for numpy uint16, its bits).
        `ag_gemm` reads an A that begins where such an array begins without copying it into the heap first. The
        memory is the communicator's: it is given back when that closes, not when the array goes. The array keeps
        the communicator open.
        """
        try:
            shape = tuple(operator.index(n) for n in (shape if isinstance(shape, Sequence) else (shape,)))
        except TypeError:
            raise Refused(f"empty: {shape!r}: dimensions are whole numbers") from None
        count = self._arrays.item_bytes(dtype) * math.prod(shape)
        if any(n < 1 for n in shape) or count >= 1 << 63:
            raise Refused(f"empty: {list(shape)}: each dimension is 1 at least, and all are less than 2^63 bytes")
        offset = ctypes.c_uint64()
        with self._lock:
            self._check()
            address = library.mk_heap_alloc(self._address, count, ctypes.byref(offset))
            if not address:
                raise Refused(_sentence(self._address))
            owner = _Lent(self)
            self._lent.add(owner)
            self._blocks[address] = offset.value
            return self._arrays.at(address, shape, dtype, owner)

    # ---- traces ----

    @contextlib.contextmanager
    def trace(self, path):
        """Records the launches of a `with` block, on all ranks; at its end rank 0 stores them in one SQLite file at
        `path`, over what was there, for `mkernel tui`, `mkernel trace` and `mkernel.frame`. Collective.

        The communicator must have been opened with trace_events, the records that each track may hold (16 bytes
        each; a tile takes one to three): init(trace_events=1 << 16). What does not fit is counted and shown. After an
        exception in the block nothing is stored.
        """
        with self._lock:
            self._check()
            self._raise(library.mk_trace_begin(self._address))
            self._tracing = True  # a trace tells of the plans, which so must stay
        yield self
        with self._lock:
            self._check()
            self._tracing = False
            self._raise(library.mk_trace_end(self._address, _library.text(os.fspath(path), "path"), _library.text(" ".join(sys.argv), "sys.argv")))

    # ---- waiting and closing ----

    def wait(self) -> None:
        """Waits for all launches so far, and raises what failed. On a GPU the place to learn of failures: a launch
        returns before it has run. Nothing to wait for on the CPU, where each launch does."""
        with self._lock:
            self._check()
            self._raise(library.mk_wait(self._address))

    def close(self) -> None:
        """Leaves the job. Collective: waits for the other ranks, at most the timeout. Refused while arrays of
        `empty` exist, whose memory would go. At the end of the process it is called for what is still open."""
        with self._lock:
            if self._address is None or self._foreign:
                return
            if len(self._lent):
                raise Refused(f"{len(self._lent)} arrays of mkernel.empty still exist: delete them before close()")
            self._close()

    def _abort(self, failure: BaseException):
        """Tells the other ranks that this one leaves, and why."""
        if not self._foreign and self._address is not None:
            library.mk_comm_abort(self._address, f"it left with {type(failure).__name__}: {failure}".replace("\0", " ").encode(errors="replace"))

    def _close(self):
        if self._alone is not None:
            self._alone._close()
        address, self._address = self._address, None
        self._ready.clear()  # so that the next call looks whether it is open
        if self._foreign or address is None:
            return
        library.mk_wait(address)
        library.mk_comm_close(address)
        _communicators.pop(self.handle, None)

    def __enter__(self) -> "Communicator":
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self.close()
            return
        self._abort(value)
        if not len(self._lent):  # else the end of the process does it: the exception's frames may hold arrays
            self._close()


class _Lent:
    """Lives as long as an array over heap memory does, and keeps the communicator."""

    def __init__(self, comm):
        self.comm = comm


def _sentence(address) -> str:
    return (library.mk_error(address) or b"").decode(errors="replace")


def _begin_number(options: str):
    """The number that "begin=N" among the options says, or None, and the other options, which are the plan's."""
    words = options.split()
    said = [word for word in words if word.startswith("begin=")]
    if said and not said[-1][6:].isdecimal():
        raise Refused(f"{said[-1]}: it is a number, as in begin=1")
    return (int(said[-1][6:]) if said else None), " ".join(word for word in words if word not in said)


def _are_swapped(arrays, matrices) -> bool:
    """Whether all lie in memory with their last two dimensions swapped, as w.t() of a contiguous w does."""
    return all(not arrays.is_contiguous(x) and arrays.is_contiguous(arrays.swapped(x)) for x in matrices)


# ---- the default communicator ----


def init(*, device: Optional[str] = None, group=None, nodes: Optional[int] = None, **settings) -> Communicator:
    """Opens a communicator. The operators use the first that is open, unless `comm` names another. Collective.

    Where torch.distributed has been initialised, its ranks are the job's (or those of `group`, a ProcessGroup):
    rank 0 chooses a free port and a secret, and tells the others. Else the environment says who this rank is:
    torchrun's RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT, srun's, mpirun's, or
    that of `python3 -m mkernel.launch`. Without any, the job has one rank.

    device: "cuda" or "cpu". Default: "cuda" where PyTorch has been imported and finds a GPU, else "cpu", where
        CTAs are coroutines on a thread of this process. "cuda:1" is a GPU by its number; "cuda" alone is PyTorch's current one
        where torch.distributed says who the ranks are and no two of a host have the same, else the i-th for a host's i-th rank.
        "emulated": arrays on the CPU, and a small GPU that is emulated
        there runs the GPU kernels' own code: slow, for tests of programs and kernels.
    nodes: default as the launcher or the hosts say. More stand for nodes on one host (nic="soft").
    settings: the other fields of struct mk_config in mkernel.h: heap_bytes (symmetric heap; default 1 GiB on a
        GPU, 256 MiB on the CPU), timeout_ns (of every wait; default 10 s), fabric, nic, rails, flag_bytes,
        trace_events, tuning.
    """
    global _default
    arrays = _choose_arrays()
    alone = "RANK" in os.environ and not ("LOCAL_RANK" in os.environ or "LOCAL_WORLD_SIZE" in os.environ)
    if device is not None and not re.fullmatch(r"cpu|cuda(:\d+)?|emulated", device):
        raise Refused(f"device={device!r}: cpu, cuda, cuda:N or emulated")
    if arrays.NAME == "torch":
        chosen, joined = arrays.join(group, nodes, device or arrays.default_device())
    elif device is not None and device.startswith("cuda") or group is not None:
        raise Refused("GPUs and groups are PyTorch's: import torch before mkernel.init")
    else:
        chosen, joined = device or "cpu", {}
    if alone and not joined and nodes is None and int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ["RANK"] == "0":
        warnings.warn("RANK and WORLD_SIZE do not say how many ranks a node has: all are taken for one node's; nodes=N "
                      "says otherwise", stacklevel=2)
    comm = Communicator(arrays, chosen, **{"nodes": nodes, **joined, **settings})
    if not joined and "rank" not in settings and "token" not in settings and comm.world > 1 and comm.rank == 0 \
            and not os.environ.get("MKERNEL_TOKEN"):
        warnings.warn("the launcher gives the job no secret, so its token is made from ids that others may guess; "
                      "export MKERNEL_TOKEN=$(openssl rand -hex 16), the same for every rank, keeps them out", stacklevel=2)
    if joined:
        comm._peers, comm._group = arrays.peers(group), group
    if _default is None or _default.closed:
        _default = comm
    return comm


def _choose_arrays():
    """PyTorch where the program has imported it, else numpy."""
    if "torch" in sys.modules:
        from . import _torch

        return _torch
    try:
        from . import _numpy
    except ImportError:
        raise ImportError("mkernel needs numpy, or PyTorch imported before mkernel.init") from None
    return _numpy


def default() -> Communicator:
    """The communicator that the operators use where none is given."""
    if _default is None:
        raise Refused("there is no communicator: call mkernel.init first")
    return _default


def by_handle(handle: int) -> Communicator:
    """0: the default. Compiled code names communicators by number."""
    comm = _communicators.get(handle) if handle else default()
    if comm is None:
        raise Refused(f"there is no communicator number {handle} any more")
    return comm


def _at_exit():
    """In the order of opening, on all ranks; arrays of the heap are not touched any more. Where an exception ends this process, the other ranks are told."""
    failure = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if hasattr(sys, "ps1"):
        failure = None  # an earlier line's, and the person went on
    for comm in sorted(_communicators.values(), key=lambda c: c.handle):
        if failure is not None:
            comm._abort(failure)
        comm._close()


def _after_fork():
    for comm in list(_communicators.values()):
        comm._foreign = True
        comm._ready.clear()
        comm._lock = threading.RLock()  # another thread may have held it


atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
