"""Checkpoints by the package safetensors: one file, or several with an index of which tensor is where.

The package maps a file into memory, so a slice of a tensor reads its own pages. It writes a file as a whole: the tensors of one file are in memory then.
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import re
import secrets

import torch

from ._library import Refused

try:
    from safetensors import SafetensorError, safe_open
    from safetensors.torch import save_file
except ImportError:
    raise Refused("checkpoints need the package safetensors: pip install safetensors") from None

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_OURS = re.compile(r"model(-\d{5}-of-\d{5}(-[0-9a-f]{8})?)?\.safetensors(\.partial)?|model\.safetensors\.index\.json\.partial")  # the files of checkpoints that a new one takes the place of


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
        outside = [x for x in where.values() if x in ("", ".", "..") or os.path.basename(x) != x]
        if outside:
            raise Refused(f"{path} names {outside[0]}: an index names files of its own folder")
        files = {name: _mapped(os.path.join(os.path.dirname(path), name)) for name in sorted(set(where.values()))}
    except OSError as e:
        raise Refused(f"{path} cannot be read: {e.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as e:
        raise Refused(f"{path} is no index of a checkpoint: {type(e).__name__}: {e}") from None
    lacking = [(key, name) for key, name in where.items() if key not in files[name]]
    if lacking:
        raise Refused(f"{path} says that {lacking[0][0]} is in {lacking[0][1]}, which has not got it")
    return {key: files[name][key] for key, name in where.items()}


def _sync(path) -> None:
    """A file, or a folder's names, is on the disk."""
    at = os.open(path, os.O_RDONLY)
    try:
        os.fsync(at)
    finally:
        os.close(at)


class Writer:
    """Writes a checkpoint of these tensors, {name: (shape, dtype)}, to a folder, in files of at most `file_bytes` where a tensor is no larger. Tensors come
    in the order of the dict. What makes a reader take the new files is one rename, of the index or of the only file: a folder that was left at any moment
    has the old checkpoint or the new one, whole. So files of an index have names that no file of the folder has."""

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
        os.makedirs(self._folder, exist_ok=True)
        self._old = [x for x in os.listdir(self._folder) if _OURS.fullmatch(x)]
        generation = secrets.token_hex(4)
        names = [SINGLE] if len(groups) == 1 else [f"model-{i + 1:05d}-of-{len(groups):05d}-{generation}.safetensors" for i in range(len(groups))]
        self._files = list(zip(names, groups))

    def _partial(self, name):
        return os.path.join(self._folder, name + ".partial")

    def _save(self) -> None:
        name, tensors = self._files[self._saved]
        try:
            save_file({x: self._of(x) for x in tensors}, self._partial(name), metadata={"format": "pt"})
        except SafetensorError as e:
            raise OSError(None, str(e)) from None
        _sync(self._partial(name))
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

    def finish(self, config=None) -> None:
        """The model's configuration, then the files get their names, the one that a reader begins with last. What was there before goes."""
        while self._saved < len(self._files):
            self._save()
        names, first = [x for x, _ in self._files], SINGLE
        if len(names) > 1:
            first = INDEX
            index = {"metadata": {"total_size": self._bytes}, "weight_map": {x: name for name, tensors in self._files for x in tensors}}
            with open(self._partial(INDEX), "w", encoding="utf-8") as f:
                json.dump(index, f, indent=1)
            _sync(self._partial(INDEX))
        if hasattr(config, "save_pretrained"):
            config.save_pretrained(self._folder)
        for name in names if first == INDEX else ():
            os.replace(self._partial(name), os.path.join(self._folder, name))
        _sync(self._folder)
        os.replace(self._partial(first), os.path.join(self._folder, first))
        if first == SINGLE and os.path.exists(os.path.join(self._folder, INDEX)):  # which a reader would begin with
            os.remove(os.path.join(self._folder, INDEX))
        _sync(self._folder)
        self._files = []
        self._remove(x for x in self._old if x not in names)

    def abandon(self) -> None:
        """Leaves what was there before."""
        names = [x for x, _ in self._files]
        self._remove([x for x in names if x != SINGLE] + [x + ".partial" for x in (INDEX, *names)])

    def _remove(self, names) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                os.remove(os.path.join(self._folder, name))
