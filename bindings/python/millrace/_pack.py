"""Small objects as bytes: JSON, with the types that states of trainers have besides.

The bytes are ``MRX1``, the length of the JSON as four bytes, the JSON, and what it refers to: bytes
and the elements of tensors. Nothing is unpickled unless the reader says that it trusts the bytes.
"""

from __future__ import annotations

import collections
import json
import math
import pickle
import re
import struct
import sys
from typing import Any

from ._errors import CorruptData, InvalidArgument
from ._tensors import DTYPES, Batch, empty, number_of

_MAGIC = b"MRX1"


class _Writer:
    def __init__(self, use_pickle: bool) -> None:
        self.blobs: list[bytes] = []
        self.at = 0
        self.use_pickle = use_pickle

    def blob(self, data: bytes) -> list[int]:
        at = self.at
        self.blobs.append(data)
        self.at += len(data)
        return [at, len(data)]

    def value(self, x: Any, path: str) -> Any:
        kind = type(x)
        if x is None or kind in (bool, int, float, str):
            return x
        if kind is list:
            return [self.value(v, path) for v in x]
        if kind in (dict, collections.OrderedDict):
            return self.mapping(x, path)
        if kind is tuple:
            return {"$tuple": [self.value(v, path) for v in x]}
        if kind in (bytes, bytearray, memoryview):
            return {"$bytes": self.blob(bytes(x))}
        if kind is collections.Counter:
            return {"$counter": [[self.value(k, path), self.value(n, path)] for k, n in x.items()]}
        if kind is set:
            return {"$set": [self.value(v, path) for v in x]}
        if hasattr(x, "data_ptr"):
            return self.tensor("$tensor", x.detach().cpu().contiguous())
        if kind.__module__ == "numpy" and getattr(getattr(x, "dtype", None), "kind", "") in "biufc":
            return self.tensor("$array" if isinstance(x, sys.modules["numpy"].ndarray) else "$scalar", x)
        if not self.use_pickle:
            raise InvalidArgument(
                f"{path}: {kind.__module__}.{kind.__qualname__} is no JSON, bytes or tensor; "
                "pickle=True keeps such objects"
            )
        return {"$pickle": self.blob(pickle.dumps(x))}

    def mapping(self, x: dict[Any, Any], path: str) -> Any:
        if all(type(k) is str and not k.startswith("$") for k in x):
            return {k: self.value(v, f"{path}.{k}" if path else k) for k, v in x.items()}
        return {
            "$dict": [[self.value(k, path), self.value(v, f"{path}[{k!r}]")] for k, v in x.items()]
        }

    def tensor(self, tag: str, x: Any) -> Any:
        if tag == "$tensor":
            batch = Batch()
            line = batch.add("tensor", x, writable=False)
            import ctypes

            data = ctypes.string_at(line.address, line.size_bytes) if line.size_bytes else b""
            return {tag: [DTYPES[line.dtype][0], list(line.shape), self.blob(data)]}
        x = x.astype(x.dtype.newbyteorder("<"))
        return {tag: [x.dtype.str, list(x.shape), self.blob(x.tobytes())]}


def pack(value: object, *, use_pickle: bool = False, what: str = "") -> bytes:
    """Returns an object as bytes. Raises `InvalidArgument` naming what cannot be kept."""
    writer = _Writer(use_pickle)
    try:
        text = json.dumps(writer.value(value, what), separators=(",", ":")).encode()
    except RecursionError:
        raise InvalidArgument(f"{what}: it is nested too deeply, or in itself") from None
    return b"".join((_MAGIC, struct.pack("<I", len(text)), text, *writer.blobs))


class _NotTrusted(InvalidArgument):
    pass


_array_types = re.compile(r"[<|][biufc][0-9]{1,2}")


class _Reader:
    def __init__(self, blobs: memoryview, trust: bool) -> None:
        self.blobs = blobs
        self.trust = trust

    def blob(self, where: list[int]) -> bytes:
        at, size = where
        if at < 0 or size < 0 or at + size > len(self.blobs):
            raise ValueError(f"bytes {at} to {at + size} of {len(self.blobs)}")
        return bytes(self.blobs[at : at + size])

    def value(self, x: Any) -> Any:
        if isinstance(x, list):
            return [self.value(v) for v in x]
        if not isinstance(x, dict):
            return x
        if len(x) == 1:
            ((tag, content),) = x.items()
            if tag.startswith("$"):
                return self.tagged(tag, content)
        return {k: self.value(v) for k, v in x.items()}

    def tagged(self, tag: str, x: Any) -> Any:
        if tag == "$tuple":
            return tuple(self.value(v) for v in x)
        if tag == "$dict":
            return {self.value(k): self.value(v) for k, v in x}
        if tag == "$bytes":
            return self.blob(x)
        if tag == "$counter":
            return collections.Counter({self.value(k): self.value(n) for k, n in x})
        if tag == "$set":
            return {self.value(v) for v in x}
        if tag == "$tensor":
            return self.tensor(*x)
        if tag in ("$array", "$scalar"):
            import numpy

            if not _array_types.fullmatch(x[0]):
                raise ValueError(f"elements of {x[0]}")
            array = numpy.frombuffer(self.blob(x[2]), dtype=x[0]).reshape(x[1]).copy()
            return array if tag == "$array" else array[()]
        if tag == "$pickle":
            if not self.trust:
                raise _NotTrusted(
                    "these bytes hold pickled objects, which run code when they are read: "
                    "trust=True reads them"
                )
            return pickle.loads(self.blob(x))
        raise ValueError(f"the tag {tag} is not known")

    def tensor(self, dtype: str, shape: list[int], where: list[int]) -> Any:
        number = number_of(dtype)
        data = self.blob(where)
        if any(n < 0 for n in shape) or math.prod(shape) * DTYPES[number][2] != len(data) * 8:
            raise ValueError(f"{len(data)} bytes for the shape {shape}")
        out = empty("pt", number, shape, None, False)
        if data:
            torch = sys.modules["torch"]
            bytes_of = torch.frombuffer(bytearray(data), dtype=torch.uint8)
            out.reshape(-1).view(torch.uint8).copy_(bytes_of)
        return out


def unpack(data: bytes, *, trust: bool = False) -> Any:
    """Returns the object that `pack` was given. Raises `CorruptData` for other bytes."""
    if data[:4] != _MAGIC or len(data) < 8:
        raise CorruptData("these bytes were not written by this package")
    (size,) = struct.unpack_from("<I", data, 4)
    if 8 + size > len(data):
        raise CorruptData(f"{len(data)} bytes are fewer than their beginning says")
    try:
        value = json.loads(data[8 : 8 + size])
        return _Reader(memoryview(data)[8 + size :], trust).value(value)
    except _NotTrusted:
        raise
    except Exception as e:  # pylint: disable=broad-except
        # What unpickling raises is the program's own.
        if trust and b'"$pickle"' in data[8 : 8 + size]:
            raise
        raise CorruptData(f"the bytes that were saved with tensors: {e!r}") from None
