"""mkernel.quantize: shapes of codes and scales, which the fake kernel of torch.compile shares, and the call."""
from __future__ import annotations

import errno
import sys

from . import operators
from ._shapes import record
from ._library import Refused, error, library

BLOCKS = ((1, 128), (128, 128), "row", "tensor", "records")  # their numbers are those of enum mk_scaling
INPUTS = ("bf16", "fp32")  # of enum mk_input
HOST, CUDA = 0, 1  # of enum mk_exec


def scales_of(shape, scaling: int) -> tuple:
    """The shape of the scales of such an array. Refused where it cannot be quantised."""
    if len(shape) < 2 or scaling == 1 and len(shape) != 2:
        wanted = "2, a matrix's" if scaling == 1 else "2 or more"
        raise Refused(f"quantize: x has {len(shape)} dimensions, {list(shape)}, and should have {wanted}")
    *lead, k = shape
    if k % 16:
        raise Refused(f"quantize: x is {list(shape)}: the last dimension is a multiple of 16")
    rows = 1
    for n in lead:
        rows *= n
    across = (k + 127) // 128
    return ((across, rows), ((rows + 127) // 128, (across + 3) // 4 * 4), (*lead, 1), (1, 1), (0,))[scaling]


def codes_of(shape, scaling: int) -> tuple:
    """The shape of the codes: of records a row has its scales, too."""
    return (*shape[:-1], record(shape[-1])) if BLOCKS[scaling] == "records" else tuple(shape)


def launch(on: int, scaling: int, word: str, shape, pointers, stream) -> None:
    """pointers: of x, codes and scales, contiguous and aligned to 16 bytes."""
    x, codes, scales = pointers
    rows = 1
    for n in shape[:-1]:
        rows *= n
    result = library.mk_quantize(on, scaling, INPUTS.index(word), x, rows, shape[-1], codes, scales, 0, stream)
    if result:
        raise error(result, "quantize: this build of mkernel has no CUDA" if on == CUDA and result == -errno.ENODEV else "quantize: CUDA refused the launch")


def word_of(arrays, x) -> str:
    for word in INPUTS:
        if arrays.type_is(x, word):
            return word
    raise Refused(f"quantize: x is of {x.dtype}, and should be of {' or '.join(map(arrays.types_of, INPUTS))}")


def quantize(x, block):
    if block not in BLOCKS:
        raise Refused(f"quantize: block is {block!r}, and should be (1, 128), (128, 128), 'row', 'tensor' or 'records'")
    scaling = BLOCKS.index(block)
    if operators.tensors is None and "torch" in sys.modules:
        from . import _torch  # which sets operators.tensors
    if operators.tensors is not None and operators.tensors.is_array(x):
        return _result(operators.tensors.quantize(x, scaling), block)
    from . import _numpy

    if not _numpy.is_array(x):
        raise Refused(f"quantize: x is a {type(x).__name__}, and should be an array of numpy or PyTorch")
    return _result(_numpy.quantize(x, scaling), block)


def _result(made, block):
    return made[0] if block == "records" else made
