"""Working sets and loaders: every sample once, exact resumes, views of the ring without a copy."""

import gc
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import millrace as mr

SAMPLES = 53


def rows_of(samples, width=6):
    """Sample i has the elements i, i + 0.5, ..., so that each says which one it is."""
    return np.arange(samples, dtype="float32")[:, None] + 0.5 * np.arange(width, dtype="float32")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("samples")


@pytest.fixture(scope="module")
def ws(client, folder):
    np.save(folder / "a.npy", rows_of(SAMPLES)[:20])
    np.save(folder / "b.npy", rows_of(SAMPLES)[20:])
    made = client.working_set("python/rows").preload([folder / "a.npy", str(folder / "b.npy")])
    yield made
    made.unload().result()


def load(ws, batch_size=4, **options):
    return mr.data.Loader(ws, batch_size, **{"framework": "np", **options})


def ids_of(batches):
    return [int(i) for batch in batches for i in batch.ids]


# ---- Working sets ----


def test_a_preload_describes_lists_and_unloads(client, folder, ws):
    info = ws.describe().result()
    assert info.name == "python/rows" and info.samples == SAMPLES
    assert info.size_bytes == SAMPLES * 6 * 4 and not info.existed
    assert info.fields == {"x": mr.TensorInfo("F32", (6,), None, None)}
    again = ws.preloading([folder / "a.npy", folder / "b.npy"]).result()
    assert again.existed and again.identity == info.identity and again.servers == 1
    assert ws.preloading([folder / "a.npy", folder / "b.npy"], servers=0).result().existed
    with pytest.raises(mr.InvalidArgument, match="servers"):
        client.working_set("python/many").preload(folder / "a.npy", servers=2)
    with pytest.raises(mr.InvalidArgument, match="servers"):
        ws.preload(folder / "a.npy", servers=-1)
    (line,) = client.working_sets("python/r").result()
    assert (line.name, line.node, line.samples, line.fields) == ("python/rows", "n0", SAMPLES, 1)
    other = client.working_set("python/other").preload(folder / "a.npy", while_used=True)
    assert other.describe().result().while_used and not info.while_used
    other.unload().result()
    with pytest.raises(mr.NotFound, match="python/other"):
        other.describe().result()
    with pytest.raises(mr.NotFound, match="python/other"):
        mr.data.Loader(other, 4)


def test_a_window_is_smaller_than_its_set(client, node, folder):
    np.save(folder / "wide.npy", rows_of(3000, 500))
    ws = client.working_set("python/window").preload(folder / "wide.npy", window="1MiB")
    loader = load(ws, 100, seed=3)
    for _ in range(2):
        seen = []
        for batch in loader:
            assert np.array_equal(batch.x[:, 1], np.array(batch.ids) + 0.5)
            seen += batch.ids.tolist()
        assert sorted(seen) == list(range(3000))
    status, info, counts = loader.status(), ws.describe().result(), ws.window()
    assert (info.window_bytes, info.left_out, info.samples) == (2**20, (), 3000)
    assert (counts.size_bytes, counts.damaged) == (2**20, 0)
    assert 0 < counts.kept_bytes <= 2**20 and counts.written >= counts.kept > 0
    assert 0 < status.samples_from_window <= counts.given
    assert status.samples_from_window + status.samples_from_files >= 6000
    with pytest.raises(mr.InvalidArgument, match="1MB"):
        ws.preload(folder / "wide.npy", window="1MB")
    with pytest.raises(mr.AlreadyExists, match="window"):
        ws.preload(folder / "wide.npy")
    reader = ws.open().result()
    while reader.samples_from_window == 0:
        reader.read_batch("x", range(100), framework="np").result()
    assert ws.preloading(folder / "wide.npy", window=2**20).result().existed
    with mr.connect(node.address) as other, pytest.raises(mr.InvalidArgument, match="its files"):
        other.working_set("python/window").open().result()
    ws.unload().result()
    with pytest.raises(mr.NotFound, match="python/window"):
        ws.window()


