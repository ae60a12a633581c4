"""Millrace for PyTorch: `Checkpointer` for trainers, `save` and `load` for single objects."""

from __future__ import annotations

from typing import Any

import torch

from .._client import Client, default_client
from .._errors import InvalidArgument
from .._future import Future
from .._pack import pack, unpack
from .._repository import Receipt
from ._checkpointer import Checkpointer

__all__ = ["Checkpointer", "load", "save"]

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
      name: of the model, instead of a file.
      client: ``None``: `millrace.connect()`.
      pickle: keeps what is no JSON, bytes or tensor, too.

    The tensors are read where they are: they must not change before the future is over.
    """
    tensors: dict[str, Any] = {}

    def taken(x: Any, path: str) -> Any:
        if isinstance(x, torch.Tensor):
            first = path or "tensor"
            unique, count = first, 1
            while unique in tensors or unique == _REST:
                count += 1
                unique = f"{first}#{count}"
            tensors[unique] = x
            parameter = isinstance(x, torch.nn.Parameter)
            return {"$ref": unique, "grad": x.requires_grad, "parameter": parameter}
        if isinstance(x, dict):
            return {"$map": [[taken(k, path), taken(v, _join(path, k))] for k, v in x.items()]}
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

    def built(x: Any) -> Any:
        if isinstance(x, list):
            return [built(v) for v in x]
        if "$ref" in x:
            t = tensors[x["$ref"]]
            if x["parameter"]:
                return torch.nn.Parameter(t, requires_grad=x["grad"])
            return t.requires_grad_(x["grad"])
        if "$map" in x:
            return {built(k): built(v) for k, v in x["$map"]}
        if "$items" in x:
            return tuple(built(v) for v in x["$items"])
        return x["$value"]

    return built(unpack(rest.cpu().numpy().tobytes(), trust=trust))


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)
