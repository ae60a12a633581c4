"""Models: dictionaries of tensors, by name."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from types import EllipsisType
from typing import Any, NamedTuple, Union

from . import _native
from ._client import Client, milliseconds, pairs_of, text_of
from ._errors import CorruptData, Error, InvalidArgument, NotFound
from ._future import Future, Stage
from ._graph import Graph
from ._scope import Scope
from ._tensors import DTYPES, Batch, Line, batch_of, checked, empty, number_of

#: The key of metadata that says which tensors are the same memory as which others.
TIED = "millrace.tied"

Index = Union[int, slice, EllipsisType]


class Receipt(NamedTuple):
    """What an operation did. Fields that do not apply are 0, None or False."""

    name: str | None
    provider: str | None
    driver: str | None  #: that moved the bytes; "eager" where the message did
    version: int
    step: int
    size_bytes: int
    stored_at_ns: int  #: wall clock
    durable: bool
    verified: bool
    complete: bool


def receipt_of(request: _native.Request) -> Receipt:
    return Receipt(*request.receipt())


class TensorInfo(NamedTuple):
    """Describes a stored tensor. A part of a larger one has offsets and a global shape."""

    dtype: str  #: as safetensors spells it, such as "BF16"
    shape: tuple[int, ...]
    offsets: tuple[int, ...] | None = None
    global_shape: tuple[int, ...] | None = None


class ModelInfo(NamedTuple):
    """Describes a stored model."""

    name: str
    provider: str | None
    version: int
    size_bytes: int
    stored_at_ns: int  #: wall clock
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    tied: dict[str, str]  #: tensors that are the same as others, by those names
    graph: Graph  #: its architecture; a chain of layers where it was stored without one


class ModelSummary(NamedTuple):
    """A model, as a listing shows it."""

    name: str
    provider: str
    version: int
    size_bytes: int
    tensors: int
    stored_at_ns: int  #: wall clock
    pinned: bool


class Listing(list[Any]):
    """A list of what providers have; ``silent`` names those that did not answer, and why."""

    silent: list[str]


def infos(request: _native.Request) -> dict[str, TensorInfo]:
    return {
        name: TensorInfo(DTYPES[dtype][0], shape, offsets, whole)
        for name, dtype, shape, offsets, whole in request.tensors()
    }


def tied_of(metadata: dict[str, str], name: str) -> dict[str, str]:
    """Takes out of metadata which tensors are the same as which others."""
    try:
        tied = json.loads(metadata.pop(TIED, "{}"))
    except ValueError as e:
        raise CorruptData(f"{name}: its metadata {TIED}: {e}") from None
    if not isinstance(tied, dict) or not all(isinstance(first, str) for first in tied.values()):
        raise CorruptData(f"{name}: its metadata {TIED} is no dictionary of names")
    return tied


def _version(of: int | None) -> int:
    return 0 if of is None else checked("version", of, 1, 2**63 - 1)


# What a load has to know of a model.
class _Stored(NamedTuple):
    version: int
    tensors: dict[str, TensorInfo]
    metadata: dict[str, str]
    tied: dict[str, str]


def _stored(request: _native.Request) -> _Stored:
    r = receipt_of(request)
    metadata = dict(request.metadata())
    aliases = tied_of(metadata, r.name or "")
    return _Stored(r.version, infos(request), metadata, aliases)


def _model(request: _native.Request) -> ModelInfo:
    r = receipt_of(request)
    _, tensors, metadata, tied = _stored(request)
    return ModelInfo(
        r.name or "",
        r.provider,
        r.version,
        r.size_bytes,
        r.stored_at_ns,
        tensors,
        metadata,
        tied,
        Graph._described(request, list(tensors)),
    )


class Repository:
    """The models of one group of providers.

    Tensors are objects of PyTorch, NumPy, or others that have ``__dlpack__``,
    ``__cuda_array_interface__`` or a buffer. They are read and written where they lie, without a
    copy, whatever their strides; so they must not change before a store is over, and not be read
    before a load is. Tensors that are the same memory are stored once. Timeouts are in seconds.

    PyTorch's current CUDA stream is waited for before tensors of a GPU are used.
    """

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self.group = group

    def __repr__(self) -> str:
        return f"<millrace.Repository {self.group!r}>"

    def store(
        self,
        model: str,
        tensors: Mapping[str, object],
        *,
        metadata: Mapping[str, str] | None = None,
        graph: Graph | None = None,
        pinned: bool = False,
        checksums: bool | None = None,
        timeout: float | None = None,
    ) -> Future[Receipt]:
        """Stores a model whole or not at all, as a new version.

        ``graph`` is its architecture, see `millrace.torch.graph`. Without one, the names of the
        tensors group them into a chain of layers.

        Raises: `InvalidArgument`, `TypeError` for what is no tensor; by the future: `NoSpace`,
        `Busy`, `NotFound` for a group without providers.
        """
        if graph is not None and not isinstance(graph, Graph):
            raise TypeError(f"graph: a millrace.Graph, not {type(graph).__name__}")
        batch, tied = batch_of(tensors, writable=False)
        pairs = pairs_of("metadata", metadata)
        if any(key == TIED for key, _ in pairs):
            raise InvalidArgument(f"metadata: {TIED} is a key of this package's own")
        if tied:
            pairs.append((TIED, json.dumps(tied)))
        batch.synchronize()
        request = self._client._native.put(
            text_of("model", model),
            batch.native(),
            self.group,
            milliseconds(timeout),
            pinned,
            0 if checksums is None else 1 if checksums else -1,
            pairs,
            None if graph is None else graph._native_for(line.name for line in batch.lines),
        )
        return Future(Stage(request, receipt_of))

    def load_into(
        self,
        model: str,
        tensors: Mapping[str, object],
        *,
        version: int | None = None,
        strict: bool = True,
        timeout: float | None = None,
    ) -> Future[Receipt]:
        """Loads a model into tensors that exist. Those stored under other names stay unread.

        ``strict=False`` passes over names that the model does not have. After an error the
        tensors have any bytes.

        Raises, by the future: `NotFound`; `InvalidArgument` for another dtype or shape, before any
        byte moves; `CorruptData`.
        """
        batch, tied = batch_of(tensors, writable=True)
        batch.synchronize()
        model = text_of("model", model)

        def get(lines: Sequence[Line], number: int) -> _native.Request:
            return self._get(model, _native.tensors(lines, batch.owners), number, timeout)

        # Names may be those of tensors that were stored under the name of a tied one.
        def by_description(request: _native.Request) -> Stage[Receipt]:
            info = _stored(request)
            lines = []
            for name, first in tied.items():
                one, other = info.tied.get(first, first), info.tied.get(name, name)
                if strict and other not in info.tensors:
                    raise NotFound(f"{model}: it has no tensor {name}")
                if one != other and other in info.tensors:
                    raise InvalidArgument(
                        f"{model}: {first} and {name} are the same memory here, and two tensors "
                        "in the model"
                    )
            for line in batch.lines:
                name = info.tied.get(line.name, line.name)
                if name in info.tensors:
                    lines.append(line._replace(name=name))
                elif strict:
                    raise NotFound(f"{model}: it has no tensor {line.name}")
            if not lines:
                raise NotFound(f"{model}: it has none of the {len(batch.lines)} tensors")
            return Stage(get(lines, _version(version)), receipt_of)

        def describe() -> Stage[Receipt]:
            return Stage(self._describe(model, version), by_description)

        # Names for the same memory have to be names of one stored tensor.
        if tied or not strict:
            return Future(describe(), driven=True)

        def missing(error: Error) -> Stage[Receipt] | None:
            # What is wrong may be a name; a second failure says which.
            return describe() if isinstance(error, NotFound) else None

        return Future(Stage(get(batch.lines, _version(version)), receipt_of, missing))

    def load(
        self,
        model: str,
        names: Iterable[str] | None = None,
        *,
        version: int | None = None,
        framework: str = "pt",
        device: object = None,
        raw: bool = False,
        timeout: float | None = None,
    ) -> Future[dict[str, Any]]:
        """Loads a model, or some of its tensors, into new tensors.

        Args:
          framework: ``"pt"`` for PyTorch, ``"np"`` for NumPy.
          device: where PyTorch makes the tensors.
          raw: gives bytes, of types that the framework does not know: ``uint8`` with one more
            dimension.

        Tensors that were the same memory when they were stored are the same again.
        """
        wanted = None if names is None else list(names)
        # The newest version may be replaced after it was described, by one that is like it or not.
        tries = 1 if version is not None else 8

        def describe() -> Stage[dict[str, Any]]:
            nonlocal tries
            tries -= 1
            return Stage(self._describe(model, version), read)

        def read(request: _native.Request) -> Stage[dict[str, Any]] | dict[str, Any]:
            info = _stored(request)
            out: dict[str, Any] = {}
            batch = Batch()
            for name in wanted if wanted is not None else (*info.tensors, *info.tied):
                first = info.tied.get(name, name)
                if first not in info.tensors:
                    raise NotFound(f"{model}: it has no tensor {name}")
                if first not in out:
                    out[first] = _target(batch, first, info.tensors[first], framework, device, raw)
                out[name] = out[first]
            keep = set(out if wanted is None else wanted)
            if not keep:
                return {}
            batch.synchronize()
            got = self._get(model, batch.native(), _version(version), timeout)
            return Stage(
                got,
                lambda _: {n: t for n, t in out.items() if n in keep},
                lambda e: describe()
                if tries > 0 and isinstance(e, (NotFound, InvalidArgument))
                else None,
            )

        return Future(describe(), driven=True)

    def safe_open(
        self,
        model: str,
        framework: str = "pt",
        device: object = None,
        *,
        version: int | None = None,
        timeout: float | None = None,
    ) -> SafeOpen:
        """Opens a model as ``safetensors.safe_open`` opens a file: tensors are read as asked for.

        They are those of one version. `NotFound` says that a newer one has taken its place.
        """
        info = Future(Stage(self._describe(model, version), _stored)).result(timeout)
        return SafeOpen(self, model, info, framework, device, timeout)

    def describe(self, model: str, *, version: int | None = None) -> Future[ModelInfo]:
        """Describes a model: its tensors and its metadata."""
        return Future(Stage(self._describe(model, version), _model))

    def list(self, prefix: str = "") -> Future[Listing]:
        """Lists the models whose names start with ``prefix``, as `ModelSummary`."""

        def read(request: _native.Request) -> Listing:
            out = Listing(ModelSummary(*line) for line in request.models())
            out.silent = request.silent()
            return out

        return Future(Stage(self._client._native.list(self.group, prefix), read))

    def erase(self, model: str) -> Future[None]:
        """Removes a model. Loads of it that have begun can finish."""
        return Future(Stage(self._client._native.erase(self.group, model), lambda _: None))

    def pin(self, model: str, pinned: bool = True) -> Future[None]:
        """Excludes a model from eviction, or allows it again."""
        return Future(Stage(self._client._native.pin(self.group, model, pinned), lambda _: None))

    def newer(self, model: str, than: int = 0, timeout: float | None = None) -> Future[int]:
        """Is over when the model has a version after ``than``, and gives its number.

        The model need not exist. Ends with `DeadlineExceeded` after ``timeout`` seconds, at most
        a day. When a provider in memory starts anew, its numbers do, too: go on with 0 after
        `PeerLost` or `Unavailable`.
        """
        request = self._client._native.await_newer(
            self.group, model, checked("than", than, 0, 2**63 - 1), milliseconds(timeout)
        )
        return Future(Stage(request, lambda r: receipt_of(r).version))

    def _get(
        self, model: str, targets: _native.Tensors, version: int, timeout: float | None
    ) -> _native.Request:
        return self._client._native.get(
            model, targets, self.group, milliseconds(timeout), version
        )

    def _load(
        self, model: str, batch: Batch, version: int, timeout: float | None
    ) -> Future[Receipt]:
        """Loads into the tensors of a batch, which no work of a GPU uses."""
        return Future(Stage(self._get(model, batch.native(), version, timeout), receipt_of))

    def _describe(self, model: str, version: int | None) -> _native.Request:
        return self._client._native.describe(
            self.group, text_of("model", model), _version(version)
        )


# Makes a tensor like the stored one, and adds it to the batch.
def _target(
    batch: Batch, name: str, info: TensorInfo, framework: str, device: object, raw: bool
) -> Any:
    dtype = number_of(info.dtype)
    out = empty(framework, dtype, info.shape, device, raw)
    line = batch.add(name, out, writable=True)
    if raw:
        batch.lines[-1] = line._replace(dtype=dtype, shape=info.shape, strides=None)
    return out


class SafeOpen(Scope):
    """A stored model with the methods of ``safetensors.safe_open``. A context manager."""

    def __init__(
        self,
        repository: Repository,
        model: str,
        info: _Stored,
        framework: str,
        device: object,
        timeout: float | None,
    ) -> None:
        self._repository = repository
        self._model = model
        self._info = info
        self._framework = framework
        self._device = device
        self._timeout = timeout

    def keys(self) -> list[str]:
        return [*self._info.tensors, *self._info.tied]

    def offset_keys(self) -> list[str]:
        """The names in the order in which the tensors are stored."""
        return self.keys()

    def metadata(self) -> dict[str, str]:
        return dict(self._info.metadata)

    def get_tensor(self, name: str) -> Any:
        return self.get_slice(name)[...]

    def get_slice(self, name: str) -> Slice:
        first = self._info.tied.get(name, name)
        if first not in self._info.tensors:
            raise NotFound(f"{self._model}: it has no tensor {name}")
        return Slice(self, first, self._info.tensors[first])

    def _box(self, name: str, dtype: int, begin: Sequence[int], shape: Sequence[int]) -> Any:
        out = empty(self._framework, dtype, shape, self._device, raw=False)
        batch = Batch()
        line = batch.add(name, out, writable=True)
        batch.lines[-1] = line._replace(offsets=begin)
        batch.synchronize()
        self._repository._load(self._model, batch, self._info.version, self._timeout).result()
        return out

    def _leave(self, failed: bool) -> None:
        pass


class Slice:
    """A stored tensor that is read in part: ``slice[100:103, :, 5]``."""

    def __init__(self, opened: SafeOpen, name: str, info: TensorInfo) -> None:
        self._opened = opened
        self._name = name
        self._info = info

    def get_shape(self) -> list[int]:
        return list(self._info.shape)

    def get_dtype(self) -> str:
        return self._info.dtype

    def __getitem__(self, index: Index | tuple[Index, ...]) -> Any:
        """Loads a box: the elements that the index names, and no others but for steps."""
        given = index if isinstance(index, tuple) else (index,)
        shape = self._info.shape
        if given.count(Ellipsis) > 1 or len(given) - given.count(Ellipsis) > len(shape):
            raise IndexError(f"{self._name}: {len(given)} indices for the shape {shape}")
        if Ellipsis not in given:
            given = (*given, Ellipsis)
        at = given.index(Ellipsis)
        rest = (slice(None),) * (len(shape) - len(given) + 1)
        begin, size = [], []
        after: list[Any] = []  # what is left to do in memory
        for part, length in zip((*given[:at], *rest, *given[at + 1 :]), shape):
            if isinstance(part, slice):
                first, last, step = part.indices(length)
                if step < 1:
                    raise IndexError(f"{self._name}: steps are positive, not {step}")
                begin.append(first)
                size.append(max(0, last - first))
                after.append(slice(None, None, step))
                continue
            if isinstance(part, (bool, EllipsisType)) or not hasattr(part, "__index__"):
                raise TypeError(f"{self._name}: an index is a number or a slice, not {part!r}")
            place = part.__index__()
            if not -length <= place < length:
                raise IndexError(f"{self._name}: index {place} of a dimension of {length}")
            begin.append(place % length)
            size.append(1)
            after.append(0)
        out = self._opened._box(self._name, number_of(self._info.dtype), begin, size)
        plain = all(isinstance(a, slice) and a.step == 1 for a in after)
        return out if plain else out[tuple(after)]