def test_a_preload_tells_its_progress(client, folder):
    np.save(folder / "large.npy", np.ones((3000, 1000), "uint8"))
    told = []
    ws = client.working_set("python/told")
    ws.preload(folder / "large.npy", progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (3_000_000, 3_000_000)
    ws.unload().result()


@pytest.mark.parametrize("ending", [False, KeyboardInterrupt])
def test_a_preload_that_is_given_up_leaves_nothing(client, folder, monkeypatch, ending):
    monkeypatch.setattr("millrace._sets._PROGRESS_EVERY", 0.0)
    np.save(folder / "more.npy", np.ones((5000, 1000), "uint8"))
    ws = client.working_set(f"python/given up {bool(ending)}")  # the name is free a little later

    def progress(done, total):
        if ending:
            raise ending
        return False

    with pytest.raises(ending or mr.Cancelled):
        ws.preload(folder / "more.npy", progress=progress)
    with pytest.raises(mr.NotFound):
        ws.describe().result()


RANK = """
import os, signal, sys
import millrace as mr
mr._sets._PROGRESS_EVERY = 0.0
def stand(done, total):
    if 0 < done < total:
        print("stands", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
made = mr.connect().working_set({set!r}).preload({file!r}, progress={progress})
print(made.describe().result().samples, flush=True)
"""


@pytest.mark.parametrize("dies", [False, True])
def test_ranks_preload_at_once(client, node, folder, dies):
    """The second process waits for the first one, and does the work if that is killed."""
    file = str(folder / f"ranks{dies}.npy")
    np.save(file, rows_of(20_000, 500))
    name = f"python/ranks{dies}"

    def start(progress):
        return subprocess.Popen(
            [sys.executable, "-c", RANK.format(set=name, file=file, progress=progress)],
            env={**os.environ, "MILLRACE_ADDRESS": node.address},
            stdout=subprocess.PIPE,
            text=True,
        )

    first = start("stand" if dies else None)
    if dies:
        assert first.stdout.readline() == "stands\n"
    second = start(None)
    if dies:
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(timeout=1)
        first.kill()
    assert second.communicate(timeout=120)[0] == "20000\n"
    first.communicate(timeout=120)
    assert (first.returncode, second.returncode) == (-9 if dies else 0, 0)
    client.working_set(name).unload().result()


def test_types_that_a_framework_lacks_are_named(client, folder):
    np.save(folder / "u16.npy", np.arange(12, dtype="uint16").reshape(4, 3))
    ws = client.working_set("python/u16").preload(folder / "u16.npy")
    assert next(iter(load(ws, 2, shuffle=False))).x.tolist() == [[0, 1, 2], [3, 4, 5]]
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "uint16"):
        with pytest.raises(mr.InvalidArgument, match='uint16; ask with framework="np"'):
            mr.data.Loader(ws, 2)
    ws.unload().result()


def test_what_cannot_be_preloaded_is_named(client, folder, ws):
    other = client.working_set("python/wrong")
    with pytest.raises(mr.NotFound, match="missing.npy"):
        other.preload(folder / "missing.npy")
    (folder / "text.npy").write_text("no array")
    with pytest.raises(mr.Error, match="text.npy"):
        other.preload(folder / "text.npy")
    with pytest.raises(mr.AlreadyExists):
        ws.preload(folder / "a.npy")
    with pytest.raises(mr.InvalidArgument, match="files"):
        other.preload([])
    with pytest.raises(mr.InvalidArgument, match="the name of a file is empty"):
        other.preload("")
    with pytest.raises(mr.InvalidArgument, match="^kind: 'bogus' is none of automatic, arrays and"):
        other.preload(folder / "a.npy", kind="bogus")
    with pytest.raises(mr.InvalidArgument, match="^on_error: 'stop' is neither fail nor skip"):
        other.preload(folder / "a.npy", on_error="stop")
    with pytest.raises(mr.InvalidArgument, match="^fields has 65 texts; at most 64"):
        other.preload(folder / "a.npy", fields=[str(i) for i in range(65)])
    with pytest.raises(TypeError):
        other.preload([3])


def test_single_batches_are_read(ws):
    reader = ws.open().result()
    assert reader.info.samples == SAMPLES
    rows = reader.read_batch("x", [7, 0, 52], framework="np").result()
    assert (rows == rows_of(SAMPLES)[[7, 0, 52]]).all()
    out = np.zeros((2, 6), "float32")
    assert reader.read_batch("x", np.array([1, 2]), out).result() is out
    assert (out == rows_of(SAMPLES)[1:3]).all()
    assert reader.read_batch("x", [], framework="np").result().shape == (0, 6)
    with pytest.raises(mr.InvalidArgument, match="53"):
        reader.read_batch("x", [53], framework="np").result()
    with pytest.raises(mr.InvalidArgument, match="field y"):
        reader.read_batch("y", [1])
    for wrong in ([-1], [1.5], ["a"]):
        with pytest.raises(mr.InvalidArgument, match="ids"):
            reader.read_batch("x", wrong)
    with pytest.raises(mr.InvalidArgument):
        reader.read_batch("x", [1], out).result()
    with pytest.raises(mr.InvalidArgument, match="I32.*F32"):
        reader.read_batch("x", [1, 2], np.zeros((2, 6), "int32"))
    with pytest.raises(mr.InvalidArgument, match="behind"):
        reader.read_batch("x", [1, 2], np.zeros((6, 2), "float32").T)


