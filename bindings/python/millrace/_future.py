"""Futures: requests of the C interface as `concurrent.futures.Future`, awaitable in asyncio.

A thread that waits in `result` waits in the library, where it does the I/O itself. Callbacks and
asyncio learn of ends by queues: each event loop has one, which it watches, and one daemon thread,
which the first callback starts, has another. No code of Python runs on a thread of the library.
"""

from __future__ import annotations

import asyncio
import atexit
import collections
import concurrent.futures
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable, Generator
from typing import Any, Generic, NoReturn, TypeVar, cast

from . import _native
from ._errors import Cancelled, Error
from ._scope import OfProcess

T = TypeVar("T")

_log = logging.getLogger("millrace")

_lazy = frozenset(("_condition", "_state", "_result", "_exception", "_waiters", "_done_callbacks"))


class Stage(Generic[T]):
    """The next request of an operation that takes several."""

    __slots__ = ("request", "read", "recover")

    def __init__(
        self,
        request: _native.Request,
        read: Callable[[_native.Request], T | Stage[T]],
        recover: Callable[[Error], Stage[T] | None] | None = None,
    ) -> None:
        self.request = request
        self.read = read
        self.recover = recover


class Future(OfProcess, concurrent.futures.Future[T]):
    """What an operation will give.

    A `concurrent.futures.Future` that can be awaited, too. ``result(timeout)`` waits without
    holding the interpreter's lock, and Ctrl-C ends the wait within a tenth of a second. It raises
    `TimeoutError` when ``timeout`` seconds are over, and the operation goes on; and a subclass of
    `millrace.Error` when the operation has failed. ``cancel()`` gives the operation up: when it
    returns, nothing reads or writes the tensors any more. Callbacks run on a thread of this
    package, or at once where the future is over.

    The tensors of the operation are kept alive until it is over, also when the future is dropped.
    """

    _belongs = "a future belongs to its process"

    # The base class is only initialised when somebody needs what it has, which most futures do
    # without: see __getattr__.
    def __init__(self, stage: Stage[T], *, driven: bool = False) -> None:
        if _kept:
            _drop_kept()
        self._stage: Stage[T] | None = stage
        self._lock = threading.Lock()
        self._outcome: tuple[T | None, BaseException | None] | None = None
        # One that takes several requests is driven on, whether or not somebody waits.
        if driven:
            self._arm()

    def __getattr__(self, name: str) -> Any:
        if name not in _lazy:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        self._arm()
        return self.__dict__[name]

    def _arm(self) -> None:
        with self._lock:
            if "_condition" in self.__dict__:
                return
            super().__init__()
            self._state = "RUNNING"
            outcome, stage = self._outcome, self._stage
        if outcome is not None:
            self._publish(outcome)
        elif stage is not None:
            try:
                _pump().add(stage.request, self._advance)
            except BaseException:
                del self._condition  # the next one tries again
                raise

    def _publish(self, outcome: tuple[T | None, BaseException | None]) -> None:
        value, error = outcome
        if isinstance(error, Cancelled):
            with self._condition:
                if self._state != "RUNNING":
                    return
                self._state = "CANCELLED_AND_NOTIFIED"
                for waiter in self._waiters:
                    waiter.add_cancelled(self)
                self._condition.notify_all()
            self._invoke_callbacks()
            return
        try:
            if error is not None:
                super().set_exception(error)
            else:
                super().set_result(cast(T, value))
        except concurrent.futures.InvalidStateError:
            pass  # another thread has published the same outcome

    # Takes the outcome of a request that is over, or begins the next one.
    def _advance(self) -> None:
        with self._lock:
            stage = self._stage
            if self._outcome is not None or stage is None or not stage.request.wait(0):
                return
            following: Stage[T] | None = None
            value: T | None = None
            error: BaseException | None = stage.request.error()
            try:
                if error is None:
                    read = stage.read(stage.request)
                    if isinstance(read, Stage):
                        following = read
                    else:
                        value = read
                elif stage.recover is not None and isinstance(error, Error):
                    following = stage.recover(error)
            except Exception as e:  # pylint: disable=broad-except
                error = e
            self._stage = following
            if following is None:
                self._outcome = value, error
            armed = "_condition" in self.__dict__
        if not armed:
            return
        if following is not None:
            try:
                _pump().add(following.request, self._advance)
            except Exception as e:  # pylint: disable=broad-except
                following.request.cancel()
                self._stage, self._outcome = None, (None, e)
                self._publish((None, e))
        else:
            self._publish(cast("tuple[T | None, BaseException | None]", self._outcome))

    def _finish(self, timeout: float | None) -> tuple[T | None, BaseException | None]:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._outcome is None:
            stage = self._stage
            if stage is not None:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if not stage.request.wait(left):
                    raise TimeoutError(f"not over after {timeout} s; the operation goes on")
            self._advance()
        return self._outcome

    def result(self, timeout: float | None = None) -> T:
        value, error = self._finish(timeout)
        if error is not None:
            try:
                raise error
            finally:
                del self, error  # the traceback refers to this frame
        return cast(T, value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        return self._finish(timeout)[1]

    def done(self) -> bool:
        if self._outcome is None:
            self._advance()
        return self._outcome is not None

    def running(self) -> bool:
        return not self.done()

    def cancelled(self) -> bool:
        return self.done() and isinstance(self._finish(0)[1], Cancelled)

    def cancel(self) -> bool:
        """Gives the operation up. Returns whether it has ended by that.

        A change may have happened all the same: that of a small model, an erase or a pin was in
        the message.
        """
        while not self.done():
            stage = self._stage
            if stage is not None:
                stage.request.cancel()
        return self.cancelled()

    def _abandon(self) -> None:
        """Gives up what runs now, without a lock: where the last user of the future ends."""
        stage = self._stage
        if stage is not None:
            stage.request.cancel()

    def set_result(self, result: T) -> NoReturn:
        raise concurrent.futures.InvalidStateError("the outcome is that of the operation")

    def set_exception(self, exception: BaseException | None) -> NoReturn:
        raise concurrent.futures.InvalidStateError("the outcome is that of the operation")

    def __await__(self) -> Generator[Any, None, T]:
        while not self.done():
            stage = self._stage
            if stage is not None:
                yield from _loop_queue().wait(stage.request, self)
        return self.result(0)

    def __repr__(self) -> str:
        if self._outcome is None:
            return "<millrace.Future: running>"
        value, error = self._outcome
        return f"<millrace.Future: {value!r}>" if error is None else f"<millrace.Future: {error!r}>"


def finished(value: T) -> Future[T]:
    """Returns a future that is over."""
    future: Future[T] = Future.__new__(Future)
    future._stage, future._lock = None, threading.Lock()
    future._outcome = value, None
    return future


def tell_progress(
    future: Future[Any], value: Callable[[], tuple[int, int]], progress: Callable[[int, int], object]
) -> None:
    """Calls ``progress`` with each new value until the future is over, where callbacks run.

    ``False`` cancels the future. A future that has failed tells nothing any more.
    """
    told: tuple[int, int] | None = None

    def look() -> bool:
        nonlocal told
        over = future.done()
        if over and future.exception(0) is not None:
            return False
        now = value()
        if now != told:
            told = now
            if progress(*now) is False:
                future.cancel()
        return not over

    _pump().watch(look)


# Which callables wait for which token, of one queue.
class _Tokens:
    def __init__(self) -> None:
        self.queue = _native.queue(0)
        self._waiting: dict[int, tuple[_native.Request, Callable[[], object]]] = {}
        self._next = 0
        self._lock = threading.Lock()

    def add(self, request: _native.Request, then: Callable[[], object]) -> None:
        with self._lock:
            self._next += 1
            token = self._next
            self._waiting[token] = request, then
        try:
            self.queue.add(request, token)
        except BaseException:
            with self._lock:
                del self._waiting[token]
            raise

    def run(self, timeout_ms: int) -> None:
        for token in self.queue.poll(timeout_ms):
            with self._lock:
                waiting = self._waiting.pop(token)
            try:
                waiting[1]()
            except BaseException:  # pylint: disable=broad-except
                _log.exception("a callback has failed")
            # Not under the lock: what it held last may end here.
            del waiting


class _Pump(_Tokens):
    """Runs callbacks, on a thread of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._ending = False
        self._looks: list[Callable[[], bool]] = []
        self._thread = threading.Thread(target=self._serve, name="millrace", daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while not self._ending:
            self.run(100)
            if _kept:
                _drop_kept()
            if self._looks:
                self._look()

    def watch(self, look: Callable[[], bool]) -> None:
        """Calls ``look`` ten times a second, or more often, until it returns False."""
        self._looks.append(look)

    def _look(self) -> None:
        for look in self._looks.copy():
            goes_on = False
            try:
                goes_on = look()
            except BaseException:  # pylint: disable=broad-except
                _log.exception("a callback has failed")
            if not goes_on:
                self._looks.remove(look)

    def end(self) -> None:
        self._ending = True
        if self._thread is not threading.current_thread():
            self._thread.join()


class _LoopQueue(_Tokens):
    """Wakes the tasks of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = weakref.ref(loop)
        loop.add_reader(self.queue.fileno(), self.run, 0)

    def wait(self, request: _native.Request, future: Future[Any]) -> Generator[Any, None, None]:
        loop = self._loop()
        assert loop is not None
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        self.add(request, wake)
        try:
            yield from waiter.__await__()
        except asyncio.CancelledError:
            future.cancel()
            raise


_making = threading.Lock()
_the_pump: _Pump | None = None
_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopQueue] = (
    weakref.WeakKeyDictionary()
)


