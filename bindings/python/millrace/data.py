"""Training data: working sets in the memory of a node, and loaders that feed a training.

    ws = client.working_set("digits").preload("train.npy")
    loader = mr.data.Loader(ws, batch_size=64, seed=7)
    for batch in loader:
        train(batch.x)

Every sample comes once in an epoch, in an order that depends on the seed and not on the number of
ranks, and a training goes on from ``loader.state_dict()`` at the very sample.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ._loader import Batch, Loader, LoaderStatus
from ._set_info import (
    PartAccess,
    SetAccess,
    SetDamage,
    SetInfo,
    SetSummary,
    SkippedFile,
    WindowCounts,
)
from ._set_reader import SampleOrder, SetReader
from ._sets import WorkingSet
from ._streams import Producer, Stream, StreamReader, StreamStatus, StreamSummary

if TYPE_CHECKING:
    from .torch._dataset import LoaderDataset

__all__ = [
    "Batch",
    "Loader",
    "LoaderStatus",
    "PartAccess",
    "Producer",
    "SampleOrder",
    "SetAccess",
    "SetDamage",
    "SetInfo",
    "SetReader",
    "SetSummary",
    "SkippedFile",
    "Stream",
    "StreamReader",
    "StreamStatus",
    "StreamSummary",
    "WindowCounts",
    "WorkingSet",
    "torch_dataset",
]


def torch_dataset(loader: Loader) -> LoaderDataset:
    """Returns an ``IterableDataset`` of PyTorch with the batches of a loader.

    For ``DataLoader(dataset, batch_size=None, num_workers=0)``: the loader makes the batches, and
    reads them ahead on threads of its own. It has ``set_epoch``, and ``state_dict`` and
    ``load_state_dict``, which torchdata's ``StatefulDataLoader`` calls. In a worker process it
    raises `InvalidArgument`.
    """
    from .torch._dataset import LoaderDataset

    return LoaderDataset(loader)
