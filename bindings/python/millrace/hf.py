"""Millrace for Hugging Face: `Callback` for a trainer, `export` of models to safetensors.

`export` needs neither transformers nor safetensors nor PyTorch; `Callback` needs transformers.
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import os
import pathlib
import re
import struct
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from ._checkpoints import Saved
from ._client import Client, default_client, distributed, job, pairs_of
from ._errors import CorruptData, InvalidArgument, Unsupported
from ._pack import unpack
from ._repository import Repository, TensorInfo
from ._tensors import DTYPES, Batch, batch_of, empty, number_of

if TYPE_CHECKING:
    from .torch import Checkpointer
    from .torch._run import Run

__all__ = ["Callback", "export"]

_INDEX = "model.safetensors.index.json"
_FILES = re.compile(r"model(-[0-9]{5}-of-[0-9]{5})?\.safetensors")
_HEADER_MAX = 100_000_000  # of the reader of safetensors
_REST = "millrace.rest"  # what `millrace.torch.save` stores beside tensors

_Bytes = Union[bytes, memoryview]


class _Entry(NamedTuple):
    """A tensor that is to be written, and how its bytes are read."""

    name: str
    dtype: int
    shape: Sequence[int]
    read: Callable[[], _Bytes]

    @property
    def size(self) -> int:
        return math.prod(self.shape) * DTYPES[self.dtype][2] // 8


def export(
    source: str | Mapping[str, object],
    directory: str | os.PathLike[str],
    *,
    client: Client | None = None,
    group: str = "default",
    prefix: str = "",
    max_shard_size: int | str = "5GB",
    metadata: Mapping[str, str] | None = None,
    timeout: float | None = None,
) -> list[str]:
    """Writes a model as ``save_pretrained(safe_serialization=True)`` of transformers writes it.

    Args:
      source: the name of a stored model, or a dictionary of tensors.
      directory: where the files are written; it is made when it is not there.
      client: that has the stored model; ``None``: `millrace.connect()`.
      group: of the stored model.
      prefix: writes the tensors whose names begin with it, without it: ``"state_dict."``.
      max_shard_size: of a file, in bytes or as ``"5GB"``. A larger tensor has a file of its own.
      metadata: is written into each file, beside ``{"format": "pt"}``.
      timeout: seconds for each request.

    The files are ``model.safetensors``, or ``model-00001-of-00002.safetensors`` and so on, with
    ``model.safetensors.index.json``. They are written under other names, and have their own names
    when all of them are on the disk; files of another export are removed after that. A tensor that
    has several names is written once, under the first one. One tensor is in memory at a time.

    Returns the names of the files.
    """
    limit = _bytes_of_size(max_shard_size)
    if isinstance(source, str):
        repository = default_client(client).repository(group)
        entries = _stored(repository, source, prefix, timeout)
    else:
        entries = _given(source, prefix)
    if not entries:
        raise InvalidArgument(f"there is no tensor whose name begins with {prefix!r}")
    return _write(pathlib.Path(directory), entries, limit, metadata)


_UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def _bytes_of_size(size: int | str) -> int:
    if isinstance(size, str):
        found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(I?)B\s*", size.upper())
        if not found:
            raise InvalidArgument(f'max_shard_size: bytes, or a size as "5GB", not {size!r}')
        number, unit, binary = found.groups()
        size = int(float(number) * (1024 if binary else 1000) ** _UNITS[unit])
    if isinstance(size, bool) or not isinstance(size, int):
        raise TypeError(f"max_shard_size: an int or a str, not {type(size).__name__}")
    if size < 1:
        raise InvalidArgument(f"max_shard_size: {size} is not more than 0")
    return size


# ---- Where tensors come from ----


def _unique(
    tensors: Mapping[str, TensorInfo], tied: Mapping[str, str], prefix: str
) -> Iterator[tuple[str, str]]:
    """Gives the names after the prefix, with those of the stored tensors, and each tensor once."""
    seen = set()
    for name in (*tensors, *tied):
        first = tied.get(name, name)
        if name.startswith(prefix) and name != _REST and first in tensors and first not in seen:
            seen.add(first)
            yield name[len(prefix) :], first


def _stored(
    repository: Repository, model: str, prefix: str, timeout: float | None
) -> list[_Entry]:
    info = repository.describe(model).result(timeout)

    def reader(name: str, dtype: int, shape: tuple[int, ...]) -> Callable[[], _Bytes]:
        def read() -> _Bytes:
            data = bytearray(math.prod(shape) * DTYPES[dtype][2] // 8)
            batch = Batch()
            line = batch.add(name, data, writable=True)
            batch.lines[-1] = line._replace(dtype=dtype, shape=shape, strides=None)
            repository._load(info.name, batch, info.version, timeout).result()
            return memoryview(data)

        return read

    out = []
    for name, first in _unique(info.tensors, info.tied, prefix):
        dtype, shape = number_of(info.tensors[first].dtype), info.tensors[first].shape
        out.append(_Entry(name, dtype, shape, reader(first, dtype, shape)))
    return out


def _given(source: Mapping[str, object], prefix: str) -> list[_Entry]:
    if not isinstance(source, Mapping):
        raise TypeError(
            f"source: the name of a model, or a dictionary, not {type(source).__name__}"
        )
    chosen = {n[len(prefix) :]: t for n, t in source.items() if n.startswith(prefix)}
    if not chosen:
        return []
    batch, _ = batch_of(chosen, writable=False)
    batch.synchronize()

    def reader(name: str) -> Callable[[], _Bytes]:
        return lambda: _bytes_of(name, chosen[name])

    return [_Entry(line.name, line.dtype, line.shape, reader(line.name)) for line in batch.lines]


# The elements of a tensor in the order of its indices, on the CPU; copied only where they are not.
def _bytes_of(name: str, tensor: Any) -> _Bytes:
    numpy: Any = sys.modules.get("numpy")
    if hasattr(tensor, "data_ptr"):
        tensor = tensor.detach().cpu().contiguous()
    elif hasattr(tensor, "__cuda_array_interface__"):
        raise InvalidArgument(f"{name}: it is on a GPU; give an array of the CPU")
    elif numpy is not None and isinstance(tensor, numpy.ndarray):
        tensor = numpy.ascontiguousarray(tensor)
    elif hasattr(tensor, "__dlpack__"):
        import numpy

        tensor = numpy.ascontiguousarray(numpy.from_dlpack(tensor))
    else:
        return memoryview(tensor).tobytes()
    batch = Batch()
    line = batch.add(name, tensor, writable=False)
    return _Memory(tensor, line.address, line.size_bytes).view


class _Memory:
    """Bytes at an address, which keep their owner in memory."""

    def __init__(self, owner: object, address: int, size: int) -> None:
        array = (ctypes.c_char * size).from_address(address) if size else (ctypes.c_char * 0)()
        setattr(array, "_owner", owner)
        self.view = memoryview(array).cast("B")


# ---- Files ----


def _shards(entries: list[_Entry], limit: int) -> list[list[_Entry]]:
    """Divides tensors among files, in their order, as huggingface_hub does."""
    out: list[list[_Entry]] = []
    now: list[_Entry] = []
    size = 0
    for entry in entries:
        if entry.size > limit:
            out.append([entry])
            continue
        if size + entry.size > limit:
            out.append(now)
            now, size = [], 0
        now.append(entry)
        size += entry.size
    if now:
        out.append(now)
    return out


def _header(entries: list[_Entry], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for entry in entries:
        dtype = DTYPES[entry.dtype][0]
        if dtype == "C128":
            raise InvalidArgument(f"{entry.name}: safetensors has no elements of complex128")
        if not entry.name:
            raise InvalidArgument("a tensor has no name behind the prefix")
        if entry.name == "__metadata__":
            raise InvalidArgument("__metadata__: safetensors keeps that name for itself")
        header[entry.name] = {
            "dtype": dtype,
            "shape": [int(n) for n in entry.shape],
            "data_offsets": [at, at + entry.size],
        }
        at += entry.size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > _HEADER_MAX:
        raise InvalidArgument(f"a header of {len(text)} bytes: safetensors reads {_HEADER_MAX}")
    return struct.pack("<Q", len(text)) + text


# Descending by type, then by name.
def _in_file(entry: _Entry) -> tuple[int, str]:
    return -entry.dtype, entry.name


class _Files:
    """Files that have other names until all are written."""

    def __init__(self, directory: pathlib.Path) -> None:
        self.directory = directory
        self._written: dict[str, pathlib.Path] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def write(self, name: str, parts: Iterator[_Bytes]) -> None:
        path = self.directory / f".{name}.{uuid.uuid4().hex}"
        with path.open("xb") as file:
            self._written[name] = path
            for part in parts:
                file.write(part)
            file.flush()
            os.fsync(file.fileno())

    def rename(self, name: str) -> None:
        self._written[name].replace(self.directory / name)
        del self._written[name]

    def synchronize(self) -> None:
        descriptor = os.open(self.directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def __enter__(self) -> _Files:
        return self

    def __exit__(self, *_: object) -> None:
        for path in self._written.values():
            path.unlink(missing_ok=True)


def _write(
    directory: pathlib.Path,
    entries: list[_Entry],
    limit: int,
    metadata: Mapping[str, str] | None,
) -> list[str]:
    kept = {"format": "pt", **dict(pairs_of("metadata", metadata))}
    shards = [sorted(shard, key=_in_file) for shard in _shards(entries, limit)]
    total = len(shards)
    names = [f"model-{i + 1:05d}-of-{total:05d}.safetensors" for i in range(total)]
    if total == 1:
        names = ["model.safetensors"]
    headers = [_header(shard, kept) for shard in shards]  # before anything is written

    def parts(header: bytes, shard: list[_Entry]) -> Iterator[_Bytes]:
        yield header
        for entry in shard:
            if entry.size:
                yield entry.read()

    with _Files(directory) as files:
        for name, header, shard in zip(names, headers, shards):
            files.write(name, parts(header, shard))
        if total > 1:
            index = {
                "metadata": {"total_size": sum(e.size for e in entries)},
                "weight_map": {e.name: n for n, shard in zip(names, shards) for e in shard},
            }
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            files.write(_INDEX, iter([text.encode()]))
            # An index names only files that belong together.
            (directory / _INDEX).unlink(missing_ok=True)
            files.synchronize()
        for name in names:
            files.rename(name)
        files.synchronize()
        if total > 1:
            files.rename(_INDEX)
            files.synchronize()
        else:
            (directory / _INDEX).unlink(missing_ok=True)
        for path in list(directory.iterdir()):
            if _FILES.fullmatch(path.name) and path.name not in names:
                path.unlink(missing_ok=True)
        files.synchronize()
    return [*names, _INDEX] if total > 1 else names


# ---- The trainer's callback ----


class _Callback:
    def __init__(
        self,
        name: str,
        *,
        client: Client | None = None,
        every: int | None = None,
        group: str | None = None,
        **options: Any,
    ) -> None:
        if every is not None and every < 1:
            raise InvalidArgument(f"every: {every} steps are not more than 0")
        self.name = name
        #: The save that was begun last.
        self.saved: Saved | None = None
        #: Is made by the first save, or by a restore.
        self.checkpointer: Checkpointer | None = None
        self._client = client
        self._group = group
        self._every = every
        self._options = options
        self._resume: tuple[int, bool] | None = None  # a step, and whether it is within an epoch
        self._generators: dict[str, Any] | None = None
        self._within_epoch = False

    def resume(self, directory: str | os.PathLike[str]) -> str | None:
        """Writes a checkpoint directory, from which a ``Trainer`` resumes the newest step.

            trainer.train(resume_from_checkpoint=callback.resume("resumed"))

        The directory has the weights and the trainer's own state; the rest is restored when the
        training begins. All ranks call this. ``None``: there is no step yet.
        """
        from .torch._run import Run

        self._client = client = default_client(self._client)
        run = Run(client.checkpoints(self._group), self.name)
        step = run.agreed(None)
        if step is None:
            self._resume = None
            return None
        if set(self._options.get("axes") or {}) - {"data"}:
            raise Unsupported(f"{self.name}: resume() does not join tensors that are sharded")
        entries, trainer = self._of_run(run, step)
        within = not float(trainer["epoch"] or 0).is_integer()
        path = pathlib.Path(directory) / f"checkpoint-{step}"
        started = job()
        if started is None or started.local_rank <= 0:
            _write(path, entries, _bytes_of_size("5GB"), None)
            with _Files(path) as files:
                text = json.dumps(trainer, indent=2, sort_keys=True) + "\n"
                files.write("trainer_state.json", iter([text.encode()]))
                files.rename("trainer_state.json")
                files.synchronize()
        if (connected := distributed()) is not None:
            connected.barrier()
        self._resume = step, within
        return str(path)

    # What the ranks have saved of the model, and the state of the trainer.
    def _of_run(self, run: Run, step: int) -> tuple[list[_Entry], dict[str, Any]]:
        def reader(rank: int, name: str, info: TensorInfo) -> Callable[[], _Bytes]:
            def read() -> _Bytes:
                into = empty("pt", number_of(info.dtype), info.shape, None, False)
                run.checkpoints.load_into(run.name, {name: into}, rank=rank, step=step).result()
                return _bytes_of(name, into)

            return read

        out = []
        shards = run.shards(run.ranks())
        for rank, shard in shards.items():
            for name, first in _unique(shard.tensors, shard.tied, "model."):
                info = shard.tensors[first]
                entry = _Entry(name, number_of(info.dtype), info.shape, reader(rank, first, info))
                out.append(entry)
        return out, self._trainer_of(run.extra(0, shards[0], step).result().extra, step)

    def _trainer_of(self, extra: bytes, step: int) -> dict[str, Any]:
        values = unpack(extra, trust=bool(self._options.get("trust")))
        try:
            trainer = json.loads(values["extra"]["trainer"])
        except (KeyError, TypeError):
            raise InvalidArgument(
                f"{self.name}, step {step}: it was not saved by millrace.hf.Callback"
            ) from None
        if not isinstance(trainer, dict) or trainer.get("global_step") != step:
            raise CorruptData(f"{self.name}, step {step}: the state of the trainer is another's")
        return trainer

    # ---- Events ----

    def on_train_begin(
        self, args: Any, state: Any, control: Any, **objects: Any
    ) -> None:
        self._close(finished=False)  # of a training that has failed
        if self._resume is None:
            return
        step, within = self._resume
        if state.global_step != step:
            raise InvalidArgument(
                f"{self.name}: the trainer begins after step {state.global_step}, and resume() "
                f"has prepared step {step}: give what it has returned to "
                "trainer.train(resume_from_checkpoint=...)"
            )
        from .torch import _state

        checkpointer = self._made(args, objects)
        checkpointer.restore(step)
        # The trainer draws numbers while it passes over what was trained already.
        if checkpointer._place.saves and self._options.get("generators", True):
            self._generators = _state.generators()
            self._within_epoch = within and not getattr(args, "ignore_data_skip", False)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if not self._within_epoch:
            self._set_generators()

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._set_generators()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._fence()

    def on_step_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if self._every is None:
            return
        last = control.should_training_stop or state.global_step >= state.max_steps > 0
        if last or state.global_step % self._every == 0:
            self._save(args, state, control, objects)

    def on_save(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if self._every is None:
            self._save(args, state, control, objects)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._fence()

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._resume = None
        self._close(finished=True)

    # ---- The rest ----

    def _save(self, args: Any, state: Any, control: Any, objects: Mapping[str, Any]) -> None:
        checkpointer = self._made(args, objects)
        # Numbers of NumPy have `item`.
        trainer = json.dumps(dataclasses.asdict(state), default=lambda x: x.item())
        self.saved = checkpointer.save(state.global_step, extra={"trainer": trainer})
        # After its last step a trainer may load the best weights.
        if control.should_training_stop:
            checkpointer.fence()

    def _fence(self) -> None:
        if self.checkpointer is not None:
            self.checkpointer.fence()

    def _close(self, finished: bool) -> None:
        checkpointer, self.checkpointer = self.checkpointer, None
        self._generators = None
        if checkpointer is not None:
            checkpointer.close(finished)

    def _set_generators(self) -> None:
        saved, self._generators = self._generators, None
        if saved is not None:
            from .torch import _state

            _state.set_generators(saved)
        self._within_epoch = False

    def _made(self, args: Any, objects: Mapping[str, Any]) -> Checkpointer:
        if self.checkpointer is not None:
            return self.checkpointer
        from .torch import Checkpointer

        model, optimizer = objects["model"], objects["optimizer"]
        scaler = None
        while type(optimizer).__name__ == "AcceleratedOptimizer":
            scaler = scaler or getattr(optimizer, "scaler", None)
            optimizer = optimizer.optimizer
        options = dict(self._options)
        if "replicas" not in options and "axes" not in options and _world_size() > 1:
            if _is_sharded(args, model):
                raise Unsupported(
                    f"{self.name}: the ranks have parts of the model; say which by axes="
                )
            options["replicas"] = "first"
        schedulers = [x for x in (objects.get("lr_scheduler"),) if x is not None]
        self.checkpointer = Checkpointer(
            model,
            optimizer,
            *schedulers,
            name=self.name,
            client=self._client,
            group=self._group,
            named=None if scaler is None else {"scaler": scaler},
            **options,
        )
        return self.checkpointer


def _world_size() -> int:
    connected = distributed()
    return 1 if connected is None else int(connected.get_world_size())


# Trainers have the module itself here, without what runs it in parallel.
def _is_sharded(args: Any, model: Any) -> bool:
    asked = [os.environ.get(f"ACCELERATE_USE_{kind}", "") for kind in ("FSDP", "DEEPSPEED")]
    return (
        bool(getattr(args, "fsdp", None) or getattr(args, "deepspeed", None))
        or "true" in [value.lower() for value in asked]
        or any(hasattr(p, "to_local") for p in model.parameters())
        or any("FullySharded" in type(m).__name__ for m in model.modules())
    )


_DOCUMENTATION = """Saves the model, the optimizer and the rest of a ``Trainer`` while it goes on.

    callback = mr.hf.Callback("run7", every=100)
    trainer = Trainer(..., callbacks=[callback])
    trainer.train(resume_from_checkpoint=callback.resume("resumed"))