def _pump() -> _Pump:
    global _the_pump
    with _making:
        if _the_pump is None:
            _the_pump = _Pump()
        return _the_pump


def _loop_queue() -> _LoopQueue:
    loop = asyncio.get_running_loop()
    found = _loops.get(loop)
    if found is None:
        found = _loops[loop] = _LoopQueue(loop)
    return found


# The operations whose futures were dropped, which keep their tensors.
_kept: collections.deque[_native.Request] = collections.deque()


# Called wherever the last reference to a request goes, so it waits for no lock: this thread, or one
# that waits for it, may have any.
def _keep(request: _native.Request) -> None:
    global _the_pump
    _kept.append(request)
    if _the_pump is None and _making.acquire(blocking=False):
        try:
            if _the_pump is None:
                _the_pump = _Pump()
        finally:
            _making.release()


def _drop_kept() -> None:
    for _ in range(len(_kept)):
        try:
            request = _kept.popleft()
        except IndexError:
            return
        if not request.wait(0):
            _kept.append(request)


def _forget_parent() -> None:
    global _the_pump, _loops, _making
    _making = threading.Lock()
    _kept.clear()
    _the_pump = None
    _loops = weakref.WeakKeyDictionary()


def _finish() -> None:
    # What reads or writes tensors ends before they do; each operation has a deadline.
    try:
        for request in _native.open_requests():
            request.wait(None)
    finally:
        _native.set_keeper(None)
        if _the_pump is not None:
            _the_pump.end()
        _native.set_ending()


_native.set_keeper(_keep)
os.register_at_fork(after_in_child=_forget_parent)
atexit.register(_finish)
