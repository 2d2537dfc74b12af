"""A plan, and what its launches need."""
from __future__ import annotations

import ctypes
from typing import NamedTuple

from ._library import Refused, library


class Plan:
    """What mkernel chose for one operator on one shape. The communicator owns it, and drops it for others."""

    def __init__(self, comm, address: int, op: str, shape: tuple):
        self._comm, self._address = comm, address
        self.op: str = op  # "ag_gemm"
        self.shape: tuple = shape  # numbers of the global problem, in the order of `mkernel run --shape`
        self._used = 0  # when it was last launched, as its communicator counts
        self._captured = False  # a CUDA graph may have a launch of it
        self._begun = None  # of a launch that has begun and not ended: a weak reference to its Begun, and its arrays
        self._map = None  # the ExpertMap that was told last

    def _ask(self, function, *more):
        if self._comm.closed:
            raise Refused("the plan's communicator is closed")
        if self._address is None:
            raise Refused("the plan was dropped for others that were used later")
        answer = function(self._address, *more)
        return answer.decode() if isinstance(answer, bytes) else answer

    @property
    def options(self) -> str:
        """All choices, "tile=128,64 roles=compute=2,intra_comm=2,inter_send=1 ..."; the operators' `options` takes them."""
        return self._ask(library.mk_plan_options)

    @property
    def tuned(self) -> str:
        """A sentence about the tuned plan that was taken; "" if the formula chose all."""
        return self._ask(library.mk_plan_tuned)

    @property
    def tiles(self) -> int:
        """Tiles that this rank computes in a launch."""
        return self._ask(library.mk_plan_tiles)

    @property
    def heap_bytes(self) -> int:
        """Bytes of the symmetric heap that the plan takes, until it is dropped."""
        return self._ask(library.mk_plan_heap_bytes)

    @property
    def flop(self) -> float:
        """Floating-point operations of this rank in a launch."""
        return self._ask(library.mk_plan_flop)

    @property
    def nvlink_bytes(self) -> int:
        """Bytes that this rank receives in a launch over NVLink (on the CPU: through shared memory)."""
        return self._ask(library.mk_plan_nvlink_bytes)

    @property
    def network_bytes(self) -> int:
        """Bytes that this rank receives in a launch over the network."""
        return self._ask(library.mk_plan_network_bytes)

    def __repr__(self):
        choices = "dropped" if self._address is None or self._comm.closed else self.options
        return f"<mkernel.Plan {self.op} {','.join(map(str, self.shape))} {choices}>"


class Begun:
    """A launch whose first half is on the stream: what is sent is under way, and no SM is held. `end` launches the second half. Where the program has lost
    one without `end`, the next `begin` of its number ends it first."""

    def __init__(self, plan, inputs, outputs, alone: bool):
        self._plan, self._inputs, self._outputs, self._alone = plan, inputs, outputs, alone

    def end(self):
        """Launches the second half, on the current stream, and returns what the operator does. Collective, once; inputs must be as they were."""
        if self._inputs is None:
            raise Refused(f"this launch of {self._plan.op} has been ended")
        self._plan._comm._end(self._plan, self._outputs)
        self._inputs = None
        return self._outputs[0] if self._alone else tuple(self._outputs)

    __call__ = end  # a hook, as DeepEP's


class Ready(NamedTuple):
    """A plan with what a launch of it needs, for inputs of such shapes, types, strides and devices."""

    plan: Plan
    arguments: ctypes.Array  # filled anew by each launch
    count: int
    outputs: tuple  # (shape, type) of each
    swap: bool  # the matrices among the inputs lie with their last two dimensions swapped
    direct: bool  # all inputs can be read where they lie
    map: object  # the ExpertMap by which it is launched; None: as the plan was told last
