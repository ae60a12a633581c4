"""Weights by version: a trainer publishes them, evaluators and replicas follow."""

from __future__ import annotations

import json
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from . import _native
from ._client import Client, milliseconds, native_of, pairs_of, text_of
from ._errors import (
    Cancelled,
    CorruptData,
    DeadlineExceeded,
    Error,
    InvalidArgument,
    NotFound,
    Unavailable,
)
from ._future import Future, Stage
from ._repository import TIED, Receipt, receipt_of, tied_of
from ._scope import OfProcess, Scope
from ._tensors import Batch, batch_of, checked

# A question for news that waits longer than any program is asked again.
_DAY_MS = 86_400_000


class WeightsVersion(NamedTuple):
    """A publication, as subscribers see it."""

    version: int  #: the number that the publisher gave, such as the step
    stored_as: int  #: the number of the repository
    size_bytes: int
    stored_at_ns: int  #: wall clock
    metadata: dict[str, str]  #: the publisher's


class Publication(NamedTuple):
    """A publication that is under way, by its two ends."""

    version: int
    staged: Future[None]  #: then the tensors may change
    stored: Future[Receipt]  #: then subscribers can load them


def _version_of(request: _native.Request) -> tuple[WeightsVersion, dict[str, str]]:
    r = receipt_of(request)
    metadata = dict(request.metadata())
    tied = tied_of(metadata, "these weights")
    return WeightsVersion(r.step, r.version, r.size_bytes, r.stored_at_ns, metadata), tied


# A module, or a dictionary of tensors.
def _tensors_of(source: object) -> Mapping[str, object]:
    state = getattr(source, "state_dict", None)
    found = state() if callable(state) else source
    if not isinstance(found, Mapping):
        raise TypeError(
            f"tensors: a module, or a dictionary of tensors, not {type(source).__name__}"
        )
    return found


class Weights:
    """The weights of a name; made by `Client.weights`.

    Threads: any.
    """

    def __init__(self, client: Client, name: str, group: str) -> None:
        self._client = client
        self.name = text_of("name", name)
        self.group = text_of("group", group)

    def publisher(
        self,
        tensors: object,
        *,
        metadata: Mapping[str, str] | None = None,
        checksums: bool | None = None,
        timeout: float | None = None,
    ) -> Publisher:
        """Registers what is published: a module, or a dictionary of tensors.

        Args:
          metadata: kept with each version.
          checksums: ``None``: as the provider is configured.
          timeout: seconds for each publication; ``None``: the client's.

        Raises: `InvalidArgument`, `TypeError` for what is no tensor.
        """
        batch, tied = batch_of(_tensors_of(tensors), writable=False)
        pairs = pairs_of("metadata", metadata)
        if any(key == TIED for key, _ in pairs):
            raise InvalidArgument(f"metadata: {TIED} is a key of this package's own")
        if tied:
            pairs.append((TIED, json.dumps(tied)))
        native = native_of(self._client).publisher(
            self.group,
            self.name,
            batch.native(),
            pairs,
            0 if checksums is None else 1 if checksums else -1,
            milliseconds(timeout),
        )
        return Publisher(native, self.name, tensors, batch)

    def subscribe(
        self,
        tensors: object,
        *,
        apply: str = "in_place",
        on_version: Callable[[int], object] | None = None,
        timeout: float | None = None,
    ) -> Subscriber:
        """Begins to follow the weights with the tensors of a module, or of a dictionary.

        The name need not be published yet. Of what is published, tensors that are not given stay
        unread.

        Args:
          apply: ``"in_place"``: `Subscriber.wait` loads into the tensors. ``"double_buffer"``: the
            next version is loaded beside the program, into tensors that are made now, and
            `Subscriber.wait` exchanges both.
          on_version: called with the number of each version that `Subscriber.wait` can give
            without waiting for the publisher, where callbacks run; with ``"double_buffer"`` when it
            is loaded.
          timeout: seconds for each load; ``None``: the client's.

        Raises: `InvalidArgument`, `TypeError` for what is no tensor.
        """
        if apply not in ("in_place", "double_buffer"):
            raise InvalidArgument(f'apply: "in_place" or "double_buffer", not {apply!r}')
        return Subscriber(
            native_of(self._client).follow(self.group, self.name),
            self.name,
            tensors,
            apply == "double_buffer",
            on_version,
            milliseconds(timeout),
        )

    def erase(self) -> Future[None]:
        """Removes the newest publication. Subscribers keep what they have.

        Raises, by the future: `NotFound`.
        """
        return self._client.repository(self.group).erase(self.name)

    def __repr__(self) -> str:
        return f"<millrace.Weights {self.name!r}>"


