"""PyTorch: state dictionaries bit for bit, trainings that go on after kill -9, objects."""

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import millrace as mr  # noqa: E402
from conftest import fail_a_save  # noqa: E402
from millrace._pack import pack, unpack  # noqa: E402

TYPES = [
    "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
    "float64", "complex64", "complex128",
]  # fmt: skip
LATER_TYPES = ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"]


def same(a, b):
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and torch.equal(
            a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8)
        )
    )


@pytest.mark.parametrize("dtype", TYPES + LATER_TYPES)
def test_tensors_of_each_type_come_back(repo, name, dtype):
    if not hasattr(torch, dtype):
        pytest.skip(f"PyTorch {torch.__version__} has no {dtype}")
    kind = getattr(torch, dtype)
    stored = torch.randint(0, 100, (6, 16), dtype=torch.uint8)
    stored = stored.to(kind) if dtype in TYPES else stored.view(kind)
    repo.store(name, {"a": stored, "part": stored[1:, ::2]}).result()
    loaded = repo.load(name).result()
    assert same(loaded["a"], stored) and same(loaded["part"], stored[1:, ::2])
    into = torch.zeros_like(stored)
    repo.load_into(name, {"a": into.T.T, "part": into[1:, ::2].clone()}).result()
    assert same(into, stored)


def test_types_that_this_version_lacks_are_given_as_bytes(repo, name):
    if hasattr(torch, "uint16"):
        pytest.skip("PyTorch has uint16")
    import numpy as np

    a = np.arange(12, dtype="uint16").reshape(3, 4)
    repo.store(name, {"a": a}).result()
    with pytest.raises(mr.InvalidArgument, match="raw=True"):
        repo.load(name).result()
    raw = repo.load(name, raw=True).result()["a"]
    assert raw.shape == (3, 4, 2) and raw.numpy().view("uint16")[..., 0].tolist() == a.tolist()


def test_dictionaries_come_back_as_they_were(client, name):
    import collections

    state = torch.nn.BatchNorm1d(3).state_dict()
    long = "k" * 2000
    given = {
        "module": state,
        "milestones": collections.Counter([3, 3, 5]),
        "ordered": collections.OrderedDict(b=1, a=torch.ones(2)),
        long: {long: torch.zeros(2), "other": torch.ones(1)},
        3: {True: "x", None: (1, [2.5])},
        "kinds": [torch.Size([2, 3]), torch.float16, torch.device("cpu")],
    }
    mr.torch.save(given, name, client=client).result()
    loaded = mr.torch.load(name, client=client)
    assert loaded["module"]._metadata == state._metadata
    torch.nn.BatchNorm1d(3).load_state_dict(loaded["module"])
    assert type(loaded["milestones"]) is collections.Counter and loaded["milestones"][3] == 2
    assert type(loaded["ordered"]) is collections.OrderedDict and list(loaded["ordered"]) == ["b", "a"]
    assert torch.equal(loaded[long][long], torch.zeros(2)) and type(loaded[3]) is dict
    assert loaded[3] == given[3] and loaded["kinds"] == given["kinds"]


def test_objects_of_one_memory_keep_their_flags(client, name):
    a = torch.ones(3, requires_grad=True)
    p = torch.nn.Parameter(torch.zeros(2))
    mr.torch.save({"a": a, "again": a, "b": a.detach(), "p": p, "q": p}, name, client=client).result()
    loaded = mr.torch.load(name, client=client)
    assert loaded["a"] is loaded["again"] and loaded["a"].requires_grad
    assert not loaded["b"].requires_grad and loaded["b"].data_ptr() == loaded["a"].data_ptr()
    assert loaded["p"] is loaded["q"] and isinstance(loaded["p"], torch.nn.Parameter)


def test_bfloat16_in_numpy(repo, name):
    repo.store(name, {"a": torch.arange(4, dtype=torch.bfloat16)}).result()
    raw = repo.load(name, framework="np", raw=True).result()["a"]
    assert raw.shape == (4, 2) and raw.dtype == "uint8"


def test_tensors_lie_where_they_lie():
    from millrace._tensors import Batch

    t = torch.arange(12.0).reshape(3, 4)
    for view in (t, t.T, t[1:, ::2], t[2], t[1, 1], torch.nn.Parameter(t)):
        line = Batch().add("t", view, writable=True)
        assert line.address == view.data_ptr()
        assert line.strides is None or list(line.strides) == [4 * n for n in view.stride()]


