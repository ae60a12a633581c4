"""PyTorch's distributed checkpoints, kept by Millrace: a `Writer` and a `Reader` for its planners.

    dcp.save(state_dict, storage_writer=mr.torch.dcp.Writer("run7/step100", client=client))
    dcp.load(state_dict, storage_reader=mr.torch.dcp.Reader("run7/step100", client=client))

Each rank stores the tensors of its plan where they are, as one model; the coordinator then stores
what is where, and with that the checkpoint is there. Readers of any number of ranks load the boxes
that their plans want straight into their tensors. The method names are those of all generations:
`torch.distributed._shard.checkpoint` of PyTorch 1.13, and `torch.distributed.checkpoint`.

`save`, `load` and `async_save` call these of the generation that is there.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import importlib
import inspect
import io
import re
import threading
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from .._client import Client, default_client, distributed
from .._errors import Busy, CorruptData, InvalidArgument, NotFound, Unavailable
from .._pack import pack, unpack
from .._tensors import Batch, batch_of

__all__ = ["AsyncSave", "Reader", "Stager", "Writer", "async_save", "load", "save"]

_METADATA = "millrace.metadata"
# What stands behind the name of a checkpoint in those of its ranks' models.
_of_rank = re.compile(r"[0-9]+-[0-9a-f]{12}")


def _generation() -> Any:
    try:
        return importlib.import_module("torch.distributed.checkpoint")
    except ImportError:
        pass
    try:
        return importlib.import_module("torch.distributed._shard.checkpoint")
    except Exception as e:  # pylint: disable=broad-except
        # That of PyTorch 1.13 has dataclasses that Python 3.11 does not accept.
        raise ImportError(
            f"PyTorch {torch.__version__} cannot import its distributed checkpoints here: {e}"
        ) from e


_dcp = _generation()
_metadata = importlib.import_module(f"{_dcp.__name__}.metadata")
_planner = importlib.import_module(f"{_dcp.__name__}.planner")
_storage = importlib.import_module(f"{_dcp.__name__}.storage")


class _Staging:
    """A save whose tensors are read where they are."""

    def __init__(self, state_dict: Any) -> None:
        #: Over when they have been read.
        self.read: concurrent.futures.Future[None] = concurrent.futures.Future()
        #: Whether the save has ended.
        self.over = False
        # What the trainer's streams have to do before that.
        self._events = []
        cuda: Any = torch.cuda
        for device in _devices(state_dict):
            with cuda.device(device):
                event = cuda.Event()
                event.record()
            self._events.append(event)

    def wait_for_streams(self) -> None:
        for event in self._events:
            event.synchronize()

    def finish(self) -> None:
        """Says that the save has ended, with the tensors read or not."""
        self.end(Unavailable("the save has ended before it read the tensors: see its outcome"))
        self.over = True

    def end(self, error: BaseException | None) -> None:
        """Ends ``read``, unless it is over."""
        try:
            if error is None:
                self.read.set_result(None)
            else:
                self.read.set_exception(error)
        except concurrent.futures.InvalidStateError:
            pass


def _devices(x: Any) -> set[torch.device]:
    if isinstance(x, torch.Tensor):
        return {x.device} if x.device.type == "cuda" else set()
    if isinstance(x, Mapping):
        x = list(x.values())
    return set().union(*map(_devices, x)) if isinstance(x, (list, tuple)) else set()


class _Handed(concurrent.futures.Future):  # type: ignore[type-arg]
    """A state dictionary that can be had at once, and is done when its tensors have been read.

    ``dcp.async_save`` asks for it on the thread that saves it, and tells the trainer when it is done.
    """

    def __init__(self, state_dict: Any, staging: _Staging) -> None:
        super().__init__()
        self._state_dict = state_dict
        self._staging = staging
        staging.read.add_done_callback(self._take)

    def _take(self, read: concurrent.futures.Future[None]) -> None:
        if (error := read.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(self._state_dict)

    def result(self, timeout: float | None = None) -> Any:
        if self.done():
            return super().result(timeout)
        # A save that fails early tells nobody, but its thread ends.
        saving = threading.current_thread()
        threading.Thread(
            target=self._end_with, args=(saving,), name="millrace-staging", daemon=True
        ).start()
        return self._state_dict

    def _end_with(self, saving: threading.Thread) -> None:
        saving.join()
        self._staging.finish()


class Stager:
    """Hands a state dictionary to ``dcp.async_save`` without a copy. Every `Writer` is one.

    The tensors are read from where they are while the training goes on; they must not change
    before ``staging_completion`` of the response is over, and another save by the same writer has
    to wait for ``upload_completion``. With a version of PyTorch that has none of these,
    ``dcp.async_save`` returns when the tensors have been read, at most ten minutes later.
    """

    _synchronize_after_execute = True
    _staging: _Staging | None = None

    @property
    def should_synchronize_after_execute(self) -> bool:
        return self._synchronize_after_execute

    def stage(self, state_dict: Any) -> Any:
        staging = self._stage(state_dict)
        saver = importlib.import_module(f"{_dcp.__name__}.state_dict_saver")
        if hasattr(saver, "AsyncSaveResponse"):
            return _Handed(state_dict, staging)
        # Nothing tells then when the save has ended.
        staging.read.add_done_callback(lambda _: setattr(staging, "over", True))
        return state_dict

    def _stage(self, state_dict: Any) -> _Staging:
        if self._staging is not None and not self._staging.over:
            raise Busy("the save before is under way: wait for it, or make another Writer")
        self._staging = _Staging(state_dict)
        return self._staging

    def synchronize_staging(self) -> None:
        if self._staging is not None:
            concurrent.futures.wait([self._staging.read], 600)
            self._staging.finish()
            self._staging.read.result()

    def close(self) -> None:
        """Does nothing: there are no copies to free."""


class Writer(Stager, _storage.StorageWriter):  # type: ignore[misc, name-defined]
    """Writes checkpoints as models of a repository, one at a time.

    Args:
      name: of the checkpoint; its models are ``name`` and ``name/RANK-...``.
      client: ``None``: `millrace.connect()`.
      group: of the repository.
      timeout: seconds for each request.

    A checkpoint of the same name is replaced when all ranks have written, and not before.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        client: Client | None = None,
        group: str = "default",
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        self._name = name
        self._repository = default_client(client).repository(group)
        self._timeout = timeout

    # The names that generations of the interface have for the same steps.
    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            self._name = str(checkpoint_id)

    def init(self, is_coordinator: bool) -> None:
        if not self._name:
            raise InvalidArgument("a checkpoint needs a name: Writer(name), or checkpoint_id")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("use_collectives", True):
            raise InvalidArgument(
                "use_collectives=False: the ranks of a checkpoint agree on what is where; "
                "save it with collectives"
            )
        self.init(is_coordinator)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return isinstance(checkpoint_id, str) and 0 < len(checkpoint_id.encode()) <= 400

    def storage_meta(self) -> Any:
        kind = getattr(_metadata, "StorageMeta", None)
        return None if kind is None else kind(checkpoint_id=self._name)

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        # Models of this save alone, so that an older checkpoint stays whole until this one is.
        save = uuid.uuid4().hex[:12]
        return [
            dataclasses.replace(plan, storage_data=f"{self._name}/{rank}-{save}")
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Stores the items of the plan; the outcome is there when the rank's model is stored."""
        staging = self._staging
        if staging is not None and staging.read.done():
            staging = None  # of another save
        try:
            results = self._write(plan, planner, staging)
        except BaseException as e:
            if staging is not None:
                staging.end(e)
            raise
        if staging is not None:
            staging.end(None)
        done: Any = torch.futures.Future()
        done.set_result(results)
        return done

    def _write(self, plan: Any, planner: Any, staging: _Staging | None) -> list[Any]:
        tensors: dict[str, Any] = {}
        sizes = []
        for number, item in enumerate(plan.items):
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                data = data.getvalue()
                sizes.append(len(data))
            else:
                data = data.detach()
                sizes.append(data.numel() * data.element_size())
            # Numbers, since chunks of a tensor have one name.
            tensors[f"{number}:{item.index.fqn}"] = data
        if not tensors:
            return []
        if staging is not None:
            staging.wait_for_streams()
        # Of tensors that are the same memory the first one is stored.
        _, tied = batch_of(tensors, writable=False)
        self._repository.store(plan.storage_data, tensors, timeout=self._timeout).result()
        return [
            _storage.WriteResult(
                index=item.index,
                size_in_bytes=size,
                storage_data=[plan.storage_data, tied.get(key, key)],
            )
            for item, key, size in zip(plan.items, tensors, sizes)
        ]

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """Stores what is where, and removes the models that the checkpoint had before."""
        metadata.storage_data = {r.index: r.storage_data for of in results for r in of}
        kept = {where[0] for where in metadata.storage_data.values()}
        # That of this save: the writer may have another one by now.
        name = next(iter(kept)).rpartition("/")[0] if kept else self._name
        assert name is not None
        before = _models_of(self._repository, name)
        self._repository.store(
            name, {_METADATA: pack(_written(metadata))}, timeout=self._timeout
        ).result()
        for model in (before | self._left_by_failed_saves(name, kept)) - kept:
            try:
                self._repository.erase(model).result()
            except NotFound:
                pass

    # Models that ranks have stored and no checkpoint names. One that is not much older than those
    # of this save may be that of a save under way.
    def _left_by_failed_saves(self, name: str, kept: set[str]) -> set[str]:
        found = {m.name: m for m in self._repository.list(f"{name}/").result()}
        oldest = min((found[n].stored_at_ns for n in kept if n in found), default=0)
        return {
            m.name
            for m in found.values()
            if _of_rank.fullmatch(m.name, len(name) + 1) and m.stored_at_ns < oldest - 600 * 10**9
        }


class Reader(_storage.StorageReader):  # type: ignore[misc, name-defined]
    """Reads a checkpoint that a `Writer` has written, with any number of ranks.

    Args:
      trust: hands over all items that are no tensors, which planners unpickle: that runs code of
        whoever has saved them. Without it those pass that ``torch.load`` reads with
        ``weights_only``, such as numbers, texts, and dictionaries and lists of them.
    """

    def __init__(
        self,
        name: str | None = None,
        *,
        client: Client | None = None,
        group: str = "default",
        trust: bool = False,
        timeout: float | None = None,
    ) -> None:
        super().__init__()
        self._name = name
        self._repository = default_client(client).repository(group)
        self._trust = trust
        self._timeout = timeout
        self._where: dict[Any, list[str]] = {}

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            self._name = str(checkpoint_id)
        self._where = {}

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return Writer.validate_checkpoint_id(checkpoint_id)

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        if self._name is None:
            raise InvalidArgument("a checkpoint needs a name: Reader(name), or checkpoint_id")
        return _read(_metadata_of(self._repository, self._name))

    def init(self, metadata: Any, is_coordinator: bool) -> None:
        self._where = metadata.storage_data

    def set_up_storage_reader(
        self, metadata: Any, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        self.init(metadata, is_coordinator)

    def prepare_local_plan(self, plan: Any) -> Any:
        return plan

    def prepare_global_plan(self, plans: list[Any]) -> list[Any]:
        return plans

    def read_data(self, plan: Any, planner: Any) -> Any:
        """Loads the boxes that the plan wants into the planner's tensors."""
        batches: dict[str, Batch] = {}
        targets: list[tuple[Any, Any]] = []
        for item in plan.items:
            model, key = self._where[item.storage_index]
            if item.type == _planner.LoadItemType.BYTE_IO:
                planner.load_bytes(item, self._bytes_of(item, model, key))
                continue
            target = planner.resolve_tensor(item).detach()
            if tuple(target.shape) != tuple(item.lengths):
                raise InvalidArgument(
                    f"{item.storage_index.fqn}: a target of the shape {tuple(target.shape)} for "
                    f"the box {tuple(item.lengths)}"
                )
            batch = batches.setdefault(model, Batch())
            line = batch.add(key, target, writable=True)
            batch.lines[-1] = line._replace(offsets=tuple(item.storage_offsets))
            targets.append((item, target))
        loads = []
        for model, batch in batches.items():
            batch.synchronize()
            loads.append(self._repository._load(model, batch, 0, self._timeout))
        for load in loads:
            load.result()
        for item, target in targets:
            planner.commit_tensor(item, target)
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    def _bytes_of(self, item: Any, model: str, key: str) -> io.BytesIO:
        loaded = self._repository.load(model, [key], timeout=self._timeout).result()
        data = loaded[key].numpy().tobytes()
        if not self._trust:
            try:
                torch.load(io.BytesIO(data), weights_only=True)
            except Exception as e:  # pylint: disable=broad-except
                raise InvalidArgument(
                    f"{item.storage_index.fqn}: unpickling it may run code of whoever has saved "
                    f"it: Reader(trust=True) reads it ({e})"
                ) from None
        return io.BytesIO(data)


class AsyncSave(NamedTuple):
    """A save that is under way, by its two ends."""

    staged: concurrent.futures.Future[None]  #: then the tensors of this rank may change
    durable: concurrent.futures.Future[Any]  #: then the checkpoint is done, on all ranks


def save(state_dict: Mapping[str, Any], writer: Writer | str, **options: Any) -> Any:
    """Saves a state dictionary; all ranks call it.

    Args:
      writer: or the name of the checkpoint, in the default repository.
      options: those of ``dcp.save``, such as ``process_group``, ``planner`` and ``no_dist``.
    """
    writer = writer if isinstance(writer, Writer) else Writer(writer)
    options["storage_writer"] = writer
    return _call(("save", "save_state_dict"), _plain(state_dict), options)


def load(state_dict: Mapping[str, Any], reader: Reader | str, **options: Any) -> None:
    """Loads a checkpoint into a state dictionary, in place; all ranks call it.

    Args:
      reader: or the name of the checkpoint, in the default repository.
      options: those of ``dcp.load``.
    """
    reader = reader if isinstance(reader, Reader) else Reader(reader)
    options["storage_reader"] = reader
    stateful = {} if hasattr(_dcp, "load") else {
        key: value for key, value in state_dict.items() if hasattr(value, "load_state_dict")
    }
    # Versions that do not ask objects for their states write into these.
    state = {**state_dict, **_plain(stateful)} if stateful else state_dict
    _call(("load", "load_state_dict"), state, options)
    for key, value in stateful.items():
        value.load_state_dict(state[key])


def async_save(state_dict: Mapping[str, Any], writer: Writer | str, **options: Any) -> AsyncSave:
    """Does what `save` does on a thread of its own, and returns at once.

    The tensors are read from where they are: they must not change before ``staged`` is over.
    Nothing else may use the process group meanwhile, whose backend has to take tensors of the CPU.
    """
    writer = writer if isinstance(writer, Writer) else Writer(writer)
    state_dict = _plain(state_dict)
    staging = writer._stage(state_dict)
    executor = concurrent.futures.ThreadPoolExecutor(1, "millrace-async-save")
    durable = executor.submit(save, state_dict, writer, **options)

    def end(saved: concurrent.futures.Future[Any]) -> None:
        executor.shutdown(wait=False)
        if (error := saved.exception()) is not None:
            staging.end(error)
        staging.finish()

    durable.add_done_callback(end)
    return AsyncSave(staging.read, durable)


def _call(names: tuple[str, str], state_dict: Any, options: dict[str, Any]) -> Any:
    call = getattr(_dcp, names[0], None) or getattr(_dcp, names[1])
    if distributed() is None and "no_dist" in inspect.signature(call).parameters:
        options.setdefault("no_dist", True)
    return call(state_dict, **options)


# As `dcp.save` does: objects that have state dictionaries are asked for them now.
def _plain(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value.state_dict() if hasattr(value, "state_dict") else value
        for key, value in state_dict.items()
    }


def _metadata_of(repository: Any, name: str) -> Any:
    found = repository.load(name).result()
    if _METADATA not in found:
        raise InvalidArgument(f"{name}: it was not stored by millrace.torch.dcp.Writer")
    return unpack(found[_METADATA].numpy().tobytes())


def _models_of(repository: Any, name: str) -> set[str]:
    try:
        return {model for _, _, _, (model, _) in _metadata_of(repository, name)["storage"]}
    except (NotFound, InvalidArgument, CorruptData):
        return set()


# The metadata of a checkpoint, as small values.
def _written(metadata: Any) -> dict[str, Any]:
    tensors, others = {}, []
    for fqn, m in metadata.state_dict_metadata.items():
        if not isinstance(m, _metadata.TensorStorageMetadata):
            others.append(fqn)
            continue
        p = m.properties
        tensors[fqn] = [
            str(p.dtype).removeprefix("torch."),
            bool(p.requires_grad),
            bool(p.pin_memory),
            list(m.size),
            [[list(c.offsets), list(c.sizes)] for c in m.chunks],
        ]
    storage = [
        [i.fqn, None if i.offset is None else list(i.offset), i.index, where]
        for i, where in metadata.storage_data.items()
    ]
    return {
        "tensors": tensors,
        "others": others,
        "planner": metadata.planner_data,
        "storage": storage,
    }


def _read(values: Any) -> Any:
    try:
        described: dict[str, Any] = {fqn: _metadata.BytesStorageMetadata() for fqn in values["others"]}
        for fqn, (dtype, grad, pinned, size, chunks) in values["tensors"].items():
            described[fqn] = _metadata.TensorStorageMetadata(
                properties=_metadata.TensorProperties(
                    dtype=getattr(torch, dtype),
                    layout=torch.strided,
                    requires_grad=grad,
                    memory_format=torch.contiguous_format,
                    pin_memory=pinned,
                ),
                size=torch.Size(size),
                chunks=[
                    _metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
                    for offsets, sizes in chunks
                ],
            )
        storage = {_index(*line[:3]): list(line[3]) for line in values["storage"]}
    except (KeyError, TypeError, ValueError, AttributeError) as e:
        raise CorruptData(f"the metadata of a checkpoint: {e}") from None
    return _metadata.Metadata(
        state_dict_metadata=described, planner_data=values["planner"], storage_data=storage
    )


def _index(fqn: str, offset: Sequence[int] | None, index: int | None) -> Any:
    return _metadata.MetadataIndex(fqn, None if offset is None else torch.Size(offset), index)
