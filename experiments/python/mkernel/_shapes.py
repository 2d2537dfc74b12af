"""What each operator takes and gives, as the library describes it: the shapes of its arrays and the numbers of its problem.

Pure arithmetic on tuples: the fake kernels of torch.compile and the launches share it. `world` is the number of
ranks. Types are mkernel's words: "bf16", "fp16", "fp32", "uint32".
"""
from __future__ import annotations

import ctypes
import itertools
import json
import re
from typing import NamedTuple, Optional

from ._library import Refused, library


BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "uint32": 4, "e4m3": 1, "uint8": 1}


class Problem(NamedTuple):
    shape: tuple  # the numbers of mk_spec.shape
    outputs: tuple  # (shape, type) of each output; a dimension of None is the plan's to say


class Operator(NamedTuple):
    name: str
    op: str  # the library's name: that of ag_gemm_fp8 is ag_gemm
    settings: str  # what its plans' options begin with
    kinds: tuple  # names of the same operator of other types, of which its own function takes arrays, too
    help: str  # one line
    letters: tuple  # of the problem's numbers
    names: tuple  # of these: "experts"
    inputs: tuple  # (name, type, dimensions) of each
    outputs: tuple  # names
    order: tuple  # of the launch: numbers of arguments, inputs before outputs; (): that one
    formulas: tuple  # of all arguments, "M/W,K": W is the number of ranks, rows what the plan makes room for; K:128 is rounded up
    types: tuple  # of the outputs
    rows: tuple  # of all arguments: the letter of their first dimension, and whether ranks hold parts of it
    matrices: tuple  # inputs whose last two dimensions may be swapped in memory, all alike
    heap: int  # the input whose schedule is another where it lies in the symmetric heap; -1: none
    causal: bool
    deterministic: bool
    half: Optional["Operator"] = None  # the same of fp16, for which the function of bf16 is called, too
    columns: Optional["Operator"] = None  # the same of an FP8 B that has a scale for each column, [N], for which the function of blocks is called, too


