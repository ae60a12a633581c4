"""PyTorch's distributed checkpoints, kept by Millrace: a `Writer` and a `Reader` for its planners.

    dcp.save(state_dict, storage_writer=mr.torch.dcp.Writer("run7/step100", client=client))
    dcp.load(state_dict, storage_reader=mr.torch.dcp.Reader("run7/step100", client=client))

Each rank stores the tensors of its plan where they are, as one model; the coordinator then stores
what is where, and with that the checkpoint is there. Readers of any number of ranks load the boxes
that their plans want straight into their tensors. The method names are those of all generations:
`torch.distributed._shard.checkpoint` of PyTorch 1.13, and `torch.distributed.checkpoint`.
"""

from __future__ import annotations

import dataclasses
import importlib
import io
import uuid
from collections.abc import Sequence
from typing import Any

import torch

from .. import _native
from .._client import Client, default_client, milliseconds
from .._errors import CorruptData, InvalidArgument, NotFound
from .._future import Future, Stage
from .._pack import pack, unpack
from .._repository import receipt_of
from .._tensors import Batch

__all__ = ["Reader", "Writer"]

_METADATA = "millrace.metadata"


def _generation() -> Any:
    try:
        return importlib.import_module("torch.distributed.checkpoint")
    except ImportError:
        return importlib.import_module("torch.distributed._shard.checkpoint")


_dcp = _generation()
_metadata = importlib.import_module(f"{_dcp.__name__}.metadata")
_planner = importlib.import_module(f"{_dcp.__name__}.planner")
_storage = importlib.import_module(f"{_dcp.__name__}.storage")


class Writer(_storage.StorageWriter):  # type: ignore[misc, name-defined]
    """Writes one checkpoint as models of a repository.

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
        self._client = default_client(client)
        self._repository = self._client.repository(group)
        self._timeout = timeout

    # The names that generations of the interface have for the same steps.
    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            self._name = str(checkpoint_id)

    def init(self, is_coordinator: bool) -> None:
        if self._name is None:
            raise InvalidArgument("a checkpoint needs a name: Writer(name), or checkpoint_id")

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
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
        tensors: dict[str, Any] = {}
        results = []
        for number, item in enumerate(plan.items):
            # Numbers, since chunks of a tensor have one name.
            key = f"{number}:{item.index.fqn}"
            data = planner.resolve_data(item)
            if isinstance(data, io.BytesIO):
                data = data.getvalue()
                size = len(data)
            else:
                data = data.detach()
                size = data.numel() * data.element_size()
            tensors[key] = data
            results.append(
                _storage.WriteResult(
                    index=item.index, size_in_bytes=size, storage_data=[plan.storage_data, key]
                )
            )
        if tensors:
            self._repository.store(plan.storage_data, tensors, timeout=self._timeout).result()
        done: Any = torch.futures.Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Any, results: list[list[Any]]) -> None:
        """Stores what is where, and removes the models that the checkpoint had before."""
        assert self._name is not None
        metadata.storage_data = {r.index: r.storage_data for of in results for r in of}
        before = _models_of(self._repository, self._name)
        self._repository.store(
            self._name, {_METADATA: pack(_written(metadata))}, timeout=self._timeout
        ).result()
        kept = {where[0] for where in metadata.storage_data.values()}
        for model in before - kept:
            try:
                self._repository.erase(model).result()
            except NotFound:
                pass


class Reader(_storage.StorageReader):  # type: ignore[misc, name-defined]
    """Reads a checkpoint that a `Writer` has written, with any number of ranks.

    Args:
      trust: hands over items that are no tensors, which planners unpickle: that runs code of
        whoever has saved them. Without it they are refused.
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
        self._client = default_client(client)
        self._repository = self._client.repository(group)
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
            request = self._client._native.get(
                model, batch.native(), self._repository.group, milliseconds(self._timeout), 0
            )
            loads.append(Future(Stage(request, receipt_of)))
        for load in loads:
            load.result()
        for item, target in targets:
            planner.commit_tensor(item, target)
        done: Any = torch.futures.Future()
        done.set_result(None)
        return done

    def _bytes_of(self, item: Any, model: str, key: str) -> io.BytesIO:
        if not self._trust:
            raise InvalidArgument(
                f"{item.storage_index.fqn}: it is no tensor, and unpickling it runs code of "
                "whoever has saved it: Reader(trust=True) reads it"
            )
        loaded = self._repository.load(model, [key], timeout=self._timeout).result()
        return io.BytesIO(loaded[key].numpy().tobytes())


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
