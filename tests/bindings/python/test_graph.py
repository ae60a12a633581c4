"""Architectures of modules: identities, stores with them, what two models share."""

import operator

import pytest

torch = pytest.importorskip("torch")
import torch.nn as nn  # noqa: E402

import millrace as mr  # noqa: E402


class Residual(nn.Module):
    def __init__(self, width=8, first="first", second="second"):
        super().__init__()
        self.names = (first, second)
        setattr(self, first, nn.Linear(width, width))
        setattr(self, second, nn.Linear(width, width))
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x):
        y = getattr(self, self.names[0])(x)
        return self.norm(x + torch.relu(getattr(self, self.names[1])(y)))


class Swapped(Residual):
    """The same, made in another order."""

    def __init__(self):
        nn.Module.__init__(self)
        self.names = ("b", "a")
        self.n = nn.BatchNorm1d(8)
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 8)

    def forward(self, x):
        return self.n(x + torch.relu(self.a(self.b(x))))


def ids(graph):
    return sorted(layer.id for layer in graph.layers)


def test_names_and_the_order_of_construction_make_no_difference():
    one, other = mr.torch.graph(Residual()), mr.torch.graph(Swapped())
    assert ids(one) == ids(other)
    kinds = [layer.kind for layer in one.layers]
    assert sorted(kinds) == sorted(["input", "Linear", "Linear", "relu", "add", "BatchNorm1d"])
    linear = next(layer for layer in one.layers if layer.label == "first")
    assert linear.attributes["in_features"] == "8"
    assert linear.tensors == {"weight": "first.weight", "bias": "first.bias"}
    add = next(layer for layer in one.layers if layer.kind == "add")
    assert [one.layers[i].kind for i in add.inputs] == ["input", "relu"]


class Other(Residual):
    def forward(self, x):
        return self.norm(x * torch.relu(self.second(self.first(x))))


@pytest.mark.parametrize(
    "other, common",
    [
        (lambda: Residual(width=4), 1),  # the input alone
        (Other, 4),  # all before the product
        (lambda: Residual().double(), 1),
        (lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), 3),
    ],
)
def test_what_differs_changes_what_it_feeds(other, common):
    one, two = mr.torch.graph(Residual()), mr.torch.graph(other())
    assert len(set(ids(one)) & set(ids(two))) == common


def test_a_child_loads_what_it_shares_with_its_parent(repo, name):
    torch.manual_seed(1)
    parent = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, 10))
    stored = mr.torch.graph(parent)
    repo.store(name, parent.state_dict(), graph=stored).result()
    info = repo.describe(name).result()
    assert [x.id for x in info.graph.layers] == [x.id for x in stored.layers]
    assert [x.tensors for x in info.graph.layers] == [x.tensors for x in stored.layers]
    assert [x.attributes for x in info.graph.layers] == [x.attributes for x in stored.layers]

    class Child(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten())
            self.head = nn.Linear(16, 3)

        def forward(self, x):
            return self.head(self.body(x))

    child = Child()
    shared = mr.torch.graph(child).shared(info.graph)
    assert shared == {
        f"body.{n}": n for n in parent.state_dict() if not n.startswith("3.")
    }
    state = child.state_dict()
    receipt = repo.load_into(name, {there: state[here] for here, there in shared.items()}).result()
    assert 0 < receipt.size_bytes < info.size_bytes
    for here, there in shared.items():
        assert torch.equal(child.state_dict()[here], parent.state_dict()[there])


