"""Runs as they are restored: their steps, ranks and extra bytes."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from .._checkpoints import Checkpoints, Restored, Shard
from .._client import distributed
from .._errors import InvalidArgument, NotFound
from .._future import Future
from .._tensors import empty, number_of


class Run(NamedTuple):
    """A run that is restored, of this job or another one."""

    checkpoints: Checkpoints
    name: str

    def agreed(self, step: int | None) -> int | None:
        """Returns the step that is asked for, or the newest one; None: there is none.

        A save of the run before may still come to its end, so ranks that are connected take the
        newest step that all have seen.
        """
        try:
            steps = self.checkpoints.steps(self.name).result()
        except NotFound:
            steps = []
        if step is None:
            # Of a run that has gone back, the step that was saved last.
            chosen = max(steps, key=lambda s: s.saved_at_ns).step if steps else -1
        else:
            chosen = step if any(s.step == step for s in steps) else -1
        least, most, asked = _of_all_ranks(chosen, step is not None)
        if asked and (least != most or step is None):
            raise InvalidArgument(f"{self.name}: the ranks ask for different steps, or not all have it")
        if step is not None and least < 0:
            known = ", ".join(str(s.step) for s in steps) or "none"
            raise NotFound(f"{self.name}: step {step} is not there; there are: {known}")
        return least if least >= 0 else None

    def ranks(self) -> list[int]:
        """Returns all ranks that the run had."""
        found = [r for r in self.checkpoints.runs(self.name).result() if r.name == self.name]
        if not found:
            raise NotFound(f"{self.name}: there is no such run")
        return list(range(max(r.world_size for r in found)))

    def shards(self, ranks: list[int]) -> dict[int, Shard]:
        """Returns what these ranks have registered."""
        found = {rank: self.checkpoints.describe(self.name, rank) for rank in ranks}
        return {rank: shard.result() for rank, shard in found.items()}

    def extra(self, rank: int, shard: Shard, step: int) -> Future[Restored]:
        """Loads the extra bytes of a rank's version, with the smallest of its tensors."""
        name, info = min(shard.tensors.items(), key=lambda t: math.prod(t[1].shape))
        into = empty("pt", number_of(info.dtype), info.shape, None, False)
        return self.checkpoints.load_into(self.name, {name: into}, rank=rank, step=step)


# The least and the greatest number that ranks have, and whether any of them asks for it.
def _of_all_ranks(number: int, asked: bool) -> tuple[int, int, bool]:
    connected = distributed()
    if connected is None:
        return number, number, asked
    on_gpu = connected.get_backend() == "nccl"
    seen = torch.tensor([number, -number, -int(asked)], device="cuda" if on_gpu else "cpu")
    connected.all_reduce(seen, op=connected.ReduceOp.MIN)
    least, most, asks = (int(n) for n in seen)
    return least, -most, asks < 0
