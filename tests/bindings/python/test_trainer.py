"""What a trainer may do between two saves, and after a restore, with objects of PyTorch."""

import pytest

torch = pytest.importorskip("torch")

import millrace as mr  # noqa: E402
from millrace._pack import unpack  # noqa: E402
from test_torch import OPTIMIZERS, iterate, same, training  # noqa: E402


def states(optim):
    return {
        (i, key): value
        for i, p in enumerate(p for g in optim.param_groups for p in g["params"])
        for key, value in optim.state[p].items()
        if isinstance(value, torch.Tensor)
    }


def replaces_state(parts):
    import copy

    parts[1].load_state_dict(copy.deepcopy(parts[1].state_dict()))


def replaces_layer(parts):
    new = torch.nn.Linear(6, 8)
    for old, p in zip(parts[0].first.parameters(), new.parameters()):
        parts[1].state[p] = parts[1].state.pop(old)
        group = parts[1].param_groups[0]["params"]
        group[[id(q) for q in group].index(id(old))] = p
    parts[0].first = new


def clears_state(parts):
    parts[1].state.clear()


def replaces_entries(parts):
    for p in list(parts[1].state):
        parts[1].state[p] = {
            k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in parts[1].state[p].items()
        }


def replaces_buffer(parts):
    parts[0].norm.running_mean = torch.full((8,), 5.0)


@pytest.mark.parametrize(
    "change",
    [replaces_state, replaces_layer, clears_state, replaces_entries, replaces_buffer],
)
def test_what_was_replaced_is_saved(client, name, change):
    parts = training()
    with mr.torch.Checkpointer(*parts, name=name, client=client) as ck:
        iterate(*parts)
        ck.save(1).durable.result(60)
        change(parts)
        iterate(*parts)
        ck.save(2).durable.result(60)
        wanted = {k: v.clone() for k, v in parts[0].state_dict().items() if k != "_extra_state"}
        moments = {k: v.clone() for k, v in states(parts[1]).items()}
    fresh = training()
    with mr.torch.Checkpointer(*fresh, name=name, client=client) as ck:
        assert ck.restore() == 2
    for key, t in wanted.items():
        assert same(fresh[0].state_dict()[key], t), key
    # A layer that was replaced has another place among the parameters of an optimizer.
    if change is not replaces_layer:
        assert moments.keys() == states(fresh[1]).keys()
        for key, t in moments.items():
            assert same(states(fresh[1])[key], t), key


def test_a_save_after_a_refused_one_is_refused_too(client, name):
    parts = training()
    ck = mr.torch.Checkpointer(*parts, name=name, client=client)
    ck.save(0).durable.result(60)  # without states of the optimizer
    iterate(*parts)
    for step in (1, 2):
        with pytest.raises(mr.InvalidArgument, match="optim.exp_avg"):
            ck.save(step)
    ck.close()
    assert [s.step for s in client.checkpoints().steps(name).result()] == [0]


def test_buffers_of_another_type_are_no_bytes_of_the_old_one(client, name):
    module = torch.nn.BatchNorm1d(4)
    with mr.torch.Checkpointer(module, name=name, client=client) as ck:
        ck.save(1).durable.result(60)
        module.running_mean = torch.full((4,), 3.0, dtype=torch.float64)
        with pytest.raises(mr.InvalidArgument, match="running_mean|F64"):
            ck.save(2)
        module.running_mean = torch.full((1 << 20,), 3.0)
        with pytest.raises(mr.InvalidArgument):
            ck.save(3)
        module.running_mean = torch.full((8,), 3.0)[::2]
        ck.save(4).durable.result(60)
        module.running_mean = torch.zeros(4)
        assert ck.restore() == 4 and (module.running_mean == 3).all()


