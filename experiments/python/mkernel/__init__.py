"""mkernel: operators that compute and communicate in one launch, on several GPUs and nodes.

    import torch, mkernel
    mkernel.init()                   # who the ranks are: torch.distributed, torchrun, srun, mpirun
    c = mkernel.ag_gemm(a, b)        # C = gather(A) B

`help(mkernel.operators)` says what holds for all operators; docs/PYTHON.md is the guide.
"""
from ._library import VERSION as __version__
from ._library import Error, Refused
from ._communicator import Communicator, Plan, default, init
from ._frames import frame
from . import _shapes, operators

globals().update((name, getattr(operators, name)) for name in _shapes.OPERATORS)

__all__ = [
    "Communicator", "Error", "Plan", "Refused", "default", "empty", "frame", "from_bf16", "init", "operators", "to_bf16", "trace",
    *_shapes.OPERATORS,
]


def empty(shape, dtype=None, *, comm=None):
    """An array in the symmetric heap: `Communicator.empty` of `comm`, default that of `mkernel.init`."""
    return (comm or default()).empty(shape, dtype)


def trace(path, *, comm=None):
    """Records what is launched in a `with` block: `Communicator.trace` of `comm`, default that of `mkernel.init`."""
    return (comm or default()).trace(path)


def to_bf16(x):
    """For numpy: the bits (uint16) of the bfloat16 numbers nearest to `x`, of x's shape; ties to even."""
    from . import _numpy

    return _numpy.to_bf16(x)


def from_bf16(x):
    """For numpy: the numbers (float32) whose bfloat16 bits (uint16) are in `x`, of x's shape."""
    from . import _numpy

    return _numpy.from_bf16(x)