class Publisher(OfProcess):
    """Publishes tensors that stay where they are; made by `Weights.publisher`.

    Threads: one at a time.
    """

    _belongs = "a publisher belongs to its process"

    def __init__(
        self, native: _native.Publisher, name: str, source: object, batch: Batch
    ) -> None:
        self._native = native
        self._name = name
        self._source = source
        self._lines = batch.lines

    def publish(self, version: int) -> Publication:
        """Publishes the tensors under a number, such as the step, whole or not at all.

        They must not change before `Publication.staged` is over. Publications are made one after
        the other; one that waits for another reads the tensors when that one has ended. A trainer
        that restarts from an older step makes a new publisher, which may begin below.

        Tensors that have moved are found where they are now. Work of the current CUDA streams is
        waited for.

        Raises: `InvalidArgument` for a number that is not above those of this publisher; `Busy`
        while one publication waits already; by the future: those of `Repository.store`.
        """
        number = checked("version", version, 0, 2**64 - 1)
        batch, _ = batch_of(_tensors_of(self._source), writable=False)
        if batch.lines != self._lines:
            self._native.rebind(batch.native())
            self._lines = batch.lines
        batch.synchronize()
        staged, stored = self._native.publish(number)
        return Publication(
            number, Future(Stage(staged, lambda _: None)), Future(Stage(stored, receipt_of))
        )

    def __repr__(self) -> str:
        return f"<millrace.Publisher {self._name!r}>"


# The tensors of one buffer.
class _Buffer:
    def __init__(self, tensors: Mapping[str, object]) -> None:
        self.tensors = dict(tensors)
        self.batch, self._tied = batch_of(self.tensors, writable=True)

    # Names may be those of tensors that were stored under the name of a tied one.
    def targets(self, tied: Mapping[str, str], name: str) -> _native.Tensors:
        for other, first in self._tied.items():
            if tied.get(other, other) != tied.get(first, first):
                raise InvalidArgument(
                    f"{name}: {first} and {other} are the same memory here, and two tensors in "
                    "the weights"
                )
        lines = [line._replace(name=tied.get(line.name, line.name)) for line in self.batch.lines]
        return _native.tensors(lines, self.batch.owners)

    def like(self) -> _Buffer:
        """Returns tensors of the same kinds in memory of their own."""
        copies: dict[str, object] = {}
        for name, tensor in self.tensors.items():
            first = self._tied.get(name, name)
            if first not in copies:
                copies[first] = _copy(first, self.tensors[first])
            copies[name] = copies[first]
        return _Buffer(copies)

    def put_into(self, module: Any) -> None:
        """Makes the parameters and buffers of a module these tensors."""
        for name, tensor in module.state_dict(keep_vars=True).items():
            tensor.data = self.tensors[name]


def _copy(name: str, tensor: Any) -> object:
    if hasattr(tensor, "data_ptr"):
        return tensor.detach().clone()
    if hasattr(tensor, "__array_interface__"):
        return tensor.copy()
    raise InvalidArgument(
        f"{name}: double_buffer takes tensors of PyTorch and arrays of NumPy, not "
        f"{type(tensor).__name__}"
    )


