"""Where a rank is among those that train, and what it saves of the tensors it has."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from .._client import rank_and_size
from .._errors import InvalidArgument


class Place:
    """Where a rank is among those that train, and what it saves of the tensors it has."""

    def __init__(
        self,
        rank: int | None,
        world_size: int | None,
        axes: Mapping[str, tuple[int, int]] | None,
        replicas: str | None,
        parallel: bool,
    ) -> None:
        if replicas not in (None, "first", "spread", "none"):
            raise InvalidArgument(f'replicas: "first", "spread" or "none", not {replicas!r}')
        if replicas is None:
            replicas = "first" if parallel or "data" in (axes or {}) else "none"
        self.spread = replicas == "spread"
        if axes is not None:
            for axis, (place, size) in axes.items():
                if not 0 <= place < size:
                    raise InvalidArgument(f"axes: {axis} is {place} of {size}")
            self.data, self.replicas = axes.get("data", (0, 1))
            self.shard, shards = 0, 1
            for axis, (place, size) in axes.items():
                if axis != "data":
                    self.shard, shards = self.shard * size + place, shards * size
            if replicas == "none" and self.replicas > 1:
                self.shard, shards = (
                    self.shard * self.replicas + self.data,
                    shards * self.replicas,
                )
                self.data, self.replicas = 0, 1
        else:
            rank, world_size = rank_and_size(rank, world_size)
            same = replicas != "none"
            self.data, self.replicas = (rank, world_size) if same else (0, 1)
            self.shard, shards = (0, 1) if same else (rank, world_size)
        self.saves = self.spread or self.data == 0
        self.rank = self.shard * self.replicas + self.data if self.spread else self.shard
        self.world_size = shards * self.replicas if self.spread else shards

    def ranks_with_my_tensors(self) -> list[int]:
        if self.spread:
            return [self.shard * self.replicas + d for d in range(self.replicas)]
        return [self.shard]

    def part_of(self, tensors: dict[str, torch.Tensor], data: int) -> dict[str, torch.Tensor]:
        """Returns those that the replica saves: its share of the bytes, by all ranks alike."""
        if not self.spread or self.replicas == 1:
            return tensors
        filled = [0] * self.replicas
        out: dict[str, torch.Tensor] = {}
        where: dict[object, int] = {}
        for name in sorted(tensors, key=lambda n: (-tensors[n].numel(), n)):
            t = tensors[name]
            # Those that are the same memory go together.
            least = where.setdefault(
                (t.data_ptr(), t.numel()) if t.numel() else name,
                min(range(self.replicas), key=filled.__getitem__),
            )
            filled[least] += t.numel() * t.element_size() + 1
            if least == data:
                out[name] = t
        return {name: out[name] for name in tensors if name in out}
