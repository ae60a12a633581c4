"""Tensors of a GPU: where they lie, the order of streams, trainings, distributed checkpoints."""

import contextlib
import os
import time

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("there is no GPU that PyTorch can use", allow_module_level=True)

import millrace as mr  # noqa: E402
from test_torch import LATER_TYPES, TYPES, same  # noqa: E402

DEVICE = torch.device("cuda", 0)


@pytest.mark.parametrize("dtype", TYPES + LATER_TYPES)
def test_tensors_of_each_type_come_back(repo, name, dtype):
    if not hasattr(torch, dtype):
        pytest.skip(f"PyTorch {torch.__version__} has no {dtype}")
    kind = getattr(torch, dtype)
    stored = torch.randint(0, 100, (6, 16), dtype=torch.uint8, device=DEVICE)
    stored = stored.to(kind) if dtype in TYPES else stored.view(kind)
    repo.store(name, {"a": stored, "part": stored[1:, ::2], "turned": stored.T}).result()
    for device in (DEVICE, None):
        loaded = repo.load(name, device=device).result()
        assert loaded["a"].device == (device or torch.device("cpu"))
        assert same(loaded["a"].cpu(), stored.cpu())
        assert same(loaded["part"].cpu(), stored[1:, ::2].cpu())
    into = torch.zeros_like(stored)
    repo.load_into(name, {"turned": into.T}).result()
    assert same(into.cpu(), stored.cpu())


def test_scalars_tied_and_empty_tensors_and_the_cpu_beside_it(repo, name):
    w = torch.randn(32, 8, device=DEVICE)
    tensors = {
        "w": w, "again": w, "one": torch.tensor(3.5, device=DEVICE), "here": torch.arange(5),
        "none": torch.empty(0, 4, device=DEVICE),
    }  # fmt: skip
    repo.store(name, tensors).result()
    loaded = repo.load(name, device="cuda:0").result()
    assert loaded["w"] is loaded["again"]
    for key, t in tensors.items():
        assert same(loaded[key].cpu(), t.cpu()), key
    with repo.safe_open(name, device="cuda:0") as f:
        box = f.get_slice("w")[3:9, 2:7]
    assert box.is_cuda and torch.equal(box, w[3:9, 2:7])


def test_arrays_of_cupy(repo, name):
    cupy = pytest.importorskip("cupy")
    a = cupy.arange(24, dtype="float32").reshape(4, 6)
    cupy.cuda.Device().synchronize()
    repo.store(name, {"a": a, "part": a[1:, ::2]}).result()
    b = cupy.zeros_like(a)
    repo.load_into(name, {"a": b}).result()
    assert (a == b).all()
    assert (repo.load(name, framework="np").result()["part"] == a[1:, ::2].get()).all()


def test_arrays_of_jax(repo, name, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    jax = pytest.importorskip("jax")
    a = jax.numpy.arange(24, dtype="float32").reshape(4, 6) * 2
    jax.block_until_ready(a)
    repo.store(name, {"a": a}).result()
    assert (repo.load(name, framework="np").result()["a"] == jax.device_get(a)).all()


# The process of the node uses no GPU then, and another one's memory passes through the host's.
def test_another_process_has_the_tensors(run_python):
    done = run_python(
        """
import torch
import millrace as mr

client = mr.connect()
repo = client.repository("default")
t = torch.arange(1 << 20, device="cuda")
repo.store("other/process", {"t": t, "turned": t.reshape(1024, 1024).T}).result()
into = torch.zeros_like(t)
repo.load_into("other/process", {"t": into}).result()
assert torch.equal(into, t)
model = torch.nn.Linear(512, 512).cuda()
ck = mr.torch.Checkpointer(model, name="other/run", client=client)
ck.save(1).durable.result()
wanted = model.weight.detach().clone()
torch.nn.init.zeros_(model.weight)
assert ck.restore() == 1 and torch.equal(model.weight, wanted)
ck.close()
print("done")
"""
    )
    assert done.stdout == "done\n"


class Filled(torch.nn.Module):
    def __init__(self, elements):
        super().__init__()
        self.a = torch.nn.Parameter(torch.zeros(elements, device=DEVICE), requires_grad=False)


# A kernel writes the parameters right before the save, and others right after the fence: what was
# saved has the values of its step, all of them.
@pytest.mark.parametrize("stream", ["default", "own"])
def test_a_save_is_never_torn(client, name, stream):
    elements, steps = 1 << 20, 500
    model = Filled(elements)
    ck = mr.torch.Checkpointer(model, name=name, client=client, fence="manual", keep=2)
    runs = client.checkpoints()
    loaded = torch.empty(elements)
    kernels = torch.cuda.Stream() if stream == "own" else None
    with torch.cuda.stream(kernels) if kernels else contextlib.nullcontext():
        for step in range(1, steps + 1):
            ck.fence()
            for other in (-1.0, -2.0, float(step)):
                model.a.fill_(other)
            saved = ck.save(step)
            if step % 5 == 0:
                saved.durable.result(60)
                runs.load_into(name, {"model.a": loaded}, rank=0, step=step).result(60)
                assert bool((loaded == step).all()), (step, loaded.unique())
    ck.close()


def test_saving_waits_for_no_kernel(client, name):
    model = Filled(1 << 10)
    work = torch.randn(4096, 4096, device=DEVICE)
    with mr.torch.Checkpointer(model, name=name, client=client) as ck:
        ck.save(1).durable.result(60)
        ck.fence()
        busy = torch.cuda.Event()
        for _ in range(200):
            work = torch.nn.functional.normalize(work @ work)
        model.a.fill_(7)
        busy.record()
        saved = ck.save(2)
        assert not busy.query(), "the GPU was done before the save had begun: give it more work"
        saved.durable.result(60)
        assert busy.query()
        model.a.zero_()
        assert ck.restore(2) == 2 and bool((model.a == 7).all())


def network():
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.BatchNorm1d(256), torch.nn.ReLU(),
        torch.nn.Dropout(0.2), torch.nn.Linear(256, 10),
    ).to(DEVICE)  # fmt: skip


