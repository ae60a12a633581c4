"""Millrace: stores, loads and checkpoints tensors beside a training, without stopping it.

    import millrace as mr

    client = mr.connect()
    repo = client.repository("default")
    repo.store("resnet/run7", model.state_dict()).result()

Every operation is a `Future`: of `concurrent.futures`, and awaitable in asyncio. PyTorch and NumPy
are optional. `millrace.torch` has the checkpointer for trainers, and `millrace.data` the loader.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import _libraries, _native  # the libraries before the module that needs them
from . import data as data
from ._checkpoints import (
    Checkpointer,
    Checkpoints,
    Part,
    Restored,
    RunSummary,
    Saved,
    Shard,
    Step,
)
from ._client import Client, Job, Node, connect, embed, job, open
from ._errors import (
    AlreadyExists,
    Busy,
    Cancelled,
    CorruptData,
    DeadlineExceeded,
    Error,
    Internal,
    InvalidArgument,
    IoError,
    NoSpace,
    NotFound,
    PeerLost,
    PermissionDenied,
    ProtocolError,
    Unavailable,
    Unsupported,
    UnsupportedVersion,
)
from ._future import Future
from ._graph import Graph, Layer
from ._groups import BroadcastReceipt, Group
from ._repository import (
    Listing,
    ModelInfo,
    ModelSummary,
    Receipt,
    Repository,
    SafeOpen,
    Slice,
    TensorInfo,
)
from ._weights import Publication, Publisher, Subscriber, Weights, WeightsVersion

if TYPE_CHECKING:
    from . import hf as hf
    from . import lightning as lightning
    from . import torch
    from . import vllm as vllm

__version__: str = _native.version()
del _libraries


# They import PyTorch and others, so they are imported when they are used.
def __getattr__(name: str) -> Any:
    if name in ("hf", "lightning", "torch", "vllm"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")



__all__ = [
    "AlreadyExists",
    "BroadcastReceipt",
    "Busy",
    "Cancelled",
    "Checkpointer",
    "Checkpoints",
    "Client",
    "CorruptData",
    "DeadlineExceeded",
    "Error",
    "Future",
    "Graph",
    "Group",
    "Internal",
    "InvalidArgument",
    "IoError",
    "Job",
    "Layer",
    "Listing",
    "ModelInfo",
    "ModelSummary",
    "NoSpace",
    "Node",
    "NotFound",
    "Part",
    "PeerLost",
    "PermissionDenied",
    "ProtocolError",
    "Publication",
    "Publisher",
    "Receipt",
    "Repository",
    "Restored",
    "RunSummary",
    "SafeOpen",
    "Saved",
    "Shard",
    "Slice",
    "Step",
    "Subscriber",
    "TensorInfo",
    "Unavailable",
    "Unsupported",
    "UnsupportedVersion",
    "Weights",
    "WeightsVersion",
    "connect",
    "data",
    "embed",
    "job",
    "open",
    "torch",
]
