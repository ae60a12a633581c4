"""Readers of working sets: samples, whole fields, comparisons, and orders of epochs."""

from __future__ import annotations

import array
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex, overload

from . import _native
from ._client import text_of
from ._errors import InvalidArgument
from ._future import Future, Stage, tell_progress
from ._repository import TensorInfo
from ._scope import OfProcess
from ._set_info import SetDamage, set_info, varies
from ._tensors import DTYPES, Batch, Line, checked, empty, parts

# So many samples of an order are computed at once while it is iterated over.
_ORDER_AT_ONCE = 4096


class SetReader(OfProcess):
    """A working set that is open; made by `WorkingSet.open`. It can be read after an unload.

    Threads: any.
    """

    _belongs = "a reader belongs to its process: open the working set in the other one"

    def __init__(self, native: _native.SetReader) -> None:
        self._native = native
        line = native.describe()
        fields = {}
        self._numbers: dict[str, tuple[int, int, tuple[int, ...]]] = {}
        for i in range(line[4]):
            name, dtype, shape = native.field(i)
            fields[name] = TensorInfo(DTYPES[dtype][0], shape, None, None)
            self._numbers[name] = i, dtype, shape
        self.info = set_info(line, fields)  #: what the set has

    @property
    def samples_from_files(self) -> int:
        """Samples that were read from files since the set was opened, because a data server was
        lost, or because a window did not have them. Each field of a sample counts, and what a
        loader has read by this reader counts, too.
        """
        return self._native.samples_from_files()

    @property
    def samples_from_window(self) -> int:
        """Samples that came from a window; 0 for a set that has all samples in memory."""
        return self._native.samples_from_window()

    def sizes(self, field: str, ids: Iterable[int]) -> Future[list[int]]:
        """Returns the bytes of samples of one field, in the order of ``ids``, by a future.

        Raises: `InvalidArgument` for a field that the set does not have; by the future, also for a
        sample, and those of `read_batch`.
        """
        number = self._number(field)[0]
        request = self._native.sizes(number, _numbers(ids).tobytes())
        return Future(Stage(request, lambda r: _numbers_of(r.sizes())))

    def find(self, texts: Iterable[str], field: str = "path") -> Future[list[int]]:
        """Finds samples by a text that they have, and returns their ids in the order of ``texts``,
        by a future.

        A call looks at the texts of all samples, so ask for many at once. Of several samples with
        the same text it gives the first one.

        Args:
          field: ``"path"`` of files, ``"key"`` of archives, or another field of texts.

        Raises: `InvalidArgument` for a field that the set does not have, or that has no texts; by
        the future `NotFound`, naming a text that no sample has, and those of `read_batch`.
        """
        if isinstance(texts, str):
            raise TypeError("texts: a list of texts, not a str")
        wanted = [text_of("texts", text) for text in texts]
        request = self._native.find(self._number(field)[0], wanted)
        return Future(Stage(request, lambda r: _numbers_of(r.samples())))

    def read_batch(
        self,
        field: str,
        ids: Iterable[int],
        out: object = None,
        *,
        framework: str = "pt",
    ) -> Future[Any]:
        """Copies samples of one field, one after the other, in the order of ``ids``.

        Args:
          out: a dense tensor or array of the field's type and the size of the samples, which is
            written; ``None``: a new one, of the shape [samples, the shape of a sample]. For a field
            whose samples differ in size: a list with one for each sample, which are views of one
            memory.
          framework: of a new one: ``"pt"`` for PyTorch, ``"np"`` for NumPy.

        The future gives it. Raises: `InvalidArgument` for a field or a sample that the set does not
        have, or another type or size of ``out``; by the future, `NotFound` when the memory is not
        the set's any more, and `PeerLost` from another host.
        """
        return self._read(field, _numbers(ids).tobytes(), out, framework)

    def load(self, field: str, out: object = None, *, framework: str = "pt") -> Future[Any]:
        """Copies all samples of one field, in the order of their numbers.

        The arguments are those of `read_batch`, and so is what the future gives.

        Raises: `InvalidArgument` for a field that the set does not have, or another type or size of
        ``out``; by the future, those of `read_batch`.
        """
        return self._read(field, None, out, framework)

    # `wanted` are the numbers of samples; None: all.
    def _read(self, field: str, wanted: bytes | None, out: object, framework: str) -> Future[Any]:
        number, dtype, shape = self._number(field)
        if out is None and varies(shape):
            empty(framework, dtype, shape, "cpu", False)  # whether the framework has this type
            every = range(self.info.samples)
            asked = self._native.sizes(
                number, _numbers(every).tobytes() if wanted is None else wanted
            )
            return Future(
                Stage(asked, lambda r: self._read_varying(field, wanted, r.sizes(), framework)),
                driven=True,
            )
        if out is None:
            count = self.info.samples if wanted is None else len(wanted) // 8
            out = empty(framework, dtype, [count, *shape], "cpu", False)
        return Future(Stage(self._begin(number, dtype, wanted, out), lambda r: out))

    # The second request of a batch whose samples have these sizes.
    def _read_varying(
        self, field: str, wanted: bytes | None, sizes: bytearray, framework: str
    ) -> Stage[Any]:
        number, dtype, shape = self._numbers[field]
        row_bytes = math.prod(shape[1:]) * DTYPES[dtype][2] // 8
        rows = (size // row_bytes for size in _numbers_of(sizes))
        offsets = list(itertools.accumulate(rows, initial=0))
        out = empty(framework, dtype, [offsets[-1], *shape[1:]], "cpu", False)
        return Stage(self._begin(number, dtype, wanted, out), lambda r: parts(out, offsets))

    def _begin(self, number: int, dtype: int, wanted: bytes | None, out: object) -> _native.Request:
        batch = Batch()
        line = batch.add("out", out, writable=True)
        _check_out(out, line, dtype)
        if wanted is None:
            return self._native.load(number, batch.native(), line.size_bytes)
        return self._native.read_batch(number, wanted, batch.native(), line.size_bytes)

    def verify(self, progress: Callable[[int, int], object] | None = None) -> Future[SetDamage]:
        """Compares all samples of all fields with the digests that were taken when they were
        preloaded, and returns what it has found, by a future.

        A damaged sample is no failure. ``cancel`` of the future gives the comparison up.

        Args:
          progress: called with the bytes that are compared, and with all of them, where the
            callbacks of futures run, also once after the end. ``False`` gives the comparison up. An
            exception ends the calls, and is logged.

        Raises, by the future: `Unsupported` for a window, whose files are the original; those of
        `read_batch`.
        """
        told = None if progress is None else _native.progress()
        future = Future(Stage(self._native.verify(told), _damage_of))
        if told is not None and progress is not None:
            tell_progress(future, told.value, progress)
        return future

    def order(self, seed: int = 0, epoch: int = 0, *, shuffle: str | bool = "full") -> SampleOrder:
        """Returns the order in which an epoch visits the samples, as a loader with these arguments
        does.

        It depends on the set, the seed, the epoch and the kind of shuffling alone. Raises:
        `InvalidArgument` naming the argument.
        """
        return SampleOrder(self._native, self.info.samples, seed, epoch, shuffle)

    def _number(self, field: str) -> tuple[int, int, tuple[int, ...]]:
        if field not in self._numbers:
            raise InvalidArgument(f"working set {self.info.name} has no field {field}")
        return self._numbers[field]

    def __repr__(self) -> str:
        return f"<millrace.data.SetReader: {self.info.name}, {self.info.samples} samples>"


class SampleOrder(OfProcess):
    """The order in which an epoch visits the samples of a set; made by `SetReader.order`.

    ``order[i]`` is the sample at a position, and ``order[a:b]`` is a list of samples. A loop gives
    all of them. Each is computed when it is asked for, so the order of a large set takes no memory.
    It keeps the set open, and works in a forked child, too.

    Threads: any.
    """

    _belongs = "an order belongs to its process: ask the reader of the other one for it"

    def __init__(
        self, native: _native.SetReader, samples: int, seed: int, epoch: int, shuffle: str | bool
    ) -> None:
        self._native = native
        self._samples = samples
        self.seed = checked("seed", seed, 0, 2**64 - 1)
        self.epoch = checked("epoch", epoch, 0, 2**64 - 1)
        self.shuffle = shuffle_text(shuffle)  #: ``"full"``, ``"none"`` or ``"block:N"``
        self._at(0, 0)  # whether there is such a kind

    def __len__(self) -> int:
        """Returns the number of samples."""
        return self._samples

    @overload
    def __getitem__(self, position: SupportsIndex) -> int: ...
    @overload
    def __getitem__(self, position: slice) -> list[int]: ...
    def __getitem__(self, position: SupportsIndex | slice) -> int | list[int]:
        if isinstance(position, slice):
            return self._samples_at(range(self._samples)[position])
        try:
            return self._at(range(self._samples)[position], 1)[0]
        except IndexError:
            raise IndexError(f"position {position} of {self._samples} samples") from None

    def __iter__(self) -> Iterator[int]:
        for first in range(0, self._samples, _ORDER_AT_ONCE):
            yield from self[first : first + _ORDER_AT_ONCE]

    def position_of(self, sample: int) -> int:
        """Returns the position at which a sample comes.

        Raises: `InvalidArgument` for a sample that the set does not have.
        """
        wanted = _numbers([sample]).tobytes()
        return _numbers_of(self._native.positions(self.seed, self.epoch, self.shuffle, wanted))[0]

    def _samples_at(self, positions: range) -> list[int]:
        if positions.step == 1:
            return self._at(positions.start, len(positions))
        return [self._at(position, 1)[0] for position in positions]

    def _at(self, first: int, count: int) -> list[int]:
        return _numbers_of(self._native.order(self.seed, self.epoch, self.shuffle, first, count))

    def __repr__(self) -> str:
        return (
            f"<millrace.data.SampleOrder: {self._samples} samples, seed {self.seed}, "
            f"epoch {self.epoch}, {self.shuffle}>"
        )


def shuffle_text(kind: str | bool) -> str:
    """Returns how samples are shuffled, as the C interface has it."""
    if not isinstance(kind, (str, bool)):
        raise TypeError(f"shuffle: a str or a bool, not {type(kind).__name__}")
    return kind if isinstance(kind, str) else "full" if kind else "none"


def _damage_of(request: _native.Request) -> SetDamage:
    return SetDamage(*request.damage())


def _numbers(ids: Any) -> array.array[int]:
    try:
        return array.array("Q", ids.tolist() if hasattr(ids, "tolist") else ids)
    except (OverflowError, TypeError):
        raise InvalidArgument("ids: a flat list of whole numbers, none of them negative") from None


def _numbers_of(memory: bytearray) -> list[int]:
    return array.array("Q", bytes(memory)).tolist()


def _check_out(out: object, line: Line, dtype: int) -> None:
    if hasattr(out, "__cuda_array_interface__"):
        raise InvalidArgument("out: memory of a GPU; give memory of the host")
    if line.dtype != dtype:
        raise InvalidArgument(
            f"out: elements of {DTYPES[line.dtype][0]}, and the field has {DTYPES[dtype][0]}"
        )
    if line.strides is not None and not _is_dense(line.shape, line.strides, line.dtype):
        raise InvalidArgument("out: its elements must lie one behind the other")


def _is_dense(shape: Any, strides: Any, dtype: int) -> bool:
    step = DTYPES[dtype][2] // 8
    for count, stride in zip(reversed(shape), reversed(strides), strict=True):
        if count != 1 and stride != step:
            return False
        step *= count
    return True
