"""The architectures of modules: leaf modules and functions, and what feeds them."""

from __future__ import annotations

import contextlib
import copy
import hashlib
import inspect
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.fx._symbolic_trace import Tracer
from torch.fx.node import Node, map_arg

from .._graph import Description, Graph
from .._pack import pack
from ._state import generators, set_generators, unwrapped

_log = logging.getLogger("millrace")


def graph(model: torch.nn.Module) -> Graph:
    """Returns the architecture of a module.

    Its layers are the modules without modules in them, those that have tensors of their own, and
    the functions and methods that the forward pass calls between them. ``torch.fx`` finds what
    feeds what, by a forward pass without values, which leaves the module as it was. A module that
    cannot be traced, since its forward pass depends on values, gives a chain of its modules in the
    order in which they were made; the log says so.

    The names of its tensors are those of ``model.state_dict()``; of a module that is run in
    parallel, or compiled, those of the module within. The hyper-parameters are the plain values
    and the functions that a module's constructor takes and that it keeps under the same names.
    Identities are equal as far as these and the trace show: neither hooks nor other attributes
    count, and a chain says nothing of the functions between its layers.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"graph: a module, not {type(model).__name__}")
    model = unwrapped(model)
    owners = dict(_owners(model))
    try:
        with _as_it_was(model):
            layers = _Traced(model, owners).layers
    except Exception as e:  # pylint: disable=broad-except
        # A forward pass may raise anything when it is called with what stands for a tensor.
        _log.info("%s cannot be traced, so its layers are a chain: %s", type(model).__name__, e)
        layers = _chain(owners)
    state = {n: t for n, t in model.state_dict().items() if isinstance(t, torch.Tensor)}
    return Graph._of(layers, state)


@contextlib.contextmanager
def _as_it_was(model: torch.nn.Module) -> Iterator[None]:
    """Takes back what a forward pass does to the attributes of modules and to generators."""
    kept = []
    for m in model.modules():
        attributes = dict(vars(m))
        inside = {k: copy.copy(v) for k, v in attributes.items() if isinstance(v, (dict, list, set))}
        kept.append((m, attributes, inside))
    numbers = generators()
    try:
        yield
    finally:
        set_generators(numbers)
        for m, attributes, inside in kept:
            vars(m).clear()
            vars(m).update(attributes)
            # The containers themselves stay: others may know them.
            for key, content in inside.items():
                container = attributes[key]
                if isinstance(container, list):
                    container[:] = content
                else:
                    container.clear()
                    container.update(content)


def _is_leaf(module: torch.nn.Module) -> bool:
    # One of PyTorch's that uses the tensors of the modules in it, as attention does.
    within = type(module).__module__.startswith("torch.nn.modules.")
    return not len(module._modules) or within and bool(len(module._parameters))


def _owners(
    module: torch.nn.Module, path: str = "", seen: set[int] | None = None
) -> Iterable[tuple[str, torch.nn.Module]]:
    """Returns leaves, and other modules that have tensors of their own, by their paths."""
    seen = set() if seen is None else seen
    if id(module) in seen:
        return
    seen.add(id(module))
    leaf = _is_leaf(module)
    kept = set(module._buffers.keys()) - module._non_persistent_buffers_set
    if leaf or len(module._parameters) or kept:
        yield path, module
    if not leaf:
        for name, inner in module._modules.items():
            if inner is not None:
                yield from _owners(inner, f"{path}.{name}" if path else name, seen)


def _chain(owners: dict[str, torch.nn.Module]) -> list[Description]:
    return [
        _described(path, module, [i - 1] if i else [])
        for i, (path, module) in enumerate(owners.items())
    ]


def _described(path: str, module: torch.nn.Module, inputs: list[int]) -> Description:
    # What others in it compute has its own layers; of the module there are the tensors alone.
    attributes = _attributes(module) if _is_leaf(module) else {}
    return Description(path, type(module).__qualname__, attributes, inputs)


def _attributes(module: torch.nn.Module) -> dict[str, str]:
    names = set(getattr(module, "__constants__", ()))
    for kind in type(module).__mro__[:-1]:
        if (make := vars(kind).get("__init__")) is not None:
            names.update(inspect.signature(make).parameters)
    values = vars(module)
    return {k: _text(values[k]) for k in sorted(names & values.keys()) if _is_plain(values[k])}


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_is_plain(v) for v in value)
    return (
        value is None
        or isinstance(value, (bool, int, float, str, torch.dtype))
        or callable(value)
        and hasattr(value, "__name__")
    )


def _text(value: Any) -> str:
    if isinstance(value, Node):
        return "%"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(_text(v) for v in value)})"
    if isinstance(value, dict):
        return f"({', '.join(f'{k}={_text(v)}' for k, v in value.items())})"
    if isinstance(value, slice):
        return f"{_text(value.start)}:{_text(value.stop)}:{_text(value.step)}"
    if isinstance(value, (bool, int, float, str)) or value is None or value is Ellipsis:
        return repr(value)
    if isinstance(value, torch.dtype):
        return str(value)
    return str(getattr(value, "__name__", type(value).__qualname__))


class _Traced(Tracer):
    """The layers of a module by its forward pass."""

    # Nothing is computed with the values of buffers.
    proxy_buffer_attributes = True

    def __init__(self, model: torch.nn.Module, owners: dict[str, torch.nn.Module]) -> None:
        super().__init__()
        self.layers: list[Description] = []
        self._owners = owners
        self._leaves = {id(m) for m in owners.values() if _is_leaf(m)}
        self._by_label: dict[str, int] = {}
        self._of_node: dict[Node, int] = {}
        self._arguments = 0
        if id(model) in self._leaves:
            self._add(_described("", model, []))
            return
        for node in self.trace(model).nodes:
            if node.op != "output":
                self._of_node[node] = self._take(node)
        # What the forward pass has not used has tensors all the same.
        for path, module in owners.items():
            if path not in self._by_label:
                self._add(_described(path, module, []))

    def is_leaf_module(self, m: torch.nn.Module, module_qualified_name: str) -> bool:
        return id(m) in self._leaves

    def _add(self, layer: Description) -> int:
        self.layers.append(layer)
        return self._by_label.setdefault(layer.label, len(self.layers) - 1)

    def _take(self, node: Node) -> int:
        inputs: list[int] = []

        def note(n: Node) -> Node:
            inputs.append(self._of_node[n])
            return n

        map_arg((node.args, node.kwargs), note)
        # With a colon, which no path of a module has.
        label = f"{node.name}:"
        if node.op == "placeholder":
            self._arguments += 1
            number = {"argument": str(self._arguments)}
            return self._add(Description(label, "input", number, []))
        if node.op == "get_attr":
            return self._attribute(str(node.target))
        if node.op == "call_module":
            path = str(node.target)
            first = self._by_label.get(path)
            if first is None:
                return self._add(_described(path, self._owners[path], inputs))
            # The same tensors again: what has them feeds it.
            again = _described(path, self._owners[path], [*inputs, first])
            return self._add(again._replace(label=label))
        constants = {str(i): a for i, a in enumerate(node.args) if not isinstance(a, Node)}
        constants.update({k: a for k, a in node.kwargs.items() if not isinstance(a, Node)})
        name = getattr(node.target, "__name__", str(node.target))
        kind = f".{name}" if node.op == "call_method" else name
        attributes = {key: _text(value) for key, value in constants.items()}
        return self._add(Description(label, kind, attributes, inputs))

    # A tensor that the forward pass names belongs to the module that has it.
    def _attribute(self, target: str) -> int:
        path = target.rpartition(".")[0]
        if path in self._by_label:
            return self._by_label[path]
        if path in self._owners:
            return self._add(_described(path, self._owners[path], []))
        value: Any = self.root
        for name in target.split("."):
            value = getattr(value, name)
        digest = hashlib.blake2b(pack(value), digest_size=16).hexdigest()
        return self._add(Description(f"{target}:", "constant", {"digest": digest}, []))