def iterate(model, optimizer):
    optimizer.zero_grad()
    loss = model(torch.randn(32, 64, device=DEVICE)).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize(
    "options", [{}, {"fused": True}, {"capturable": True}], ids=["plain", "fused", "capturable"]
)
def test_a_training_goes_on_to_the_same_losses(client, name, options):
    def training():
        model = network()
        return model, torch.optim.AdamW(model.parameters(), lr=0.01, **options)

    parts = training()
    with mr.torch.Checkpointer(*parts, name=name, client=client) as ck:
        for step in range(1, 6):
            iterate(*parts)
            ck.save(step)
        ck.save(6, extra={"wanted": "this"}).durable.result(60)
        wanted = [iterate(*parts) for _ in range(4)]
    fresh = training()
    torch.manual_seed(99)
    with mr.torch.Checkpointer(*fresh, name=name, client=client) as ck:
        assert ck.restore() == 6 and ck.extra == {"wanted": "this"}
        assert [iterate(*fresh) for _ in range(4)] == wanted


def test_workers_are_forked_beside_a_client(client, repo, name):
    model = network()
    data = torch.utils.data.TensorDataset(torch.randn(64, 64))
    with mr.torch.Checkpointer(model, name=name, client=client) as ck:
        for epoch in range(2):
            for (x,) in torch.utils.data.DataLoader(data, batch_size=16, num_workers=2):
                model(x.to(DEVICE))
            ck.save(epoch + 1)


def test_an_asynchronous_distributed_save_copies_nothing(client, name):
    dcp = pytest.importorskip("torch.distributed.checkpoint")
    if not hasattr(dcp, "async_save"):
        pytest.skip(f"PyTorch {torch.__version__} has no dcp.async_save")
    import millrace.torch.dcp  # noqa: F401

    stream = torch.cuda.Stream()
    t = torch.zeros(32 << 20, device=DEVICE)
    work = torch.randn(4096, 4096, device=DEVICE)
    with torch.cuda.stream(stream):
        work = torch.nn.functional.normalize(work @ work)  # what the library takes for itself
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    with torch.cuda.stream(stream):
        for _ in range(100):
            work = torch.nn.functional.normalize(work @ work)
        t.fill_(3)
        response = dcp.async_save({"t": t}, storage_writer=mr.torch.dcp.Writer(name, client=client))
        assert torch.cuda.memory_allocated() - before < t.numel() * t.element_size()
        if hasattr(response, "staging_completion"):
            response.staging_completion.result(60)
            upload = response.upload_completion
        else:
            upload = response
        t.fill_(4)
    upload.result(60)
    loaded = {"t": torch.zeros_like(t)}
    dcp.load(loaded, storage_reader=mr.torch.dcp.Reader(name, client=client))
    assert bool((loaded["t"] == 3).all())


