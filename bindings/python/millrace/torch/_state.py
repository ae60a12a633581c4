"""What a trainer's objects keep, as tensors by their names and as small values.

Modules have the names of their state dictionaries, optimizers those of their parameters:
``model.fc.weight``, ``optim.exp_avg.fc.weight``. The tensors are the objects' own, no copies.
"""

from __future__ import annotations

import ctypes
import random
import struct
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, cast

import torch

from .._checkpoints import Part
from .._errors import InvalidArgument
from .._repository import TensorInfo
from .._tensors import DTYPES, number_of


class Place(NamedTuple):
    """Where a tensor is: a dictionary of a module or an optimizer, and the key in it."""

    dictionary: dict[Any, Any]
    key: Any

    @property
    def tensor(self) -> torch.Tensor:
        """The tensor; of one that is distributed, what this rank has of it."""
        return local(self.dictionary[self.key])


def local(t: Any) -> torch.Tensor:
    """Returns what this rank has of a tensor."""
    to_local = getattr(t, "to_local", None)
    if to_local is None:
        return cast(torch.Tensor, t)
    with torch.no_grad():
        return cast(torch.Tensor, to_local())


def _part_of(name: str, t: Any) -> Part | None:
    """Returns where this rank's part of a distributed tensor lies; None: it is another tensor."""
    if not hasattr(t, "to_local"):
        return None
    # As PyTorch's own checkpoints ask.
    chunks = t.__create_chunk_list__()
    if len(chunks) != 1 or tuple(chunks[0].sizes) != tuple(local(t).shape):
        raise InvalidArgument(f"{name}: its placements {t.placements} give this rank no single box")
    return Part(tuple(chunks[0].offsets), tuple(t.shape))


class Found:
    """The tensors of all objects, and the dictionaries that tell whether others have come."""

    def __init__(self) -> None:
        self.places: dict[str, Place] = {}
        self.buffers: dict[str, Place] = {}  # of modules: forward passes may change them
        # Where tensors lie in larger ones.
        self.parts: dict[str, Part] = {}
        # The names of parameters by their identities, and of those that states belong to.
        self.names: dict[int, str] = {}
        self.parameter_of: dict[str, str] = {}
        # Dictionaries and the values that they must still have; `...`: any.
        self.dictionaries: list[tuple[dict[Any, Any], list[Any]]] = []

    def add(self, to: dict[str, Place], name: str, place: Place) -> None:
        if name in self.places or name in self.buffers:
            raise InvalidArgument(
                f"two tensors have the name {name}: give objects names by named={{...}}"
            )
        to[name] = place
        part = _part_of(name, place.dictionary[place.key])
        if part is not None:
            self.parts[name] = part

    def place(self, given: Mapping[str, Part]) -> None:
        """Takes the places that a program gives for tensors, and for states of parameters."""
        tensors = {**self.places, **self.buffers}
        for name in given:
            if name not in tensors:
                raise InvalidArgument(
                    f"parts: there is no tensor {name}; one of the names is {next(iter(tensors), '')}"
                )
        for name, place in tensors.items():
            parameter = self.parameter_of.get(name, name)
            part = given.get(name, given.get(parameter))
            if part is None or name in self.parts:
                continue
            if tuple(place.tensor.shape) == tuple(tensors[parameter].tensor.shape):
                self.parts[name] = Part(*part)


def unwrapped(module: torch.nn.Module) -> torch.nn.Module:
    """Returns the module within those that run it in parallel, or compiled."""
    while True:
        inner = getattr(module, "_orig_mod", None)
        if inner is None and type(module).__name__ in ("DistributedDataParallel", "DataParallel"):
            inner = module.module
        if inner is None:
            return module
        module = inner


