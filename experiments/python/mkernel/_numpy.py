"""numpy arrays as arguments of launches. numpy has no bfloat16 of its own: such an array is of uint16, the bits,
or of ml_dtypes.bfloat16 where that package is there."""
from __future__ import annotations

import ctypes
import sys

import numpy

from . import _quantize
from ._library import Refused

NAME = "numpy"
_TYPES = {"bf16": ("uint16", "bfloat16"), "fp16": ("float16",), "fp32": ("float32",), "uint32": ("uint32", "int32"), "e4m3": ("uint8", "float8_e4m3fn"),
          "uint8": ("uint8",)}


def is_array(x) -> bool:
    return isinstance(x, numpy.ndarray) and not isinstance(x, numpy.ma.MaskedArray)


def type_is(x, word: str) -> bool:
    """In the machine's byte order."""
    return x.dtype.name in _TYPES[word] and x.dtype.isnative


def types_of(word: str) -> str:
    return " or ".join(_TYPES[word])


def is_contiguous(x) -> bool:
    return x.flags.c_contiguous


def is_writeable(x) -> bool:
    return x.flags.writeable


def contiguous(x):
    return numpy.ascontiguousarray(x)


def pointers(inputs, outputs) -> list:
    """Addresses of the first elements."""
    return [x.__array_interface__["data"][0] for x in (*inputs, *outputs)]


def key(inputs, *flags) -> tuple:
    """What decides how a launch takes these inputs."""
    return (*flags, *[(type(x), x.shape, x.strides, x.dtype.num, x.dtype.isnative, x.flags.writeable) for x in inputs])


def unreadable(x) -> str:
    """Why the memory of an array is not its numbers; "": it is."""
    return ""


def swapped(x):
    return x.swapaxes(-1, -2)


def place(x) -> str:
    return "cpu"


def place_of(device: str) -> str:
    return device


def _aligned(shape, dtype):
    """Memory aligned to 16 bytes, as launches want it; numpy's own is on most systems, not on all."""
    array = numpy.empty(shape, dtype)
    if array.ctypes.data % 16 == 0:
        return array
    raw = numpy.empty(array.nbytes + 16, numpy.uint8)
    skip = -raw.ctypes.data % 16
    return raw[skip : skip + array.nbytes].view(dtype).reshape(shape)


def aligned(x, was_swapped: bool):
    """A copy that is aligned; of a swapped one the memory stays swapped."""
    source = swapped(x) if was_swapped else x
    copy = _aligned(source.shape, source.dtype)
    copy[...] = source
    return swapped(copy) if was_swapped else copy


def new(shape, word: str, like):
    return _aligned(shape, like.dtype if word in ("bf16", "e4m3") and type_is(like, word) else numpy.dtype(_TYPES[word][0]))


def wrote(outputs) -> None:
    """Nobody keeps what was in an array."""


def at(address: int, shape, dtype, owner):
    """An array over memory that `owner` has; the array keeps `owner` alive."""
    dtype = numpy.dtype("uint16" if dtype is None else dtype)
    count = 1
    for n in shape:
        count *= int(n)
    buffer = (ctypes.c_uint8 * (count * dtype.itemsize)).from_address(address)
    buffer.owner = owner
    return numpy.frombuffer(buffer, dtype, count).reshape(shape)


def item_bytes(dtype) -> int:
    return numpy.dtype("uint16" if dtype is None else dtype).itemsize


def quantize(x, scaling: int):
    word, of_scales = _quantize.word_of(sys.modules[__name__], x), _quantize.scales_of(x.shape, scaling)
    codes, scales = _aligned(_quantize.codes_of(x.shape, scaling), numpy.uint8), numpy.zeros(of_scales, numpy.float32)
    whole = contiguous(x)
    _quantize.launch(_quantize.HOST, scaling, word, x.shape, pointers((whole,), (codes, scales)), None)
    return codes if _quantize.BLOCKS[scaling] == "records" else _as_e4m3(codes), scales


def _as_e4m3(codes):
    """Of ml_dtypes' type where that package is there."""
    try:
        import ml_dtypes
    except ImportError:
        return codes
    return codes.view(ml_dtypes.float8_e4m3fn)


def to_bf16(x) -> numpy.ndarray:
    """The bits of the bfloat16 numbers nearest to `x` (ties to even), as uint16, of x's shape; NaN stays NaN."""
    bits = numpy.ascontiguousarray(x, numpy.float32).view(numpy.uint32)
    half = ((bits.astype(numpy.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(numpy.uint16)
    return numpy.where(numpy.isnan(numpy.asarray(x, numpy.float32)), numpy.uint16(0x7FFF), half)


def from_bf16(x) -> numpy.ndarray:
    """The numbers whose bfloat16 bits are in `x` (uint16), as float32, of x's shape."""
    x = numpy.asarray(x)
    if not type_is(x, "bf16"):
        raise Refused(f"from_bf16: x is of {x.dtype}, and should be of {types_of('bf16')}")
    return (numpy.ascontiguousarray(x).view(numpy.uint16).astype(numpy.uint32) << 16).view(numpy.float32)
