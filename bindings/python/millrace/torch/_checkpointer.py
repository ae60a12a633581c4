"""The checkpointer for trainers in PyTorch."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import math
import os
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from .. import _native
from .._checkpoints import Checkpointer as Shard
from .._checkpoints import Saved
from .._client import Client, default_client, job
from .._errors import CorruptData, DeadlineExceeded, Error, InvalidArgument, NotFound
from .._future import finished
from .._pack import pack, unpack
from .._repository import Receipt, TensorInfo
from .._scope import Closing
from .._tensors import empty, number_of
from . import _state

_log = logging.getLogger("millrace")
_open: weakref.WeakSet[Checkpointer] = weakref.WeakSet()
_alignment = 64


class Checkpointer(Closing):
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
      generators: keeps the states of the generators of random numbers, too; of replicas those of
        the one that saves.
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
        self._shard: Shard | None = None
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
        self._client = default_client(client, timeout)
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
        self._now: _Registered | None = None
        self._last: Saved | None = None
        self._unfenced = False
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
        now = self._registered()
        assert self._shard is not None
        if now.copies:
            self._wait_for_last()
            if not now.copy():
                now = self._rebound()
                now.copy()
        packed = self._packed(now, extra)
        with now.on_device():
            saved = self._shard.save(step, packed, snapshot=snapshot, stream=now.stream())
        self._last, self._unfenced = saved, True
        return saved

    def fence(self) -> None:
        """Waits until the tensors may change; on a GPU, its current stream waits instead.

        Raises the failure of an earlier save.
        """
        if self._shard is None or self._now is None or not self._unfenced:
            return
        try:
            if (stream := self._now.stream()) is not None:
                with self._now.on_device():
                    self._shard.fence_stream(stream)
            else:
                self._shard.fence()
        except DeadlineExceeded:
            raise  # the tensors may not change yet
        except Error:
            self._unfenced = False
            raise
        self._unfenced = False

    def restore(self, step: int | None = None) -> int | None:
        """Writes a version into the objects; ``None``: the newest that all ranks have.

        Returns its step, or ``None`` when there is none yet; ``extra`` then has what was saved
        with it. An optimizer that has made no state yet is given what was saved of one. Where
        `torch.distributed` is initialised, all ranks call it: they agree on a step.

        Raises: `NotFound` for a step that is not there; `InvalidArgument` naming tensors that are
        others than those saved.
        """
        step = self._agreed(step)
        if step is None:
            return None
        self._wait_for_last()
        stored = self._stored()
        # Before any tensor is written: what it says may not be for this program.
        values = self._small_values(stored, step)
        self._complete_optimizers(stored)
        self._read(step)
        assert self._now is not None
        self._now.give_back()
        _state.set_small_state(self._objects, values["states"])
        # Replicas that have not saved go on with random numbers of their own.
        if self._generators and self._place.saves and "generators" in values:
            _state.set_generators(values["generators"])
        self.extra = values["extra"]
        return step

    def close(self, finished: bool = False) -> None:
        """Ends the registration after the save in flight. Raises the failure of an earlier save.

        ``finished``: the job is over.
        """
        _open.discard(self)
        if self._shard is not None:
            self._shard.close(finished)

    # The optimizer's steps do not wait any more.
    def __del__(self) -> None:
        try:
            self.fence()
        except Exception as e:  # pylint: disable=broad-except
            _log.error("%s: a save has failed: %s", self.name, e)

    # ---- Tensors ----

    # What is registered, after a look at whether that is what the objects have.
    def _registered(self) -> _Registered:
        if self._now is not None and self._shard is not None:
            return self._now if self._now.is_same() else self._rebound()
        now = self._now = _Registered(self._objects, None)
        self._shard = Shard(
            self._place.part_of(now.tensors, self._place.data),
            self.name,
            client=self._client,
            rank=self._place.rank,
            world_size=self._place.world_size,
            **self._options,
        )
        return now

    # Looks at all objects again, and tells where their tensors are now.
    def _rebound(self) -> _Registered:
        assert self._now is not None and self._shard is not None
        before = self._now.tensors.keys()
        now = _Registered(self._objects, self._now)
        come, gone = sorted(now.tensors.keys() - before), sorted(before - now.tensors.keys())
        if come or gone:
            raise InvalidArgument(
                f"{self.name}: since the first save {len(come)} tensors have come"
                f"{f', such as {come[0]},' if come else ''} and {len(gone)} have gone"
                f"{f', such as {gone[0]}' if gone else ''}; an optimizer makes some in its first "
                "step: save after that, or under another name"
            )
        self._shard.rebind(self._place.part_of(now.tensors, self._place.data))
        self._now, self._unfenced = now, False
        return now

    # Until the last save has read all tensors. Its failure is raised by the next call.
    def _wait_for_last(self) -> None:
        if self._last is not None:
            self._last.staged.exception()

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
        # Of a run that has gone back, the step that was saved last.
        newest = max(steps, key=lambda s: s.saved_at_ns).step if steps else -1
        distributed: Any = torch.distributed
        if distributed.is_available() and distributed.is_initialized():
            on_gpu = distributed.get_backend() == "nccl"
            seen = torch.tensor([newest], device="cuda" if on_gpu else "cpu")
            distributed.all_reduce(seen, op=distributed.ReduceOp.MIN)
            newest = int(seen.item())
        return newest if newest >= 0 else None

    # What the ranks that have this one's tensors have registered.
    def _stored(self) -> dict[int, dict[str, TensorInfo]]:
        checkpoints = self._client.checkpoints(self._group)
        ranks = self._place.ranks_with_my_tensors()
        found = {rank: checkpoints.describe(self.name, rank) for rank in ranks}
        return {rank: shard.result().tensors for rank, shard in found.items()}

    # Loads the smallest tensor of a step, and the extra bytes with it.
    def _small_values(
        self, stored: Mapping[int, Mapping[str, TensorInfo]], step: int
    ) -> dict[str, Any]:
        rank = self._place.rank
        tensors = stored[rank]
        name = min(tensors, key=lambda n: math.prod(tensors[n].shape))
        into = empty("pt", number_of(tensors[name].dtype), tensors[name].shape, None, False)
        checkpoints = self._client.checkpoints(self._group)
        loaded = checkpoints.load_into(self.name, {name: into}, rank=rank, step=step).result()
        values = unpack(loaded.extra, trust=self._trust)
        if not isinstance(values, dict) or not {"states", "extra"} <= values.keys():
            raise CorruptData(f"{self.name}, step {step}: its extra bytes are not this package's")
        _state.check_small_state(self._objects, values["states"])
        return values

    # Lets optimizers have the tensors that were saved and that they have not made yet.
    def _complete_optimizers(self, stored: Mapping[int, Mapping[str, TensorInfo]]) -> None:
        for name, x in self._objects.items():
            if isinstance(x, torch.optim.Optimizer):
                theirs = {
                    n.removeprefix(f"{name}."): info
                    for tensors in stored.values()
                    for n, info in tensors.items()
                    if n.startswith(f"{name}.")
                }
                _state.make_state(x, self._objects, theirs)

    def _read(self, step: int) -> None:
        ranks = self._place.ranks_with_my_tensors()
        if self._place.saves and ranks == [self._place.rank]:
            now = self._registered()
            assert self._shard is not None
            now.synchronize()
            self._shard.restore(step)
            return
        now = _Registered(self._objects, self._now)
        now.synchronize()
        checkpoints = self._client.checkpoints(self._group)
        loads = [
            checkpoints.load_into(
                self.name, self._place.part_of(now.tensors, data), rank=rank, step=step
            )
            for data, rank in enumerate(ranks)
        ]
        for load in loads:
            load.result()
        if self._shard is None:
            self._now = now
        else:
            now.give_back()

    # ---- Small values ----

    def _packed(self, now: _Registered, extra: Any) -> bytes:
        values: dict[str, Any] = {"states": now.small.read(), "extra": extra}
        if self._generators:
            values["generators"] = _state.generators()
        return pack(values, use_pickle=self._pickle)


class _Registered:
    """The tensors of all objects as they are registered: where they are, or copies of them.

    Copies are those of buffers, which forward passes change; and beside tensors of a GPU those on
    the CPU, since what a stream waits for does not hold the CPU back.
    """

    def __init__(self, objects: Mapping[str, Any], before: _Registered | None) -> None:
        found = _state.find(objects)
        self.small = _state.SmallState(objects)
        # Loading the state of an optimizer replaces it.
        optimizers = [x for x in objects.values() if isinstance(x, torch.optim.Optimizer)]
        self._states = [(x, x.state) for x in optimizers]
        places = found.places
        devices = {p.tensor.device for p in places.values() if p.tensor.device.type == "cuda"}
        if len(devices) > 1:
            raise InvalidArgument(f"tensors on several GPUs, {devices}: use a rank for each")
        self._cuda = devices.pop() if devices else None
        self._copied = dict(found.buffers)
        if self._cuda is not None:
            on_cpu = {n: p for n, p in places.items() if p.tensor.device.type == "cpu"}
            self._copied.update(on_cpu)
            places = {n: p for n, p in places.items() if n not in on_cpu}
        self.copies: dict[str, torch.Tensor] = {}
        for name, place in self._copied.items():
            old = None if before is None else before.copies.get(name)
            self.copies[name] = (
                old
                if old is not None and _alike(old, place.tensor)
                else torch.empty_like(place.tensor, memory_format=torch.contiguous_format)
            )
        in_place = {name: place.tensor for name, place in places.items()}
        self.tensors = {**in_place, **self.copies}
        by_watch = []
        self._by_torch: list[str] = []
        for name, place in self._copied.items():
            copy, t = self.copies[name], place.tensor
            if t.device.type != "cpu" or not t.is_contiguous():
                self._by_torch.append(name)
                continue
            size = copy.numel() * copy.element_size()
            by_watch.append(
                (place.dictionary, place.key, copy.data_ptr(), size, t.dtype, t.shape, t.device)
            )
        self._watch = _native.watch(found.dictionaries, list(in_place.values()), by_watch)

    def is_same(self) -> bool:
        """Whether the objects have the same tensors where they had them."""
        return all(x.state is state for x, state in self._states) and self._watch.same()

    def copy(self) -> bool:
        """Takes the copies. False: one is not like what is registered, and none counts."""
        if not self._watch.copy():
            return False
        with torch.no_grad():
            for name in self._by_torch:
                place, copy = self._copied[name], self.copies[name]
                t = place.dictionary.get(place.key)
                if t is None or not _alike(copy, t):
                    return False
                copy.copy_(t, non_blocking=True)
        return True

    def give_back(self) -> None:
        """Writes what was restored into the copies to where they are from."""
        with torch.no_grad():
            for name, place in self._copied.items():
                place.tensor.copy_(self.copies[name])

    def stream(self) -> int | None:
        if self._cuda is None:
            return None
        return int(torch.cuda.current_stream(self._cuda).cuda_stream)

    def on_device(self) -> contextlib.AbstractContextManager[Any]:
        """Makes the GPU the current one: the number of its default stream says nothing of it."""
        if self._cuda is None:
            return contextlib.nullcontext()
        return cast("contextlib.AbstractContextManager[Any]", torch.cuda.device(self._cuda))

    def synchronize(self) -> None:
        if self._cuda is not None:
            torch.cuda.synchronize(self._cuda)


def _alike(copy: torch.Tensor, t: torch.Tensor) -> bool:
    return copy.dtype == t.dtype and copy.shape == t.shape and copy.device == t.device


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
        where: dict[object, int] = {}
        for name in sorted(tensors, key=lambda n: (-tensors[n].numel(), n)):
            t = tensors[name]
            # Those that are the same memory go together.
            least = where.setdefault(
                (t.data_ptr(), t.numel()) if t.numel() else name,
                min(range(self.replicas), key=filled.__getitem__),
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


# The parent's are the parent's to close.
os.register_at_fork(after_in_child=_open.clear)
atexit.register(_finish)
