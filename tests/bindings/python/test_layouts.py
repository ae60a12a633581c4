"""Trainings whose tensors are divided among ranks, and that go on with other numbers of ranks."""

import pytest

torch = pytest.importorskip("torch")

import millrace as mr  # noqa: E402
from test_torch import same  # noqa: E402

ROWS = 12
CUTS = {1: [0, 12], 2: [0, 7, 12], 3: [0, 3, 3, 12]}  # the second of three has none


class Divided(torch.nn.Module):
    """A layer whose rows are divided among ranks, and one that all have."""

    def __init__(self, rows):
        super().__init__()
        self.rows = torch.nn.Linear(4, rows)
        self.norm = torch.nn.BatchNorm1d(4)

    def forward(self, x):
        return self.rows(self.norm(x))


class Rank:
    def __init__(self, client, run, rank, world, **options):
        self.begin, self.end = CUTS[world][rank : rank + 2]
        self.model = Divided(self.end - self.begin)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        parts = {
            "model.rows.weight": mr.Part((self.begin, 0), (ROWS, 4)),
            "model.rows.bias": mr.Part((self.begin,), (ROWS,)),
        }
        self.checkpointer = mr.torch.Checkpointer(
            self.model, self.optimizer, name=run, client=client, rank=rank, world_size=world,
            life=7, parts=parts, **options,
        )  # fmt: skip

    def iterate(self):
        self.optimizer.zero_grad()
        self.model(torch.randn(6, 4)).square().sum().backward()
        self.optimizer.step()

    def tensors(self):
        """All tensors, those that are divided by the rows that they have of the whole."""
        out = dict(self.model.state_dict())
        for name, p in self.model.named_parameters():
            out.update({f"{key}.{name}": t for key, t in self.optimizer.state[p].items()})
        return out


@pytest.mark.parametrize("world", [1, 2, 3])
def test_a_run_of_two_ranks_goes_on_with_other_numbers(client, name, world):
    run = f"{name}/two"
    torch.manual_seed(3)
    ranks = [Rank(client, run, rank, 2) for rank in range(2)]
    for step in (1, 2):
        for r in ranks:
            r.iterate()
        for r in ranks:
            r.checkpointer.save(step, extra={"step": step}).staged.result(60)
    for r in ranks:
        r.checkpointer.close()
    first, second = ranks[0].tensors(), ranks[1].tensors()
    for r in [Rank(client, f"{name}/other", rank, world) for rank in range(world)]:
        assert r.checkpointer.restore(run=run) == 2
        assert r.checkpointer.extra == {"step": 2}
        found = r.tensors()
        assert found.keys() == first.keys()
        for key, t in found.items():
            whole = first[key]
            if "rows" in key and whole.shape:
                whole = torch.cat([whole, second[key]])[r.begin : r.end]
            assert same(t.detach(), whole.detach()), key
        r.iterate()
        r.checkpointer.save(3).staged.result(60)
        r.checkpointer.close()
    assert [s.step for s in client.checkpoints().steps(f"{name}/other").result()] == [3]


def test_a_run_keeps_its_number_of_ranks(client, name):
    one = Rank(client, name, 0, 2)
    one.iterate()
    one.checkpointer.save(1).staged.result(60)
    one.checkpointer.close()
    other = Rank(client, name, 0, 1)
    other.iterate()
    with pytest.raises(mr.InvalidArgument, match="2"):
        other.checkpointer.save(1)


def test_parts_that_are_none_are_named(client, name):
    model = Divided(3)
    with pytest.raises(mr.InvalidArgument, match="model.rows.gamma"):
        mr.torch.Checkpointer(
            model, name=name, client=client, parts={"model.rows.gamma": mr.Part((0,), (3,))}
        ).save(1)
    with pytest.raises(mr.InvalidArgument, match="rows.weight"):
        mr.torch.Checkpointer(
            model, name=name, client=client, parts={"model.rows.weight": mr.Part((10, 0), (12, 4))}
        ).save(1)


def test_a_run_that_is_not_there(client, name):
    ck = mr.torch.Checkpointer(Divided(3), name=name, client=client)
    assert ck.restore() is None
    for step in (None, 4):
        with pytest.raises(mr.NotFound, match="there/is/none"):
            ck.restore(step, run="there/is/none")


def test_a_whole_tensor_of_another_size_is_refused(client, name):
    one = Rank(client, name, 0, 1)
    one.iterate()
    one.checkpointer.save(1).staged.result(60)
    one.checkpointer.close()
    larger = Divided(ROWS)
    ck = mr.torch.Checkpointer(
        larger, name=f"{name}/other", client=client,
        parts={"model.rows.weight": mr.Part((0, 0), (ROWS + 1, 4))},
    )  # fmt: skip
    before = larger.rows.weight.detach().clone()
    with pytest.raises(mr.InvalidArgument, match="model.rows.weight: the whole tensor"):
        ck.restore(run=name)
    assert torch.equal(larger.rows.weight, before)