def test_tensors_that_cannot_be_used_are_named(repo):
    wrong = {
        "sparse": torch.eye(3).to_sparse(),
        "meta": torch.empty(3, device="meta"),
        "conjugated": torch.zeros(3, dtype=torch.complex64).conj(),
        "quantized": torch.quantize_per_tensor(torch.zeros(3), 0.1, 0, torch.qint8),
    }
    for name, t in wrong.items():
        with pytest.raises(mr.InvalidArgument, match=name):
            repo.store("m", {name: t})
    with pytest.raises(mr.InvalidArgument, match="expanded|overlap"):
        repo.store("expanded", {"expanded": torch.zeros(3)}).result()
        repo.load_into("expanded", {"expanded": torch.zeros(1).expand(3)}).result()


def test_safe_open(repo, name):
    weight = torch.arange(600.0).reshape(200, 3)
    repo.store(name, {"fc.weight": weight}).result()
    with repo.safe_open(name, framework="pt") as f:
        assert same(f.get_slice("fc.weight")[100:103], weight[100:103])
        assert same(f.get_tensor("fc.weight"), weight)


@pytest.mark.parametrize("model", ["resnet50", "swin_b", "vit_b_32", "vgg19_bn"])
def test_models_of_torchvision(repo, name, model):
    models = pytest.importorskip("torchvision").models
    first = getattr(models, model)()
    repo.store(name, first.state_dict()).result()
    second = getattr(models, model)()
    repo.load_into(name, second.state_dict()).result()
    loaded = repo.load(name).result()
    assert list(loaded) == list(first.state_dict())
    for key, t in first.state_dict().items():
        assert same(t, second.state_dict()[key]) and same(t, loaded[key]), key
    repo.erase(name).result()


# ---- Checkpointers ----


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(6, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.drop = torch.nn.Dropout(0.2)
        self.last = torch.nn.Linear(8, 6)
        self.tied = torch.nn.Linear(8, 6)
        self.tied.weight = self.last.weight
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.last(self.drop(torch.relu(self.norm(self.first(x))))) + self.tied.bias

    def get_extra_state(self):
        return {"calls": self.calls}

    def set_extra_state(self, state):
        self.calls = state["calls"]


OPTIMIZERS = {
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.01),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9, nesterov=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


def training(optimizer="adam"):
    torch.manual_seed(1)
    model = Net()
    optim = OPTIMIZERS[optimizer](model.parameters())
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optim, [3, 6], gamma=0.5)
    return model, optim, scheduler


def iterate(model, optim, scheduler):
    optim.zero_grad()
    loss = model(torch.randn(16, 6)).square().mean()
    loss.backward()
    optim.step()
    scheduler.step()
    return loss.item()


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_training_goes_on_as_if_it_had_not_ended(client, name, optimizer):
    parts = training(optimizer)
    undisturbed = [iterate(*parts) for _ in range(10)]

    parts = training(optimizer)
    with mr.torch.Checkpointer(*parts, name=name, client=client) as ck:
        assert ck.restore() is None
        losses = [iterate(*parts) for _ in range(5)]
        ck.save(5, extra={"note": ("a", 1, b"bytes"), "t": torch.arange(3)})
        losses.append(iterate(*parts))
    assert losses == undisturbed[:6]

    parts = training(optimizer)
    torch.manual_seed(99)
    with mr.torch.Checkpointer(*parts, name=name, client=client) as ck:
        assert ck.restore() == 5
        assert ck.extra["note"] == ("a", 1, b"bytes") and ck.extra["t"].tolist() == [0, 1, 2]
        assert parts[0].calls == 5 and parts[0].tied.weight is parts[0].last.weight
        losses = []
        for step in range(5, 10):
            losses.append(iterate(*parts))
            ck.save(step + 1)
    assert losses == undisturbed[5:]


def test_every_step_is_whole(client, name):
    """Saves at each iteration, each restored to what the parameters and buffers were at it."""
    parts = training()
    kept = {}
    with mr.torch.Checkpointer(*parts, name=name, client=client, keep=4) as ck:
        for step in range(1, 9):
            iterate(*parts)
            saved = ck.save(step)
            kept[step] = {k: v.clone() for k, v in parts[0].state_dict().items() if k != "_extra_state"}
        saved.durable.result(60)
        for step in (5, 6, 7, 8):
            assert ck.restore(step) == step
            for key, t in kept[step].items():
                assert same(parts[0].state_dict()[key], t), (step, key)


