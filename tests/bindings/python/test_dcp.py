"""PyTorch's distributed checkpoint: saved by two ranks, loaded by one and three."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import millrace as mr  # noqa: E402


# As the benchmarks do.
sys.path.insert(0, str(pathlib.Path(__file__).parents[3] / "bench" / "peers"))
from dcp_peer import import_dcp  # noqa: E402

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


class Notes:
    """What only pickle can keep."""

    def __init__(self, text):
        self.text = text


def test_items_that_run_code_when_they_are_read_need_trust(client, name):
    state = {"w": torch.ones(3), "notes": Notes("a")}
    save(state, mr.torch.dcp.Writer(name, client=client), no_dist=True)
    loaded = {"w": torch.zeros(3), "notes": None}
    with pytest.raises(BaseException, match="trust=True"):
        load(dict(loaded), mr.torch.dcp.Reader(name, client=client), no_dist=True)
    load(loaded, mr.torch.dcp.Reader(name, client=client, trust=True), no_dist=True)
    assert loaded["notes"].text == "a" and torch.equal(loaded["w"], torch.ones(3))


def test_tensors_that_are_the_same_memory(client, name):
    w = torch.arange(4.0)
    save({"a": w, "b": w, "c": w[1:]}, mr.torch.dcp.Writer(name, client=client), no_dist=True)
    loaded = {"a": torch.zeros(4), "b": torch.zeros(4), "c": torch.zeros(3)}
    load(loaded, mr.torch.dcp.Reader(name, client=client), no_dist=True)
    assert torch.equal(loaded["a"], w) and torch.equal(loaded["b"], w)
    assert torch.equal(loaded["c"], w[1:])


def test_a_writer_has_one_save_at_a_time(client, repo, name, monkeypatch):
    writer = mr.torch.dcp.Writer(f"{name}/1", client=client)
    go = concurrent.futures.Future()
    finish = writer.finish

    def later(metadata, results):
        go.result(60)
        finish(metadata, results)

    monkeypatch.setattr(writer, "finish", later)
    first = mr.torch.dcp.async_save({"w": torch.ones(3)}, writer)
    first.staged.result(60)
    writer.reset(f"{name}/2")
    with pytest.raises(mr.Busy):
        mr.torch.dcp.async_save({"w": torch.zeros(3)}, writer)
    go.set_result(None)
    first.durable.result(60)
    # The first one has its name all the same.
    names = [m.name for m in repo.list(f"{name}/").result()]
    assert f"{name}/1" in names and f"{name}/2" not in names
    mr.torch.dcp.async_save({"w": torch.zeros(3)}, writer).durable.result(60)
    for n, value in ((1, 1.0), (2, 0.0)):
        loaded = {"w": torch.full((3,), 9.0)}
        mr.torch.dcp.load(loaded, mr.torch.dcp.Reader(f"{name}/{n}", client=client))
        assert torch.equal(loaded["w"], torch.full((3,), value))


def test_what_a_failed_save_has_left_goes_when_it_is_old(client, repo, name, monkeypatch):
    repo.store(f"{name}/0-0123456789ab", {"w": torch.ones(3)}).result()
    repo.store(f"{name}/0-notes", {"w": torch.ones(3)}).result()
    writer = mr.torch.dcp.Writer(name, client=client)
    mr.torch.dcp.save({"w": torch.ones(3)}, writer)
    assert len(repo.list(f"{name}/").result()) == 3  # it may be that of a save under way
    old = writer._repository.list

    class Older:
        def __init__(self, listed):
            self.listed = listed

        def result(self):
            return [
                m._replace(stored_at_ns=m.stored_at_ns - 601 * 10**9) if "0-0123" in m.name else m
                for m in self.listed.result()
            ]

    monkeypatch.setattr(writer._repository, "list", lambda prefix: Older(old(prefix)))
    mr.torch.dcp.save({"w": torch.ones(3)}, writer)
    left = [m.name for m in old(f"{name}/").result()]
    assert len(left) == 2 and f"{name}/0-notes" in left


def test_modules_are_asked_for_their_states(client, name):
    model, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    mr.torch.dcp.save({"model": model}, mr.torch.dcp.Writer(name, client=client))
    mr.torch.dcp.load({"model": other}, mr.torch.dcp.Reader(name, client=client))
    assert torch.equal(model.weight, other.weight) and torch.equal(model.bias, other.bias)


def test_numbers_texts_and_lists_need_no_trust(client, name):
    # That of PyTorch 1.13 reads no floating-point numbers.
    rate = 1 if torch.__version__.startswith("1.") else 1e-3
    state = {"epoch": 7, "lr": rate, "notes": ["a", {"b": None}], "run": "x"}
    save(state, mr.torch.dcp.Writer(name, client=client), no_dist=True)
    loaded = {"epoch": 0, "lr": 0, "notes": ["", {"b": 0}], "run": ""}
    load(loaded, mr.torch.dcp.Reader(name, client=client), no_dist=True)
    assert loaded == state


class Slow:
    """A planner's tensors, which are given when the test says so."""

    def __init__(self, planner, go):
        self._planner, self._go = planner, go

    def __getattr__(self, name):
        return getattr(self._planner, name)

    def resolve_data(self, item):
        self._go.result(60)
        return self._planner.resolve_data(item)