def name_objects(
    objects: tuple[Any, ...], named: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Gives each object a name: model, optim, state; the second of a kind is model2."""
    out: dict[str, Any] = {}
    if not objects and not named:
        raise InvalidArgument("there is nothing to save: give modules, optimizers and others")
    for x in (*objects, *(named or {}).values()):
        if isinstance(x, type) or not (hasattr(x, "state_dict") and hasattr(x, "load_state_dict")):
            what = x.__name__ if isinstance(x, type) else type(x).__name__
            raise TypeError(f"{what} is no object with state_dict and load_state_dict")
    for x in objects:
        kind = (
            "model"
            if isinstance(x, torch.nn.Module)
            else "optim"
            if isinstance(x, torch.optim.Optimizer)
            else "state"
        )
        name, count = kind, 1
        while name in out:
            count += 1
            name = f"{kind}{count}"
        out[name] = x
    for name, x in (named or {}).items():
        if name in out:
            raise InvalidArgument(f"two objects have the name {name}")
        out[name] = x
    return {
        name: unwrapped(x) if isinstance(x, torch.nn.Module) else x for name, x in out.items()
    }


def _modules(module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    for path, m in module.named_modules(remove_duplicate=False):
        yield (path + "." if path else ""), m


def parameter_names(objects: Mapping[str, Any]) -> dict[int, str]:
    """Returns the names of all modules' parameters by their identities.

    Those of the first module have the names of its state dictionary; those of others have the
    object's name and a colon before, which no name within a module has.
    """
    out: dict[int, str] = {}
    modules = [(n, x) for n, x in objects.items() if isinstance(x, torch.nn.Module)]
    for number, (name, module) in enumerate(modules):
        prefix = "" if number == 0 else f"{name}:"
        for path, m in _modules(module):
            for key, p in m._parameters.items():
                if p is not None:
                    out.setdefault(id(p), f"{prefix}{path}{key}")
    return out


def _name_in(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[int, str]:
    out: dict[int, str] = {}
    for g, group in enumerate(optimizer.param_groups):
        for i, p in enumerate(group["params"]):
            out[id(p)] = names.get(id(p), f"group{g}:{i}")
    # What a state has besides parameters.
    for i, p in enumerate(optimizer.state):
        out.setdefault(id(p), f"entry:{i}")
    return out


def reshard(objects: Mapping[str, Any]) -> None:
    """Lets modules of `fully_shard` have their own parts: a forward pass alone leaves them whole."""
    for x in objects.values():
        if isinstance(x, torch.nn.Module):
            for m in x.modules():
                # Those of `fully_shard` have both.
                again: Any = getattr(m, "reshard", None)
                if again is not None and hasattr(m, "unshard"):
                    again()


def find(objects: Mapping[str, Any]) -> Found:
    """Returns the tensors of modules and optimizers."""
    found = Found()
    names = parameter_names(objects)
    for name, x in objects.items():
        if isinstance(x, torch.nn.Module):
            _find_in_module(name, x, found)
        elif isinstance(x, torch.optim.Optimizer):
            _find_in_optimizer(name, x, names, found)
    return found


def _find_in_module(name: str, module: torch.nn.Module, found: Found) -> None:
    for path, m in _modules(module):
        parameters: dict[Any, Any] = m._parameters
        buffers: dict[Any, Any] = m._buffers
        modules: dict[Any, Any] = m._modules
        found.dictionaries.append((parameters, list(parameters.values())))
        found.dictionaries.append((modules, list(modules.values())))
        # Forward passes may put others in the place of buffers.
        found.dictionaries.append((buffers, [None if b is None else ... for b in buffers.values()]))
        for key, p in parameters.items():
            if p is not None:
                if isinstance(p, torch.nn.parameter.UninitializedParameter):
                    raise InvalidArgument(
                        f"{name}.{path}{key}: a lazy parameter: run the module once before"
                    )
                found.add(found.places, f"{name}.{path}{key}", Place(parameters, key))
                found.names.setdefault(id(p), f"{name}.{path}{key}")
        for key, b in buffers.items():
            if b is not None and key not in m._non_persistent_buffers_set:
                found.add(found.buffers, f"{name}.{path}{key}", Place(buffers, key))


def _find_in_optimizer(
    name: str, optimizer: torch.optim.Optimizer, names: dict[int, str], found: Found
) -> None:
    state: dict[Any, Any] = optimizer.state
    found.dictionaries.append((state, list(state.values())))
    by_id = _name_in(optimizer, names)
    for p, entries in state.items():
        if not isinstance(entries, dict):
            continue
        kept = [v if isinstance(v, torch.Tensor) else ... for v in entries.values()]
        found.dictionaries.append((entries, kept))
        for key, value in entries.items():
            if isinstance(value, torch.Tensor):
                of = f"{name}.{key}.{by_id[id(p)]}"
                found.add(found.places, of, Place(entries, key))
                if id(p) in found.names:
                    found.parameter_of[of] = found.names[id(p)]


class SmallState:
    """What objects keep besides tensors. Where it is, is looked up once: a save reads it often."""

    def __init__(self, objects: Mapping[str, Any]) -> None:
        names = parameter_names(objects)
        # Modules that have more to tell, by their paths.
        self._modules: dict[str, dict[str, torch.nn.Module]] = {}
        # Optimizers, and the entries of their states that are no tensors, by parameters.
        self._optimizers: dict[str, tuple[torch.optim.Optimizer, dict[str, _Entries]]] = {}
        self._others: dict[str, Any] = {}
        for name, x in objects.items():
            if isinstance(x, torch.nn.Module):
                plain = torch.nn.Module.get_extra_state
                told = {p: m for p, m in _modules(x) if type(m).get_extra_state is not plain}
                if told:
                    self._modules[name] = told
            elif isinstance(x, torch.optim.Optimizer):
                self._optimizers[name] = x, _entries(x, names)
            else:
                self._others[name] = x

    def read(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            name: {path: m.get_extra_state() for path, m in told.items()}
            for name, told in self._modules.items()
        }
        for name, (optimizer, values) in self._optimizers.items():
            groups = []
            for group in optimizer.param_groups:
                kept = group.copy()
                del kept["params"]
                groups.append(kept)
            out[name] = {"kind": type(optimizer).__qualname__, "groups": groups}
            if values:
                out[name]["values"] = {
                    of: {key: entries[key] for key in keys} for of, (entries, keys) in values.items()
                }
        for name, x in self._others.items():
            state = x.state_dict()
            # Methods, as one scheduler of PyTorch 1.13 has, belong to the object.
            if isinstance(state, dict):
                state = {k: v for k, v in state.items() if not callable(v)}
            out[name] = state
        return out


_Entries = tuple[dict[Any, Any], list[Any]]


def _entries(optimizer: torch.optim.Optimizer, names: dict[int, str]) -> dict[str, _Entries]:
    by_id = _name_in(optimizer, names)
    out: dict[str, _Entries] = {}
    for p, entries in optimizer.state.items():
        if isinstance(entries, dict):
            keys = [k for k, v in entries.items() if not isinstance(v, torch.Tensor)]
            if keys:
                out[by_id[id(p)]] = entries, keys
    return out


def check_small_state(objects: Mapping[str, Any], saved: Mapping[str, Any]) -> None:
    """Raises `InvalidArgument` where `set_small_state` could not give everything back."""
    for name, x in objects.items():
        if not isinstance(x, torch.optim.Optimizer) or name not in saved:
            continue
        kind = saved[name].get("kind", type(x).__qualname__)
        if kind != type(x).__qualname__:
            raise InvalidArgument(
                f"{name}: the state of {kind} was saved, and this is {type(x).__qualname__}"
            )
        groups = saved[name]["groups"]
        if len(groups) != len(x.param_groups):
            raise InvalidArgument(
                f"{name}: {len(groups)} groups of parameters were saved, and the optimizer has "
                f"{len(x.param_groups)}"
            )


def add_small_state(
    objects: Mapping[str, Any], to: dict[str, Any], other: Mapping[str, Any]
) -> None:
    """Adds what another rank has kept of modules and parameters of its own."""
    for name, x in objects.items():
        if isinstance(x, torch.nn.Module) and name in other:
            to[name] = {**other[name], **to.get(name, {})}
        elif isinstance(x, torch.optim.Optimizer) and name in other:
            values = {**other[name].get("values", {}), **to[name].get("values", {})}
            to[name] = {**to[name], "values": values}


def set_small_state(
    objects: Mapping[str, Any], saved: Mapping[str, Any], *, partly: bool = False
) -> None:
    """Gives the objects back what `SmallState` has read.

    ``partly`` passes over modules and parameters that these objects do not have.
    """
    names = parameter_names(objects)
    for name, x in objects.items():
        if name not in saved:
            continue
        if isinstance(x, torch.nn.Module):
            modules = dict(_modules(x))
            for path, extra in saved[name].items():
                if path in modules or not partly:
                    modules[path].set_extra_state(extra)
        elif isinstance(x, torch.optim.Optimizer):
            _set_optimizer_values(name, x, names, saved[name], partly)
        else:
            x.load_state_dict(saved[name])


def _set_optimizer_values(
    name: str,
    optimizer: torch.optim.Optimizer,
    names: dict[int, str],
    saved: Mapping[str, Any],
    partly: bool,
) -> None:
    for group, values in zip(optimizer.param_groups, saved["groups"]):
        for key, value in values.items():
            # A graph of a GPU may have its address.
            if isinstance(value, torch.Tensor) and isinstance(group.get(key), torch.Tensor):
                group[key].copy_(value)
            else:
                group[key] = value
    by_id = _name_in(optimizer, names)
    keys: dict[str, Any] = {by_id[id(p)]: p for g in optimizer.param_groups for p in g["params"]}
    keys.update((by_id[id(p)], p) for p in optimizer.state)
    for of, values in saved.get("values", {}).items():
        if of in keys:
            optimizer.state[keys[of]].update(_moved(values, local(keys[of]).device))
        elif not partly:
            raise InvalidArgument(f"{name}: a state of {of} was saved, which the optimizer lacks")


# Tensors within lists, which some optimizers have, go where their parameter is.
def _moved(x: Any, device: torch.device) -> Any:
    if isinstance(x, torch.Tensor):
        return x.to(device)
    if isinstance(x, dict):
        return {k: _moved(v, device) for k, v in x.items()}
    return type(x)(_moved(v, device) for v in x) if type(x) in (list, tuple) else x


def make_state(
    optimizer: torch.optim.Optimizer, objects: Mapping[str, Any], stored: Mapping[str, TensorInfo]
) -> None:
    """Makes the tensors of an optimizer's state that are stored, by KEY.PARAMETER, and that it lacks.

    What they hold is to be restored. Names of parameters that it does not have are passed over.
    """
    by_id = _name_in(optimizer, parameter_names(objects))
    parameters = {by_id[id(p)]: (p, g) for g in optimizer.param_groups for p in g["params"]}
    for name, info in stored.items():
        key, _, of = name.partition(".")
        if of not in parameters:
            continue
        p, group = parameters[of]
        entries = optimizer.state[p]
        if key in entries:
            continue
        dtype = getattr(torch, DTYPES[number_of(info.dtype)][1])
        # Counters lie on the CPU, but for optimizers that run on a GPU whole.
        on_gpu = group.get("capturable") or group.get("fused")
        if key == "step" and not info.shape and not on_gpu:
            entries[key] = torch.zeros((), dtype=dtype)
        elif info.shape in (tuple(local(p).shape), tuple(p.shape)) or info.global_shape is not None:
            entries[key] = torch.zeros_like(p, dtype=dtype, requires_grad=False)
        else:
            entries[key] = torch.zeros(info.shape, dtype=dtype, device=p.device)


# Of Python's generator, 624 words and a position.
_words = struct.Struct("<625I")


def bytes_of(t: torch.Tensor) -> bytes:
    """Returns a dense tensor of bytes on the CPU as bytes."""
    return ctypes.string_at(t.data_ptr(), t.numel())


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def generators() -> dict[str, Any]:
    """Returns the states of the generators of random numbers: Python's, PyTorch's, NumPy's."""
    version, words, gauss = random.getstate()
    out: dict[str, Any] = {
        "python": [version, _words.pack(*words), gauss],
        "torch": bytes_of(torch.get_rng_state()),
    }
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        _, keys, position, has_gauss, cached = numpy.random.get_state()
        out["numpy"] = [keys.tobytes(), position, has_gauss, cached]
    cuda: Any = torch.cuda
    if cuda.is_available() and cuda.is_initialized():
        out["cuda"] = [bytes_of(state) for state in cuda.get_rng_state_all()]
    return out


def set_generators(saved: Mapping[str, Any]) -> None:
    """Gives the generators the states that `generators` has returned."""
    version, words, gauss = saved["python"]
    random.setstate((version, _words.unpack(words), gauss))
    torch.set_rng_state(_tensor(saved["torch"]))
    if "numpy" in saved:
        import numpy

        keys, position, has_gauss, cached = saved["numpy"]
        numpy.random.set_state(
            ("MT19937", numpy.frombuffer(keys, dtype="uint32"), position, has_gauss, cached)
        )
    if "cuda" in saved and torch.cuda.is_available():
        for device in range(min(len(saved["cuda"]), torch.cuda.device_count())):
            torch.cuda.set_rng_state(_tensor(saved["cuda"][device]), device)
