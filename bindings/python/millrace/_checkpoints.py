"""Checkpoints: shards that are registered once and saved again and again, and the runs there are."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from . import _native
from ._client import Client, job, milliseconds, native_of, pairs_of, text_of
from ._errors import InvalidArgument
from ._future import Future, Stage
from ._repository import TIED, Listing, Receipt, TensorInfo, infos, receipt_of, tied_of
from ._scope import Closing
from ._tensors import Batch, Line, batch_of, checked


class RunSummary(NamedTuple):
    """A run, as a listing shows it."""

    name: str
    provider: str
    newest_step: int  #: that all shards have, or -1
    size_bytes: int  #: of one version of all shards
    world_size: int
    shards: int
    complete_steps: int
    in_use: bool  #: a job is registered


class Step(NamedTuple):
    """A step that all shards of a run have."""

    step: int
    size_bytes: int
    saved_at_ns: int  #: wall clock


class Shard(NamedTuple):
    """What one rank has registered."""

    provider: str | None
    tensors: dict[str, TensorInfo]
    axes: dict[str, str]
    metadata: dict[str, str]
    tied: dict[str, str]


class Part(NamedTuple):
    """Where a tensor lies in a larger one: the index of its first element, and the whole shape."""

    offsets: tuple[int, ...]
    global_shape: tuple[int, ...]


class Saved(NamedTuple):
    """A save that is under way, by its two ends."""

    step: int
    staged: Future[None]  #: then the tensors may change
    durable: Future[Receipt]  #: then the version is done


class Restored(NamedTuple):
    """What was loaded beside the tensors."""

    step: int
    extra: bytes  #: that were saved with it


def _restored(request: _native.Request) -> Restored:
    return Restored(receipt_of(request).step, request.extra())


# -1, for None, is the newest.
def _step(step: int | None) -> int:
    return -1 if step is None else checked("step", step, 0, 2**63 - 1)


def _nothing(_: _native.Request) -> None:
    return None


class Checkpointer(Closing):
    """One shard of a job: tensors that lie where they lie, and are saved by their names.

    ``save`` returns within microseconds. The provider then pulls the tensors from where they are,
    so they must not change before ``staged`` is over: call ``fence`` before the next update. A
    failure of a save is raised by the next ``save``, ``fence`` or ``close``, and by its own
    futures.

    Args:
      tensors: names and tensors of PyTorch, NumPy, or others; see `Repository`. Those that are the
        same memory are saved once.
      name: of the model, the same on all ranks.
      client: where it is saved.
      group: of providers; ``None``: any that keeps checkpoints.
      rank, world_size: ``None``: as the launcher says (torchrun, mpirun, srun), else 0 of 1.
      keep: versions of each shard.
      on_busy: of a save that comes while another is in flight: ``"wait"`` or ``"refuse"``.
      life: identifies one run of the job; the same on all ranks, another one after a restart.
        ``None``: as the launcher says, else drawn.
      parts: where tensors lie in larger ones, so that a job of another world size finds them.
      axes, metadata: texts that listings show.
      timeout: seconds for each request.

    Threads: any; but a save must not run beside another one of the same checkpointer.
    """

    def __init__(
        self,
        tensors: Mapping[str, object],
        name: str,
        *,
        client: Client,
        group: str | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        keep: int = 2,
        on_busy: str = "wait",
        life: int | None = None,
        parts: Mapping[str, Part] | None = None,
        axes: Mapping[str, object] | None = None,
        metadata: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> None:
        if on_busy not in ("wait", "refuse"):
            raise InvalidArgument(f'on_busy: "wait" or "refuse", not {on_busy!r}')
        started = job() if rank is None or world_size is None or life is None else None
        self.name = name
        self.rank = rank if rank is not None else max(0, started.rank) if started else 0
        self.world_size = (
            world_size
            if world_size is not None
            else max(1, started.world_size)
            if started and rank is None
            else 1
        )
        self._parts = dict(parts or {})
        self._order = list(tensors)
        batch, self.tied = batch_of(tensors, writable=True)
        pairs = pairs_of("metadata", metadata)
        if self.tied:
            pairs.append((TIED, json.dumps(self.tied)))
        self._tensors = self._natives(batch)
        request = native_of(client).register(
            self._tensors,
            text_of("name", name),
            group,
            checked("rank", self.rank, 0, 2**32 - 1),
            checked("world_size", self.world_size, 1, 2**32 - 1),
            checked("keep", keep, 2, 64),
            1 if on_busy == "refuse" else 0,
            milliseconds(timeout),
            checked("life", life if life is not None else started.life if started else 0, 0, 2**64 - 1),
            [(axis, str(place)) for axis, place in (axes or {}).items()],
            pairs,
        )
        registering = Future(Stage(request, lambda r: r.checkpointer(self._tensors)))
        try:
            self._native = registering.result()
        except BaseException:
            registering.cancel()
            raise

    def _natives(self, batch: Batch) -> _native.Tensors:
        if not self._parts:
            return batch.native()
        lines: list[Line] = []
        for line in batch.lines:
            part = self._parts.get(line.name)
            if part is not None:
                if min((0, *part.offsets, *part.global_shape)) < 0:
                    raise InvalidArgument(f"{line.name}: {part} has a negative number")
                line = line._replace(offsets=part.offsets, global_shape=part.global_shape)
            lines.append(line)
        return _native.tensors(lines, batch.owners)

    def save(
        self,
        step: int,
        extra: bytes = b"",
        *,
        snapshot: bool = False,
        stream: int | None = None,
    ) -> Saved:
        """Begins a save, and returns at once.

        Args:
          extra: bytes that belong to the version, such as the state of a scheduler.
          snapshot: copies the tensors first; ``staged`` is over after that.
          stream: the number of a CUDA stream, after whose work the tensors are read.

        Raises: the failure of an earlier save, and then does not begin; `Busy`; `NoSpace`.
        """
        step = checked("step", step, 0, 2**63 - 1)
        staged, durable = self._native.save(step, 1 if snapshot else 0, extra, stream)
        return Saved(step, Future(Stage(staged, _nothing)), Future(Stage(durable, receipt_of)))

    def fence(self, timeout: float | None = None) -> None:
        """Waits until the tensors may change. Raises the failure of an earlier save."""
        self.fencing().result(timeout)

    def fencing(self) -> Future[None]:
        """Does what `fence` does, by a future."""
        return Future(Stage(self._native.fence(), _nothing))

    def fence_stream(self, stream: int) -> None:
        """Lets the work that is put into a CUDA stream from now on wait, instead of this thread."""
        self._native.fence_stream(stream)

    def rebind(self, tensors: Mapping[str, object]) -> None:
        """Takes the addresses of tensors that have moved; names, types and shapes stay.

        Waits for a save that reads them. Raises: `InvalidArgument` naming what has changed.
        """
        # In the order in which they were registered, whatever that of the dictionary is.
        known = {name: tensors[name] for name in self._order if name in tensors}
        known.update(tensors)
        batch, _ = batch_of(known, writable=True)
        moved = self._natives(batch)
        self.fence()
        self._native.rebind(moved)
        self._tensors = moved

    def restoring(self, step: int | None = None) -> Future[Restored]:
        """Writes a version into the tensors; ``None``: the newest that all ranks have.

        Raises, by the future: `NotFound` naming the steps; `CorruptData`; `Busy`. After an error
        the tensors have any bytes.
        """

        return Future(Stage(self._native.restore(_step(step)), _restored))

    def restore(self, step: int | None = None) -> Restored:
        """Does what `restoring` does, and waits."""
        return self.restoring(step).result()

    def close(self, finished: bool = False) -> None:
        """Ends the registration after the save in flight. Raises the failure of an earlier save.

        ``finished``: the job is over.
        """
        self.closing(finished).result()

    def closing(self, finished: bool = False) -> Future[None]:
        """Does what `close` does, by a future."""
        return Future(Stage(self._native.close(finished), _nothing))


class Checkpoints:
    """The runs that providers keep, for programs that need not take part in them."""

    def __init__(self, client: Client, group: str | None) -> None:
        self._client = client
        self.group = group

    def runs(self, prefix: str = "") -> Future[Listing]:
        """Lists the runs whose names start with ``prefix``, as `RunSummary`."""

        def read(request: _native.Request) -> Listing:
            out = Listing(RunSummary(*line) for line in request.runs())
            out.silent = request.silent()
            return out

        return Future(Stage(self._client._native.list_runs(self.group, prefix), read))

    def steps(self, run: str) -> Future[list[Step]]:
        """Lists the steps that all shards of a run have, ascending."""
        request = self._client._native.list_steps(self.group, run)
        return Future(Stage(request, lambda r: [Step(*line) for line in r.steps()]))

    def describe(self, run: str, rank: int = 0, step: int | None = None) -> Future[Shard]:
        """Describes what one rank has registered."""

        def read(request: _native.Request) -> Shard:
            metadata = dict(request.metadata())
            tied = tied_of(metadata, run)
            provider = receipt_of(request).provider
            return Shard(provider, infos(request), dict(request.axes()), metadata, tied)

        rank = checked("rank", rank, 0, 2**32 - 1)
        request = self._client._native.describe_shard(self.group, run, rank, _step(step))
        return Future(Stage(request, read))

    def load_into(
        self,
        run: str,
        tensors: Mapping[str, object],
        *,
        rank: int | None = None,
        step: int | None = None,
        parts: Mapping[str, Part] | None = None,
        timeout: float | None = None,
    ) -> Future[Restored]:
        """Loads tensors of a run into tensors that exist.

        Args:
          rank: loads what that rank has saved; ``None``: wherever the shards have it, in the
            indices of the whole tensors.
          step: ``None``: the newest that all ranks have.
          parts: where the wanted tensors lie in the stored ones.

        The outcome has the extra bytes of the rank's version.
        """
        batch, _ = batch_of(tensors, writable=True)
        lines = [
            line._replace(offsets=parts[line.name].offsets)
            if parts and line.name in parts
            else line
            for line in batch.lines
        ]
        batch.synchronize()
        natives = _native.tensors(lines, batch.owners)
        at, limit = _step(step), milliseconds(timeout)
        native = self._client._native
        if rank is None:
            request = native.get_global(run, at, natives, self.group, limit)
        else:
            rank = checked("rank", rank, 0, 2**32 - 1)
            request = native.get_shard(run, rank, at, natives, self.group, limit)
        return Future(Stage(request, _restored))

    def newer(self, run: str, than: int = -1, timeout: float | None = None) -> Future[int]:
        """Is over when the run has a complete step after ``than``, and gives it."""
        request = self._client._native.await_step(
            self.group, run, checked("than", than, -1, 2**63 - 1), milliseconds(timeout)
        )
        return Future(Stage(request, lambda r: receipt_of(r).step))

    def erase(self, run: str, step: int | None = None) -> Future[None]:
        """Removes all checkpoints of a run, or one step of them."""
        native = self._client._native
        request = (
            native.erase_run(self.group, run)
            if step is None
            else native.erase_step(self.group, run, _step(step))
        )
        return Future(Stage(request, _nothing))
