"""Millrace for vLLM: a backend of its weight transfer, from a trainer to the workers of a server.

The trainer publishes each version once, and every worker loads it from the provider. An update is
one message with the number of the version. There is no collective operation, so a worker that is
late or lost holds up no other one.
"""

from __future__ import annotations

import functools
import inspect
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from ._client import Client, connect, milliseconds, text_of
from ._errors import DeadlineExceeded, InvalidArgument, NotFound
from ._tensors import checked, empty, number_of

if TYPE_CHECKING:
    from ._weights import Publisher, Subscriber

try:
    from vllm.distributed.weight_transfer.base import (
        TrainerInitInfo,
        TrainerWeightTransferEngine,
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
except ImportError as e:
    raise ImportError(
        f"millrace.vllm needs a vLLM with trainer engines, 0.29 or later: pip install vllm ({e})"
    ) from e

__all__ = [
    "MillraceTrainerInitInfo",
    "MillraceTrainerWeightTransferEngine",
    "MillraceWeightTransferEngine",
    "MillraceWeightTransferInitInfo",
    "MillraceWeightTransferUpdateInfo",
    "register",
]

_NUMBER_MAX = 2**64 - 1
# The description is read again this often: another version may come after it was read.
_TRIES = 8


@dataclass
class MillraceWeightTransferInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """What a worker needs to follow the weights: the ``init_info`` of vLLM's first phase."""

    address: str  #: of a node, as `millrace.connect` takes it, seen from the worker
    name: str  #: of the weights
    group: str = "default"  #: of the providers that keep them
    timeout: float = 60.0  #: seconds for each update, and for each request
    secret: str | None = None  #: the file with the cluster's secret, for ``tls://``

    def __post_init__(self) -> None:
        _check(self)


@dataclass
class MillraceTrainerInitInfo(TrainerInitInfo):  # type: ignore[misc]
    """What a trainer's ranks need. Rank 0 publishes; what the others yield is not sent."""

    backend: ClassVar[str] = "millrace"

    address: str  #: of a node, as `millrace.connect` takes it; workers get the same one
    name: str  #: of the weights
    group: str = "default"  #: of the providers that keep them
    timeout: float = 60.0  #: seconds for each publication, and for each update of a worker
    secret: str | None = None  #: the file with the cluster's secret, for ``tls://``

    def __post_init__(self) -> None:
        _check(self)


@dataclass
class MillraceWeightTransferUpdateInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """What an update tells a worker: its ``update_info``."""

    version: int  #: the worker loads this version, or a newer one

    def __post_init__(self) -> None:
        self.version = checked("version", self.version, 0, _NUMBER_MAX)


def _check(info: Any) -> None:
    for what in ("address", "name", "group"):
        if not text_of(what, getattr(info, what)):
            raise InvalidArgument(f"{what}: it is empty")
    milliseconds(info.timeout)
    if info.secret is not None:
        text_of("secret", info.secret)


def _connect(info: Any) -> Client:
    return connect(info.address, timeout=info.timeout, secret=info.secret)


class _Weights:
    """The published weights in memory of a worker, which stays from one version to the next."""

    def __init__(self, info: MillraceWeightTransferInitInfo) -> None:
        self._client = _connect(info)
        self._weights = self._client.weights(info.name, info.group)
        self._timeout = info.timeout
        self._tensors: dict[str, Any] = {}
        self._size_bytes = 0
        self._subscriber: Subscriber | None = None

    def take(self, version: int) -> list[tuple[str, Any]]:
        """Returns all tensors of the version, or of a newer one."""
        end = time.monotonic() + self._timeout
        try:
            for left in range(_TRIES, 0, -1):
                try:
                    if self._has(version, end):
                        return list(self._tensors.items())
                except (InvalidArgument, NotFound):
                    if left == 1:
                        raise
                self._forget()
        except TimeoutError as e:
            raise self._late(version, e) from e
        raise InvalidArgument(f"{self._weights.name}: each version has other tensors")

    # Whether the tensors have it now; not if the version has tensors that are not followed.
    def _has(self, version: int, end: float) -> bool:
        subscriber = self._subscriber or self._subscribe(end)
        if subscriber.version is None or subscriber.version < version:
            subscriber.wait(version - 1 if version > 0 else None, _left(end))
        assert subscriber.info is not None
        return subscriber.info.size_bytes == self._size_bytes

    # Follows with new tensors like those that are published.
    def _subscribe(self, end: float) -> Subscriber:
        name = self._weights.name
        repository = self._client.repository(self._weights.group)
        repository.newer(name, timeout=_left(end)).result()
        info = repository.describe(name).result(_left(end))
        self._size_bytes = info.size_bytes
        for key, tensor in info.tensors.items():
            self._tensors[key] = empty("pt", number_of(tensor.dtype), tensor.shape, None, False)
        for key, first in info.tied.items():
            self._tensors[key] = self._tensors[first]
        self._subscriber = self._weights.subscribe(self._tensors, timeout=self._timeout)
        return self._subscriber

    def _late(self, version: int, why: TimeoutError) -> DeadlineExceeded:
        has = None if self._subscriber is None else self._subscriber.version
        return DeadlineExceeded(
            f"version {version} of the weights {self._weights.name} did not come in "
            f"{self._timeout} s; this worker has {'none' if has is None else has} ({why})"
        )

    def _forget(self) -> None:
        if self._subscriber is not None:
            self._subscriber.close()
        self._subscriber, self._tensors = None, {}

    def close(self) -> None:
        self._forget()
        self._client.close()


def _left(end: float) -> float:
    return max(0.001, end - time.monotonic())


class MillraceWeightTransferEngine(WeightTransferEngine):  # type: ignore[misc]
    """The engine of a worker: ``WeightTransferConfig(backend="millrace")``; vLLM makes it.

    It keeps one copy of the published tensors in memory of the host, and gives all of them to the
    model's ``load_weights`` at once. They are of one version: the one that the trainer has named,
    or a newer one.

    Threads: one at a time.
    """

    init_info_cls = MillraceWeightTransferInitInfo
    update_info_cls = MillraceWeightTransferUpdateInfo
    supports_draft_weight_update = False

    def __init__(self, config: Any, vllm_config: Any, device: Any, model: Any) -> None:
        super().__init__(config, vllm_config, device, model)
        self._weights: _Weights | None = None

    def init_transfer_engine(self, init_info: MillraceWeightTransferInitInfo) -> None:
        """Connects. A trainer that has restarted calls it again.

        Raises: those of `millrace.connect`.
        """
        self.shutdown()
        self._weights = _Weights(init_info)

    def start_weight_update(self) -> None:
        """Has vLLM load layer by layer."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: MillraceWeightTransferUpdateInfo) -> None:
        """Loads the version that the update names, or a newer one, into the model.

        Raises: `DeadlineExceeded` with the version that did not come; `InvalidArgument` before
        `init_transfer_engine`; those of `Subscriber.wait`.
        """
        if self._weights is None:
            raise InvalidArgument("the engine is not connected: call init_transfer_engine first")
        self.model.load_weights(self._weights.take(update_info.version))

    def finish_weight_update(self) -> None:
        """Has vLLM finish what it loads layer by layer."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Closes the connection, and frees the copy of the weights."""
        weights, self._weights = self._weights, None
        if weights is not None:
            weights.close()


class MillraceTrainerWeightTransferEngine(TrainerWeightTransferEngine):  # type: ignore[misc]
    """The engine of a trainer: ``WeightTransferTrainerFactory.trainer_init`` makes it.

    Threads: one at a time.
    """

    init_info_cls = MillraceTrainerInitInfo

    def __init__(self, *, client: Any, source: Any = None, is_sender: bool = True) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        self._connection: Client | None = None
        self._publisher: Publisher | None = None
        self._tensors: dict[str, Any] = {}
        self._info: MillraceTrainerInitInfo | None = None
        self._version = 0

    @classmethod
    def trainer_init(
        cls, init_info: MillraceTrainerInitInfo, *, client: Any, source: Any = None
    ) -> MillraceTrainerWeightTransferEngine:
        """Connects, and has the workers connect. Every rank of the trainer calls it.

        Args:
          client: a ``VLLMWeightSyncClient`` of the server, such as ``HTTPVLLMWeightSyncClient``.
          source: a ``WeightSource``, such as ``ModuleSource(model)``.

        Raises: those of `millrace.connect`; what the client raises when a worker cannot connect.
        """
        if source is None:
            raise InvalidArgument("source: the backend millrace needs a WeightSource")
        engine = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine._info = init_info
        if engine.is_sender:
            engine._connection = _connect(init_info)
            fields = asdict(init_info)
            fields.pop("rank")
            client.init_weight_transfer_engine(asdict(MillraceWeightTransferInitInfo(**fields)))
        return engine

    def send_weights(self, version: int | None = None) -> None:
        """Publishes the weights of the source, then has the workers load them.

        The server goes on while they are published. Every rank of the trainer calls it; what a
        source yields is held until all of it is stored, and must not change meanwhile.

        Args:
          version: its number, such as the step, above those before it; ``None``: one more than
            the last one.

        Raises: those of `Publisher.publish`; what the client raises when a worker fails.
        """
        if not self.is_sender:
            for _ in self.source:  # it takes part in gathering
                pass
            return
        if version is None:
            version = self._version + 1
        self._publish(version)
        self._version = version
        self.client.start_weight_update()
        self.client.update_weights({"version": version})
        # Servers that name their weights take the name here.
        finish = self.client.finish_weight_update
        finish(*([str(version)] if inspect.signature(finish).parameters else []))

    # Over when workers can load it.
    def _publish(self, version: int) -> None:
        if self._connection is None or self._info is None:
            raise InvalidArgument("the engine is not connected: trainer_init makes it")
        self._tensors.clear()
        self._tensors.update(self.source)
        if self._publisher is None:
            weights = self._connection.weights(self._info.name, self._info.group)
            self._publisher = weights.publisher(self._tensors, timeout=self._info.timeout)
        self._publisher.publish(version).stored.result()

    def shutdown(self) -> None:
        """Closes the connection. Workers keep what they have."""
        connection, self._connection, self._publisher = self._connection, None, None
        self._tensors.clear()
        if connection is not None:
            connection.close()


@functools.cache
def register() -> None:
    """Registers both engines with vLLM as the backend ``"millrace"``.

    vLLM calls it in each process of a server, through the entry point ``vllm.general_plugins`` of
    the wheel. A trainer calls it before ``trainer_init``.
    """
    from vllm.distributed.weight_transfer import factory

    name = MillraceTrainerInitInfo.backend
    factory.WeightTransferEngineFactory.register_engine(name, MillraceWeightTransferEngine)
    factory.WeightTransferTrainerFactory.register_engine(name, MillraceTrainerWeightTransferEngine)
