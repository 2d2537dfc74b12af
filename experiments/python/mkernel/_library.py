"""libmkernel through ctypes: which file is loaded, what its functions take, and errors as exceptions.

No structure of the C header is mirrored here: communicators and plans are opaque addresses, and what would be
fields are strings "NAME=VALUE" (mk_comm_open_settings, mk_plan_create_settings).
"""
from __future__ import annotations

import ctypes
import errno
import os

VERSION = "0.1.0"  # of core/mkernel.h; the wheel is not built where they differ
VERSION_NUMBER = sum(int(n) * unit for n, unit in zip(VERSION.split("."), (10000, 100, 1)))


class Error(RuntimeError):
    """What mkernel refused or what failed, in mkernel's own sentence. `errno` is the C function's, positive."""

    def __init__(self, sentence: str, number: int = errno.EIO):
        super().__init__(sentence)
        self.errno = number


class Refused(Error, ValueError):
    """An argument, a shape or an option that does not work. Nothing was started and nothing has changed: the
    communicator can be used on."""

    def __init__(self, sentence: str, number: int = errno.EINVAL):
        super().__init__(sentence, number)


_raised = []  # what signal handlers raised while a C function waited


def _handle_signals():
    """A generator, so that what a handler raises where Python looks for signals is raised in it, and caught: at the begin of a function it would be raised
    outside. Yields 1 where a C function's wait is to end."""
    while True:
        try:
            yield len(_raised) != 0
        except GeneratorExit:
            return
        except BaseException as e:
            _raised.append(e)


_ask = ctypes.CFUNCTYPE(ctypes.c_int)(_handle_signals().__next__)


def raise_interrupt(result, *_):
    """Behind a C function that has waited: raises what a signal handler did meanwhile. Returns the result."""
    if _raised:
        raise _raised.pop()
    return result


def error(number: int, sentence: str) -> BaseException:
    """The exception for -errno of a C function, or what a signal handler raised while it waited."""
    if _raised:
        return _raised.pop()
    kind = Refused if -number in (errno.EINVAL, errno.ENOSPC, errno.E2BIG) else Error
    return kind(sentence or os.strerror(-number), -number)


_POINTER, _INT, _U32, _U64, _TEXT = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_char_p
_ADDRESS = ctypes.POINTER(ctypes.c_void_p)
_TEXTS = ctypes.POINTER(ctypes.c_char_p)

# name: (result, arguments). tests/test_python_numpy.py compares their number with the header's.
FUNCTIONS = {
    "mk_version": (_U32, []),
    "mk_op_name": (_TEXT, [_INT]),
    "mk_op_shape": (_TEXT, [_INT]),
    "mk_op_describe": (_INT, [_U32, _TEXT, _U64]),
    "mk_comm_open_settings": (_INT, [_ADDRESS, _U32, _TEXTS]),
    "mk_comm_close": (None, [_POINTER]),
    "mk_comm_abort": (None, [_POINTER, _TEXT]),
    "mk_set_interrupt": (None, [_POINTER]),
    "mk_comm_rank": (_U32, [_POINTER]),
    "mk_comm_nodes": (_U32, [_POINTER]),
    "mk_comm_gpus": (_U32, [_POINTER]),
    "mk_error": (_TEXT, [_POINTER]),
    "mk_heap_alloc": (_POINTER, [_POINTER, _U64, ctypes.POINTER(_U64)]),
    "mk_plan_create_settings": (_INT, [_ADDRESS, _POINTER, _TEXTS]),
    "mk_plan_destroy": (_INT, [_POINTER]),
    "mk_plan_options": (_TEXT, [_POINTER]),
    "mk_plan_tuned": (_TEXT, [_POINTER]),
    "mk_plan_tiles": (_U32, [_POINTER]),
    "mk_plan_heap_bytes": (_U64, [_POINTER]),
    "mk_plan_flop": (ctypes.c_double, [_POINTER]),
    "mk_plan_nvlink_bytes": (_U64, [_POINTER]),
    "mk_plan_network_bytes": (_U64, [_POINTER]),
    "mk_plan_arguments": (_U32, [_POINTER]),
    "mk_plan_argument_name": (_TEXT, [_POINTER, _U32]),
    "mk_plan_argument_type": (_TEXT, [_POINTER, _U32]),
    "mk_plan_argument_bytes": (_U64, [_POINTER, _U32]),
    "mk_plan_argument_is_output": (_INT, [_POINTER, _U32]),
    "mk_moe_rows": (_U64, [_POINTER]),
    "mk_moe_set_experts": (_INT, [_POINTER, _POINTER, _U32, _U32]),
    "mk_moe_balance": (_INT, [_POINTER, _U32, _U32, _U32, _U32, _U32, _POINTER]),
    "mk_ring_attention_rows": (_INT, [_U64, _U32, _U32, _INT, _INT, _POINTER, _POINTER]),
    "mk_launch": (_INT, [_POINTER, _POINTER, _U32, _POINTER]),
    "mk_launch_begin": (_INT, [_POINTER, _POINTER, _U32, _POINTER]),
    "mk_launch_end": (_INT, [_POINTER, _POINTER]),
    "mk_wait": (_INT, [_POINTER]),
    "mk_quantize": (_INT, [_U32, _U32, _U32, _POINTER, _U64, _U64, _POINTER, _POINTER, _U64, _POINTER]),
    "mk_trace_begin": (_INT, [_POINTER]),
    "mk_trace_end": (_INT, [_POINTER, _TEXT, _TEXT]),
    "mk_wait_stream": (_INT, [_POINTER, _POINTER]),
}


def _candidates():
    """Files to try, the first that is there: $MKERNEL_LIBRARY, the wheel's own, the system's."""
    named = os.environ.get("MKERNEL_LIBRARY")
    if named:
        return [named]
    soname = "libmkernel.so." + VERSION.split(".")[0]
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), soname)
    return [own] if os.path.exists(own) else [soname]


def load() -> ctypes.CDLL:
    """Loads the library and checks its version. ImportError says what is missing."""
    path = _candidates()[0]
    try:
        library = ctypes.CDLL(path)
    except OSError as e:
        raise ImportError(
            f"mkernel's library cannot be loaded: {e}. It needs libsqlite3 and libopenblas (Debian: apt-get install "
            "libsqlite3-0 libopenblas0); MKERNEL_LIBRARY names another libmkernel.so"
        ) from None
    if not hasattr(library, "mk_comm_open_settings"):
        raise ImportError(f"{path} is not a libmkernel of version {VERSION}: it has no mk_comm_open_settings")
    library.mk_version.restype = _U32
    found = library.mk_version()
    if found // 100 != VERSION_NUMBER // 100:  # patches change no function
        raise ImportError(
            f"{path} is mkernel {found // 10000}.{found // 100 % 100}.{found % 100}, and this Python package is of "
            f"{VERSION}: install the wheel that was built with it"
        )
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


library = load()
library.mk_comm_close.errcheck = raise_interrupt
library.mk_set_interrupt(_ask)


def text(value: str, what: str) -> bytes:
    """A string for C, which would end it at a 0."""
    if "\0" in value:
        raise Refused(f"{what}={value!r} has a 0 in it")
    return value.encode()


def settings(**values) -> ctypes.Array:
    """The "NAME=VALUE" strings that mk_comm_open_settings and mk_plan_create_settings take; None is left out."""
    words = [name.encode() + b"=" + text(str(value), name) for name, value in values.items() if value is not None]
    return (ctypes.c_char_p * (len(words) + 1))(*words, None)