# ---- The order ----


@pytest.mark.parametrize("remainder", ["short", "pad", "drop"])
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_every_sample_comes_once(ws, world, remainder):
    ranks = [
        load(ws, 5, seed=3, remainder=remainder, rank=r, world_size=world) for r in range(world)
    ]
    for _ in range(2):
        batches = [[], [], [], []]
        for r, loader in enumerate(ranks):
            for batch in loader:
                ids, mask = batch.ids, batch.mask
                assert len(batch) == len(mask) and mask.sum() == len(ids)
                assert (batch.x[: len(ids)] == rows_of(SAMPLES)[ids]).all()
                assert (batch.x[len(ids) :] == 0).all()
                assert remainder == "short" or len(batch) == 5
                batches[r].append(list(ids))
            assert len(batches[r]) == len(loader) == len(ranks[0])
        # Batch after batch, one rank after the other: the order of the epoch.
        order = [i for step in zip(*batches[:world], strict=True) for part in step for i in part]
        wanted = SAMPLES - SAMPLES % (5 * world) if remainder == "drop" else SAMPLES
        assert len(order) == len(set(order)) == wanted


def test_the_order_depends_on_the_seed_and_the_epoch_alone(ws):
    def order(world, batch_size, **options):
        ranks = [
            load(ws, batch_size, rank=r, world_size=world, **options) for r in range(world)
        ]
        steps = zip(*([list(b.ids) for b in loader] for loader in ranks), strict=True)
        return [i for step in steps for part in step for i in part]

    one = order(1, 4, seed=5)
    assert one == order(3, 4, seed=5) == order(2, 7, seed=5)
    assert one != order(1, 4, seed=6) and one != order(1, 4, seed=5, epoch=1)
    assert order(1, 4, seed=5, epoch=2) == order(4, 2, seed=5, epoch=2)
    assert order(1, 4, shuffle=False) == order(1, 4, shuffle="none") == list(range(SAMPLES))
    assert order(1, 4, seed=5, shuffle=True) == one
    blocks = order(1, 4, seed=5, shuffle="block:8")
    assert blocks != one and sorted(blocks) == list(range(SAMPLES))
    assert order(1, 4, drop_last=True) == order(1, 4, remainder="drop")


def test_each_iteration_is_the_next_epoch(ws):
    loader = load(ws, seed=1, epoch=3)
    first, second = ids_of(loader), ids_of(loader)
    assert first != second and sorted(first) == sorted(second)
    assert loader.epoch == 5
    left = iter(loader)
    loader.set_epoch(3)
    with pytest.raises(mr.InvalidArgument, match="or set_epoch"):
        next(left)
    assert ids_of(loader) == first
    assert ids_of(load(ws, seed=1, epoch=4)) == second


def test_an_epoch_that_was_left_begins_anew(ws):
    loader = load(ws, seed=1)
    whole = ids_of(loader)
    loader.set_epoch(0)
    for batch in loader:
        if batch.position >= 8:
            break
    assert ids_of(loader) == whole
    # One whose batches were all given is over, though nobody has asked for its end.
    given = iter(loader)
    for _ in range(len(loader)):
        next(given)
    assert ids_of(loader) == ids_of(load(ws, seed=1, epoch=2))
    # Of two iterations the newer one counts.
    older, newer = iter(loader), iter(loader)
    next(newer)
    with pytest.raises(mr.InvalidArgument, match="another one"):
        next(older)


# ---- Resumes ----


