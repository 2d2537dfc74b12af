"""State dicts and checkpoints of a parallelised model. Each rank reads its own part of a checkpoint; rank 0 writes whole tensors, which the ranks gather
piece by piece, so that no rank holds more of the model than its own part and a piece, and rank 0 a file's tensors on the CPU.

A parameter is a matrix here: of experts' [E, R, C] the rows of all experts one under another, of a vector one row. Ranks hold parts of its rows or of its
columns. It is one tensor of a checkpoint or, of experts, several, each a run of its rows: each expert's gate, its up.
"""
from __future__ import annotations

import math
import warnings
from typing import NamedTuple

import torch

from . import _divided, operators
from ._library import Refused
from ._parallelize import of_model

_PIECE = 64 << 20  # bytes that are gathered or read at once: the symmetric heap has room for so many
_RENAMED = (("", ""), (".mlp.", ".block_sparse_moe."))  # as a model of transformers 5 names a module, and as checkpoints of Mixtral do
_EXPERTS = {"gate_up_proj": (("gate_proj", "up_proj"), ("w1", "w3")), "down_proj": (("down_proj",), ("w2",))}  # each expert's weights in a checkpoint


class Run(NamedTuple):
    """A tensor of a checkpoint: rows of a parameter from `first` on."""

    key: str
    first: int
    shape: tuple


def _matrix(shape) -> tuple:
    """Rows and columns."""
    return (math.prod(shape[:-1]), shape[-1]) if shape else (1, 1)


