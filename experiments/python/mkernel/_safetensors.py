"""Files of the safetensors format: 8 bytes that say the length of a JSON header, the header, and the tensors' bytes.

They are read by mapping them into memory, so that a slice of a tensor reads its own pages, and written at the places that the header says, in any
order: neither holds a whole tensor. A checkpoint is one such file, or several with an index of which tensor is where.
"""
from __future__ import annotations

import json
import math
import mmap
import os
import struct

import torch

from ._library import Refused

INDEX, SINGLE = "model.safetensors.index.json", "model.safetensors"
_TYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F8_E4M3": torch.float8_e4m3fn,
          "F8_E5M2": torch.float8_e5m2, "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}
_WORDS = {dtype: word for word, dtype in _TYPES.items()}


def _mapped(path) -> dict:
    """The tensors of a file by name, over the file's memory."""
    try:
        with open(path, "rb") as f:
            room = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY)
        begin = 8 + struct.unpack("<Q", room[:8])[0]
        header = json.loads(room[8:begin])
        header.pop("__metadata__", None)
        tensors = {}
        for name, of in header.items():
            dtype, shape, (first, end) = _TYPES[of["dtype"]], of["shape"], of["data_offsets"]
            count = math.prod(shape)
            if end - first != count * dtype.itemsize or not 0 <= first <= end <= len(room) - begin:
                raise ValueError(f"{name} is {shape} of {of['dtype']} in bytes {first} to {end} of {len(room) - begin}")
            tensors[name] = torch.frombuffer(room, dtype=dtype, count=count, offset=begin + first).reshape(shape) if count else torch.empty(shape, dtype=dtype)
        return tensors
    except OSError as e:
        raise Refused(f"{path}: {e.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as e:
        raise Refused(f"{path} is no file of safetensors: {type(e).__name__}: {e}") from None


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
    except OSError as e:
        raise Refused(f"{path}: {e.strerror}") from None
    except (ValueError, KeyError, TypeError) as e:
        raise Refused(f"{path} is no index of a checkpoint: {type(e).__name__}: {e}") from None
    files = {name: _mapped(os.path.join(os.path.dirname(path), name)) for name in sorted(set(where.values()))}
    lacking = [(key, name) for key, name in where.items() if key not in files[name]]
    if lacking:
        raise Refused(f"{path} says that {lacking[0][0]} is in {lacking[0][1]}, which has not got it")
    return {key: files[name][key] for key, name in where.items()}


class Writer:
    """Writes a checkpoint of these tensors, {name: (shape, dtype)}, to a folder, in files of at most `file_bytes` where a tensor is no larger.
    Under names of its own until `finish`, so that what was there before is whole until then."""

    def __init__(self, folder, tensors: dict, file_bytes: int):
        self.folder, self.names, self._where, self._files, sizes, groups = os.fspath(folder), [], {}, [], {}, [[]]
        used = 0
        for name, (shape, dtype) in tensors.items():
            sizes[name] = math.prod(shape) * dtype.itemsize
            if groups[-1] and used + sizes[name] > file_bytes:
                groups.append([])
                used = 0
            groups[-1].append(name)
            used += sizes[name]
        os.makedirs(self.folder, exist_ok=True)
        self._weight_map, self._total = {}, sum(sizes.values())
        for i, group in enumerate(groups):
            self.names.append(SINGLE if len(groups) == 1 else f"model-{i + 1:05d}-of-{len(groups):05d}.safetensors")
            header, at = {"__metadata__": {"format": "pt"}}, 0
            for name in sorted(group, key=lambda x: -tensors[x][1].itemsize):  # so that each is aligned to its type
                shape, dtype = tensors[name]
                header[name] = {"dtype": _WORDS[dtype], "shape": list(shape), "data_offsets": [at, at + sizes[name]]}
                at += sizes[name]
            text = json.dumps(header).encode()
            text += b" " * (-len(text) % 8)
            file = open(self._partial(self.names[-1]), "wb")
            self._files.append(file)
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
            for name in group:
                self._where[name] = (file, 8 + len(text) + header[name]["data_offsets"][0])
                self._weight_map[name] = self.names[-1]

    def _partial(self, name):
        return os.path.join(self.folder, name + ".partial")

    def write(self, name, element: int, values) -> None:
        """Some of a tensor's elements, from number `element` on: a contiguous tensor on the CPU."""
        file, at = self._where[name]
        file.seek(at + element * values.element_size())
        file.write(values.reshape(-1).view(torch.uint8).numpy())

    def finish(self) -> None:
        """The files get their names; of an index and a single file that one goes which was there before and is no longer true."""
        for file in self._files:
            file.flush()
            os.fsync(file.fileno())
            file.close()
        for name in self.names:
            os.replace(self._partial(name), os.path.join(self.folder, name))
        if len(self.names) > 1:
            with open(self._partial(INDEX), "w", encoding="utf-8") as f:
                json.dump({"metadata": {"total_size": self._total}, "weight_map": self._weight_map}, f, indent=1)
            os.replace(self._partial(INDEX), os.path.join(self.folder, INDEX))
        old = os.path.join(self.folder, SINGLE if len(self.names) > 1 else INDEX)
        if os.path.exists(old):
            os.remove(old)

    def abandon(self) -> None:
        """Leaves what was there before."""
        for file, name in zip(self._files, self.names):
            file.close()
            if os.path.exists(self._partial(name)):
                os.remove(self._partial(name))