def test_two_modules_whose_parameters_could_have_one_name(client, name):
    def two():
        first = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
        second = torch.nn.Linear(2, 2)
        optim = torch.optim.Adam([*first.parameters(), *second.parameters()], lr=0.1)
        return first, second, optim

    def step(first, second, optim):
        optim.zero_grad()
        second(first(torch.ones(3, 2))).sum().backward()
        optim.step()

    torch.manual_seed(3)
    parts = two()
    with mr.torch.Checkpointer(*parts, name=name, client=client) as ck:
        step(*parts)
        ck.save(1).durable.result(60)
    wanted = states(parts[2])
    fresh = two()
    with mr.torch.Checkpointer(*fresh, name=name, client=client) as ck:
        assert ck.restore() == 1
    assert len(wanted) == 18 and states(fresh[2]).keys() == wanted.keys()
    for key, t in wanted.items():
        assert same(states(fresh[2])[key], t), key


@pytest.mark.parametrize("optimizer", ["adam", "momentum"])
def test_parameters_without_gradients(client, name, optimizer):
    def parts():
        model = torch.nn.ModuleDict({"used": torch.nn.Linear(3, 3), "unused": torch.nn.Linear(3, 3)})
        return model, OPTIMIZERS[optimizer](model.parameters())

    model, optim = parts()
    with mr.torch.Checkpointer(model, optim, name=name, client=client) as ck:
        model["used"](torch.ones(2, 3)).sum().backward()
        optim.step()
        ck.save(1).durable.result(60)
    fresh, fresh_optim = parts()
    with mr.torch.Checkpointer(fresh, fresh_optim, name=name, client=client) as ck:
        assert ck.restore() == 1
    assert states(fresh_optim).keys() == states(optim).keys()
    for key, t in states(optim).items():
        assert same(states(fresh_optim)[key], t), key


def lbfgs(model):
    return torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=3)


def sparse_adam(model):
    return torch.optim.SparseAdam(model.parameters(), lr=0.1)


@pytest.mark.parametrize("optimizer", [lbfgs, sparse_adam])
def test_optimizers_of_other_kinds(client, name, optimizer):
    sparse = optimizer is sparse_adam

    def parts():
        torch.manual_seed(2)
        model = torch.nn.Embedding(6, 4, sparse=sparse)
        return model, optimizer(model)

    def step(model, optim):
        def closure():
            optim.zero_grad()
            loss = (model(torch.arange(6)) - 1).square().sum()
            loss.backward()
            return loss

        return optim.step(closure).item()

    model, optim = parts()
    undisturbed = [step(model, optim) for _ in range(5)]
    model, optim = parts()
    with mr.torch.Checkpointer(model, optim, name=name, client=client) as ck:
        losses = [step(model, optim) for _ in range(2)]
        ck.save(2).durable.result(60)
    model, optim = parts()
    with mr.torch.Checkpointer(model, optim, name=name, client=client) as ck:
        assert ck.restore() == 2
        losses += [step(model, optim) for _ in range(3)]
    assert losses == undisturbed


def test_a_run_that_went_back(client, name):
    model = torch.nn.Linear(2, 2)
    replicas = [
        mr.torch.Checkpointer(
            model, name=name, client=client, rank=r, world_size=2, replicas="first", life=5
        )
        for r in range(2)
    ]
    for step in (100, 60):
        replicas[0].save(step).durable.result(60)
    assert [ck.restore() for ck in replicas] == [60, 60]


def test_what_is_not_trusted_leaves_the_tensors(client, name):
    model = torch.nn.Linear(2, 2)
    with mr.torch.Checkpointer(model, name=name, client=client, pickle=True) as ck:
        ck.save(1, extra={"c": 1 + 2j}).durable.result(60)
    with torch.no_grad():
        model.weight.fill_(9)
    with mr.torch.Checkpointer(model, name=name, client=client) as ck:
        with pytest.raises(mr.InvalidArgument, match="trust"):
            ck.restore()
    assert (model.weight == 9).all()
    with mr.torch.Checkpointer(model, name=name, client=client, trust=True) as ck:
        assert ck.restore() == 1 and ck.extra == {"c": 1 + 2j}
    assert not (model.weight == 9).all()