@pytest.mark.parametrize("stop", [0, 1, 4, 13, 14])
@pytest.mark.parametrize("world", [(1, 1), (2, 3), (3, 1)])
def test_a_training_goes_on_at_the_sample(ws, stop, world):
    before, after = world
    order = ids_of(load(ws, 4, seed=9)) + ids_of(load(ws, 4, seed=9, epoch=1))
    ranks = [load(ws, 2, seed=9, rank=r, world_size=before) for r in range(before)]
    epochs = [iter(loader) for loader in ranks]
    seen = []
    for _ in range(min(stop, len(ranks[0]))):
        for epoch in epochs:
            seen += [int(i) for i in next(epoch).ids]
    states = [json.loads(json.dumps(loader.state_dict())) for loader in ranks]
    assert all(state == states[0] for state in states)
    assert len(json.dumps(states[0])) < 300

    ranks = [load(ws, 3, seed=0, rank=r, world_size=after) for r in range(after)]
    for loader in ranks:
        loader.load_state_dict(states[0])
        loader.set_epoch(states[0]["epoch"])  # as trainers do; it changes nothing
        assert loader.state_dict() == states[0]
    for _ in range(2):
        for step in zip(*ranks, strict=True):
            for batch in step:
                seen += [int(i) for i in batch.ids]
    assert seen == order


def test_states_of_others_are_refused(client, ws, folder):
    loader = load(ws)
    state = loader.state_dict()
    other = client.working_set("python/short").preload(folder / "a.npy")
    with pytest.raises(mr.InvalidArgument, match="20"):
        loader.load_state_dict(load(other).state_dict())
    other.unload().result()
    for wrong in ({}, {**state, "version": 99}, {**state, "position": 10**6}, {**state, "seed": "x"}):
        with pytest.raises(mr.InvalidArgument):
            loader.load_state_dict(wrong)
    with pytest.raises(TypeError):
        loader.load_state_dict(None)
    assert loader.state_dict() == state


# ---- The ring ----


def test_fields_lie_in_the_ring(ws):
    loader = load(ws)
    batch = next(iter(loader))
    memory, name, _, shape = batch._native.field(0, 4, True)
    assert (name, shape) == ("x", (4, 6))
    array = batch.x
    assert array.__array_interface__["data"][0] == memory.address()
    assert array is batch["x"] and array.flags.writeable and not array.flags.owndata
    array += 1
    assert (array == rows_of(SAMPLES)[batch.ids] + 1).all()
    assert list(batch.keys()) == ["x"] and dict(batch)["x"] is array
    assert [s.__array_interface__["data"][0] for s in batch.samples("x")] == [
        memory.address() + 24 * i for i in range(4)
    ]
    assert batch.offsets("x") is None
    assert loader.status().held == 1
    with pytest.raises(AttributeError, match="'y'"):
        batch.y
    with pytest.raises(KeyError, match="'y'"):
        batch["y"]


def test_torch_views_the_ring(ws):
    torch = pytest.importorskip("torch")
    loader = mr.data.Loader(ws, 4, seed=2)
    (batch, other) = (lambda epoch: (next(epoch), next(epoch)))(iter(loader))
    assert batch.x.data_ptr() == batch._native.field(0, 4, True)[0].address() != other.x.data_ptr()
    assert batch.x.dtype == torch.float32 and batch.ids.dtype == torch.int64
    assert batch.mask.dtype == torch.bool and batch.mask.all()
    assert torch.equal(batch.x, torch.from_numpy(rows_of(SAMPLES))[batch.ids])
    batch.x.mul_(2)


def test_a_held_batch_is_not_overwritten(ws):
    loader = load(ws, prefetch=1)
    held = next(iter(loader))
    view, wanted = held.x[1:], rows_of(SAMPLES)[held.ids][1:]
    held.release()
    with pytest.raises(mr.InvalidArgument, match="released"):
        held.x
    del held
    loader.set_epoch(0)
    for _ in range(3):
        for batch in loader:
            assert not np.shares_memory(batch.x, view)
    assert (view == wanted).all()
    assert loader.status().held == 2  # that of the view, and the last one of the loop
    del view, batch
    gc.collect()
    assert loader.status().held == 0


def test_batches_outlive_their_loader(client, folder):
    ws = client.working_set("python/short").preload(folder / "a.npy")
    loader = load(ws)
    batch = next(iter(loader))
    view = batch.x
    del loader, batch
    ws.unload().result()
    gc.collect()
    assert set(view[:, 0]) <= set(range(20)) and len(set(view[:, 0])) == 4


