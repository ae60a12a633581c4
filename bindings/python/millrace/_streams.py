"""Streaming sets: simulations append samples while trainings read batches of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from . import _native
from ._client import Client, milliseconds, native_of, text_of
from ._errors import InvalidArgument
from ._future import Future, Stage
from ._loader import Batch, take_batch
from ._repository import Listing, TensorInfo
from ._scope import OfProcess, Scope
from ._tensors import DTYPES, Line, checked, number_of, view
from ._tensors import Batch as Tensors


class StreamStatus(NamedTuple):
    """A stream now."""

    capacity: int  #: places for samples
    size_bytes: int  #: of all places
    producers: int  #: that are open
    producers_ended: int
    readers: int
    appended: int  #: samples
    given: int  #: to readers
    repeated: int  #: of these, the second and later times of a sample
    dropped: int  #: removed for newer ones before any reader got them
    replaced: int  #: removed from a reservoir for newer ones after they were given
    present: int  #: can be given now
    writing: int  #: places that producers have
    reading: int  #: places of samples that readers have
    append_waits: int  #: requests of producers that found no place
    take_waits: int  #: requests of readers that found too few samples
    ended: bool


class StreamSummary(NamedTuple):
    """A stream, as a listing shows it."""

    name: str
    node: str  #: that keeps it
    owner: str
    policy: str
    when_full: str
    created_at_ns: int  #: wall clock
    status: StreamStatus


def _status_of(numbers: Sequence[int]) -> StreamStatus:
    return StreamStatus._make((*numbers[:-1], bool(numbers[-1])))


def list_streams(client: Client, prefix: str) -> Future[Listing]:
    """Lists streams as `StreamSummary`."""

    def read(request: _native.Request) -> Listing:
        out = Listing(
            StreamSummary(name, node or "", owner, policy, when_full, at, _status_of(numbers))
            for name, node, owner, policy, when_full, at, numbers in request.streams()
        )
        out.silent = request.silent()
        return out

    return Future(Stage(native_of(client).list_streams(text_of("prefix", prefix)), read))


def _line(name: str, field: Any) -> Line:
    if not isinstance(field, (tuple, list)) or len(field) != 2:
        raise TypeError(f"fields[{name!r}]: a pair of a type and a shape")
    dtype, shape = field
    try:
        number = number_of(dtype)
    except (KeyError, TypeError):
        raise InvalidArgument(
            f"fields[{name!r}]: no type is called {dtype!r}; give one as 'F32'"
        ) from None
    sizes = tuple(checked(f"fields[{name!r}]: a size", n, 0, 2**63 - 1) for n in shape)
    return Line(text_of("fields: a name", name), 0, number, sizes, None)


class Stream:
    """A streaming set by its name; made by `Client.stream`. It need not exist.

    Threads: any.
    """

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = text_of("name", name)

    def create(
        self,
        fields: Mapping[str, tuple[str, Sequence[int]]],
        *,
        capacity: int = 1024,
        policy: str = "fifo",
        when_full: str = "block",
        producers: int = 0,
        seed: int = 0,
        threshold: int = 0,
    ) -> Stream:
        """Makes the stream, and waits for that.

        One with the same options that is there already is left as it is, so that each producer can
        call this.

        Args:
          fields: for each name the type and the shape of one sample, as ``("F32", (64, 64))``.
          capacity: places for samples.
          policy: ``"fifo"``: each sample is given once, the oldest first; ``"firo"``: each once, at
            random among those that are there; ``"reservoir"``: at random, and again, until newer
            ones need their places.
          when_full: ``"block"``: an append waits; ``"drop_oldest"``: the oldest sample makes room.
          producers: the stream ends when so many have ended; 0: only `end` ends it.
          seed: of random choices.
          threshold: samples that must be there before firo and reservoir give any.

        Returns: this stream.

        Raises: `InvalidArgument` naming the option; `AlreadyExists` for other options; `NoSpace`.
        """
        if not isinstance(fields, Mapping):
            raise TypeError(f"fields: a dictionary, not {type(fields).__name__}")
        checked("fields: their number", len(fields), 1, 64)
        lines = [_line(name, field) for name, field in fields.items()]
        request = native_of(self._client).create_stream(
            self.name,
            _native.tensors(lines, None),
            checked("capacity", capacity, 1, 2**30),
            text_of("policy", policy),
            text_of("when_full", when_full),
            checked("producers", producers, 0, 2**64 - 1),
            checked("seed", seed, 0, 2**64 - 1),
            checked("threshold", threshold, 0, 2**30),
        )
        Future(Stage(request, lambda r: None)).result()
        return self

    def status(self) -> StreamStatus:
        """Returns what has happened to the samples, and who has the stream open.

        Raises: `NotFound`.
        """
        return _status_of(native_of(self._client).describe_stream(self.name))

    def producer(self, *, in_flight: int = 16) -> Producer:
        """Opens the stream for a producer, which has so many samples under way at once, and waits.

        Raises: `NotFound`; `InvalidArgument` after the end; `Busy` when the stream has all its
        producers; `NoSpace`.
        """
        count = checked("in_flight", in_flight, 1, 1024)
        return Producer(native_of(self._client).open_producer(self.name, count), self.name, count)

    def reader(
        self, batch_size: int, *, batches: int = 4, framework: str = "pt"
    ) -> StreamReader:
        """Opens the stream for a reader, and waits.

        Args:
          batch_size: samples of a batch at most; at most the stream's capacity.
          batches: that the program holds, or waits for, at once, 1 to 64.
          framework: ``"pt"`` for PyTorch, ``"np"`` for NumPy.

        Raises: `NotFound`; `InvalidArgument`; `NoSpace`.
        """
        native = native_of(self._client).open_stream_reader(
            self.name,
            checked("batch_size", batch_size, 1, 2**30),
            checked("batches", batches, 1, 64),
        )
        return StreamReader(native, self.name, framework)

    def batches(
        self, batch_size: int, *, batches: int = 4, framework: str = "pt"
    ) -> Iterator[Batch]:
        """Opens the stream, and gives its batches to the end of the stream. As `reader`."""
        return iter(self.reader(batch_size, batches=batches, framework=framework))

    def end(self) -> Future[None]:
        """Ends the stream, whatever its producers do: readers get what is left.

        Raises, by the future: `NotFound`; `PermissionDenied` naming the owner.
        """
        return Future(Stage(native_of(self._client).end_stream(self.name), lambda r: None))

    def remove(self) -> Future[None]:
        """Removes the stream and its samples at once. Producers and readers get `NotFound`.

        Raises, by the future: `NotFound`; `PermissionDenied` naming the owner.
        """
        return Future(Stage(native_of(self._client).remove_stream(self.name), lambda r: None))

    def __repr__(self) -> str:
        return f"<millrace.data.Stream: {self.name}>"


_Opened = _native.Producer | _native.StreamReader


def _fields_of(native: _Opened) -> dict[str, tuple[int, int, tuple[int, ...]]]:
    return {
        name: (i, dtype, shape)
        for i, (name, dtype, shape) in enumerate(map(native.field, range(native.fields())))
    }


class Producer(OfProcess, Scope):
    """Appends samples to a stream; made by `Stream.producer`.

    Its block ends it, unless with an exception. One that is dropped before its end, or whose stream
    is ended meanwhile, gives up the samples that are under way: call `flush` to keep them. Another
    one can go on after one that was dropped.

    Threads: one at a time.
    """

    _belongs = "a producer belongs to its process: open the stream in the other one"

    def __init__(self, native: _native.Producer, name: str, in_flight: int) -> None:
        self._native = native
        self._name = name
        self._in_flight = in_flight
        self._under_way: deque[_native.Request] = deque()
        self._has_ended = False
        self._fields = _fields_of(native)
        self.fields = {
            field: TensorInfo(DTYPES[dtype][0], shape, None, None)
            for field, (_, dtype, shape) in self._fields.items()
        }  #: of a sample

    def append(self, sample: Mapping[str, object]) -> None:
        """Appends a sample: a tensor, array or buffer of host memory for each field, by its name.

        The bytes are copied before the call returns. The stream has the sample at the latest when
        `flush` or `end` has returned. The call waits while ``in_flight`` samples are under way, and
        raises what one of them has failed with.

        Raises: `InvalidArgument` naming the field, or after the end of the stream; `NotFound` when
        the stream was removed or the connection was lost; `PeerLost`.
        """
        if not isinstance(sample, Mapping):
            raise TypeError(f"sample: a dictionary, not {type(sample).__name__}")
        if sample.keys() != self._fields.keys():
            raise InvalidArgument(
                f"sample: its fields are {', '.join(map(str, sample))}, and those of stream "
                f"{self._name} are {', '.join(self._fields)}"
            )
        tensors = Tensors()
        for name in self._fields:
            tensors.add(name, sample[name], writable=False)
        tensors.synchronize()
        while len(self._under_way) >= self._in_flight:
            self._wait_for_first()
        self._under_way.append(self._native.append(tensors.native()))

    def flush(self) -> None:
        """Waits until the stream has all samples. Raises what one of them has failed with."""
        while self._under_way:
            self._wait_for_first()

    def end(self) -> None:
        """Ends after all samples. The stream ends with the last of its producers.

        The end of a block does nothing more then.
        """
        self.flush()
        Future(Stage(self._native.end(), lambda r: None)).result()
        self._has_ended = True

    def _wait_for_first(self) -> None:
        request = self._under_way[0]
        request.wait(None)
        self._under_way.popleft()
        if (error := request.error()) is not None:
            raise error

    def _leave(self, failed: bool) -> None:
        if not failed and not self._has_ended:
            self.end()

    def __repr__(self) -> str:
        return f"<millrace.data.Producer: {self._name}>"


class StreamReader(OfProcess):
    """Reads batches of a stream; made by `Stream.reader`. Readers share the samples.

    Iterating gives the batches up to the end of the stream. Batches that the program holds outlive
    the reader.

    Threads: one at a time.
    """

    _belongs = "a reader belongs to its process: open the stream in the other one"

    def __init__(self, native: _native.StreamReader, name: str, framework: str) -> None:
        self._native = native
        self._name = name
        self.framework = framework
        self._fields = {field: found[:2] for field, found in _fields_of(native).items()}
        for field, (_, dtype) in self._fields.items():
            view(framework, dtype, [0], b"")  # whether the framework has this type
        # What was taken for a call that was interrupted; None: the end.
        self._kept: list[_native.Batch | None] = []

    def next(self, samples: int | None = None, timeout: float | None = None) -> Batch | None:
        """Waits for the next batch, of different samples; ``None``: the stream is over.

        `Batch.ids` are the numbers of the samples in the order in which they were appended.

        Args:
          samples: ``None``: ``batch_size``. At the end of the stream there are fewer.
          timeout: seconds; ``None`` waits as long as the stream lives.

        Raises: `NoSpace` while the program holds all ``batches``; `DeadlineExceeded`; `CorruptData`
        when a sample is not as its producer has described it; `NotFound` when the stream was
        removed or the connection was lost; `PeerLost`.
        """
        count = 0 if samples is None else checked("samples", samples, 1, 2**30)
        time = milliseconds(timeout)
        if self._kept:
            native = self._kept.pop()
        else:
            native = take_batch(self._native.next(count, time), self._kept)
        return None if native is None else Batch(native, self)

    def __iter__(self) -> Iterator[Batch]:
        while (batch := self.next()) is not None:
            yield batch

    def __repr__(self) -> str:
        return f"<millrace.data.StreamReader: {self._name}>"