def test_a_module_that_is_called_twice(repo, name):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            return self.layer(self.layer(x))

    graph = mr.torch.graph(Twice())
    linear = [i for i, x in enumerate(graph.layers) if x.kind == "Linear"]
    assert [bool(graph.layers[i].tensors) for i in linear] == [True, False]
    assert linear[0] in graph.layers[linear[1]].inputs
    once = mr.torch.graph(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    assert ids(once) != ids(graph)
    repo.store(name, Twice().state_dict(), graph=graph).result()


class Embedded(nn.Module):
    """Has parameters beside modules, ties two weights, and uses attention."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(11, 8)
        self.places = nn.Parameter(torch.zeros(5, 8))
        self.register_buffer("scale", torch.ones(1))
        self.register_buffer("mask", torch.ones(5), persistent=False)
        self.attention = nn.MultiheadAttention(8, 2)
        self.out = nn.Linear(8, 11, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x):
        y = (self.words(x) + self.places) * self.scale
        y, _ = self.attention(y, y, y)
        return self.out(y)


def test_parameters_beside_modules_tied_ones_and_attention(repo, name):
    model = Embedded()
    graph = mr.torch.graph(model)
    by_label = {layer.label: layer for layer in graph.layers}
    assert by_label[""].tensors == {"places": "places", "scale": "scale"}
    assert by_label["attention"].tensors["out_proj.weight"] == "attention.out_proj.weight"
    assert by_label["out"].tensors == {}  # those of the other name
    repo.store(name, model.state_dict(), graph=graph).result()
    described = repo.describe(name).result().graph
    assert [x.id for x in described.layers] == [x.id for x in graph.layers]
    assert {n for x in described.layers for n in x.tensors.values()} == {
        n for n in model.state_dict() if n != "out.weight"
    }


class Untraceable(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

    def forward(self, x):
        return self.a(x) if float(x.sum()) > 0 else self.b(x)


def test_a_module_that_cannot_be_traced_is_a_chain(caplog):
    with caplog.at_level("INFO", "millrace"):
        graph = mr.torch.graph(Untraceable())
    assert "Untraceable cannot be traced" in caplog.text
    assert [x.label for x in graph.layers] == ["a", "b"]
    assert [x.inputs for x in graph.layers] == [(), (0,)]


def test_tensors_that_are_not_those_of_the_graph_are_named(repo, name):
    model = nn.Linear(3, 3)
    graph = mr.torch.graph(model)
    with pytest.raises(mr.InvalidArgument, match="it has bias, too"):
        repo.store(name, {"weight": model.weight}, graph=graph)
    with pytest.raises(mr.InvalidArgument, match="gamma is none of its 2"):
        repo.store(name, {**model.state_dict(), "gamma": torch.ones(2)}, graph=graph)


def test_a_model_without_a_graph_is_a_chain_of_its_names(repo, name):
    repo.store(name, nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).state_dict()).result()
    layers = repo.describe(name).result().graph.layers
    assert [x.label for x in layers] == ["0", "1"]
    assert layers[1].inputs == (0,)


def test_models_of_torchvision():
    models = pytest.importorskip("torchvision").models
    transformer = {"image_size": 32, "patch_size": 8, "num_layers": 2, "num_heads": 2,
                   "hidden_dim": 16, "mlp_dim": 32}  # fmt: skip
    makes = {
        "resnet50": models.resnet50,
        "swin_t": models.swin_t,
        "vgg11_bn": lambda: models.vgg11_bn(init_weights=False),
        "vit": lambda: models.VisionTransformer(**transformer),
    }
    for kind, make in makes.items():
        model = make()
        graph = mr.torch.graph(model)
        # That of PyTorch 1.13 does not see `n, c, h, w = x.shape` under Python 3.11.
        if kind != "vit" or not torch.__version__.startswith("1."):
            assert any(x.kind == "add" for x in graph.layers) == (kind != "vgg11_bn")
        tensors = {n for x in graph.layers for n in x.tensors.values()}
        assert tensors == set(model.state_dict()), kind
        assert len(graph) > (150 if kind == "resnet50" else 20)
    # Another head: all but the last layer is shared, also where the parent was made anew.
    for kind, head in ((models.resnet18, "fc"), (models.swin_t, "head")):
        parent, child = kind(), kind(num_classes=7)
        shared = mr.torch.graph(child).shared(mr.torch.graph(parent))
        assert set(child.state_dict()) - shared.keys() == {f"{head}.weight", f"{head}.bias"}
        assert all(map(operator.eq, shared, shared.values()))
    parent, child = (models.VisionTransformer(**transformer, num_classes=n) for n in (10, 7))
    shared = mr.torch.graph(child).shared(mr.torch.graph(parent))
    assert set(child.state_dict()) - shared.keys() == {"heads.head.weight", "heads.head.bias"}


class Changing(nn.Module):
    """Whose forward pass changes it."""

    def __init__(self):
        super().__init__()
        self.register_buffer("at", torch.zeros(1))
        self.layer = nn.Linear(3, 3)
        self.calls, self.seen = 0, []

    def forward(self, x):
        self.calls += 1
        self.seen.append(self.calls)
        self.feature = self.layer(x)
        return self.feature + torch.randn(3)


class Stepping(Changing):
    def forward(self, x):
        self.at += 1
        return super().forward(x)


@pytest.mark.parametrize("kind", [Changing, Stepping])
def test_the_module_stays_as_it_was(kind):
    import copy

    model = kind()
    parameters, seen = model._parameters, model.seen
    torch.manual_seed(4)
    expected = torch.randn(2)
    torch.manual_seed(4)
    mr.torch.graph(model)
    assert torch.equal(torch.randn(2), expected)
    assert model.at == 0 and model.calls == 0 and not hasattr(model, "feature")
    assert model._parameters is parameters and model.seen is seen and not seen
    copy.deepcopy(model)


class Classifier(nn.Module):
    """With a parameter of its own, as vision transformers have."""

    def __init__(self, classes):
        super().__init__()
        self.classes = classes
        self.token = nn.Parameter(torch.zeros(8))
        self.body = nn.Linear(8, 8)
        self.head = nn.Linear(8, classes)

    def forward(self, x):
        return self.head(self.body(x + self.token))


def test_heads_of_other_sizes_change_nothing_before_them():
    shared = mr.torch.graph(Classifier(3)).shared(mr.torch.graph(Classifier(5)))
    assert sorted(shared) == ["body.bias", "body.weight", "token"]


class Function(nn.Module):
    def __init__(self, function, scale):
        super().__init__()
        self.function = function
        self.layer = nn.Linear(2, 2)
        self.scale = torch.tensor(scale)

    def forward(self, x, y):
        return self.function(self.layer(x)) * self.scale


def test_functions_and_constants_count():
    one = ids(mr.torch.graph(Function(torch.sin, [1.0, 2.0])))
    assert one == ids(mr.torch.graph(Function(torch.sin, [1.0, 2.0])))
    for other in (Function(torch.cos, [1.0, 2.0]), Function(torch.sin, [1.0, 3.0])):
        assert one != ids(mr.torch.graph(other))


def test_modules_of_script_are_chains_and_others_are_refused(repo, name):
    script = torch.jit.script(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)))
    graph = mr.torch.graph(script)
    assert {n for x in graph.layers for n in x.tensors.values()} == set(script.state_dict())
    with pytest.raises(TypeError, match="a module, not int"):
        mr.torch.graph(3)
    with pytest.raises(TypeError, match="millrace.Graph, not int"):
        repo.store(name, {"a": torch.ones(1)}, graph=3)
