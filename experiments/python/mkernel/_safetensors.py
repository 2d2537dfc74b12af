"""Checkpoints by the package safetensors: one file, or several with an index of which tensor is where.

The package maps a file into memory, so a slice of a tensor reads its own pages. It writes a file as a whole: the tensors of one file are in memory then.
"""
from __future__ import annotations

import json
import math
import os

import torch

from ._library import Refused

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ImportError:
    raise Refused("checkpoints need the package safetensors: pip install safetensors") from None

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"


def _mapped(path) -> dict:
    """The tensors of a file by name, over the file's memory."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except OSError as e:
        raise Refused(f"{path} cannot be read: {e}") from None
    except SafetensorError as e:
        raise Refused(f"{path} is no file of safetensors: {e}") from None


def read(path) -> dict:
    """The tensors of a checkpoint by name: of a file, of an index's files, or of a folder that has either."""
    path = os.fspath(path)
    if os.path.isdir(path):
        there = [x for x in (INDEX, SINGLE) if os.path.exists(os.path.join(path, x))]
        if not there:
            raise Refused(f"{path} has neither {INDEX} nor {SINGLE}")
        path = os.path.join(path, there[0])
    if not path.endswith(".json"):
        return _mapped(path)
    try:
        with open(path, encoding="utf-8") as f:
            where = json.load(f)["weight_map"]
        files = {name: _mapped(os.path.join(os.path.dirname(path), name)) for name in sorted(set(where.values()))}
    except OSError as e:
        raise Refused(f"{path} cannot be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise Refused(f"{path} is no index of a checkpoint: {type(e).__name__}: {e}") from None
    lacking = [(key, name) for key, name in where.items() if key not in files[name]]
    if lacking:
        raise Refused(f"{path} says that {lacking[0][0]} is in {lacking[0][1]}, which has not got it")
    return {key: files[name][key] for key, name in where.items()}


class Writer:
    """Writes a checkpoint of these tensors, {name: (shape, dtype)}, to a folder, in files of at most `file_bytes` where a tensor is no larger. Tensors come
    in the order of the dict. Files have names of their own until `finish`, so that what was there before is whole until then."""

    def __init__(self, folder, tensors: dict, file_bytes: int):
        self._folder, self._tensors, self._room, self._saved, self._bytes, groups = os.fspath(folder), tensors, {}, 0, 0, [[]]
        used = 0
        for name, (shape, dtype) in tensors.items():
            size = math.prod(shape) * dtype.itemsize
            if groups[-1] and used + size > file_bytes:
                groups.append([])
                used = 0
            groups[-1].append(name)
            used, self._bytes = used + size, self._bytes + size
        names = [SINGLE] if len(groups) == 1 else [f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
        self._files = list(zip(names, groups))
        os.makedirs(self._folder, exist_ok=True)

    def _partial(self, name):
        return os.path.join(self._folder, name + ".partial")

    def _save(self) -> None:
        name, tensors = self._files[self._saved]
        try:
            save_file({x: self._of(x) for x in tensors}, self._partial(name), metadata={"format": "pt"})
        except SafetensorError as e:
            raise OSError(None, str(e)) from None
        with open(self._partial(name), "rb+") as file:
            os.fsync(file.fileno())
        self._room.clear()
        self._saved += 1

    def _of(self, name):
        if name not in self._room:
            shape, dtype = self._tensors[name]
            self._room[name] = torch.empty(shape, dtype=dtype)
        return self._room[name]

    def write(self, name, element: int, values) -> None:
        """Some of a tensor's elements, from number `element` on."""
        while name not in self._files[self._saved][1]:
            self._save()
        self._of(name).view(-1)[element : element + values.numel()] = values.reshape(-1)

    def finish(self) -> None:
        """The files get their names; of an index and a single file that one goes which was there before and is no longer true."""
        while self._saved < len(self._files):
            self._save()
        names, old = [x for x, _ in self._files], INDEX
        if len(names) > 1:
            index = {"metadata": {"total_size": self._bytes}, "weight_map": {x: name for name, tensors in self._files for x in tensors}}
            with open(self._partial(INDEX), "w", encoding="utf-8") as f:
                json.dump(index, f, indent=1)
            names, old = [*names, INDEX], SINGLE
        for name in names:
            os.replace(self._partial(name), os.path.join(self._folder, name))
        if os.path.exists(os.path.join(self._folder, old)):
            os.remove(os.path.join(self._folder, old))

    def abandon(self) -> None:
        """Leaves what was there before."""
        for name in [INDEX, *[x for x, _ in self._files]]:
            if os.path.exists(self._partial(name)):
                os.remove(self._partial(name))