def test_an_asynchronous_save_tells_when_tensors_may_change(client, name, monkeypatch):
    dcp_of_ours = mr.torch.dcp
    writer = dcp_of_ours.Writer(name, client=client)
    go = concurrent.futures.Future()
    write = writer._write
    monkeypatch.setattr(writer, "_write", lambda plan, planner, s: write(plan, Slow(planner, go), s))
    state = {"w": torch.arange(8.0), "step": 3}
    saving = dcp_of_ours.async_save(state, writer)
    with pytest.raises(mr.Busy):
        dcp_of_ours.async_save(state, writer)
    assert not saving.staged.done() and not saving.durable.done()
    go.set_result(None)
    saving.staged.result(60)
    state["w"].zero_()
    saving.durable.result(60)
    loaded = {"w": torch.zeros(8), "step": 0}
    dcp_of_ours.load(loaded, dcp_of_ours.Reader(name, client=client))
    assert torch.equal(loaded["w"], torch.arange(8.0)) and loaded["step"] == 3


def test_an_asynchronous_save_that_fails_early_ends_both_futures(client, name):
    writer = mr.torch.dcp.Writer(client=client)  # without a name
    saving = mr.torch.dcp.async_save({"w": torch.ones(3)}, writer)
    assert "needs a name" in str(saving.durable.exception(60))
    assert saving.staged.exception(60) is not None
    # The writer can be used again.
    writer.reset(name)
    mr.torch.dcp.async_save({"w": torch.ones(3)}, writer).durable.result(60)


def test_a_state_dictionary_is_handed_over_without_a_copy(client, name):
    if not hasattr(dcp, "async_save"):
        pytest.skip(f"PyTorch {torch.__version__} has no dcp.async_save")
    writer = mr.torch.dcp.Writer(name, client=client)
    state = {"w": torch.arange(6.0)}
    response = dcp.async_save(state, storage_writer=writer)
    if isinstance(response, concurrent.futures.Future):
        upload = response  # it has waited for the tensors
    else:
        response.staging_completion.result(60)
        upload = response.upload_completion
    state["w"].zero_()
    upload.result(60)
    loaded = {"w": torch.zeros(6)}
    load(loaded, mr.torch.dcp.Reader(name, client=client), no_dist=True)
    assert torch.equal(loaded["w"], torch.arange(6.0))
    # One that fails before it reads tells so at both ends.
    response = dcp.async_save(state, storage_writer=mr.torch.dcp.Writer(client=client))
    if not isinstance(response, concurrent.futures.Future):
        assert response.staging_completion.exception(60) is not None
        response = response.upload_completion
    assert response.exception(60) is not None


# What `dcp.async_save` of PyTorch 2.9 and later does with a stager, in so many lines.
def async_save_by_futures(state, writer, **options):
    staged = writer.stage(state)
    executor = concurrent.futures.ThreadPoolExecutor(1)
    upload = executor.submit(lambda: save(staged.result(), writer, **options))
    upload.add_done_callback(lambda _: executor.shutdown(wait=False))
    told = concurrent.futures.Future()

    def tell(done):
        error = done.exception()
        told.set_exception(error) if error else told.set_result(None)

    staged.add_done_callback(tell)
    return told, upload


def test_a_stager_of_futures(client, name, monkeypatch):
    saver = sys.modules[f"{dcp.__name__}.state_dict_saver"]
    monkeypatch.setattr(saver, "AsyncSaveResponse", object, raising=False)
    go = concurrent.futures.Future()
    writer = mr.torch.dcp.Writer(name, client=client)
    write = writer._write
    monkeypatch.setattr(writer, "_write", lambda plan, planner, s: write(plan, Slow(planner, go), s))
    state = {"w": torch.arange(8.0)}
    staging, upload = async_save_by_futures(state, writer, no_dist=True)
    assert not staging.done() and not upload.done()
    go.set_result(None)
    staging.result(60)
    state["w"].zero_()
    upload.result(60)
    loaded = {"w": torch.zeros(8)}
    load(loaded, mr.torch.dcp.Reader(name, client=client), no_dist=True)
    assert torch.equal(loaded["w"], torch.arange(8.0))
    # One that fails before it asks the writer for anything.
    staging, upload = async_save_by_futures(state, mr.torch.dcp.Writer(client=client), no_dist=True)
    assert upload.exception(60) is not None and staging.exception(60) is not None


