"""Checkpoints of arrays: saved, restored, listed; and saves that fail."""

import numpy as np
import pytest

import millrace as mr
from conftest import fail_a_save


@pytest.fixture
def arrays():
    return {"u": np.arange(1000, dtype="float64"), "v": np.zeros((20, 30), "float32")}


def test_saves_and_restores(client, name, arrays):
    with mr.Checkpointer(arrays, name, client=client, keep=3) as ck:
        for step in range(1, 4):
            ck.fence()
            arrays["v"][:] = step
            saved = ck.save(step, extra=f"step {step}".encode())
            saved.staged.result(60)
            receipt = saved.durable.result(60)
            assert receipt.step == step and receipt.complete
        arrays["v"][:] = 99
        restored = ck.restore()
        assert restored == (3, b"step 3") and (arrays["v"] == 3).all()
        assert ck.restore(2).extra == b"step 2" and (arrays["v"] == 2).all()
        with pytest.raises(mr.NotFound, match="7"):
            ck.restore(7)
    runs = client.checkpoints()
    (run,) = [r for r in runs.runs(name).result() if r.name == name]
    assert run.newest_step == 3 and run.world_size == 1 and not run.in_use
    assert [s.step for s in runs.steps(name).result()] == [1, 2, 3]
    assert runs.newer(name, 2, timeout=60).result() == 3
    into = {"u": np.zeros(1000), "v": np.zeros((20, 30), "float32")}
    loaded = runs.load_into(name, into, rank=0).result()
    assert loaded.step == 3 and loaded.extra == b"step 3" and (into["v"] == 3).all()
    runs.erase(name, 1).result()
    assert [s.step for s in runs.steps(name).result()] == [2, 3]
    runs.erase(name).result()
    with pytest.raises(mr.NotFound):
        runs.steps(name).result()


def test_snapshots(client, name, arrays):
    with mr.Checkpointer(arrays, name, client=client) as ck:
        arrays["v"][:] = 5
        saved = ck.save(1, snapshot=True)
        saved.staged.result(60)
        arrays["v"][:] = 6
        saved.durable.result(60)
        ck.restore()
        assert (arrays["v"] == 5).all()


def test_moved_tensors(client, name, arrays):
    with mr.Checkpointer(arrays, name, client=client) as ck:
        ck.save(1)
        moved = {key: a.copy() for key, a in arrays.items()}
        moved["v"][:] = 8
        ck.rebind(moved)
        ck.save(2).durable.result(60)
        moved["v"][:] = 0
        ck.restore()
        assert (moved["v"] == 8).all()
        with pytest.raises(mr.InvalidArgument):
            ck.rebind({"u": arrays["u"]})


def test_parts_of_larger_tensors(client, name):
    whole = np.arange(24, dtype="float32").reshape(6, 4)
    cks = []
    for rank in range(2):
        part = whole[3 * rank : 3 * rank + 3].copy()
        cks.append(
            mr.Checkpointer(
                {"w": part},
                name,
                client=client,
                rank=rank,
                world_size=2,
                life=7,
                parts={"w": mr.Part((3 * rank, 0), (6, 4))},
                axes={"tensor": f"{rank}/2"},
            )
        )
    for save in [ck.save(5) for ck in cks]:
        save.durable.result(60)
    into = np.zeros((6, 4), "float32")
    client.checkpoints().load_into(name, {"w": into}).result()
    assert (into == whole).all()
    box = np.zeros((2, 3), "float32")
    parts = {"w": mr.Part((2, 1), (6, 4))}
    client.checkpoints().load_into(name, {"w": box}, parts=parts).result()
    assert (box == whole[2:4, 1:]).all()
    shard = client.checkpoints().describe(name, 1).result()
    assert shard.tensors["w"] == mr.TensorInfo("F32", (3, 4), (3, 0), (6, 4))
    assert shard.axes == {"tensor": "1/2"}
    for ck in cks:
        ck.close(finished=True)


def test_a_failed_save_is_raised_by_the_next_call(client, name, arrays):
    large = {"w": np.zeros(1 << 26, "uint8")}
    ck = mr.Checkpointer(large, name, client=client, on_busy="refuse")
    with pytest.raises(mr.InvalidArgument, match="extra_max"):
        ck.save(1, extra=b"x" * (64 << 20))
    step = fail_a_save(ck)
    with pytest.raises(mr.Busy):
        ck.save(step)
    ck.save(step).durable.result(60)
    fail_a_save(ck)
    with pytest.raises(mr.Busy):
        ck.close()
    client.checkpoints().erase(name).result()


def test_wrong_arguments(client, name, arrays):
    with pytest.raises(mr.InvalidArgument, match="on_busy"):
        mr.Checkpointer(arrays, name, client=client, on_busy="whatever")
    with pytest.raises(mr.InvalidArgument):
        mr.Checkpointer({}, name, client=client)
    with pytest.raises(mr.NotFound, match="default"):
        mr.Checkpointer(arrays, name, client=client, group="default")
    mr.Checkpointer(arrays, name, client=client).close()
    with pytest.raises(mr.InvalidArgument):
        mr.Checkpointer({"u": arrays["u"]}, name, client=client)


def test_the_launcher_gives_rank_and_life(monkeypatch):
    for key in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(key, raising=False)
    assert mr.job() is None
