"""Millrace for PyTorch: `Checkpointer` for trainers, `save` and `load` for single objects, and
`graph` for the architectures of modules."""

from __future__ import annotations

import collections
import importlib
from typing import TYPE_CHECKING, Any

import torch

from .._client import Client, default_client
from .._errors import InvalidArgument
from .._future import Future
from .._pack import pack, unpack
from .._repository import Receipt
from ._checkpointer import Checkpointer
from ._graph import graph

if TYPE_CHECKING:
    from . import dcp

__all__ = ["Checkpointer", "graph", "load", "save"]

# `torch.distributed.checkpoint` takes its time, and some versions cannot import it.
def __getattr__(name: str) -> Any:
    if name == "dcp":
        return importlib.import_module(".dcp", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


# Dictionaries that are more than that, by the names with which they are kept.
_DICTIONARIES: dict[Any, Any] = {
    "Counter": collections.Counter,
    "OrderedDict": collections.OrderedDict,
}
# The tensor with all that is no tensor.
_REST = "millrace.rest"


def save(
    obj: Any,
    name: str,
    *,
    client: Client | None = None,
    group: str = "default",
    pickle: bool = False,
    timeout: float | None = None,
) -> Future[Receipt]:
    """Stores an object as ``torch.save`` does, as a model of a repository.

    Args:
      obj: dictionaries, lists and tuples of tensors and of small values, nested as they may be.
        Dictionaries of other classes than those of Python come back as ``dict``.
      name: of the model, instead of a file.
      client: ``None``: `millrace.connect()`.
      pickle: keeps what is no JSON, bytes or tensor, too.

    The tensors are read where they are: they must not change before the future is over.
    """
    tensors: dict[str, Any] = {}

    def taken(x: Any, path: str) -> Any:
        if isinstance(x, torch.Tensor):
            # A name has 1,024 bytes at most.
            first = path if path and len(path.encode()) <= 900 else "tensor"
            unique, count = first, 1
            while unique in tensors or unique == _REST:
                count += 1
                unique = f"{first}#{count}"
            tensors[unique] = x
            parameter = isinstance(x, torch.nn.Parameter)
            return {"$ref": unique, "grad": x.requires_grad, "parameter": parameter}
        if isinstance(x, torch.Size):
            return {"$torch": ["Size", list(x)]}
        if isinstance(x, (torch.dtype, torch.device)):
            return {"$torch": [type(x).__name__, str(x).removeprefix("torch.")]}
        if isinstance(x, dict):
            kept: dict[str, Any] = {
                "$map": [[taken(k, path), taken(v, _join(path, k))] for k, v in x.items()]
            }
            kind = next((name for name, of in _DICTIONARIES.items() if type(x) is of), None)
            if kind is not None:
                kept["kind"] = kind
            # The versions of modules, which `load_state_dict` reads.
            if isinstance(versions := getattr(x, "_metadata", None), dict):
                kept["metadata"] = {"$value": {k: dict(v) for k, v in versions.items()}}
            return kept
        if isinstance(x, (list, tuple)) and type(x) in (list, tuple):
            items = [taken(v, _join(path, i)) for i, v in enumerate(x)]
            return items if type(x) is list else {"$items": items}
        pack(x, use_pickle=pickle, what=path or name)  # says where something is that cannot be kept
        return {"$value": x}

    try:
        rest = pack(taken(obj, ""), use_pickle=pickle)
    except RecursionError:
        raise InvalidArgument(f"{name}: it is nested too deeply, or in itself") from None
    tensors[_REST] = rest
    repository = default_client(client).repository(group)
    return repository.store(name, tensors, timeout=timeout)


def load(
    name: str,
    *,
    client: Client | None = None,
    group: str = "default",
    map_location: object = None,
    trust: bool = False,
    timeout: float | None = None,
) -> Any:
    """Returns the object that was given to `save`.

    Args:
      map_location: the device for all tensors; ``None``: the CPU.
      trust: unpickles what was saved with ``pickle=True``, which runs code of whoever has saved it.
    """
    repository = default_client(client).repository(group)
    tensors = repository.load(name, device=map_location, timeout=timeout).result()
    rest = tensors.pop(_REST, None)
    if rest is None:
        raise InvalidArgument(f"{name}: it was not stored by millrace.torch.save")

    # What was one object is one again; of one memory there may be several.
    made: dict[tuple[int, bool, bool], Any] = {}

    def built(x: Any) -> Any:
        if isinstance(x, list):
            return [built(v) for v in x]
        if "$ref" in x:
            t, parameter, grad = tensors[x["$ref"]], x["parameter"], x["grad"]
            key = id(t), parameter, grad
            if key not in made:
                made[key] = (
                    torch.nn.Parameter(t, requires_grad=grad)
                    if parameter
                    else t.detach().requires_grad_(grad)
                )
            return made[key]
        if "$torch" in x:
            kind, value = x["$torch"]
            return torch.Size(value) if kind == "Size" else _plain_of_torch(kind, value)
        if "$map" in x:
            pairs = {built(k): built(v) for k, v in x["$map"]}
            out = _DICTIONARIES.get(x.get("kind"), dict)(pairs)
            if "metadata" in x:
                out = collections.OrderedDict(out)
                setattr(out, "_metadata", collections.OrderedDict(built(x["metadata"])))
            return out
        if "$items" in x:
            return tuple(built(v) for v in x["$items"])
        return x["$value"]

    return built(unpack(rest.cpu().numpy().tobytes(), trust=trust))


def _plain_of_torch(kind: str, value: str) -> Any:
    if kind == "device":
        return torch.device(value)
    found = getattr(torch, value, None)
    if kind != "dtype" or not isinstance(found, torch.dtype):
        raise InvalidArgument(f"this version of PyTorch has no {kind} {value}")
    return found


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