def test_there_is_no_space_while_all_places_are_held(ws):
    loader = load(ws, prefetch=2, seed=4)
    epoch, held = iter(loader), []
    with pytest.raises(mr.NoSpace, match="release"):
        for batch in epoch:
            held.append(batch)
    assert len(held) == 4 and loader.status().held == 4
    at = loader.state_dict()
    del batch
    held.pop(0).release()
    following = next(epoch)  # it goes on where it was
    assert following.position == at["position"] == 16
    held.append(following)
    assert ids_of(held) == ids_of(load(ws, seed=4))[4:20]


def test_status(ws):
    loader = load(ws, 8, prefetch=3)
    assert len(loader) == 7 and loader.status().batches_left == 7
    ids_of(loader)
    status = loader.status()
    assert (status.epoch, status.position, status.batches, status.samples) == (1, 0, 7, SAMPLES)
    assert status.size_bytes == SAMPLES * 24 and status.ring_bytes >= 5 * 8 * 24
    assert status.remote_limit_bytes > 0 and status.remote_stages == 0


# ---- Waits, processes, errors ----


class Interrupted:
    """A native loader whose waits end with Ctrl-C, before or after the batch has come."""

    def __init__(self, native, comes):
        self.native, self.comes = native, comes

    def next(self):
        class Request:
            def __init__(self, request, comes):
                self.request, self.comes = request, comes

            def wait(self, seconds):
                if self.comes:
                    self.request.wait(seconds)
                raise KeyboardInterrupt

            def __getattr__(self, name):
                return getattr(self.request, name)

        return Request(self.native.next(), self.comes)

    def __getattr__(self, name):
        return getattr(self.native, name)


@pytest.mark.parametrize("comes", [True, False])
def test_an_interrupted_wait_loses_no_batch(ws, comes):
    loader = load(ws, seed=8)
    order = ids_of(loader)
    loader.set_epoch(0)
    native, seen, epoch = loader._native, [], iter(loader)
    while True:
        at = loader.state_dict()
        loader._native = Interrupted(native, comes)
        if not loader._kept:
            with pytest.raises(KeyboardInterrupt):
                next(epoch)
        assert loader._native.comes == comes
        loader._native = native
        if len(seen) < SAMPLES:
            assert loader.state_dict() == at
            assert loader.status().batches_left == len(loader) - len(seen) // 4
        batch = next(epoch, None)
        if batch is None:
            break
        seen += [int(i) for i in batch.ids]
    assert seen == order
    assert ids_of(loader) == ids_of(load(ws, seed=8, epoch=1))


def test_a_forked_child_is_refused(ws):
    loader = load(ws)
    batch = next(iter(loader))
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (lambda: next(iter(loader)), loader.state_dict, ws.open):
            try:
                use()
            except mr.Unavailable:
                refused += 1
        os._exit(10 + refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 13
    assert (batch.x == rows_of(SAMPLES)[batch.ids]).all()


def test_wrong_arguments_are_named(ws):
    with pytest.raises(mr.InvalidArgument, match="batch_size"):
        load(ws, 0)
    wrong = {
        "shuffle": "sometimes", "remainder": "some", "prefetch": 65, "fields": ["y"],
        "framework": "jax", "seed": -1,
    }  # fmt: skip
    for name, value in wrong.items():
        with pytest.raises(mr.InvalidArgument, match=name.removesuffix("s")):
            load(ws, **{name: value})
    with pytest.raises(mr.InvalidArgument, match="rank"):
        load(ws, rank=2, world_size=2)
    with pytest.raises(mr.InvalidArgument, match="give both"):
        load(ws, rank=0)
    with pytest.raises(mr.InvalidArgument, match="drop_last"):
        load(ws, drop_last=True, remainder="pad")
    with pytest.raises(TypeError, match="fields"):
        load(ws, fields="x")
    with pytest.raises(mr.InvalidArgument, match="fields"):
        load(ws, fields=[])
    with pytest.raises(mr.InvalidArgument, match="x is given twice"):
        load(ws, fields=["x", "x"])
    with pytest.raises(mr.InvalidArgument, match="world_size: 65537 is not"):
        load(ws, rank=0, world_size=65537)
    with pytest.raises(mr.InvalidArgument, match="^remainder: 'some' is none of short, pad and"):
        load(ws, remainder="some")
    with pytest.raises(mr.InvalidArgument, match="a flat list of whole numbers"):
        ws.open().result().read_batch("x", np.zeros((2, 2), int))
    with pytest.raises(TypeError, match="WorkingSet"):
        mr.data.Loader("python/rows", 4)
    with pytest.raises(TypeError, match="num_workers"):
        pickle.dumps(load(ws))


def test_rank_and_world_size_are_those_of_the_job(ws, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    loader = load(ws, 4, seed=5)
    assert (loader.rank, loader.world_size) == (1, 3)
    assert ids_of(loader) == ids_of(load(ws, 4, seed=5, rank=1, world_size=3))


# ---- PyTorch ----


def test_a_data_loader_of_torch(ws):
    torch = pytest.importorskip("torch")
    loader = mr.data.Loader(ws, 4, seed=6)
    dataset = mr.data.torch_dataset(loader)
    batches = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=0)
    assert len(batches) == len(dataset) == len(loader) == 14
    order = [ids_of([batch]) for batch in batches]
    state = dataset.state_dict()
    second = [ids_of([batch]) for batch in batches]
    assert sum(order, []) == ids_of(load(ws, seed=6)) and second != order
    dataset.load_state_dict(state)
    assert [ids_of([batch]) for batch in batches] == second
    dataset.set_epoch(0)
    assert [ids_of([batch]) for batch in batches] == order


def test_workers_of_torch_are_refused(ws):
    torch = pytest.importorskip("torch")
    dataset = mr.data.torch_dataset(mr.data.Loader(ws, 4))
    with pytest.raises(mr.InvalidArgument, match="num_workers=0"):
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=1)))


