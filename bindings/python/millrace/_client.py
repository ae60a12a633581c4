"""Clients and nodes."""

from __future__ import annotations

import numbers
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from . import _native
from ._errors import InvalidArgument, NotFound, Unavailable
from ._future import Future, Stage
from ._scope import OfProcess, Scope
from ._tensors import checked

if TYPE_CHECKING:
    from ._checkpoints import Checkpoints
    from ._groups import Group
    from ._repository import Listing, Repository
    from ._sets import WorkingSet
    from ._streams import Stream
    from ._weights import Weights


def milliseconds(seconds: float | None, what: str = "timeout") -> int:
    """0, for None, is the client's timeout."""
    if seconds is None:
        return 0
    if not isinstance(seconds, numbers.Real) or isinstance(seconds, bool):
        raise TypeError(f"{what}: seconds, not {type(seconds).__name__}")
    if not 0 < seconds <= 86_400:
        raise InvalidArgument(f"{what}: {seconds} s is not more than 0 and at most a day")
    return max(1, round(seconds * 1000))


def text_of(what: str, value: object) -> str:
    """Returns a string, or raises TypeError naming the argument."""
    if not isinstance(value, str):
        raise TypeError(f"{what}: a str, not {type(value).__name__}")
    return value


def pairs_of(what: str, value: Mapping[str, str] | None) -> list[tuple[str, str]]:
    """Returns the pairs of a dictionary of strings."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise TypeError(f"{what}: a dictionary of strings, not {type(value).__name__}")
    return [(text_of(f"{what}: a key", k), text_of(f"{what}[{k!r}]", v)) for k, v in value.items()]


def native_of(client: Client) -> _native.Client:
    """Returns what a client stands on."""
    if not isinstance(client, Client):
        raise TypeError(f"client: a millrace.Client, not {type(client).__name__}")
    return client._native


class Client(OfProcess, Scope):
    """A connection to the nodes of a service; made by `connect`, `open` and `Node.client`.

    All methods may be called from any thread. A client that has lost its service connects again by
    itself. It can be used as a context manager.
    """

    _belongs = "a client belongs to its process: connect in the other one"

    def __init__(self, native: _native.Client) -> None:
        self._handle: _native.Client | None = native

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

    def working_set(self, name: str) -> WorkingSet:
        """Returns the working set of a name, which need not exist."""
        from ._sets import WorkingSet

        return WorkingSet(self, name)

    def working_sets(self, prefix: str = "") -> Future[Listing]:
        """Lists the working sets whose names start with ``prefix``, as `data.SetSummary`."""
        from ._sets import list_sets

        return list_sets(self, prefix)

    def stream(self, name: str) -> Stream:
        """Returns the streaming set of a name, which need not exist."""
        from ._streams import Stream

        return Stream(self, name)

    def streams(self, prefix: str = "") -> Future[Listing]:
        """Lists the streams whose names start with ``prefix``, as `data.StreamSummary`."""
        from ._streams import list_streams

        return list_streams(self, prefix)

    def weights(self, name: str, group: str = "default") -> Weights:
        """Returns the weights of a name, which need not be published yet.

        ``group``: the providers that keep them.
        """
        from ._weights import Weights

        return Weights(self, name, group)

    def group(
        self,
        name: str,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        node: str | None = None,
        who: str | None = None,
        timeout: float | None = None,
    ) -> Future[Group]:
        """Joins a group of processes on one host that broadcast tensors to each other.

        The future gives the group when all of its members have joined.

        Args:
          rank, world_size: of this process; ``None``: what `torch.distributed` or the launcher says.
          node: that keeps the group, on the host of all members; ``None``: that of the client.
          who: how errors call this member; ``None``: its process number.
          timeout: seconds; ``None``: the client's.

        Raises, by the future: `InvalidArgument` for another size than that of the others;
        `AlreadyExists` naming the process that has the rank; `PermissionDenied` for a group of
        another user; `DeadlineExceeded` naming the ranks that did not come; `Busy` when groups have
        all of ``groups.memory``; `Unsupported` for a node on another host.
        """
        from ._groups import join_group

        return join_group(self, name, rank, world_size, node, who, timeout)

    def close(self) -> None:
        """Releases the client. What is in flight goes on, or ends with `Cancelled`."""
        self._handle = None

    def _leave(self, failed: bool) -> None:
        self.close()


class Node(OfProcess, Scope):
    """A node that runs in this process; made by `embed`."""

    _belongs = "a node belongs to its process: give others its address"

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

    def _leave(self, failed: bool) -> None:
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

    if isinstance(trust_users, str):
        raise TypeError("trust_users: a list of names, not a str")
    if str(address).startswith("tls:") and secret is None and certificate is None:
        raise InvalidArgument(
            f"{address}: needs secret=, the file with the cluster's secret, or certificate=, key= "
            "and authority="
        )
    request = _native.connect(
        text(address),
        text(secret),
        milliseconds(timeout),
        milliseconds(connect_timeout, "connect_timeout"),
        checked("staging_bytes", staging_bytes, 0, 2**63 - 1),
        text(certificate),
        text(key),
        text(authority),
        list(trust_users),
    )
    return Future(Stage(request, lambda r: Client(r.client()))).result()


def default_client(client: Client | None, timeout: float | None = None) -> Client:
    """Returns the client, or connects as `connect` does without an address."""
    return client if client is not None else connect(timeout=timeout)


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


def distributed() -> Any:
    """Returns `torch.distributed` where the program has initialised it, else None."""
    module: Any = sys.modules.get("torch.distributed")
    return module if module and module.is_available() and module.is_initialized() else None


def rank_and_size(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Returns both, or where they are None those of this process: see `distributed` and `job`."""
    if rank is not None and world_size is not None:
        return rank, world_size
    if rank is not None or world_size is not None:
        raise InvalidArgument("rank and world_size: give both, or none")
    if (connected := distributed()) is not None:
        return connected.get_rank(), connected.get_world_size()
    started = job()
    return (max(0, started.rank), max(1, started.world_size)) if started else (0, 1)
