"""PyTorch's distributed checkpoint: saved by two ranks, loaded by one and three."""

import dataclasses
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import millrace as mr  # noqa: E402


def import_dcp():
    """Imports it; under Python 3.11 that of PyTorch 1.13 only with hashable dataclasses."""
    original = dataclasses.dataclass

    def hashable(cls=None, /, **options):
        if cls is None:
            return lambda cls: hashable(cls, **options)
        if not options.get("frozen") and "__hash__" not in cls.__dict__:
            options["unsafe_hash"] = True
        return original(cls, **options)

    try:
        import torch.distributed.checkpoint as dcp

        return dcp
    except ImportError:
        pass
    dataclasses.dataclass = hashable
    try:
        import torch.distributed._shard.checkpoint as dcp
    finally:
        dataclasses.dataclass = original
    return dcp


try:
    dcp = import_dcp()
    import millrace.torch.dcp  # noqa: E402
except ImportError as e:
    pytest.skip(f"torch.distributed.checkpoint: {e}", allow_module_level=True)


def save(state, writer, **options):
    call = getattr(dcp, "save_state_dict", None) or dcp.save
    return call(state, storage_writer=writer, **options)


def load(state, reader, **options):
    call = getattr(dcp, "load_state_dict", None) or dcp.load
    return call(state, storage_reader=reader, **options)


def test_one_process(client, repo, name):
    state = {
        "w": torch.arange(12.0).reshape(3, 4),
        "t": torch.arange(12.0).reshape(3, 4).T,
        "h": torch.arange(5, dtype=torch.bfloat16),
        "s": torch.tensor(3),
    }
    writer = mr.torch.dcp.Writer(name, client=client)
    save(state, writer, no_dist=True)
    loaded = {key: torch.zeros_like(t) for key, t in state.items()}
    load(loaded, mr.torch.dcp.Reader(name, client=client), no_dist=True)
    for key, t in state.items():
        assert torch.equal(loaded[key], t), key
    # Again, in place of it; the models of the first save are gone.
    state["w"] += 1
    save(state, writer, no_dist=True)
    load(loaded, mr.torch.dcp.Reader(name, client=client), no_dist=True)
    assert torch.equal(loaded["w"], state["w"])
    assert len(repo.list(f"{name}/").result()) == 1


def test_items_that_are_no_tensors_need_trust(client, name):
    state = {"w": torch.ones(3), "epoch": 7, "notes": ["a", ("b", 2)]}
    save(state, mr.torch.dcp.Writer(name, client=client), no_dist=True)
    loaded = {"w": torch.zeros(3), "epoch": 0, "notes": None}
    with pytest.raises(BaseException, match="trust=True"):
        load(dict(loaded), mr.torch.dcp.Reader(name, client=client), no_dist=True)
    load(loaded, mr.torch.dcp.Reader(name, client=client, trust=True), no_dist=True)
    assert loaded["epoch"] == 7 and loaded["notes"] == ["a", ("b", 2)]
    assert torch.equal(loaded["w"], torch.ones(3))


def test_names(client, repo, name):
    with pytest.raises(BaseException, match="needs a name"):
        save({"w": torch.ones(3)}, mr.torch.dcp.Writer(client=client), no_dist=True)
    with pytest.raises(mr.NotFound):
        mr.torch.dcp.Reader("there/is/none", client=client).read_metadata()
    repo.store(name, {"a": torch.ones(3)}).result()
    with pytest.raises(mr.InvalidArgument, match="Writer"):
        mr.torch.dcp.Reader(name, client=client).read_metadata()


RANK = """
import sys
sys.path.insert(0, {tests!r})
import test_dcp
import torch
import torch.distributed as dist
from torch.distributed._shard.sharded_tensor import init_from_local_shards, Shard
import millrace as mr

action, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://{meeting}", rank=rank, world_size=world)
rows = {{2: [0, 7, 12], 1: [0, 12], 3: [0, 3, 8, 12]}}[world]
begin, end = rows[rank], rows[rank + 1]
whole = torch.arange(60.0).reshape(12, 5)
local = whole[begin:end].clone() if action == "save" else torch.zeros(end - begin, 5)
shard = Shard.from_tensor_and_offsets(local, [begin, 0], rank)
state = {{"w": init_from_local_shards([shard], 12, 5), "b": torch.ones(4) * (action == "save")}}
if action == "save":
    test_dcp.save(state, mr.torch.dcp.Writer({name!r}))
else:
    test_dcp.load(state, mr.torch.dcp.Reader({name!r}))
    assert torch.equal(local, whole[begin:end]), local
    assert torch.equal(state["b"], torch.ones(4))
print("done")
"""


def test_other_numbers_of_ranks(node, request, tmp_path, name):
    def ranks(action, world):
        source = RANK.format(
            tests=str(request.path.parent), name=name, meeting=tmp_path / f"{action}{world}"
        )
        children = [
            subprocess.Popen(
                [sys.executable, "-c", source, action, str(rank), str(world)],
                env={**os.environ, "MILLRACE_ADDRESS": node.address},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        outputs = [child.communicate(timeout=120) for child in children]
        assert [out for out, _ in outputs] == ["done\n"] * world, outputs

    ranks("save", 2)
    ranks("load", 1)
    ranks("load", 3)