def test_ranks_that_do_not_agree_are_refused(client, name):
    writer = mr.torch.dcp.Writer(name, client=client)
    with pytest.raises(mr.InvalidArgument, match="collectives"):
        writer.set_up_storage_writer(True, rank=0, use_collectives=False)


def test_names(client, repo, name):
    with pytest.raises(BaseException, match="needs a name"):
        save({"w": torch.ones(3)}, mr.torch.dcp.Writer(client=client), no_dist=True)
    with pytest.raises(mr.NotFound):
        mr.torch.dcp.Reader("there/is/none", client=client).read_metadata()
    repo.store(name, {"a": torch.ones(3)}).result()
    with pytest.raises(mr.InvalidArgument, match="Writer"):
        mr.torch.dcp.Reader(name, client=client).read_metadata()


FSDP = """
import sys
sys.path.insert(0, {tests!r})
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
import millrace as mr
import millrace.torch.dcp

action, rank, world = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://{meeting}", rank=rank, world_size=world)
mesh = init_device_mesh("cpu", (world,))
torch.manual_seed(0 if action == "save" else 1)
model = torch.nn.Sequential(torch.nn.Linear(10, 7), torch.nn.ReLU(), torch.nn.Linear(7, 5))
for layer in model:
    if list(layer.parameters()):
        fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

def iterate():
    optimizer.zero_grad()
    torch.manual_seed(7)
    loss = model(torch.randn(4, 10)).square().mean()
    loss.backward()
    optimizer.step()
    return float(loss)

def whole(state):
    return {{k: v.full_tensor() if hasattr(v, "full_tensor") else v for k, v in state.items()}}

def moments():
    # The order of the state's keys is that of the parameters.
    return [v.full_tensor() if hasattr(v, "full_tensor") else v
            for p in model.parameters() for v in optimizer.state[p].values()]

ckpt = mr.torch.Checkpointer(model, optimizer, name={name!r} + (action if action == "save" else action + str(world)))
if action == "save":
    for step in range(1, 4):
        iterate()
        with torch.no_grad():
            model(torch.randn(2, 10))  # which leaves it unsharded
        ckpt.save(step, extra={{"note": "x"}})
    ckpt.close()
    mr.torch.dcp.save(model.state_dict(), mr.torch.dcp.Writer({name!r}))
    saving = mr.torch.dcp.async_save(model.state_dict(), mr.torch.dcp.Writer({name!r} + "/async"))
    saving.durable.result(60)
    torch.save((whole(model.state_dict()), moments()), {kept!r} + str(rank))
else:
    wanted, their = torch.load({kept!r} + "0", weights_only=False)
    for checkpoint in ({name!r}, {name!r} + "/async"):
        state = model.state_dict()
        with torch.no_grad():
            for t in state.values():
                t.zero_()
        mr.torch.dcp.load(state, mr.torch.dcp.Reader(checkpoint))
        for key, t in whole(state).items():
            assert torch.equal(t, wanted[key]), key
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
    with torch.no_grad():
        model(torch.randn(2, 10))
    if world > 1:
        try:
            ckpt.restore(2 if rank == 0 else 3, run={name!r} + "save")
            raise AssertionError("the ranks have restored different steps")
        except mr.InvalidArgument:
            pass
    assert ckpt.restore(run={name!r} + "save") == 3
    assert ckpt.extra == {{"note": "x"}}
    for key, t in whole(model.state_dict()).items():
        assert torch.equal(t, wanted[key]), key
    for t, other in zip(moments(), their):
        assert torch.equal(t, other)
    iterate()
    ckpt.save(4).durable.result(60)
    ckpt.close()
print("done")
"""


def test_fully_sharded_modules_of_other_numbers_of_ranks(run_ranks, request, tmp_path, name):
    try:
        from torch.distributed.fsdp import fully_shard  # noqa: F401
    except ImportError:
        pytest.skip(f"PyTorch {torch.__version__} has no fully_shard")
    for action, world in (("save", 2), ("load", 1), ("load", 3)):
        run_ranks(FSDP, action, world, tests=str(request.path.parent), name=name, kept=str(tmp_path / "kept"))


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


@pytest.fixture
def run_ranks(node, tmp_path):
    """Runs a program as all ranks of a job; each has to print that it is done."""

    def run(program, action, world, **values):
        source = program.format(meeting=tmp_path / f"{action}{world}", **values)
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

    return run


def test_other_numbers_of_ranks(run_ranks, request, name):
    for action, world in (("save", 2), ("load", 1), ("load", 3)):
        run_ranks(RANK, action, world, tests=str(request.path.parent), name=name)
