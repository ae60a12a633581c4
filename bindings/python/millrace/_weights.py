"""Weights by version: a trainer publishes them, evaluators and replicas follow."""

from __future__ import annotations

import json
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from . import _native
from ._client import Client, milliseconds, native_of, pairs_of, text_of
from ._errors import (
    Cancelled,
    CorruptData,
    DeadlineExceeded,
    Error,
    InvalidArgument,
    NotFound,
    PeerLost,
    Unavailable,
)
from ._future import Future, Stage
from ._repository import TIED, Receipt, receipt_of, tied_of
from ._scope import OfProcess, Scope
from ._tensors import Batch, batch_of, checked, tensors_of

T = TypeVar("T")

# A question for news that waits longer than any program is asked again.
_DAY_MS = 86_400_000
_PAUSE = 0.1  # seconds, before a load of a provider that is away is tried again


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


# A version, and its names of tied tensors.
_Told = tuple[WeightsVersion, dict[str, str]]


def _version_of(request: _native.Request) -> _Told:
    r = receipt_of(request)
    metadata = dict(request.metadata())
    tied = tied_of(metadata, "these weights")
    return WeightsVersion(r.step, r.version, r.size_bytes, r.stored_at_ns, metadata), tied


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
        batch, tied = batch_of(tensors_of(tensors), writable=False)
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
            is loaded. After an error it is called again when `Subscriber.wait` was called.
          timeout: seconds for each load; ``None``: the client's.

        Raises: `InvalidArgument`, `TypeError` for what is no tensor.
        """
        if apply not in ("in_place", "double_buffer"):
            raise InvalidArgument(f'apply: "in_place" or "double_buffer", not {apply!r}')
        if on_version is not None and not callable(on_version):
            raise TypeError(f"on_version: a function, not {type(on_version).__name__}")
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
        batch, _ = batch_of(tensors_of(self._source), writable=False)
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

    def synchronize(self) -> None:
        """Waits for what the current CUDA streams do with the tensors now."""
        for device in self.batch.streams:
            sys.modules["torch"].cuda.current_stream(device).synchronize()

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


def _is_old(version: WeightsVersion, newer_than: int | None) -> bool:
    return newer_than is not None and version.version <= newer_than


# Of two publications, whose numbers say nothing if they are of two publishers.
def _is_later(one: WeightsVersion, other: WeightsVersion) -> bool:
    return one.stored_at_ns > other.stored_at_ns


# The next version, and what to do with it. A question that has waited for a day is asked again.
def _next(
    follower: _native.Follower, time_ms: int, read: Callable[[_native.Request], T | Stage[T]]
) -> Stage[T]:
    def again(error: Error) -> Stage[T] | None:
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

    Threads: one at a time; another one may close it.
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
        self._dictionary = source if isinstance(source, dict) else None
        self._on_version = on_version
        self._timeout_ms = timeout_ms
        self._shown = _Buffer(tensors_of(source))
        self._back = self._shown.like() if in_buffers else None
        #: What the tensors have. ``None``: no version, or any bytes, after a load into them that
        #: has failed.
        self.info: WeightsVersion | None = None
        # A version that was told and is still to be loaded; one that was told beside a load.
        self._told: _Told | None = None
        self._more: _Told | None = None
        self._failed: Error | None = None  # the last load, which a newer version alone can mend
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
        """The tensors that have the version. With two buffers, others after each exchange.

        Keep no references to them beyond the next exchange: the version after that is loaded there.
        """
        return dict(self._shown.tensors)

    def wait(self, newer_than: int | None = None, timeout: float | None = None) -> int:
        """Waits for a version after the one that the tensors have, and returns its number.

        ``"in_place"`` loads it into the tensors, which must not be used meanwhile. After an error
        of the load they have any bytes, and `version` is ``None``. ``"double_buffer"`` exchanges
        the tensors with those that were loaded, in the module or the dictionary that was given;
        what was visible until then is overwritten by the version after this one.

        While a provider is away, it waits.

        Args:
          newer_than: passes over versions up to this number, without loading them in place.
          timeout: seconds until a version is published, and with ``"double_buffer"`` loaded;
            ``None``: 60.

        Raises: `DeadlineExceeded`, with what keeps the subscriber from asking, or why the version
        before cannot be loaded; those of `Repository.load_into`; `Unavailable` when it was closed.
        """
        if newer_than is not None:
            checked("newer_than", newer_than, 0, 2**64 - 1)
        timeout = 60.0 if timeout is None else timeout
        milliseconds(timeout)
        end = time.monotonic() + timeout
        while True:
            try:
                left = max(0.001, end - time.monotonic())
                take = self._await_and_load if self._back is None else self._exchange
                if (found := take(left, newer_than)) is not None:
                    return found.version
                if time.monotonic() >= end:
                    raise self._late()
            except (PeerLost, Unavailable):
                if self._native is None or time.monotonic() >= end:
                    raise
                time.sleep(min(_PAUSE, max(0.0, end - time.monotonic())))

    def poll(self) -> bool:
        """Takes the newest version, if there is one that the tensors do not have, as `wait` does.

        It waits for no publisher. Returns whether the tensors have another version now. A version
        that cannot be loaded is an error once.

        Raises: those of `Repository.load_into`; `Unavailable` when it was closed.
        """
        if self._back is not None:
            return self._filled().done() and self._exchange(0, None) is not None
        if self._told is None:
            try:
                self._await_told(0.001)
            except DeadlineExceeded:
                return False
        self._load()
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
        self._told = _version_of(request)
        return self._told[0]

    # Begins what goes on beside the program. What cannot begin is raised by the next `wait`.
    def _go_on(self) -> None:
        if self._native is None:
            return
        try:
            if self._back is not None:
                self._filled()
            elif self._on_version is not None and self._news is None:
                me = weakref.ref(self)
                told = _next(self._native, _DAY_MS, lambda r: _alive(me)._told_of(r))
                self._news = Future(told, driven=True)
                self._news.add_done_callback(lambda done: _tell(me, done))
        except Error:
            pass

    # A version that is passed over is kept for a call that takes it.
    def _await_and_load(self, timeout: float, newer_than: int | None) -> WeightsVersion | None:
        if self._told is None or _is_old(self._told[0], newer_than):
            self._await_told(timeout)
        if self._told is None or _is_old(self._told[0], newer_than):
            return None
        loaded = self._load()
        return None if _is_old(loaded, newer_than) else loaded

    # In place: in this call, and given up with it. Nothing may keep the future but this frame: an
    # exception keeps the frame.
    def _load(self) -> WeightsVersion:
        follower = self._follower()
        if self._module is not None:
            self._shown = _Buffer(tensors_of(self._module))
        targets = self._shown.targets(self._told[1] if self._told else {}, self._name)
        self._shown.synchronize()
        self.info = None
        loading: Future[_Told] | None = None
        try:
            loading = Future(Stage(follower.load(targets, self._timeout_ms), _version_of))
            self.info, _ = loading.result()
            self._told = self._failed = None
        except (InvalidArgument, CorruptData, NotFound) as e:
            self._told, self._failed = None, e.with_traceback(None)
            raise
        except BaseException:
            if loading is not None:
                loading.cancel()
            raise
        finally:
            if self._told is None:
                if self._news is not None and self._news.done():
                    self._news = None
                self._go_on()
            del loading, follower, targets
        return self.info

    # What is told and not loaded yet is kept, whatever interrupts the wait.
    def _await_told(self, timeout: float) -> None:
        news, goes_on = self._news, self._news is not None
        try:
            if news is None:
                told = _next(self._follower(), milliseconds(timeout), self._told_of)
                self._news = news = Future(told)
                del told
            news.result(timeout if goes_on else None)
            self._news = None
        except Error as e:
            self._news = None
            if isinstance(e, DeadlineExceeded):
                raise self._because(e) from None
            raise
        except TimeoutError:
            raise self._late() from None
        except BaseException:
            if not goes_on and news is not None:
                news.cancel()
                self._news = None
            raise
        finally:
            del news

    # What is late, and why. A version that is told meanwhile is not lost.
    def _late(self) -> DeadlineExceeded:
        asked = Future(Stage(self._follower().next(1), _version_of))
        why = asked.exception()
        if why is None:
            self._more = asked.result()
        if not isinstance(why, DeadlineExceeded):
            why = DeadlineExceeded(f"no newer weights of {self._name} were loaded in time")
        try:
            return self._because(why.with_traceback(None))
        finally:
            del asked, why

    def _because(self, late: DeadlineExceeded) -> DeadlineExceeded:
        if self._failed is None:
            return late
        return DeadlineExceeded(f"{late}; the version before cannot be loaded: {self._failed}")

    # Into the buffer that is not shown.
    def _filling(self, buffer: _Buffer) -> Stage[WeightsVersion]:
        me, follower = weakref.ref(self), self._follower()

        def load(self: Subscriber) -> Stage[WeightsVersion]:
            targets = buffer.targets(self._told[1] if self._told else {}, self._name)
            return Stage(follower.load(targets, self._timeout_ms), lambda r: _version_of(r)[0])

        def read(request: _native.Request) -> Stage[WeightsVersion]:
            self = _alive(me)
            self._told_of(request)
            return load(self)

        return _next(follower, _DAY_MS, read) if self._told is None else load(self)

    # The future of the other buffer. It is begun where none is under way.
    def _filled(self) -> Future[WeightsVersion]:
        self._follower()
        if self._coming is None:
            assert self._back is not None
            me = weakref.ref(self)
            self._back.synchronize()  # the program may still read what was visible
            self._coming = Future(self._filling(self._back), driven=True)
            self._coming.add_done_callback(lambda done: _tell(me, done))
        return self._coming

    # Returns None if the version is passed over; it stays in its buffer until there is a newer one.
    def _exchange(self, timeout: float, newer_than: int | None) -> WeightsVersion | None:
        coming = self._filled()
        try:
            loaded = coming.result(timeout)
        except Error as e:
            self._coming = None
            if isinstance(e, (InvalidArgument, CorruptData, NotFound)):
                self._failed = e.with_traceback(None)
                self._told, self._more = self._more, None
            raise
        except TimeoutError:
            raise self._late() from None
        finally:
            del coming
        more = self._more if self._more and _is_later(self._more[0], loaded) else None
        if loaded == self.info:  # a version that came beside another call was loaded already
            self._told, self._coming, self._more = more, None, None
            return None
        if _is_old(loaded, newer_than):
            if more is None:
                asked = _next(self._follower(), milliseconds(timeout), _version_of)
                more = Future(asked).result()
            self._told = more
            self._coming = self._more = None
            return None
        assert self._back is not None
        self._coming = self._more = self._failed = None
        self._told = more
        self._shown, self._back = self._back, self._shown
        self.info = loaded
        if self._dictionary is not None:
            self._dictionary.update(self._shown.tensors)
        if self._module is not None:
            self._shown.put_into(self._module)
        self._go_on()
        return loaded

    def _leave(self, failed: bool) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<millrace.Subscriber {self._name!r}: {self.version}>"