def test_batches_of_batches_are_refused(ws):
    torch = pytest.importorskip("torch")
    dataset = mr.data.torch_dataset(mr.data.Loader(ws, 4))
    for size in (1, 2):
        with pytest.raises(mr.InvalidArgument, match="batch_size=None"):
            next(iter(torch.utils.data.DataLoader(dataset, batch_size=size)))


TRAINER = """
import os, signal, sys
import torch
import millrace as mr
client = mr.connect()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
loader = mr.data.Loader(client.working_set("python/rows"), 8, seed=3)
ck = mr.torch.Checkpointer(model, optimizer, name={name!r}, client=client)
step = ck.restore() or 0
if step:
    loader.load_state_dict(ck.extra["data"])
for epoch in range(loader.epoch, 3):
    loader.set_epoch(epoch)
    for batch in loader:
        optimizer.zero_grad()
        loss = (model(batch.x / 50) - batch.x[:, :1] / 50).square().mean()
        loss.backward()
        optimizer.step()
        step += 1
        print(step, repr(loss.item()), flush=True)
        saved = ck.save(step, extra={{"data": loader.state_dict()}})
        if step == {killed_at}:
            saved.durable.result()
            os.kill(os.getpid(), signal.SIGKILL)
ck.close(finished=True)
"""


def test_a_killed_training_goes_on(run_python, ws, name):
    pytest.importorskip("torch")

    def train(run, killed_at):
        source = TRAINER.format(name=f"{name}/{run}", killed_at=killed_at)
        return run_python(source, status=-9 if killed_at else 0).stdout.splitlines()

    whole = train("whole", 0)
    assert len(whole) == 21
    assert train("killed", 9) + train("killed", 0) == whole


def test_a_device_that_cannot_be_used_is_told(ws):
    with pytest.raises(mr.InvalidArgument, match="framework"):
        load(ws, device="cuda:0")
    assert load(ws, device="cpu").device is None and load(ws).device is None
    assert load(ws).processors == ""  # there is nothing to be near to
    batch = next(iter(load(ws)))
    with pytest.raises(mr.InvalidArgument, match="host"):
        batch._native.follow(0)
    assert not hasattr(batch._native.field(0, 4, True)[0], "__cuda_array_interface__")
    with pytest.raises(BufferError, match="GPU"):
        memoryview(batch._native.field(0, 4, False)[0])
    array = batch._native.field(0, 4, False)[0].__cuda_array_interface__
    assert array["data"] == (batch.x.ctypes.data, False) and array["shape"] == (batch.x.nbytes,)


def test_pytorch_says_whether_there_is_a_gpu(ws):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(mr.InvalidArgument, match="no GPU"):
        load(ws, device="cuda:0", framework="pt")
    with pytest.raises(mr.InvalidArgument, match="cpu and to cuda"):
        load(ws, device="meta", framework="pt")
    with pytest.raises(mr.InvalidArgument, match="device"):
        load(ws, device="nonsense", framework="pt")
