"""The checkpointer for trainers in PyTorch."""

from __future__ import annotations

import atexit
import functools
import logging
import types
import weakref
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import torch

from .. import _native
from .._checkpoints import Checkpointer as Shard
from .._checkpoints import Restored, Saved
from .._client import Client, connect, job
from .._errors import Error, InvalidArgument, NotFound
from .._future import finished
from .._pack import pack, unpack
from .._repository import Receipt
from .._tensors import Batch
from . import _state

_log = logging.getLogger("millrace")
_open: weakref.WeakSet[Checkpointer] = weakref.WeakSet()
_alignment = 64


class Checkpointer:
    """Saves a trainer's modules and optimizers while it goes on, and restores them in place.

    ``save`` returns within microseconds; the tensors are then pulled from where they are. An
    optimizer's ``step`` waits until they may change (``fence="auto"``), so a loop needs no other
    line. What else changes parameters or optimizer states (clipping does not) must call ``fence``
    before. Buffers of modules, which forward passes change, are copied by ``save``.

    Args:
      objects: modules, optimizers, and what has ``state_dict`` and ``load_state_dict``, such as
        schedulers and gradient scalers, whose states are kept in the version's extra bytes.
      name: of the run, the same on all ranks.
      client: where to save; ``None``: `millrace.connect()`.
      named: further objects by names of their own: ``{"ema": ema}``.
      group: of providers; ``None``: any that keeps checkpoints.
      keep: versions that are kept.
      axes: where this rank is, for trainings that are sharded:
        ``{"tensor": (1, 4), "pipeline": (0, 2), "data": (3, 8)}``, place and size. Along ``data``
        all ranks have the same tensors.
      replicas: of ranks that have the same tensors: ``"first"`` saves, or all of them ``"spread"``
        the tensors among themselves; ``"none"``: no rank has those of another one. ``None``:
        ``"first"`` where a module is in `DistributedDataParallel` or ``axes`` has ``data``,
        otherwise ``"none"``.
      rank, world_size: ``None``: those of `torch.distributed` where it is initialised, else the
        launcher's, else 0 of 1.
      fence: ``"auto"``, or ``"manual"``: the trainer calls ``fence`` before it changes tensors.
      on_busy: of a save that comes while another is in flight: ``"wait"`` or ``"refuse"``.
      generators: keeps the states of the generators of random numbers, too.
      pickle: keeps objects in ``extra`` and in states that are no JSON, bytes or tensors, too.
      trust: unpickles them when they are restored, which runs code of whoever has saved them.
      timeout: seconds for each request.

    A save that fails later is raised by the next ``save``, ``fence``, ``close`` or ``step`` of an
    optimizer, and logged when the program ends before.
    """

    def __init__(
        self,
        *objects: Any,
        name: str,
        client: Client | None = None,
        named: Mapping[str, Any] | None = None,
        group: str | None = None,
        keep: int = 2,
        axes: Mapping[str, tuple[int, int]] | None = None,
        replicas: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        life: int | None = None,
        fence: str = "auto",
        on_busy: str = "wait",
        generators: bool = True,
        pickle: bool = False,
        trust: bool = False,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        if fence not in ("auto", "manual"):
            raise InvalidArgument(f'fence: "auto" or "manual", not {fence!r}')
        self.name = name
        #: What ``save`` was given as ``extra``, after a restore.
        self.extra: Any = None
        parallel = any(
            type(x).__name__ == "DistributedDataParallel"
            for x in (*objects, *(named or {}).values())
        )
        self._objects = _state.name_objects(objects, named)
        self._client = client if client is not None else connect(timeout=timeout)
        self._group = group
        self._place = _Place(rank, world_size, axes, replicas, parallel)
        self._options: dict[str, Any] = {
            "group": group,
            "keep": keep,
            "on_busy": on_busy,
            "life": life,
            "axes": {k: f"{i}/{n}" for k, (i, n) in (axes or {}).items()},
            "metadata": metadata,
            "timeout": timeout,
        }
        self._generators, self._pickle, self._trust = generators, pickle, trust
        self._shard: Shard | None = None
        self._watch: _native.Watch | None = None
        self._found: _state.Found
        self._small: _state.SmallState
        self._by_torch: list[str] = []
        self._copies: dict[str, torch.Tensor] = {}
        self._cuda: torch.device | None = None
        self._unfenced = False
        self._closed = False
        if fence == "auto":
            for x in self._objects.values():
                if isinstance(x, torch.optim.Optimizer):
                    _fence_before_step(x, self)
        _open.add(self)

    def save(self, step: int, extra: Any = None, *, snapshot: bool = False) -> Saved:
        """Begins a save, and returns at once, with the futures ``staged`` and ``durable``.

        Args:
          step: its number, the same on all ranks; ``restore`` returns it.
          extra: JSON, bytes and tensors, kept with the version.
          snapshot: copies the tensors first, for trainers that change them at once.

        Raises: the failure of an earlier save; `InvalidArgument` when tensors have come or gone
        since the first one: begin under another name.
        """
        if not self._place.saves:
            nothing = Receipt(self.name, None, None, 0, step, 0, 0, False, False, False)
            return Saved(step, finished(None), finished(nothing))
        shard = self._registered()
        if self._watch is not None and not self._watch.same():
            self._rebind()
        if self._found.buffers:
            if self._unfenced:
                self.fence()
            self._copy_buffers()
        stream = None
        if self._cuda is not None:
            stream = torch.cuda.current_stream(self._cuda).cuda_stream
        saved = shard.save(step, self._packed(extra), snapshot=snapshot, stream=stream)
        self._unfenced = True
        return saved

    def fence(self) -> None:
        """Waits until the tensors may change; on a GPU, its current stream waits instead.

        Raises the failure of an earlier save, once.
        """
        if self._shard is None or not self._unfenced:
            return
        self._unfenced = False
        if self._cuda is not None:
            self._shard.fence_stream(torch.cuda.current_stream(self._cuda).cuda_stream)
        else:
            self._shard.fence()

    def restore(self, step: int | None = None) -> int | None:
        """Writes a version into the objects; ``None``: the newest that all ranks have.

        Returns its step, or ``None`` when there is none yet; ``extra`` then has what was saved
        with it. An optimizer that has made no state is given one. All ranks call it, where
        `torch.distributed` is initialised: they agree on a step. Raises: `NotFound` for a step
        that is not there; `InvalidArgument` naming tensors that are others than those saved.
        """
        step = self._agreed(step)
        if step is None:
            return None
        self._complete_optimizers()
        for device in self._devices():
            torch.cuda.synchronize(device)
        restored = self._read(step)
        with torch.no_grad():
            for name, place in self._found.buffers.items():
                place.tensor.copy_(self._copies[name])
        self._unpack(restored.extra)
        return restored.step

    def close(self, finished: bool = False) -> None:
        """Ends the registration after the save in flight. Raises the failure of an earlier save.

        ``finished``: the job is over.
        """
        self._closed = True
        _open.discard(self)
        if self._shard is not None:
            self._shard.close(finished)

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close(finished=kind is None)
        except Error:
            if kind is None:
                raise

    # ---- Tensors ----

    def _registered(self) -> Shard:
        if self._shard is None:
            tensors = self._collect()
            self._shard = Shard(
                self._place.part_of(tensors, self._place.data),
                self.name,
                client=self._client,
                rank=self._place.rank,
                world_size=self._place.world_size,
                **self._options,
            )
        return self._shard

    # Looks at all objects, and returns their tensors: copies of the buffers, and all others.
    def _collect(self) -> dict[str, torch.Tensor]:
        self._found = found = _state.find(self._objects)
        self._small = _state.SmallState(self._objects)
        tensors = {name: place.tensor for name, place in found.places.items()}
        devices = {t.device for t in tensors.values() if t.device.type == "cuda"}
        if len(devices) > 1:
            raise InvalidArgument(f"tensors on several GPUs, {devices}: use a rank for each")
        self._cuda = devices.pop() if devices else None
        for name, place in found.buffers.items():
            copy, buffer = self._copies.get(name), place.tensor
            if copy is None or copy.device != buffer.device or copy.shape != buffer.shape:
                self._copies[name] = torch.empty_like(
                    buffer, memory_format=torch.contiguous_format
                )
        tensors.update((name, self._copies[name]) for name in found.buffers)
        copies = []
        for name, place in found.buffers.items():
            line = Batch().add(name, self._copies[name], writable=True)
            buffer = place.tensor
            if buffer.device.type == "cpu" and buffer.is_contiguous():
                copies.append((place.dictionary, place.key, line.address, line.size_bytes))
        self._watch = _native.watch(list(found.places.values()), found.dictionaries, copies)
        self._by_torch = [
            name
            for name, place in found.buffers.items()
            if place.tensor.device.type != "cpu" or not place.tensor.is_contiguous()
        ]
        return tensors

    def _copy_buffers(self) -> None:
        if self._watch is not None:
            self._watch.copy()
        if self._by_torch:
            with torch.no_grad():
                for name in self._by_torch:
                    buffer = self._found.buffers[name].tensor
                    self._copies[name].copy_(buffer, non_blocking=True)

    def _rebind(self) -> None:
        before = {*self._found.places, *self._found.buffers}
        tensors = self._collect()
        come, gone = sorted(tensors.keys() - before), sorted(before - tensors.keys())
        if come or gone:
            raise InvalidArgument(
                f"{self.name}: since the first save {len(come)} tensors have come"
                f"{f', such as {come[0]},' if come else ''} and {len(gone)} have gone"
                f"{f', such as {gone[0]}' if gone else ''}; an optimizer makes some in its first "
                "step: save after that, or under another name"
            )
        assert self._shard is not None
        self._shard.rebind(self._place.part_of(tensors, self._place.data))
        self._unfenced = False

    def _devices(self) -> list[torch.device]:
        return [] if self._cuda is None else [self._cuda]

    # ---- Restoring ----

    # The step that is asked for, or the newest one; None: there is none. A save of the run before
    # may still come to its end, so ranks that are connected take the newest step that all have seen.
    def _agreed(self, step: int | None) -> int | None:
        try:
            steps = self._client.checkpoints(self._group).steps(self.name).result()
        except NotFound:
            steps = []
        if step is not None:
            if all(s.step != step for s in steps):
                known = ", ".join(str(s.step) for s in steps) or "none"
                raise NotFound(f"{self.name}: step {step} is not there; there are: {known}")
            return step
        newest = steps[-1].step if steps else -1
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            on_gpu = distributed.get_backend() == "nccl"
            seen = torch.tensor([newest], device="cuda" if on_gpu else "cpu")
            distributed.all_reduce(seen, op=distributed.ReduceOp.MIN)
            newest = int(seen.item())
        return newest if newest >= 0 else None

    # Lets optimizers make the tensors that were saved and that they have not made yet.
    def _complete_optimizers(self) -> None:
        have = _state.find(self._objects).places
        checkpoints = self._client.checkpoints(self._group)
        for rank in self._place.ranks_with_my_tensors():
            stored = checkpoints.describe(self.name, rank).result()
            missing = [n for n in (*stored.tensors, *stored.tied) if n not in have]
            for name, x in self._objects.items():
                lacks = any(n.startswith(f"{name}.") for n in missing)
                if isinstance(x, torch.optim.Optimizer) and lacks:
                    _state.make_state(x)
                    have = _state.find(self._objects).places

    def _read(self, step: int) -> Restored:
        ranks = self._place.ranks_with_my_tensors()
        if self._place.saves and ranks == [self._place.rank]:
            shard = self._registered()
            if self._watch is not None and not self._watch.same():
                self._rebind()
            return shard.restore(step)
        tensors = self._collect()
        checkpoints = self._client.checkpoints(self._group)
        loads = [
            checkpoints.load_into(
                self.name, self._place.part_of(tensors, data), rank=rank, step=step
            )
            for data, rank in enumerate(ranks)
        ]
        return [load.result() for load in loads][0]

    # ---- Small values ----

    def _packed(self, extra: Any) -> bytes:
        values: dict[str, Any] = {"states": self._small.read(), "extra": extra}
        if self._generators:
            values["generators"] = _state.generators()
        return pack(values, use_pickle=self._pickle)

    def _unpack(self, data: bytes) -> None:
        values = unpack(data, trust=self._trust)
        _state.set_small_state(self._objects, values["states"])
        if self._generators and "generators" in values:
            _state.set_generators(values["generators"])
        self.extra = values["extra"]


class _Place:
    """Where a rank is among those that train, and what it saves of the tensors it has."""

    def __init__(
        self,
        rank: int | None,
        world_size: int | None,
        axes: Mapping[str, tuple[int, int]] | None,
        replicas: str | None,
        parallel: bool,
    ) -> None:
        if replicas not in (None, "first", "spread", "none"):
            raise InvalidArgument(f'replicas: "first", "spread" or "none", not {replicas!r}')
        if replicas is None:
            replicas = "first" if parallel or "data" in (axes or {}) else "none"
        self.spread = replicas == "spread"
        if axes is not None:
            for axis, (place, size) in axes.items():
                if not 0 <= place < size:
                    raise InvalidArgument(f"axes: {axis} is {place} of {size}")
            self.data, self.replicas = axes.get("data", (0, 1))
            self.shard, shards = 0, 1
            for axis, (place, size) in axes.items():
                if axis != "data":
                    self.shard, shards = self.shard * size + place, shards * size
            if replicas == "none" and self.replicas > 1:
                self.shard, shards = (
                    self.shard * self.replicas + self.data,
                    shards * self.replicas,
                )
                self.data, self.replicas = 0, 1
        else:
            rank, world_size = _rank_and_size(rank, world_size)
            same = replicas != "none"
            self.data, self.replicas = (rank, world_size) if same else (0, 1)
            self.shard, shards = (0, 1) if same else (rank, world_size)
        self.saves = self.spread or self.data == 0
        self.rank = self.shard * self.replicas + self.data if self.spread else self.shard
        self.world_size = shards * self.replicas if self.spread else shards

    def ranks_with_my_tensors(self) -> list[int]:
        if self.spread:
            return [self.shard * self.replicas + d for d in range(self.replicas)]
        return [self.shard]

    def part_of(self, tensors: dict[str, torch.Tensor], data: int) -> dict[str, torch.Tensor]:
        """Returns those that the replica saves: its share of the bytes, by all ranks alike."""
        if not self.spread or self.replicas == 1:
            return tensors
        filled = [0] * self.replicas
        out: dict[str, torch.Tensor] = {}
        where: dict[int, int] = {}
        for name in sorted(tensors, key=lambda n: (-tensors[n].numel(), n)):
            t = tensors[name]
            # Those that are the same memory go together.
            least = where.setdefault(
                t.data_ptr() if t.numel() else id(t), min(range(self.replicas), key=filled.__getitem__)
            )
            filled[least] += t.numel() * t.element_size() + 1
            if least == data:
                out[name] = t
        return {name: out[name] for name in tensors if name in out}


def _rank_and_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise InvalidArgument("rank and world_size: give both, or none")
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    started = job()
    return (max(0, started.rank), max(1, started.world_size)) if started else (0, 1)


def _fence_before_step(optimizer: torch.optim.Optimizer, checkpointer: Checkpointer) -> None:
    weak = weakref.ref(checkpointer)

    def fence() -> None:
        alive = weak()
        if alive is not None:
            alive.fence()

    hook: Callable[..., Any] | None = getattr(optimizer, "register_step_pre_hook", None)
    if hook is not None:
        hook(lambda *_: fence())
        return
    step = optimizer.step

    # A bound method, as schedulers expect.
    @functools.wraps(step)
    def fenced(self: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
        fence()
        return step(*args, **kwargs)

    setattr(optimizer, "step", types.MethodType(fenced, optimizer))


def _finish() -> None:
    for checkpointer in list(_open):
        try:
            checkpointer.close()
        except Error as e:
            _log.error("%s: a save has failed: %s", checkpointer.name, e)


atexit.register(_finish)
