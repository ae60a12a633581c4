"""The checkpointer for trainers in PyTorch."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import types
import weakref
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch

from .. import _native
from .._checkpoints import Checkpointer as Shard
from .._checkpoints import Part, Restored, Saved
from .._checkpoints import Shard as Described
from .._client import Client, default_client
from .._errors import CorruptData, DeadlineExceeded, Error, InvalidArgument, NotFound
from .._future import Future, finished
from .._pack import pack, unpack
from .._repository import Receipt, TensorInfo
from .._scope import Closing
from . import _state
from ._place import Place
from ._run import Run

_log = logging.getLogger("millrace")
_open: weakref.WeakSet[Checkpointer] = weakref.WeakSet()


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
      parts: where tensors lie in larger ones, by the names with which they are saved, such as
        ``model.fc.weight``; states of an optimizer that have their parameter's shape lie as it
        does. Distributed tensors (``DTensor``) say it themselves.
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
        parts: Mapping[str, Part] | None = None,
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
        self._parts = dict(parts or {})
        self._place = Place(rank, world_size, axes, replicas, parallel)
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

    def restore(self, step: int | None = None, *, run: str | None = None) -> int | None:
        """Writes a version into the objects; ``None``: the newest that all ranks have.

        The newest is the one that was saved last. Returns its step, or ``None`` when there is none
        yet; ``extra`` then has what was saved with it. An optimizer that has made no state yet is
        given what was saved of one. Where `torch.distributed` is initialised, all ranks call it:
        they agree on a step.

        ``run`` is another one to go on from. It may have had another number of ranks, and other
        parts of the tensors in them. Later saves belong to this run.

        Raises: `NotFound` for a step or another run that is not there; `InvalidArgument` naming
        tensors, or an optimizer, that are others than those saved.
        """
        source = Run(self._client.checkpoints(self._group), run or self.name)
        step = source.agreed(step)
        if step is None:
            if run is not None:
                raise NotFound(f"{run}: there is no such run, or it has no step that all ranks have")
            return None
        self._wait_for_last()
        ranks = source.ranks() if run is not None else self._place.ranks_with_my_tensors()
        shards = source.shards(ranks)
        # Of another run all ranks count. Before any tensor is written: what they say may not be for
        # this program.
        heard = {r: shard for r, shard in shards.items() if run is not None or r == self._place.rank}
        values = self._small_values(source, heard, step)
        _state.reshard(self._objects)
        self._complete_optimizers(shards)
        if run is not None:
            self._read_anywhere(source, shards, step)
        elif self._place.saves and ranks == [self._place.rank]:
            self._read_own(step)
        else:
            self._read_of_replicas(source, ranks, step)
        _state.set_small_state(self._objects, values["states"], partly=run is not None)
        # Replicas that have not saved go on with random numbers of their own.
        has_saved = self._place.rank == ranks[0] if run is not None else self._place.saves
        if self._generators and has_saved and "generators" in values:
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
        now = self._now = _Registered(self._objects, None, self._parts)
        self._shard = Shard(
            self._place.part_of(now.tensors, self._place.data),
            self.name,
            client=self._client,
            rank=self._place.rank,
            world_size=self._place.world_size,
            parts=now.parts,
            **self._options,
        )
        return now

    # Looks at all objects again, and tells where their tensors are now.
    def _rebound(self) -> _Registered:
        assert self._now is not None and self._shard is not None
        before = self._now.tensors.keys()
        now = _Registered(self._objects, self._now, self._parts)
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

    # What the first shard says counts; the others add what belongs to single parameters and modules.
    def _small_values(
        self, source: Run, shards: Mapping[int, Described], step: int
    ) -> dict[str, Any]:
        loads = [source.extra(rank, shard, step) for rank, shard in shards.items()]
        first: dict[str, Any] | None = None
        for load in loads:
            values = unpack(load.result().extra, trust=self._trust)
            if not isinstance(values, dict) or not {"states", "extra"} <= values.keys():
                raise CorruptData(
                    f"{source.name}, step {step}: its extra bytes are not this package's"
                )
            if first is None:
                first = values
            else:
                _state.add_small_state(self._objects, first["states"], values["states"])
        assert first is not None
        _state.check_small_state(self._objects, first["states"])
        return first

    # Lets optimizers have the tensors that were saved and that they have not made yet.
    def _complete_optimizers(self, shards: Mapping[int, Described]) -> None:
        for name, x in self._objects.items():
            if isinstance(x, torch.optim.Optimizer):
                theirs = {
                    n.removeprefix(f"{name}."): info
                    for shard in shards.values()
                    for n, info in shard.tensors.items()
                    if n.startswith(f"{name}.")
                }
                _state.make_state(x, self._objects, theirs)

    # What this rank has saved, by its registration.
    def _read_own(self, step: int) -> None:
        now = self._registered()
        assert self._shard is not None
        now.synchronize()
        self._shard.restore(step)
        now.give_back()

    # What each of the replicas has saved of the tensors of all.
    def _read_of_replicas(self, source: Run, ranks: list[int], step: int) -> None:
        now = _Registered(self._objects, self._now, self._parts)
        now.synchronize()
        loads = [
            source.checkpoints.load_into(
                source.name, self._place.part_of(now.tensors, data), rank=rank, step=step
            )
            for data, rank in enumerate(ranks)
        ]
        self._take(now, loads)

    # What this rank has now, wherever it was saved.
    def _read_anywhere(
        self, source: Run, shards: Mapping[int, Described], step: int
    ) -> None:
        now = _Registered(self._objects, self._now, self._parts)
        now.synchronize()
        stored = {name: info for shard in shards.values() for name, info in shard.tensors.items()}
        tied = {n: first for shard in shards.values() for n, first in shard.tied.items()}
        # Names of one stored tensor may be those of several tensors here.
        loads = []
        left = dict(now.tensors)
        while left:
            chosen: dict[str, str] = {}
            for name in left:
                chosen.setdefault(name if name in stored else tied.get(name, name), name)
            for there, here in chosen.items():
                _check_whole(here, left[here], now.parts.get(here), stored.get(there))
            loads.append(
                source.checkpoints.load_into(
                    source.name,
                    {there: left.pop(here) for there, here in chosen.items()},
                    parts={t: now.parts[h] for t, h in chosen.items() if h in now.parts},
                    step=step,
                )
            )
        self._take(now, loads)

    def _take(self, now: _Registered, loads: list[Future[Restored]]) -> None:
        for load in loads:
            load.result()
        now.give_back()
        if self._shard is None:
            self._now = now

    # ---- Small values ----

    def _packed(self, now: _Registered, extra: Any) -> bytes:
        values: dict[str, Any] = {"states": now.small.read(), "extra": extra}
        if self._generators:
            values["generators"] = _state.generators()
        return pack(values, use_pickle=self._pickle)


def _check_whole(
    name: str, t: torch.Tensor, part: Part | None, stored: TensorInfo | None
) -> None:
    whole = tuple(t.shape) if part is None else tuple(part.global_shape)
    if stored is not None and (theirs := stored.global_shape or stored.shape) != whole:
        raise InvalidArgument(
            f"{name}: the whole tensor was saved with the shape {theirs}, and here it has {whole}"
        )


class _Registered:
    """The tensors of all objects as they are registered: where they are, or copies of them.

    Copies are those of buffers, which forward passes change; and beside tensors of a GPU those on
    the CPU, since what a stream waits for does not hold the CPU back.
    """

    def __init__(
        self, objects: Mapping[str, Any], before: _Registered | None, parts: Mapping[str, Part]
    ) -> None:
        _state.reshard(objects)
        found = _state.find(objects)
        found.place(parts)
        #: Where tensors lie in larger ones.
        self.parts = found.parts
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
            distributed = t is not place.dictionary[place.key]
            if distributed or t.device.type != "cpu" or not t.is_contiguous():
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
                if t is None or not _alike(copy, t := _state.local(t)):
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