def test_a_fully_sharded_module(client, name, tmp_path):
    try:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard
    except ImportError:
        pytest.skip(f"PyTorch {torch.__version__} has no fully_shard")
    import torch.distributed as dist

    dist.init_process_group(
        "cpu:gloo,cuda:nccl", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1
    )
    try:
        model = network()
        fully_shard(model, mesh=init_device_mesh("cuda", (1,)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        with mr.torch.Checkpointer(model, optimizer, name=name, client=client) as ck:
            for step in range(1, 4):
                iterate(model, optimizer)
                ck.save(step)
            wanted = {k: v.full_tensor().clone() for k, v in model.state_dict().items()
                      if hasattr(v, "full_tensor")}  # fmt: skip
            iterate(model, optimizer)
            assert ck.restore() == 3
            for key, t in model.state_dict().items():
                if key in wanted:
                    assert torch.equal(t.full_tensor(), wanted[key]), key
    finally:
        dist.destroy_process_group()


@pytest.fixture
def rows(client, name, tmp_path):
    """A working set of 600 samples; sample i has the elements i, in two types."""
    numpy = pytest.importorskip("numpy")
    numbers = numpy.arange(600)[:, None]
    numpy.savez(
        tmp_path / "rows.npz",
        x=numpy.repeat(numbers.astype("float32"), 1000, 1),
        n=numpy.repeat(numbers, 3, 1),
    )
    made = client.working_set(name).preload(tmp_path / "rows.npz")
    yield made
    made.unload().result()


def test_batches_are_on_the_gpu_when_they_are_given(rows):
    loader = mr.data.Loader(rows, 32, seed=3, device="cuda", remainder="pad")
    assert loader.device == torch.device("cuda", torch.cuda.current_device())
    # In some virtual machines nothing says where the GPU is.
    assert loader.processors == "" or loader.processors.endswith(f"near {loader.device}")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    seen = []
    for batch in loader:
        assert batch.x.is_cuda and batch.n.is_cuda and batch.x.shape == (32, 1000)
        assert torch.cuda.memory_allocated() - before < 1 << 20, "the tensors are copies"
        ids, mask = batch.ids.to(DEVICE), batch.mask.to(DEVICE)
        assert torch.equal(batch.x[mask], ids.float()[:, None].expand(-1, 1000))
        assert torch.equal(batch.n[mask], ids[:, None].expand(-1, 3))
        assert not batch.x[~mask].any()
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(600))
    with pytest.raises(mr.InvalidArgument, match="framework"):
        mr.data.Loader(rows, 32, device="cuda", framework="np")


def test_a_batch_is_written_again_after_the_kernels_that_read_it(rows):
    loader = mr.data.Loader(rows, 8, seed=5, prefetch=1, device=DEVICE)
    stream = torch.cuda.Stream()
    work = torch.randn(4096, 4096, device=DEVICE)
    torch.cuda.synchronize()
    wanted, sums = [], []
    with torch.cuda.stream(stream):
        for batch in loader:
            for _ in range(3):  # the GPU is behind the loop
                work = torch.nn.functional.normalize(work @ work)
            sums.append(batch.x.sum())
            wanted.append(int(batch.ids.sum()) * 1000)
            del batch
    torch.cuda.synchronize()
    assert [int(s) for s in sums] == wanted


def test_a_batch_can_follow_another_stream(rows):
    loader = mr.data.Loader(rows, 8, seed=5, prefetch=1, device=DEVICE)
    stream = torch.cuda.Stream()
    work = torch.randn(4096, 4096, device=DEVICE)
    torch.cuda.synchronize()
    wanted, sums = [], []
    for batch in loader:
        batch.follow(stream)
        with torch.cuda.stream(stream):
            for _ in range(3):
                work = torch.nn.functional.normalize(work @ work)
            sums.append(batch.x.sum())
        wanted.append(int(batch.ids.sum()) * 1000)
        batch.release()
        del batch
    torch.cuda.synchronize()
    assert [int(s) for s in sums] == wanted


def test_views_keep_their_place_on_the_gpu(rows):
    loader = mr.data.Loader(rows, 8, seed=5, prefetch=1, device=DEVICE)
    batches = iter(loader)
    first = next(batches)
    kept, ids = first.x, first.ids
    del first
    for _ in range(20):
        next(batches)
    assert torch.equal(kept[:, 0].cpu(), ids.float())


def test_nothing_is_left_on_the_gpu(client, repo, name):
    torch.cuda.synchronize()
    free, _ = torch.cuda.mem_get_info()
    for i in range(20):
        t = torch.full((1 << 20,), float(i), device=DEVICE)
        repo.store(name, {"t": t}).result()
        repo.load_into(name, {"t": t}).result()
    del t
    torch.cuda.synchronize()
    for _ in range(50):
        torch.cuda.empty_cache()
        if free - torch.cuda.mem_get_info()[0] <= 64 << 20:
            break
        time.sleep(0.1)
    assert free - torch.cuda.mem_get_info()[0] <= 64 << 20, os.getpid()