def _steps(rows: int, row_bytes: int):
    """Runs of rows that are a piece each."""
    step = max(1, _PIECE // max(row_bytes, 1))
    return [(i, min(step, rows - i)) for i in range(0, rows, step)]


class _Part:
    """A rank's part of a parameter (or of a buffer, all of it) under its name in the state dict."""

    def __init__(self, of, name, held, dimension):
        self.of, self.name = of, name
        self.held, self.shape = held.detach(), list(held.shape)
        self.by_columns = dimension == held.ndim - 1
        self.by_rows = dimension is not None and not self.by_columns
        if dimension is not None:
            self.shape[dimension] *= of.comm.world

    def runs(self, there=None):
        """As a checkpoint has it that has these names."""
        for ours, theirs in _RENAMED if there else ():
            key = self.name.replace(ours, theirs, 1) if ours else self.name
            if key in there:
                return [Run(key, 0, tuple(self.shape))]
            stem, _, last = key.rpartition(".")
            for children in _EXPERTS.get(last, ()) if len(self.shape) == 3 else ():
                if f"{stem}.0.{children[0]}.weight" in there:
                    rows = self.shape[1] // len(children)
                    return [Run(f"{stem}.{expert}.{child}.weight", expert * self.shape[1] + i * rows, (rows, self.shape[2]))
                            for expert in range(self.shape[0]) for i, child in enumerate(children)]
        return [Run(self.name, 0, tuple(self.shape))]

    def load(self, runs, tensors) -> None:
        """Copies this rank's part, a piece at a time."""
        if type(self.held) is not torch.Tensor:
            raise Refused(f"{self.name} is a {type(self.held).__name__}: load the weights after mkernel.parallelize, before the model is wrapped")
        rows, columns = _matrix(self.held.shape)
        target, rank = self.held.view(rows, columns), self.of.comm.rank
        begin = rank * rows if self.by_rows else 0
        left = rank * columns if self.by_columns else 0
        for run in runs:
            source = tensors[run.key].reshape(_matrix(run.shape))
            first, end = max(run.first, begin), min(run.first + len(source), begin + rows)
            for i, count in _steps(end - first, columns * source.element_size()):
                at = first + i
                target[at - begin : at - begin + count].copy_(source[at - run.first : at - run.first + count, left : left + columns])

    def pieces(self):
        """The whole, as (first row, rows on the CPU), in pieces; all ranks call alike where it is divided."""
        rows, columns = _matrix(self.held.shape)
        matrix, comm = _divided.whole(self.held).reshape(rows, columns), self.of.comm  # of FSDP's the whole of this rank's part
        if not (self.by_rows or self.by_columns):
            for i, count in _steps(rows, columns * matrix.element_size()):
                yield i, matrix[i : i + count].to("cpu", copy=True)
            return
        for i, count in _steps(rows, comm.world * columns * matrix.element_size()):
            every = operators.all_gather(matrix[i : i + count], comm=comm).view(comm.world, count, columns)
            if self.by_columns:
                yield i, every.transpose(0, 1).reshape(count, -1).to("cpu", copy=True)
            else:
                for rank, part in enumerate(every.to("cpu", copy=True)):
                    yield rank * rows + i, part


def _parts(model):
    """Of all names in the state dict; those of one tensor once, under the first."""
    of, seen, parts, same, divided = of_model(model), {}, [], {}, _divided.dimensions(model)
    for name, held in model.state_dict(keep_vars=True).items():
        if id(held) in seen:
            same[name] = seen[id(held)]
        else:
            seen[id(held)] = name
            parts.append(_Part(of, name, held, divided.get(id(held))))
    return of, parts, same


def full_state_dict(model) -> dict:
    of, parts, same = _parts(model)
    whole = {}
    for part in parts:
        matrix = torch.empty(_matrix(part.shape), dtype=part.held.dtype)
        for first, rows in part.pieces():
            matrix[first : first + len(rows)] = rows
        whole[part.name] = matrix.reshape(part.shape)
    return {name: whole[same.get(name, name)] for name in model.state_dict(keep_vars=True)}


def _check_shape(name, shape, part, run):
    if list(shape) != list(run.shape):
        whole = ": the whole of all ranks" if part.by_rows or part.by_columns else ""
        raise Refused(f"{name} is {list(shape)}, and should be {list(run.shape)}{whole}")


def load_full_state_dict(model, state):
    of, parts, same = _parts(model)
    missing = [part.name for part in parts if part.name not in state]
    unknown = [name for name in state if name not in model.state_dict(keep_vars=True)]
    if missing or unknown:
        raise Refused("the state dict " + " and ".join([f"lacks {x}" for x in missing[:1]] + [f"has {x}, which the model has not" for x in unknown[:1]]))
    for part in parts:
        _check_shape(part.name, state[part.name].shape, part, part.runs()[0])
    for part in parts:
        part.load(part.runs(), {part.name: _divided.whole(state[part.name])})
    of.empty = False


def load(model, path):
    from . import _safetensors

    of, parts, same = _parts(model)
    tensors = _safetensors.read(path)
    runs = {part.name: part.runs(tensors) for part in parts}
    for name, first in same.items():  # one parameter of two names: a checkpoint has it under either
        if runs[first][0].key not in tensors and name in tensors:
            runs[first] = [Run(name, 0, runs[first][0].shape)]
    known = set(same)
    for part in parts:
        for run in runs[part.name]:
            if run.key not in tensors:
                raise Refused(f"{path} lacks {run.key}")
            _check_shape(f"{run.key} in {path}", tensors[run.key].shape, part, run)
            known.add(run.key)
    more = [x for x in tensors if x not in known and not x.endswith("rotary_emb.inv_freq")]
    if more and of.comm.rank == 0:
        warnings.warn(f"{path} has {len(more)} tensors that the model has not: {more[0]}", stacklevel=3)
    for part in parts:  # nothing is refused from here on
        part.load(runs[part.name], tensors)
    of.runs, of.empty = runs, False


def save(model, path, file_bytes):
    from . import _safetensors

    of, parts, _ = _parts(model)
    for part in parts:
        if type(part.held) is not torch.Tensor:
            raise Refused(f"{part.name} is a {type(part.held).__name__}, of which groups of ranks have copies: mkernel.full_state_dict(model) gives the whole, for one to write")
    if of.empty:
        raise Refused("the model was parallelised on meta, and its weights have not been loaded: there is nothing to save")
    tensors = {run.key: (run.shape, part.held.dtype) for part in parts for run in of.runs.get(part.name, part.runs())}
    writer, failure = None, None

    def attempt(step, *arguments):
        """On rank 0. What it raises waits until all ranks know: before that the others gather, and need this rank."""
        nonlocal writer, failure
        try:
            return step(*arguments)
        except BaseException as e:
            failure = e
            if writer:
                writer.abandon()
            writer = None

    if of.comm.rank == 0:
        writer = attempt(_safetensors.Writer, path, tensors, file_bytes)
    for part in parts:
        if of.comm.rank and not (part.by_rows or part.by_columns):
            continue
        runs = of.runs.get(part.name, part.runs())
        for first, rows in part.pieces():
            if writer:
                attempt(_write, writer, runs, first, rows)
    if writer:
        attempt(writer.finish, getattr(model, "config", None))
    said = torch.full((1, 8), float(failure is not None), dtype=torch.bfloat16, device=of.comm._place)
    if operators.all_gather(said, comm=of.comm).any():
        if isinstance(failure, OSError):
            raise Refused(f"{path} cannot be written: {failure.strerror or failure}") from None
        raise failure or Refused(f"{path} cannot be written: rank 0 says why")


def _write(writer, runs, first, rows) -> None:
    """The rows of a parameter from `first` on, to the tensors of a checkpoint that have them."""
    columns = rows.shape[1]
    for run in runs:
        count = _matrix(run.shape)[0]
        begin, end = max(run.first, first), min(run.first + count, first + len(rows))
        if begin < end:
            writer.write(run.key, (begin - run.first) * columns, rows[begin - first : end - first])