class Ends(torch.nn.Module):
    """The first and the last layer of a network, which may have one weight."""

    def __init__(self, tied):
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.last = torch.nn.Linear(4, 4, bias=False)
        if tied:
            self.last.weight = self.first.weight


def test_what_was_one_tensor_is_loaded_where_it_is_two(client, name):
    tied, apart = Ends(True), Ends(False)
    with mr.torch.Checkpointer(tied, name=name, client=client) as ck:
        ck.save(1).durable.result(60)
    with mr.torch.Checkpointer(apart, name=f"{name}/apart", client=client) as ck:
        assert ck.restore(run=name) == 1
    assert torch.equal(apart.last.weight, tied.first.weight)
    assert torch.equal(apart.first.weight, tied.first.weight)
    last = torch.nn.ModuleDict({"last": torch.nn.Linear(4, 4, bias=False)})
    with mr.torch.Checkpointer(last, name=f"{name}/last", client=client) as ck:
        assert ck.restore(run=name) == 1
    assert torch.equal(last["last"].weight, tied.first.weight)


class Counting(torch.optim.SGD):
    """Has states that are no tensors, one by one."""

    def step(self):
        super().step()
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p]["count"] = self.state[p].get("count", 0) + 1
                self.state[p]["past"] = [p.detach().clone()]


class Noted(torch.nn.Linear):
    note = None

    def get_extra_state(self):
        return self.note

    def set_extra_state(self, state):
        self.note = state


def test_ranks_with_other_modules_have_states_of_their_own(client, name):
    stages = [torch.nn.ModuleDict({key: Noted(3, 3)}) for key in ("a", "b")]
    for rank, stage in enumerate(stages):
        optimizer = Counting(stage.parameters(), lr=0.1)
        for _ in range(rank + 2):
            for p in stage.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()
        next(iter(stage.values())).note = f"rank {rank}"
        with mr.torch.Checkpointer(
            stage, optimizer, name=name, client=client, rank=rank, world_size=2, life=3
        ) as ck:
            ck.save(1).staged.result(60)
    for keys in (("a", "b"), ("b",)):
        model = torch.nn.ModuleDict({key: Noted(3, 3) for key in keys})
        optimizer = Counting(model.parameters(), lr=0.5)
        with mr.torch.Checkpointer(
            model, optimizer, name=f"{name}/{len(keys)}", client=client
        ) as ck:
            assert ck.restore(run=name) == 1
        for key in keys:
            rank = "ab".index(key)
            assert model[key].note == f"rank {rank}"
            state = optimizer.state[model[key].weight]
            assert state["count"] == rank + 2
            assert torch.equal(state["past"][0], stages[rank][key].weight)
            assert torch.equal(model[key].weight, stages[rank][key].weight)
        assert optimizer.param_groups[0]["lr"] == 0.1


class Distributed(torch.nn.Parameter):
    """A parameter that says, as a DTensor does, which part of it this rank has."""

    def __new__(cls, whole, begin, end):
        made = torch.nn.Parameter.__new__(cls, whole)
        made.part = whole[begin:end].clone()
        made.begin = begin
        return made

    def to_local(self):
        return self.part

    def __create_chunk_list__(self):
        chunk = type("Chunk", (), {})()
        chunk.offsets = (self.begin,) + (0,) * (self.part.dim() - 1)
        chunk.sizes = self.part.shape
        return [chunk]


def test_distributed_tensors_say_where_they_lie(client, name):
    whole = torch.arange(24.0).reshape(6, 4)

    def rank(begin, end, **options):
        module = torch.nn.Module()
        module.w = Distributed(whole.clone(), begin, end)
        return module, mr.torch.Checkpointer(module, client=client, life=7, **options)

    ranks = [
        rank(*rows, name=name, rank=r, world_size=2) for r, rows in enumerate([(0, 4), (4, 6)])
    ]
    for _, ck in ranks:
        ck.save(1).staged.result(60)
    for _, ck in ranks:
        ck.close()
    described = client.checkpoints().describe(name, 1).result().tensors["model.w"]
    assert described.offsets == (4, 0) and described.global_shape == (6, 4)
    module, ck = rank(1, 5, name=f"{name}/other")
    module.w.part.zero_()
    assert ck.restore(run=name) == 1
    assert torch.equal(module.w.part, whole[1:5])