def test_memory_that_a_tensor_has_given_away_stays(repo, name):
    for _ in range(20):
        p = torch.nn.Parameter(torch.full((1 << 18,), 3.0))
        future = repo.store(name, {"p": p})
        p.data = torch.zeros(1)
        torch.full((1 << 18,), 4.0)
        future.result(60)
        assert (repo.load(name).result()["p"] == 3).all()


def test_schedulers_with_methods_in_their_state(client, name):
    model = torch.nn.Linear(2, 2)
    optim = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def scheduler():
        return torch.optim.lr_scheduler.OneCycleLR(optim, max_lr=1, total_steps=10)

    one = scheduler()
    with mr.torch.Checkpointer(model, optim, one, name=name, client=client) as ck:
        for _ in range(3):
            optim.step()
            one.step()
        ck.save(3).durable.result(60)
        wanted = one.state_dict()["last_epoch"], optim.param_groups[0]["lr"]
        one.step()
        ck.restore()
        assert (one.state_dict()["last_epoch"], optim.param_groups[0]["lr"]) == wanted


def test_a_name_is_free_when_its_checkpointer_is_gone(client, name):
    import gc

    model = torch.nn.Linear(2, 2)
    ck = mr.torch.Checkpointer(model, name=name, client=client)
    saved = ck.save(1)
    del ck
    gc.collect()
    saved.durable.result(60)
    with mr.torch.Checkpointer(model, name=name, client=client) as ck:
        assert ck.restore() == 1


def test_wrong_objects(client):
    with pytest.raises(TypeError, match="Linear"):
        mr.torch.Checkpointer(torch.nn.Linear, name="x", client=client)
    with pytest.raises(TypeError, match="int"):
        mr.torch.Checkpointer(torch.nn.Linear(2, 2), name="x", client=client, named={"a": 3})
    with pytest.raises(mr.InvalidArgument, match="nothing to save"):
        mr.torch.Checkpointer(name="x", client=client)
    with pytest.raises(mr.InvalidArgument, match="there are none"):
        mr.torch.Checkpointer(torch.nn.ReLU(), name="x", client=client).save(1)
    cyclic = []
    cyclic.append(cyclic)
    with pytest.raises(mr.InvalidArgument, match="in itself"):
        mr.torch.save(cyclic, "x", client=client)
    with pytest.raises(mr.InvalidArgument, match="a.b: "):
        mr.torch.save({"a": {"b": object()}}, "x", client=client)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000, '{"$array":[]}', '{"$tensor":["F32",[1099511627776],[0,4]]}', "{",
        '{"$tensor":["F32",[-1],[0,4]]}', '{"$array":["<f4,)",[1],[0,4]]}', '{"$unknown":1}',
        '{"$tensor":["F4",[8],[0,4]]}', '{"$bytes":[0,99]}', '{"$counter":[[1,2,3]]}',
    ],
)  # fmt: skip
def test_hostile_bytes(text):
    import struct

    data = b"MRX1" + struct.pack("<I", len(text)) + text.encode() + b"1234"
    with pytest.raises(mr.CorruptData):
        unpack(data)


def test_another_optimizer_is_refused(client, name):
    model = torch.nn.Linear(3, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    with mr.torch.Checkpointer(model, optimizer, name=name, client=client) as ck:
        ck.save(1).durable.result(60)
    other = torch.optim.SGD(model.parameters(), lr=0.1)
    with mr.torch.Checkpointer(model, other, name=name, client=client) as ck:
        with pytest.raises(mr.InvalidArgument, match="Adam was saved, and this is SGD"):
            ck.restore()
    assert not other.state and "betas" not in other.param_groups[0]


def test_arrays_of_another_order_of_bytes_come_back(client, name):
    import collections

    import numpy as np

    model = torch.nn.Linear(2, 2)
    extra = {"a": np.arange(3, dtype=">i4"), "n": collections.Counter(a=np.int64(3))}
    with mr.torch.Checkpointer(model, name=name, client=client) as ck:
        ck.save(1, extra=extra).durable.result(60)
        assert ck.restore() == 1
        assert ck.extra["a"].tolist() == [0, 1, 2] and ck.extra["n"]["a"] == 3
