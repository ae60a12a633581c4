"""Groups of processes on one host that broadcast tensors to each other."""

from __future__ import annotations

from typing import NamedTuple

from . import _native
from ._client import Client, milliseconds, native_of, rank_and_size, text_of
from ._errors import Unavailable
from ._future import Future, Stage
from ._repository import receipt_of
from ._scope import OfProcess, Scope
from ._tensors import batch_of, checked, tensors_of


class BroadcastReceipt(NamedTuple):
    """What a broadcast was."""

    number: int  #: in its epoch, from 0 on
    size_bytes: int  #: of all tensors


def _receipt_of(request: _native.Request) -> BroadcastReceipt:
    receipt = receipt_of(request)
    return BroadcastReceipt(receipt.version, receipt.size_bytes)


class Group(OfProcess, Scope):
    """The membership of this process in a group; made by `Client.group`.

    All members call `broadcast` equally often and in the same order. When one has gone, broadcasts
    fail with `PeerLost` naming it, until all others have called `renew`: then they go on without
    it, or with a process that has its rank and waits to join. The end of a block leaves the group.

    Threads: any. Calls of several threads are broadcasts in the order of the calls.
    """

    _belongs = "a group belongs to its process: join it in the other one"

    def __init__(self, native: _native.Group, name: str, rank: int) -> None:
        self._handle: _native.Group | None = native
        self.name = name
        self.rank = rank

    @property
    def _native(self) -> _native.Group:
        if self._handle is None:
            raise Unavailable(f"this process has left the group {self.name}")
        return self._handle

    @property
    def epoch(self) -> int:
        """The number of the epoch, from 1 on. In an epoch the members do not change."""
        return self._native.epoch()

    @property
    def ranks(self) -> list[int]:
        """The ranks of the epoch's members."""
        return self._native.ranks()

    def broadcast(
        self, tensors: object, root: int = 0, *, timeout: float | None = None
    ) -> Future[BroadcastReceipt]:
        """Gives the tensors of the rank ``root`` to all other members, into their tensors.

        The future is over at the root when its tensors may be changed, elsewhere when all bytes are
        in the tensors. Tensors lie on the host, and have the same bytes in all at each member; tied
        ones count once, and names are not compared.

        A member whose broadcast has failed, or was cancelled, may go on with the next one. When the
        root gives one up, it fails everywhere.

        Args:
          tensors: a module, or a dictionary of tensors.
          root: a rank.
          timeout: seconds; ``None``: the client's.

        Raises, by the future: `InvalidArgument` for another size than the root's, and for two roots;
        `DeadlineExceeded` naming the ranks that did not come; `PeerLost` naming the rank that has
        gone; `Unavailable` when the node is gone: join again; `Cancelled` when the root gave up;
        `Unsupported` for tensors on a GPU.
        """
        number = checked("root", root, 0, 2**32 - 1)
        batch, _ = batch_of(tensors_of(tensors), writable=number != self.rank)
        request = self._native.broadcast(batch.native(), number, milliseconds(timeout))
        return Future(Stage(request, _receipt_of))

    def renew(self, *, timeout: float | None = None) -> Future[None]:
        """Goes on in a new epoch with all members that are left, and those that wait to join.

        All of them call it; until then it waits. Broadcasts of this member that are under way are
        cancelled.

        Raises, by the future: `DeadlineExceeded` naming who has not called it; `Unavailable`.
        """
        return Future(Stage(self._native.renew(milliseconds(timeout)), lambda _: None))

    def close(self) -> None:
        """Leaves the group: for the others the epoch is over."""
        self._handle = None

    def _leave(self, failed: bool) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<millrace.Group {self.name!r}, rank {self.rank}>"


def join_group(
    client: Client,
    name: str,
    rank: int | None,
    world_size: int | None,
    node: str | None,
    who: str | None,
    timeout: float | None,
) -> Future[Group]:
    """As `Client.group`."""
    mine, size = rank_and_size(rank, world_size)
    checked("rank", mine, 0, 2**32 - 1)
    checked("world_size", size, 1, 2**32 - 1)
    request = native_of(client).join_group(
        text_of("name", name),
        mine,
        size,
        None if node is None else text_of("node", node),
        None if who is None else text_of("who", who),
        milliseconds(timeout),
    )
    return Future(Stage(request, lambda joined: Group(joined.group(), name, mine)))