def record(k: int) -> int:
    """Bytes of a row of k elements of FP8 with its scales."""
    return (k + (k + 127) // 128 * 4 + 15) // 16 * 16


def _factors(formula: str):
    """Of each dimension the letter ("": a number alone), and what it is multiplied and divided by: "2*I" is ("I", ["2"], [])."""
    for factor in formula.split(","):
        words = re.findall(r"([*/]?)(\w+)", factor)
        letter = next((word for _, word in words if word != "W" and not word.isdigit()), "")
        yield (letter, [word for sign, word in words if sign != "/" and word != letter],
               [word for sign, word in words if sign == "/"])


def _value(words, world: int) -> int:
    product = 1
    for word in words:
        product *= world if word == "W" else int(word)
    return product


def _divide(number, by: int):
    """Quotient and remainder. A number may be torch.compile's symbol of one, which has no divmod."""
    return (number, 0) if by == 1 else (number // by, number % by)


def _described(of: dict, name: str, settings: str, arguments) -> Operator:
    inputs = [a for a in arguments if not a["output"]]
    outputs = [a for a in arguments if a["output"]]
    order = tuple((inputs + outputs).index(a) for a in arguments)
    made = Operator(
        name, of["name"], settings, tuple(f"{name}_{dtype}" for dtype in ("bytes", "fp8")) if of["bytes"] and not settings else (), of["help"], tuple(n["letter"] for n in of["shape"]),
        tuple(n["name"] for n in of["shape"]),
        tuple((a["name"], a["type"], a["shape"].count(",") + 1) for a in inputs), tuple(a["name"] for a in outputs),
        order if list(order) != sorted(order) else (),
        tuple(a["shape"] for a in inputs + outputs), tuple(a["type"] for a in outputs),
        tuple((letter, "W" in by) for letter, _, by in (next(_factors(a["shape"])) for a in inputs + outputs)),
        tuple(i for i, a in enumerate(inputs) if a["swaps"]), 0 if of["a_in_heap"] else -1,
        bool(of["causal"]), bool(of["deterministic"]))
    if "b_scales" in of["options"] and "dtype=fp8" in settings:
        return made._replace(columns=_columns(made))
    return made._replace(half=_half(made)) if of["fp16"] and "dtype=" not in settings else made


def _half(of: Operator) -> Operator:
    def word(type_):
        return "fp16" if type_ == "bf16" else type_

    return of._replace(settings=f"dtype=fp16 {of.settings}".strip(), inputs=tuple((name, word(type_), n) for name, type_, n in of.inputs),
                       types=tuple(map(word, of.types)))


def _columns(of: Operator) -> Operator:
    at = [name for name, _, _ in of.inputs].index("B_scales")

    def put(of_all, one):
        return (*of_all[:at], one, *of_all[at + 1 :])

    return of._replace(settings=f"{of.settings} b_scales=columns", inputs=put(of.inputs, ("B_scales", "fp32", 1)), formulas=put(of.formulas, "N"),
                       rows=put(of.rows, ("N", False)))


VARIANTS = {  # as the library calls them: what is behind the operator's name, and what its plans' options begin with
    "fp8": ("fp8", "dtype=fp8"),
    "bytes": ("bytes", "dtype=bytes"),
    "bias": ("bias", "epilogue=bias"),
    "bias_fp8": ("fp8_bias", "dtype=fp8 epilogue=bias"),
    "gated": ("gated", "epilogue=gated"),
    "gated_fp8": ("fp8_gated", "dtype=fp8 epilogue=gated"),
    "gated_bias": ("gated_bias", "epilogue=gated+bias"),
    "gated_bias_fp8": ("fp8_gated_bias", "dtype=fp8 epilogue=gated+bias"),
    "residual": ("residual", "epilogue=residual"),
    "residual_fp8": ("fp8_residual", "dtype=fp8 epilogue=residual"),
    "rmsnorm": ("residual_rmsnorm", "epilogue=residual+rmsnorm"),
    "rmsnorm_fp8": ("fp8_residual_rmsnorm", "dtype=fp8 epilogue=residual+rmsnorm"),
    "quantize": ("residual_rmsnorm_quantize", "epilogue=residual+rmsnorm+quantize"),
    "quantize_fp8": ("fp8_residual_rmsnorm_quantize", "dtype=fp8 epilogue=residual+rmsnorm+quantize"),
    "counted": ("counted", "tokens=launch"),
    "counted_fp8": ("fp8_counted", "dtype=fp8 tokens=launch"),
}


def _read(number: int):
    """The operator, and the same of FP8, of bytes, with what may follow it, and with a count, where there is that."""
    text = ctypes.create_string_buffer(library.mk_op_describe(number, None, 0) + 1)
    library.mk_op_describe(number, text, len(text))
    of = json.loads(text.value)
    yield _described(of, of["name"], "", of["arguments"])
    for variant, (name, settings) in VARIANTS.items():
        if of[variant]:
            yield _described(of, f"{of['name']}_{name}", settings, of[variant])


def typed(of: Operator, arrays, inputs) -> Operator:
    """The operator for such inputs: of fp16 where the first is; of FP8 with a scale for each column of B where these are [N]."""
    if of.columns and len(getattr(inputs[3], "shape", ())) == 1:
        return of.columns
    return of.half if of.half and arrays.is_array(inputs[0]) and arrays.type_is(inputs[0], "fp16") else of


OPERATORS = {
    op.name: op
    for number in itertools.takewhile(lambda i: library.mk_op_describe(i, None, 0) > 0, itertools.count())
    for op in _read(number)
}

FUNCTIONS = [name for name in OPERATORS if not any(name in op.kinds for op in OPERATORS.values())]


def _extent(factor: str, numbers: dict, world: int) -> int:
    """Of a dimension, "N:128:4*4", from left to right."""
    value = 1
    for sign, word in re.findall(r"([*/:]?)(\w+)", factor):
        by = world if word == "W" else int(word) if word.isdigit() else numbers[word]
        value = value // by if sign == "/" else (value + by - 1) // by if sign == ":" else value * by
    return value


def _check_rounded(op: Operator, world: int, numbers: dict, shapes) -> None:
    """Inputs of which not every dimension says a number."""
    if numbers.get("record", record(numbers.get("H", 0))) != record(numbers.get("H", 0)):
        raise Refused(f"{op.name}: {op.inputs[0][0]} is {list(shapes[0])}: a record of H = {numbers['H']} elements has {record(numbers['H'])} bytes "
                      f"(mkernel.quantize(x, 'records'))")
    for (name, _, _), formula, shape in zip(op.inputs, op.formulas, shapes):
        if ":" in formula or formula.isdigit():
            wanted = [_extent(factor, numbers, world) for factor in formula.split(",")]
            if list(shape) != wanted:
                raise Refused(f"{op.name}: {name} is {list(shape)}, and should be {wanted}")


def said(op: Operator, options: str):
    """The numbers by letter that no array's shape says and so an option does, "experts=64"; and the other options, which are the plan's."""
    unsaid = {name: letter for letter, name in zip(op.letters, op.names)
              if not any(letter == of for formula in op.formulas[: len(op.inputs)] if ":" not in formula for of, _, _ in _factors(formula))}
    if not unsaid:
        return {}, options
    words = [word.partition("=") for word in options.split()]
    for name, _, value in words:
        if name in unsaid and not value.isdecimal():
            raise Refused(f"{op.name}: {name}={value}: it is a number, as in {name}=64")
    numbers = {unsaid[name]: int(value) for name, _, value in words if name in unsaid}
    for name, letter in unsaid.items():
        if letter not in numbers:
            raise Refused(f"{op.name}: {letter}, {name}, is what no array says: give {name}=")
    return numbers, " ".join(name + by + value for name, by, value in words if name not in unsaid)


def _numbers(op: Operator, world: int, shapes) -> dict:
    """The numbers by letter, of which every array's shape says some; all must say the same."""
    known = {}
    for (name, _, _), formula, shape in zip(op.inputs, op.formulas, shapes):
        if ":" in formula:
            continue
        for (letter, times, by), extent in zip(_factors(formula), shape):
            number, rest = _divide(extent * _value(by, world), _value(times, world))
            if rest:
                raise Refused(f"{op.name}: {name} is {list(shape)}: {extent} is no multiple of {_value(times, world)}")
            before, of, at = known.setdefault(letter, (number, name, list(shape)))
            if before != number:
                raise Refused(f"{op.name}: {of} is {at} and {name} {list(shape)}: {letter} is one number, and "
                              f"{before} is not {number}")
    return {letter: number for letter, (number, _, _) in known.items()}


def _extents(op: Operator, world: int, numbers: dict, name: str, formula: str):
    if ":" in formula:
        return tuple(_extent(factor, numbers, world) for factor in formula.split(","))
    extents = []
    for letter, times, by in _factors(formula):
        if letter == "rows":
            extents.append(None)
            continue
        extent, rest = _divide(numbers.get(letter, 1) * _value(times, world), _value(by, world))
        if rest:
            raise Refused(f"{op.name}: {name} is [{formula}], and {letter} = {numbers.get(letter)} does not divide by "
                          f"{_value(by, world)} ranks")
        extents.append(extent)
    return tuple(extents)


def problem_of(op: Operator, world: int, shapes, more=()) -> Problem:
    """The problem whose inputs have these shapes, and the numbers `more` (said). Refused where they have too few dimensions or do not fit together."""
    for (name, _, dimensions), shape in zip(op.inputs, shapes):
        if len(shape) != dimensions:
            raise Refused(f"{op.name}: {name} has {len(shape)} dimensions, {list(shape)}, and should have {dimensions}")
    numbers = {**_numbers(op, world, shapes), **dict(more)}
    _check_rounded(op, world, numbers, shapes)
    outputs = zip(op.outputs, op.formulas[len(op.inputs):], op.types)
    return Problem(tuple(numbers[letter] for letter in op.letters),
                   tuple((_extents(op, world, numbers, name, formula), word) for name, formula, word in outputs))


def flop(op: Operator, world: int, shapes, numbers, causal) -> int:
    """A rank's floating-point operations in a launch of the problem with these numbers, the mean of all: as a plan says its own."""
    of = dict(zip(op.letters, numbers))
    if "S" in of:  # attention
        pairs = of["S"] * (of["S"] + 1) // 2 if causal else of["S"] ** 2
        return 4 * of["B"] * of["H"] * of["D"] * pairs // world
    rows = of["T"] * of["K"] if "T" in of else of.get("M", 0)
    return 2 * rows * sum(shape[-1] * shape[-2] for (name, _, _), shape in zip(op.inputs, shapes) if name[0] == "B" and not name.endswith("scales"))


def leading(op: Operator, world: int, shapes):
    """Where the first input, a matrix, has more than one dimension in place of its rows, [S, B, K]: the inputs that have the same, and what each
    output has in place of its own rows (None: nothing). Parts that ranks hold are of the first dimension; a first dimension of 1 is refused there, since
    [1, S, K] is more likely a batch of one than S = 1."""
    letter, parts = op.rows[0]
    lead, name = tuple(shapes[0][:-1]), op.inputs[0][0]
    folded = [i for i, (_, _, dimensions) in enumerate(op.inputs) if dimensions == 2 and op.rows[i][0] == letter]

    def of(its_parts):
        """The leading dimensions of what has these parts of the same rows."""
        return (lead[0] if parts == its_parts else lead[0] * world if parts else lead[0] // world, *lead[1:])

    for i in folded:
        if tuple(shapes[i][:-1]) != of(op.rows[i][1]):
            raise Refused(f"{op.name}: {name} is {list(shapes[0])} and {op.inputs[i][0]} {list(shapes[i])}: their leading dimensions "
                          "are not alike")
    made = []
    for of_letter, of_parts in op.rows[len(op.inputs):]:
        if of_letter != letter:
            made.append(None)
            continue
        if (parts or of_parts) and lead[0] == 1:
            raise Refused(f"{op.name}: {name} is {list(shapes[0])}: ranks hold parts of the first dimension, which is 1; of a batch of one "
                          f"give {name}[0]")
        if of_parts and lead[0] % world:
            raise Refused(f"{op.name}: {name} is {list(shapes[0])}: the first dimension is divided among {world} ranks, and {lead[0]} "
                          "is no multiple")
        made.append(of(of_parts))
    return folded, made