A save is begun after a step of the optimizer, and read while the next one is computed; see
`millrace.torch.Checkpointer`, which is made by the first save.

Args:
  name: of the run, the same on all ranks.
  client: where to save; ``None``: `millrace.connect()`.
  every: saves after each so many steps of the optimizer, and after the last one. ``None``: saves
    when the trainer itself saves.
  group: of providers; ``None``: any that keeps checkpoints.
  options: of `millrace.torch.Checkpointer`: keep, axes, replicas, generators, metadata, timeout
    and others. Of ranks that train in parallel the first one saves; models that are sharded need
    ``axes``.

A save that fails later is raised by the trainer's next step.
"""


def _callback_class() -> type:
    try:
        from transformers import TrainerCallback
    except ImportError as e:
        raise ImportError(
            f"millrace.hf.Callback needs transformers: pip install transformers ({e})"
        ) from e
    return type(
        "Callback",
        (_Callback, TrainerCallback),
        {"__module__": __name__, "__doc__": _DOCUMENTATION},
    )


if TYPE_CHECKING:

    class Callback(_Callback):
        pass

else:

    # Transformers takes seconds to import, and `export` does not need it.
    def __getattr__(name: str) -> Any:
        if name == "Callback":
            globals()[name] = made = _callback_class()
            return made
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
