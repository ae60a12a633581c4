"""Loaders: the batches of a working set, read ahead of a training."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._client import rank_and_size
from ._errors import InvalidArgument
from ._scope import OfProcess
from ._set_info import SetInfo
from ._set_reader import SetReader, shuffle_text
from ._sets import WorkingSet, field_names
from ._tensors import DTYPES, checked, gpu, integers, parts, view, view_on

if TYPE_CHECKING:
    from ._streams import StreamReader


class LoaderStatus(NamedTuple):
    """Where a loader is, and what it has done since it was made."""

    batches_per_epoch: int
    batches_left: int  #: of this epoch
    epoch: int  #: of the next batch
    position: int  #: in the epoch, of the next batch of all ranks
    batches: int  #: given out
    samples: int
    size_bytes: int
    ready: int  #: batches that wait for the program
    reading: int  #: batches that are being read
    held: int  #: batches that the program has not released
    waits: int  #: for a batch that was not ready
    waited_ns: int  #: in all of them
    ring_bytes: int
    samples_from_files: int  #: by its reader, see `SetReader.samples_from_files`
    remote_limit_bytes: int  #: that all reads of the client from other hosts may have in flight
    remote_inflight_bytes: int  #: that they have in flight
    remote_inflight_stages: int  #: in which those were asked for
    remote_stages: int  #: all so far
    samples_from_window: int  #: by its reader, see `SetReader.samples_from_window`


class Batch:
    """A batch in the ring of a loader, or of a reader of a stream: its fields as tensors or arrays, without a copy.

    ``batch.x`` and ``batch["x"]`` are the field ``x`` of all places, of the shape [places, the
    shape of a sample]; where samples differ in size they follow each other, see `samples`. It lies
    in the ring and may be changed there. A field with the name of
    something else of a batch is found by ``batch["name"]`` alone.

    The place in the ring is used until the batch *and* all views of it are gone; no later batch
    overwrites them. Copy what you keep: when all places are held, the next batch is `NoSpace`.

    On a GPU the place is free when the GPU has also done what was in the stream then: the stream
    that was current when the batch was taken, or that of `follow`. `ids`, `mask` and `offsets` are
    always on the CPU.
    """

    def __init__(
        self, native: _native.Batch, loader: Loader | StreamReader, device: Any = None
    ) -> None:
        self._native: _native.Batch | None = native
        self._device = device
        self._fields = loader._fields
        self._framework = loader.framework
        self._views: dict[str, Any] = {}
        self.epoch, position, self._rows, _, self._ids, self._mask = native.describe()
        self.position = position  #: in the epoch, at which the batch of all ranks begins
        if device is not None:
            self.follow(sys.modules["torch"].cuda.current_stream(device))

    def __getitem__(self, name: str) -> Any:
        found = self._views.get(name)
        if found is None:
            memory, _, dtype, shape = self._open().field(
                self._number(name), DTYPES[self._fields[name][1]][2] // 8, self._device is None
            )
            found = self._views[name] = (
                view(self._framework, dtype, shape, memory)
                if self._device is None
                else view_on(self._device, dtype, shape, memory)
            )
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._fields:
            raise AttributeError(f"the batch has no field {name!r}")
        return self[name]

    def keys(self) -> Sequence[str]:
        """Returns the names of the fields, so that ``dict(batch)`` has all of them."""
        return list(self._fields)

    __iter__ = None

    @property
    def ids(self) -> Any:
        """A copy of the numbers of the samples, in their order, as 64-bit integers."""
        return integers(self._framework, "int64", self._ids)

    @property
    def mask(self) -> Any:
        """A copy of what the places are. True is a sample, and False is padding."""
        return integers(self._framework, "bool", self._mask)

    def offsets(self, name: str) -> Any:
        """Returns where in a field each place begins, and where the last one ends, in its rows.

        For fields whose samples differ in size; ``None`` for others.
        """
        raw = self._open().offsets(self._number(name))
        return None if raw is None else integers(self._framework, "int64", raw)

    def samples(self, name: str) -> list[Any]:
        """Returns a view of a field for each place."""
        whole, at = self[name], self.offsets(name)
        if at is None:
            return [whole[i] for i in range(len(self))]
        return parts(whole, at.tolist())

    def follow(self, stream: Any) -> None:
        """Names the CUDA stream whose work uses a batch on a GPU, the last time.

        Work that other streams do with the batch must be over before, or ``stream`` must wait for
        it: ``stream.wait_stream(other)``. Raises: `InvalidArgument` for a batch on the CPU.
        """
        self._open().follow(stream.cuda_stream)

    def release(self) -> None:
        """Gives the place in the ring back, as soon as no view of it is left."""
        self._native = None
        self._views = {}

    def __len__(self) -> int:
        """Returns the number of places: samples, and padding."""
        return self._rows

    def __repr__(self) -> str:
        return f"<millrace.data.Batch: epoch {self.epoch}, position {self.position}, {len(self)}>"

    def _number(self, name: str) -> int:
        if name not in self._fields:
            raise KeyError(f"the batch has no field {name!r}; it has {', '.join(self._fields)}")
        return self._fields[name][0]

    def _open(self) -> _native.Batch:
        if self._native is None:
            raise InvalidArgument("this batch was released")
        return self._native


def take_batch(
    request: _native.Request, kept: list[_native.Batch | None]
) -> _native.Batch | None:
    """Waits for a batch; ``None``: there are no more.

    If the wait is interrupted, what the request has taken meanwhile is added to ``kept``: it is for
    the next call.
    """
    try:
        request.wait(None)
    except BaseException:
        request.cancel()
        if request.error() is None:
            kept.append(request.batch())
        raise
    if (error := request.error()) is not None:
        raise error
    return request.batch()


class _Epoch(Iterator[Batch]):
    """One pass over a loader."""

    def __init__(self, loader: Loader, number: int) -> None:
        self._loader: Loader | None = loader
        self._number = number

    def __next__(self) -> Batch:
        if self._loader is None:
            raise StopIteration
        batch = self._loader._next(self._number)
        if batch is None:
            self._loader = None
            raise StopIteration
        return batch


class Loader(OfProcess):
    """Reads the batches of one rank ahead of a training, into a ring of ``prefetch`` + 2 places.

    Iterating over it gives the batches of one epoch, and the next iteration those of the next
    epoch. All ranks get the same number of batches, ``len(loader)``. An iteration that was left
    before its end does not count: the next one begins that epoch anew. The first iteration after
    `load_state_dict` goes on at the state.

    Args:
      data: a working set, which is opened as by `WorkingSet.open`, or its reader.
      batch_size: samples of this rank's batch.
      seed: decides the order, with the set and the epoch, whatever the number of ranks is.
      epoch: the first one.
      shuffle: ``"full"`` or True; ``"none"`` or False; ``"block:N"`` mixes blocks of N samples.
      drop_last: the same as ``remainder="drop"``.
      remainder: of an epoch, where the samples are too few for a batch of every rank: ``"short"``,
        the ranks share them, and a batch may be empty; ``"pad"``, with places that `Batch.mask`
        marks; ``"drop"``, they are left out of this epoch.
      prefetch: batches that are read ahead, 1 to 64.
      rank, world_size: ``None``: those of `torch.distributed` where it is initialised, else as the
        launcher says (torchrun, mpirun, srun), else 0 of 1.
      fields: names; ``None``: all.
      framework: ``"pt"`` for PyTorch, ``"np"`` for NumPy.
      device: ``"cuda"``, ``"cuda:1"`` or PyTorch's object: the ring is memory of this GPU, and
        batches have their tensors there when they are given. Needs ``framework="pt"``.

    Raises: `InvalidArgument` naming what is wrong; `NoSpace` without memory for the ring; those of
    `WorkingSet.open`.

    Threads: any, but one iteration at a time.
    """

    _belongs = "a loader belongs to its process: use num_workers=0, it reads ahead by itself"

    def __init__(
        self,
        data: WorkingSet | SetReader,
        batch_size: int,
        *,
        seed: int = 0,
        epoch: int = 0,
        shuffle: str | bool = "full",
        drop_last: bool = False,
        remainder: str = "short",
        prefetch: int = 4,
        rank: int | None = None,
        world_size: int | None = None,
        fields: Sequence[str] | None = None,
        framework: str = "pt",
        device: Any = None,
    ) -> None:
        wanted = field_names(fields)
        if drop_last and remainder not in ("short", "drop"):
            raise InvalidArgument(f"drop_last=True and remainder={remainder!r}: give one of them")
        if isinstance(data, WorkingSet):
            data = data.open().result()
        if not isinstance(data, SetReader):
            raise TypeError(f"data: a WorkingSet or a SetReader, not {type(data).__name__}")
        self.rank, self.world_size = rank_and_size(rank, world_size)
        self.batch_size = checked("batch_size", batch_size, 1, 2**31)
        self.framework = framework
        self.device = gpu(device, framework)  #: PyTorch's device; ``None``: memory of the host
        self.info: SetInfo = data.info  #: what the set has
        names = wanted or list(self.info.fields)
        self._native = data._native.load_batches(
            self.batch_size,
            checked("rank", self.rank, 0, 2**32 - 1),
            checked("world_size", self.world_size, 1, 2**16),
            checked("seed", seed, 0, 2**64 - 1),
            checked("epoch", epoch, 0, 2**64 - 1),
            shuffle_text(shuffle),
            "drop" if drop_last else remainder,
            names,
            checked("prefetch", prefetch, 1, 64),
            None if self.device is None else str(self.device),
        )
        numbers = data._numbers
        # By their names: their numbers in a batch, and their types.
        self._fields = {name: (i, numbers[name][1]) for i, name in enumerate(names)}
        for name, (_, dtype) in self._fields.items():
            view(framework, dtype, [0], b"")  # whether the framework has this type
        self._iteration = 0
        # An iteration that begins goes on where the loader is.
        self._fresh = True
        # What was taken for a call that was interrupted; None: the end of an epoch.
        self._kept: list[_native.Batch | None] = []

    def __len__(self) -> int:
        """Returns the number of batches of a whole epoch, the same on all ranks.

        `status` has those that are left of it.
        """
        return self._native.describe()[0]

    def __iter__(self) -> Iterator[Batch]:
        if not self._fresh:
            now = self.status()
            self._go_to(now.epoch + (now.batches_left == 0))
        self._fresh = False
        self._iteration += 1
        return _Epoch(self, self._iteration)

    @property
    def epoch(self) -> int:
        """The epoch of the next batch."""
        return self.status().epoch

    @property
    def processors(self) -> str:
        """Where the threads that copy are kept, such as ``"processors 0-15, near cuda:0"``.

        Empty: nowhere, see ``client.bind_readers``.
        """
        return self._native.processors()

    def set_epoch(self, epoch: int) -> None:
        """Lets the next iteration be that of an epoch, from its beginning.

        Where the next iteration is of that epoch already, nothing changes: after `load_state_dict`
        it goes on at the state.
        """
        epoch = checked("epoch", epoch, 0, 2**64 - 1)
        if not self._fresh or self.status().epoch != epoch:
            self._go_to(epoch)
        self._fresh = True
        self._iteration += 1

    def state_dict(self) -> dict[str, Any]:
        """Returns where the training is, at the batch that comes next: some numbers, for JSON.

        It is the same on all ranks that have taken as many batches.
        """
        state: dict[str, Any] = json.loads(self._native.state())
        if self._kept and (batch := self._kept[0]) is not None:
            state["epoch"], state["position"] = batch.describe()[:2]
        return state

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Lets the next iteration go on at a state.

        The number of ranks and the batch size may be others than those with which it was made;
        seed and shuffle become those of the state. Raises: `InvalidArgument` for the state of
        another set.
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(f"state_dict: a dictionary, not {type(state_dict).__name__}")
        try:
            text = json.dumps(dict(state_dict))
        except (TypeError, ValueError) as e:
            raise InvalidArgument(f"state_dict: {e}") from None
        self._native.seek(text)
        self._kept.clear()
        self._fresh = True
        self._iteration += 1

    def status(self) -> LoaderStatus:
        """Returns where the loader is, and its counts."""
        status = LoaderStatus(*self._native.describe())
        if self._kept and (batch := self._kept[0]) is not None:
            epoch, position = batch.describe()[:2]
            status = status._replace(
                epoch=epoch, position=position, batches_left=status.batches_left + 1
            )
        return status

    def _go_to(self, epoch: int) -> None:
        self._native.set_epoch(epoch)
        self._kept.clear()

    def _next(self, iteration: int) -> Batch | None:
        if iteration != self._iteration:
            raise InvalidArgument(
                "this iteration has ended: another one of the loader has begun, or set_epoch or "
                "load_state_dict was called"
            )
        native = self._kept.pop() if self._kept else take_batch(self._native.next(), self._kept)
        if native is None:
            self._fresh = True
            self._iteration += 1
            return None
        return Batch(native, self, self.device)

    def __repr__(self) -> str:
        return (
            f"<millrace.data.Loader: {self.info.name}, rank {self.rank} of {self.world_size}, "
            f"{self.batch_size} samples a batch>"
        )
