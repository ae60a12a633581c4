"""Clients and nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from . import _native
from ._errors import NotFound, Unavailable
from ._future import Future, Stage

if TYPE_CHECKING:
    from types import TracebackType

    from ._checkpoints import Checkpoints
    from ._repository import Repository


def milliseconds(seconds: float | None) -> int:
    """0, for None, is the client's timeout."""
    return 0 if seconds is None else max(1, round(seconds * 1000))


class Client:
    """A connection to the nodes of a service; made by `connect`, `open` and `Node.client`.

    All methods may be called from any thread. A client that has lost its service connects again by
    itself. It can be used as a context manager.
    """

    def __init__(self, native: _native.Client) -> None:
        self._handle: _native.Client | None = native
        self._process = os.getpid()

    @property
    def _native(self) -> _native.Client:
        if self._handle is None:
            raise Unavailable("this client was closed")
        return self._handle

    def repository(self, group: str = "default") -> Repository:
        """Returns the models that the providers of a group keep."""
        from ._repository import Repository

        return Repository(self, group)

    def checkpoints(self, group: str | None = None) -> Checkpoints:
        """Returns the runs that providers keep; ``None``: those of any group."""
        from ._checkpoints import Checkpoints

        return Checkpoints(self, group)

    def close(self) -> None:
        """Releases the client. What is in flight goes on, or ends with `Cancelled`."""
        self._handle = None

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Node:
    """A node that runs in this process; made by `embed`."""

    def __init__(self, native: _native.Node) -> None:
        self._native = native

    @property
    def address(self) -> str:
        """Where clients on this host reach it."""
        return self._native.address()

    def client(self) -> Client:
        """Makes a client that asks this node's providers directly."""
        return Client(self._native.client())

    def stop(self) -> Future[None]:
        """Lets running operations finish, and closes. The future is over when all is closed."""
        return Future(Stage(self._native.stop(), lambda request: None))

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop().result()


def connect(
    address: str | os.PathLike[str] | None = None,
    *,
    timeout: float | None = None,
    connect_timeout: float | None = None,
    secret: str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    authority: str | os.PathLike[str] | None = None,
    trust_users: Sequence[str] = (),
    staging_bytes: int = 0,
) -> Client:
    """Connects to a node, and learns from it where the others are.

    Args:
      address: ``"unix:/PATH"`` or ``"tls://HOST:PORT"``; ``None``: ``MILLRACE_ADDRESS`` of the
        environment, or else the address of a service without configuration.
      timeout: seconds for each request that has none of its own; ``None``: 60.
      connect_timeout: seconds to wait for a node that is silent or starts; ``None``: 5.
      secret: the file with the cluster's secret, for ``tls://``.
      certificate, key, authority: PEM files, instead of the secret.
      trust_users: users of this host whose services may be used, besides one's own and root's.
      staging_bytes: for snapshots of stores; 0: 64 MiB.

    Raises: `Unavailable` where nothing listens, `PermissionDenied`, `UnsupportedVersion`.
    """

    def text(path: str | os.PathLike[str] | None) -> str | None:
        return None if path is None else os.fspath(path)

    request = _native.connect(
        text(address),
        text(secret),
        milliseconds(timeout),
        milliseconds(connect_timeout),
        staging_bytes,
        text(certificate),
        text(key),
        text(authority),
        list(trust_users),
    )
    return Future(Stage(request, lambda r: Client(r.client()))).result()


def open(config: str | os.PathLike[str]) -> Client:  # pylint: disable=redefined-builtin
    """Makes a client of all nodes of a configuration file. It connects when first needed."""
    return Client(_native.open(os.fspath(config)))


def embed(config: str | os.PathLike[str], name: str | None = None) -> Node:
    """Starts a node in this process, and waits until it serves.

    ``name`` picks one of several nodes in the file; ``None``: the host decides.
    """
    request = _native.embed(os.fspath(config), name)
    return Future(Stage(request, lambda r: Node(r.node()))).result()


class Job(NamedTuple):
    """What the launcher says of this process; -1 where it does not say."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    restart_count: int
    life: int
    launcher: str
    run_id: str


def job() -> Job | None:
    """Reads rank, world size and life from what torchrun, mpirun or srun have set.

    ``None``: none of them has started this process.
    """
    try:
        return Job(*_native.job())
    except NotFound:
        return None