# The next version, and what to do with it. A question that has waited for a day is asked again.
def _next(
    follower: _native.Follower, time_ms: int, read: Callable[[_native.Request], Any]
) -> Stage[WeightsVersion]:
    def again(error: Error) -> Stage[WeightsVersion] | None:
        waits = isinstance(error, DeadlineExceeded) and time_ms == _DAY_MS
        return _next(follower, time_ms, read) if waits else None

    return Stage(follower.next(time_ms), read, again)


def _alive(me: weakref.ref[Subscriber]) -> Subscriber:
    subscriber = me()
    if subscriber is None:
        raise Cancelled("the subscriber was dropped")
    return subscriber


def _tell(me: weakref.ref[Subscriber], done: Any) -> None:
    subscriber = me()
    if subscriber is None or subscriber._on_version is None:
        return
    if not done.cancelled() and done.exception(0) is None:
        subscriber._on_version(done.result(0).version)


class Subscriber(OfProcess, Scope):
    """Follows weights with tensors of the program; made by `Weights.subscribe`.

    The end of its block closes it. No version is ever visible in part: what the program sees
    changes in `wait` and `poll` alone.

    Threads: one at a time.
    """

    _belongs = "a subscriber belongs to its process"

    def __init__(
        self,
        native: _native.Follower,
        name: str,
        source: object,
        in_buffers: bool,
        on_version: Callable[[int], object] | None,
        timeout_ms: int,
    ) -> None:
        self._native: _native.Follower | None = native
        self._name = name
        self._module = source if hasattr(source, "state_dict") else None
        self._on_version = on_version
        self._timeout_ms = timeout_ms
        self._shown = _Buffer(_tensors_of(source))
        self._back = self._shown.like() if in_buffers else None
        #: What the tensors have. ``None``: no version, or any bytes, after a load into them that
        #: has failed.
        self.info: WeightsVersion | None = None
        # A version that was told and is still to be loaded; its names of tied tensors.
        self._told: dict[str, str] | None = None
        # What goes on beside the program: of the other buffer; for `on_version`, in place.
        self._coming: Future[WeightsVersion] | None = None
        self._news: Future[WeightsVersion] | None = None
        self._go_on()

    @property
    def version(self) -> int | None:
        """The number of the version that the tensors have."""
        return None if self.info is None else self.info.version

    @property
    def tensors(self) -> dict[str, Any]:
        """The tensors that have the version. With two buffers, others after each exchange."""
        return dict(self._shown.tensors)

    def wait(self, newer_than: int | None = None, timeout: float = 60.0) -> int:
        """Waits for a version after the one that the tensors have, and returns its number.

        ``"in_place"`` loads it into the tensors, which must not be used meanwhile. After an error
        of the load they have any bytes, and `version` is ``None``. ``"double_buffer"`` exchanges
        the tensors with those that were loaded; what was visible until then is overwritten by the
        version after this one. Tensors of a module are exchanged in the module.

        Args:
          newer_than: passes over versions up to this number.
          timeout: seconds until a version is published, and with ``"double_buffer"`` loaded.

        Raises: `DeadlineExceeded`, with what keeps the subscriber from asking, if anything does;
        those of `Repository.load_into`.
        """
        if newer_than is not None:
            checked("newer_than", newer_than, 0, 2**64 - 1)
        milliseconds(timeout)
        end = time.monotonic() + timeout
        while True:
            left = max(0.001, end - time.monotonic())
            found = self._load(left) if self._back is None else self._exchange(left)
            if newer_than is None or found.version > newer_than:
                return found.version

    def poll(self) -> bool:
        """Takes the newest version, if there is one that the tensors do not have, as `wait` does.

        It waits for no publisher. Returns whether the tensors have another version now.
        """
        if self._coming is not None and not self._coming.done():
            return False
        try:
            self.wait(timeout=0.001)
        except DeadlineExceeded:
            return False
        return True

    def close(self) -> None:
        """Ends what the subscriber waits for. The tensors stay as they are."""
        self._native = None
        for future in (self._coming, self._news):
            if future is not None:
                future.cancel()
        self._coming = self._news = None

    # Futures that go on beside the program do not keep the subscriber.
    def __del__(self) -> None:
        for future in (self.__dict__.get("_coming"), self.__dict__.get("_news")):
            if future is not None:
                future._abandon()

    def _follower(self) -> _native.Follower:
        if self._native is None:
            raise Unavailable(f"the subscriber of {self._name} was closed")
        return self._native

    def _told_of(self, request: _native.Request) -> WeightsVersion:
        version, self._told = _version_of(request)
        return version

    # Begins what goes on beside the program.
    def _go_on(self) -> None:
        if self._native is None:
            return
        me = weakref.ref(self)
        if self._back is not None:
            self._coming = Future(self._filling(self._back), driven=True)
            self._coming.add_done_callback(lambda done: _tell(me, done))
        elif self._on_version is not None:
            told = _next(self._native, _DAY_MS, lambda r: _alive(me)._told_of(r))
            self._news = Future(told, driven=True)
            self._news.add_done_callback(lambda done: _tell(me, done))

    # In place: in this call, and given up with it.
    def _load(self, timeout: float) -> WeightsVersion:
        follower = self._follower()
        if self._told is None:
            self._await_told(timeout)
        if self._module is not None:
            self._shown = _Buffer(_tensors_of(self._module))
        assert self._told is not None
        targets = self._shown.targets(self._told, self._name)
        self._shown.batch.synchronize()
        before, self.info = self.info, None
        loading = Future(Stage(follower.load(targets, self._timeout_ms), _version_of))
        try:
            self.info, _ = loading.result()
            self._told = None
        except (InvalidArgument, CorruptData, NotFound) as e:
            self._told = None  # another version alone can mend that
            if isinstance(e, InvalidArgument):
                self.info = before  # refused before any byte has moved
            raise
        except BaseException:
            loading.cancel()
            raise
        finally:
            if self._told is None:
                self._go_on()
        return self.info

    def _await_told(self, timeout: float) -> None:
        news, self._news = self._news, None
        if news is None:
            told = _next(self._follower(), milliseconds(timeout), self._told_of)
            Future(told).result()
            return
        try:
            news.result(timeout)
        except TimeoutError:
            self._news = news
            raise self._late() from None

    # What is late, and why.
    def _late(self) -> DeadlineExceeded:
        why = Future(Stage(self._follower().next(1), _version_of)).exception()
        if isinstance(why, DeadlineExceeded):
            return why
        return DeadlineExceeded(f"no newer weights of {self._name} came in time")

    # Into the buffer that is not shown.
    def _filling(self, buffer: _Buffer) -> Stage[WeightsVersion]:
        me, follower = weakref.ref(self), self._follower()

        def load(self: Subscriber) -> Stage[WeightsVersion]:
            targets = buffer.targets(self._told or {}, self._name)
            return Stage(follower.load(targets, self._timeout_ms), lambda r: _version_of(r)[0])

        def read(request: _native.Request) -> Stage[WeightsVersion]:
            self = _alive(me)
            self._told_of(request)
            return load(self)

        return _next(follower, _DAY_MS, read) if self._told is None else load(self)

    def _exchange(self, timeout: float) -> WeightsVersion:
        if self._coming is None:
            self._go_on()
        assert self._coming is not None and self._back is not None
        try:
            loaded = self._coming.result(timeout)
        except TimeoutError:
            raise self._late() from None
        except Error as e:
            self._coming = None
            if isinstance(e, (InvalidArgument, CorruptData, NotFound)):
                self._told = None
            raise
        self._told = None
        self._shown, self._back = self._back, self._shown
        if self._module is not None:
            self._shown.put_into(self._module)
        self.info = loaded
        self._go_on()
        return loaded

    def _leave(self, failed: bool) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<millrace.Subscriber {self._name!r}: {self.version}>"
