"""The batches of a loader as a dataset of PyTorch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import torch.utils.data
from torch.utils.data._utils.collate import default_collate_fn_map

from .._errors import InvalidArgument
from .._loader import Batch, Loader


def _refuse(batches: object, *, collate_fn_map: object = None) -> NoReturn:
    raise InvalidArgument(
        "a loader gives whole batches: give DataLoader batch_size=None, and the size to the loader"
    )


# PyTorch's documentation of `default_collate` has it so.
default_collate_fn_map[Batch] = _refuse


class LoaderDataset(torch.utils.data.IterableDataset[Batch]):
    """Made by `millrace.data.torch_dataset`."""

    def __init__(self, loader: Loader) -> None:
        super().__init__()
        self.loader = loader

    def __iter__(self) -> Iterator[Batch]:
        data: Any = torch.utils.data
        if data.get_worker_info() is not None:
            raise InvalidArgument(
                "a loader belongs to the process that made it: give DataLoader num_workers=0; the "
                "batches are read ahead without workers"
            )
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.loader.load_state_dict(state_dict)