def test_tensors_that_move(client, name):
    parts = training()
    with mr.torch.Checkpointer(*parts, name=name, client=client) as ck:
        iterate(*parts)
        ck.save(1)
        # New memory for all parameters and for the optimizer's state.
        parts[0].load_state_dict({k: v for k, v in parts[0].state_dict().items()})
        for p in parts[0].parameters():
            p.data = p.data.clone()
        parts[1].load_state_dict(parts[1].state_dict())
        iterate(*parts)
        ck.save(2).durable.result(60)
        wanted = {k: v.clone() for k, v in parts[0].state_dict().items() if k != "_extra_state"}
        iterate(*parts)
        ck.restore()
        for key, t in wanted.items():
            assert same(parts[0].state_dict()[key], t), key
        parts[0].more = torch.nn.Linear(2, 2)
        with pytest.raises(mr.InvalidArgument, match="model.more.bias"):
            ck.save(3)


def test_other_tensors_than_those_saved_are_named(client, name):
    parts = training()
    with mr.torch.Checkpointer(parts[0], name=name, client=client) as ck:
        ck.save(1).durable.result(60)
    other = torch.nn.Linear(3, 3)
    with pytest.raises(mr.Error, match="weight|first|layout"):
        mr.torch.Checkpointer(other, name=name, client=client).restore()
    with pytest.raises(mr.NotFound, match="1"):
        mr.torch.Checkpointer(parts[0], name=name, client=client).restore(4)


@pytest.mark.parametrize("replicas", ["first", "spread"])
def test_replicas(client, name, replicas):
    ranks = [training() for _ in range(3)]
    for parts in ranks:
        torch.manual_seed(5)
        for _ in range(3):
            iterate(*parts)
    cks = [
        mr.torch.Checkpointer(
            *parts, name=name, client=client, rank=r, world_size=3, replicas=replicas, life=11
        )
        for r, parts in enumerate(ranks)
    ]
    for saved in [ck.save(3, extra="three") for ck in cks]:
        saved.staged.result(60)
        saved.durable.result(60)
    (run,) = [r for r in client.checkpoints().runs(name).result() if r.name == name]
    assert run.world_size == (3 if replicas == "spread" else 1)
    for ck in cks:
        ck.close()

    fresh = [training() for _ in range(3)]
    for r, parts in enumerate(fresh):
        ck = mr.torch.Checkpointer(
            *parts, name=name, client=client, rank=r, world_size=3, replicas=replicas, life=12
        )
        assert ck.restore() == 3 and ck.extra == "three"
        for key, t in ranks[0][0].state_dict().items():
            if key != "_extra_state":
                assert same(parts[0].state_dict()[key], t), key
        assert parts[0].tied.weight is parts[0].last.weight
        assert parts[1].state_dict()["state"].keys() == ranks[0][1].state_dict()["state"].keys()
        ck.close()


def test_axes(client, name):
    def at(tensor, pipeline, data):
        model = torch.nn.Linear(4, 4)
        with torch.no_grad():
            model.weight.fill_(10 * tensor + pipeline)
        axes = {"tensor": (tensor, 2), "pipeline": (pipeline, 2), "data": (data, 2)}
        return model, mr.torch.Checkpointer(model, name=name, client=client, axes=axes, life=3)

    places = [(t, p, d) for t in range(2) for p in range(2) for d in range(2)]
    all_of_them = {place: at(*place) for place in places}
    for saved in [ck.save(1) for _, ck in all_of_them.values()]:
        saved.durable.result(60)
    for _, ck in all_of_them.values():
        ck.close()
    shard = client.checkpoints().describe(name, 2).result()
    assert shard.axes == {"tensor": "1/2", "pipeline": "0/2", "data": "0/2"}
    for place in places:
        model, ck = at(*place)
        with torch.no_grad():
            model.weight.zero_()
        assert ck.restore() == 1
        assert (model.weight == 10 * place[0] + place[1]).all()
        ck.close()


def test_failed_saves_are_raised(client, name):
    model = torch.nn.Linear(4096, 4096)
    ck = mr.torch.Checkpointer(model, name=name, client=client, on_busy="refuse")
    step = fail_a_save(ck)
    with pytest.raises(mr.Busy):
        ck.save(step)
    with pytest.raises(mr.Busy):
        ck.fence()
    ck.save(step).durable.result(60)
    ck.close()
    with pytest.raises(mr.InvalidArgument, match="extra.thing"):
        mr.torch.Checkpointer(model, name=name, client=client).save(3, extra={"thing": object()})


TRAINER = """
import os, signal, sys
import torch
sys.path.insert(0, {tests!r})
from test_torch import iterate, training
import millrace as mr
parts = training({optimizer!r})
ck = mr.torch.Checkpointer(*parts, name={name!r})
start = ck.restore() or 0
for step in range(start, 10):
    loss = iterate(*parts)
    print(step, repr(loss), flush=True)
    saved = ck.save(step + 1)
    if step == {killed_at}:
        os.kill(os.getpid(), signal.SIGKILL)
ck.close(finished=True)
"""


@pytest.mark.parametrize("optimizer", ["adam", "adamw", "momentum"])
def test_a_killed_training_goes_on(run_python, request, name, optimizer):
    fields = {"tests": str(request.path.parent), "optimizer": optimizer, "name": name}

    def losses(killed_at, status):
        out = run_python(TRAINER.format(killed_at=killed_at, **fields), status=status).stdout
        return dict(line.split() for line in out.splitlines())

    parts = training(optimizer)
    undisturbed = {str(i): repr(iterate(*parts)) for i in range(10)}
    killed = losses(5, -9)
    after = losses(-1, 0)
    assert killed == {k: v for k, v in undisturbed.items() if int(k) <= 5}
    assert after and after == {k: v for k, v in undisturbed.items() if k in after}
    assert int(min(after, key=int)) in (4, 5, 6)


def test_a_failure_at_the_end_is_logged(run_python, request, name):
    done = run_python(
        f"""
import sys
import torch
import millrace as mr
sys.path.insert(0, {str(request.path.parent)!r})
from conftest import fail_a_save
ck = mr.torch.Checkpointer(torch.nn.Linear(4096, 4096), name={name!r}, on_busy="refuse")
fail_a_save(ck)
"""
    )
    assert name in done.stderr and "failed" in done.stderr


# ---- Objects ----


def test_objects(client, name):
    parts = training()
    iterate(*parts)
    weight = torch.arange(6.0)
    obj = {
        "model": parts[0].state_dict(),
        "optimizer": parts[1].state_dict(),
        "epoch": 3,
        1: [weight, weight[2:], (weight, None, 2.5, b"raw", "text")],
        ("a", 2): torch.nn.Parameter(torch.zeros(2)),
    }
    mr.torch.save(obj, name, client=client).result()
    back = mr.torch.load(name, client=client)
    assert list(back) == list(obj) and back["epoch"] == 3
    for key, t in obj["model"].items():
        if key != "_extra_state":
            assert same(back["model"][key], t)
    assert back["model"]["_extra_state"] == {"calls": 1}
    other = training()
    other[0].load_state_dict(back["model"])
    other[1].load_state_dict(back["optimizer"])
    assert back[1][2][1:] == (None, 2.5, b"raw", "text") and back[1][0] is back[1][2][0]
    assert isinstance(back[("a", 2)], torch.nn.Parameter)
    mr.torch.save(weight, name, client=client).result()
    assert same(mr.torch.load(name, client=client), weight)
    with pytest.raises(mr.InvalidArgument, match="pickle"):
        mr.torch.save({"a": object()}, name, client=client)
    mr.torch.save({"a": 1 + 2j}, name, client=client, pickle=True).result()
    with pytest.raises(mr.InvalidArgument, match="trust"):
        mr.torch.load(name, client=client)
    assert mr.torch.load(name, client=client, trust=True) == {"a": 1 + 2j}
    client.repository().store(name, {"a": weight}).result()
    with pytest.raises(mr.InvalidArgument, match="not stored by"):
        mr.torch.load(name, client=client)


def test_small_values():
    import collections

    import numpy as np

    values = [
        None, True, 3, 2.5, float("inf"), "text", b"bytes", [1, [2]], (1, (2,)), {"a": {"b": 1}},
        {1: 2, (1, 2): "x"}, {"$ref": 1}, collections.Counter([3, 3, 4]), {1, 2},
    ]  # fmt: skip
    assert unpack(pack(values)) == values
    t = torch.arange(6).reshape(2, 3).T
    assert same(unpack(pack(t)), t) and unpack(pack(torch.tensor(3))).shape == ()
    a = np.arange(4.0)
    assert (unpack(pack(a)) == a).all() and unpack(pack(np.float32(2))) == 2
    data = pack({"a": b"bytes", "t": t})
    for wrong in (b"", b"other", data[:9], data[:-1], data[:8] + b"[" + data[9:]):
        with pytest.raises(mr.CorruptData):
            unpack(wrong)


def test_the_package_needs_no_torch():
    source = "import sys, millrace; print('torch' in sys.modules, 'numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert out.stdout == "False False\n"
