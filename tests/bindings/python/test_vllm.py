"""vLLM: its weight transfer by published versions, to a server with its phases over HTTP."""

import importlib
import importlib.util
import inspect
import itertools
import sys
import threading
import time

import pytest

torch = pytest.importorskip("torch")

import fake_vllm  # noqa: E402
import millrace as mr  # noqa: E402

REAL = importlib.util.find_spec("vllm") is not None


@pytest.fixture(scope="module")
def adapter():
    """The module `millrace.vllm`, with the stand-in for vLLM."""
    with fake_vllm.installed():
        yield importlib.import_module("millrace.vllm")
    sys.modules.pop("millrace.vllm")
    mr.__dict__.pop("vllm", None)


@pytest.fixture
def server(adapter):
    made = fake_vllm.Server(adapter.MillraceWeightTransferEngine)
    yield made
    made.close()


@pytest.fixture
def http(server):
    return fake_vllm.SyncClient(server.url)


@pytest.fixture
def info(node, name):
    return {"address": node.address, "name": name, "timeout": 30}


class Source:
    """A WeightSource of a dictionary."""

    def __init__(self, tensors):
        self.tensors, self.passes = tensors, 0

    def metadata(self):
        raise AssertionError("no list of tensors is sent")

    def __iter__(self):
        self.passes += 1
        return iter(self.tensors.items())


def numbered(version):
    return {
        "embed.weight": torch.full((200, 300), float(version)),
        "norm.weight": torch.full((10,), version).to(torch.bfloat16),
        "steps": torch.tensor(version),
    }


def put(tensors, version):
    for tensor in tensors.values():
        tensor.fill_(version)


def are_of(server, version):
    for worker in server.workers:
        want = numbered(version)
        assert list(worker.model.loaded) == list(want)
        for name, tensor in worker.model.loaded.items():
            assert tensor.dtype == want[name].dtype and torch.equal(tensor, want[name]), name


@pytest.fixture
def trainer(adapter, info, http):
    """Makes engines of trainers, and closes them."""
    made = []

    def make(tensors, rank=0, **changed):
        made.append(
            adapter.MillraceTrainerWeightTransferEngine.trainer_init(
                adapter.MillraceTrainerInitInfo(**{**info, **changed}, rank=rank),
                client=http,
                source=Source(tensors),
            )
        )
        return made[-1]

    yield make
    for one in made:
        one.shutdown()


# ---- What vLLM calls ----


def shown(function):
    parameters = inspect.signature(function).parameters.values()
    star = [p.kind is p.KEYWORD_ONLY for p in parameters]
    names = [p.name + ("" if p.default is p.empty else "=") for p in parameters]
    if True in star:
        names.insert(star.index(True), "*")
    return ", ".join(names)


def differences(kind, name):
    found = {method: shown(getattr(kind, method)) for method in fake_vllm.SIGNATURES[name]}
    return {m: s for m, s in found.items() if s != fake_vllm.SIGNATURES[name][m]}


def test_the_engines_have_the_signatures_of_vllm(adapter):
    worker = adapter.MillraceWeightTransferEngine
    assert not differences(worker, "WeightTransferEngine")
    # It can be called as vLLM calls it, and takes a number, too.
    trainer = adapter.MillraceTrainerWeightTransferEngine
    assert differences(trainer, "TrainerWeightTransferEngine") == {"send_weights": "self, version="}
    assert worker.init_info_cls is adapter.MillraceWeightTransferInitInfo
    assert worker.update_info_cls is adapter.MillraceWeightTransferUpdateInfo
    assert trainer.init_info_cls.backend == "millrace"
    assert not inspect.isabstract(worker) and not inspect.isabstract(trainer)


def test_the_stand_in_has_them():
    assert not differences(fake_vllm.Engine, "WeightTransferEngine")
    assert not differences(fake_vllm.TrainerEngine, "TrainerWeightTransferEngine")


@pytest.mark.skipif(not REAL, reason="vLLM is not installed")
def test_vllm_has_them(run_python):
    source = f"""
import sys
sys.path.insert(0, {str(sys.path[0])!r})
import test_vllm, importlib, inspect
base = importlib.import_module(test_vllm.fake_vllm.BASE)
for name in test_vllm.fake_vllm.SIGNATURES:
    assert not test_vllm.differences(getattr(base, name), name), name
importlib.import_module(test_vllm.fake_vllm.RELOAD).finalize_layerwise_reload
import millrace as mr
mr.vllm.register()
assert not inspect.isabstract(mr.vllm.MillraceWeightTransferEngine)
assert not inspect.isabstract(mr.vllm.MillraceTrainerWeightTransferEngine)
"""
    run_python(source)


def test_both_engines_are_registered(adapter):
    adapter.register()
    adapter.register()
    factory = sys.modules[fake_vllm.FACTORY]
    assert factory.WeightTransferEngineFactory.engines == {
        "millrace": adapter.MillraceWeightTransferEngine
    }
    assert factory.WeightTransferTrainerFactory.engines == {
        "millrace": adapter.MillraceTrainerWeightTransferEngine
    }


def test_without_vllm(run_python):
    source = """
import sys
sys.modules["vllm"] = None
import millrace as mr
from millrace import *
try:
    mr.vllm
except ImportError as e:
    print(e)
"""
    assert "pip install vllm" in run_python(source).stdout


# ---- From a trainer to a server ----


def test_workers_get_each_version(server, http, trainer, info):
    assert http.get("get_world_size") == {"world_size": 2}
    tensors = numbered(0)
    engine = trainer(tensors)
    wanted = {"address": info["address"], "name": info["name"], "group": "default"}
    sent = {"init_info": {**wanted, "timeout": 30, "secret": None}}
    assert server.requests == [("/init_weight_transfer_engine", sent)]
    for version in (1, 2, 3):
        put(tensors, version)
        http.post("pause")
        engine.send_weights()
        http.post("resume")
        are_of(server, version)
        assert http.get("weight_info") == {"weight_version": str(version)}
    # One message for each update, with the number alone.
    assert server.requests[-5:] == [
        ("/pause", {}),
        ("/start_weight_update", {}),
        ("/update_weights", {"update_info": {"version": 3}}),
        ("/finish_weight_update", {"weight_version": "3"}),
        ("/resume", {}),
    ]
    for worker in server.workers:
        assert worker.model.events == ["start", "finish"] * 3


def test_tensors_that_have_moved_are_published(server, trainer):
    engine = trainer({})
    for version in (1, 2):
        engine.source.tensors = numbered(version)
        engine.send_weights()
        are_of(server, version)


def test_numbers_are_the_programs(server, trainer):
    tensors = numbered(100)
    engine = trainer(tensors)
    engine.send_weights(version=100)
    are_of(server, 100)
    before = list(server.requests)
    with pytest.raises(mr.InvalidArgument, match="numbers rise"):
        engine.send_weights(version=100)
    assert server.requests == before
    put(tensors, 101)
    engine.send_weights()
    assert server.requests[-2][1] == {"update_info": {"version": 101}}
    are_of(server, 101)


def test_clients_that_take_no_version(server, http, trainer):
    engine = trainer(numbered(1))
    engine.client.finish_weight_update = lambda: http.post("finish_weight_update")
    engine.send_weights()
    are_of(server, 1)
    assert http.get("weight_info") == {"weight_version": "default"}


def test_only_the_first_rank_sends(server, trainer):
    engine = trainer(numbered(1), rank=1)
    engine.send_weights()
    assert engine.source.passes == 1 and not server.requests


def test_a_worker_that_is_late_gets_the_newest(client, server, http, name, info):
    publisher = client.weights(name).publisher(tensors := numbered(0))
    for version in (1, 2, 3):
        put(tensors, version)
        publisher.publish(version).stored.result()
    http.init_weight_transfer_engine(info)
    http.start_weight_update()
    http.update_weights({"version": 2})
    are_of(server, 3)
    # A message that comes again changes nothing.
    http.update_weights({"version": 2})
    http.finish_weight_update()
    are_of(server, 3)


def test_a_worker_waits_for_the_version(client, server, http, name, info):
    http.init_weight_transfer_engine(info)
    http.start_weight_update()
    failed = []

    def update():
        try:
            http.update_weights({"version": 5})
        except Exception as e:
            failed.append(e)

    thread = threading.Thread(target=update)
    thread.start()
    publisher = client.weights(name).publisher(tensors := numbered(0))
    for version in (4, 5):
        time.sleep(0.2)
        assert not server.workers[1].model.loaded
        put(tensors, version)
        publisher.publish(version).stored.result()
    thread.join(60)
    assert not failed
    are_of(server, 5)


# vLLM ends an update that has failed.
def end(server):
    for worker in server.workers:
        worker.active = False


def test_a_version_that_never_comes_is_named(server, http, trainer, name):
    tensors = numbered(1)
    engine = trainer(tensors, timeout=4)
    http.start_weight_update()
    with pytest.raises(RuntimeError, match=f"version 9 of .* {name} .* 4 s; .* has none"):
        http.update_weights({"version": 9})
    end(server)
    engine.send_weights()
    http.start_weight_update()
    with pytest.raises(RuntimeError, match="DeadlineExceeded: version 9 .* this worker has 1 "):
        http.update_weights({"version": 9})
    are_of(server, 1)
    end(server)
    put(tensors, 2)
    engine.send_weights()
    are_of(server, 2)


def test_what_is_wrong_is_refused(server, http, info):
    for wrong, why in [
        ({"address": info["address"]}, "name"),
        ({**info, "master_port": 29500}, "master_port"),
        ({**info, "name": 5}, "name: a str"),
        ({**info, "name": ""}, "name: it is empty"),
        ({**info, "timeout": 0}, "timeout"),
        ({**info, "address": "unix:/nowhere/n0.sock"}, "Unavailable"),
    ]:
        with pytest.raises(RuntimeError, match=why):
            http.init_weight_transfer_engine(wrong)
    http.start_weight_update()
    with pytest.raises(RuntimeError, match="call init_transfer_engine first"):
        http.update_weights({"version": 1})
    http.init_weight_transfer_engine(info)
    for wrong in ({}, {"version": -1}, {"version": "new"}, {"version": 1, "names": []}):
        server.workers[0].active = True
        with pytest.raises(RuntimeError, match="Error|InvalidArgument"):
            http.update_weights(wrong)


def test_a_trainer_is_told(adapter, trainer):
    with pytest.raises(mr.Unavailable):
        trainer(numbered(1), address="unix:/nowhere/n0.sock")
    with pytest.raises(mr.InvalidArgument, match="name"):
        trainer(numbered(1), name="")
    with pytest.raises(mr.InvalidArgument, match="WeightSource"):
        adapter.MillraceTrainerWeightTransferEngine.trainer_init(None, client=None)
    engine = trainer(numbered(1), group="nowhere")
    with pytest.raises(mr.NotFound):
        engine.send_weights()
    engine.shutdown()
    with pytest.raises(mr.InvalidArgument, match="trainer_init"):
        engine.send_weights()


def test_a_trainer_may_go_on_from_an_older_step(server, trainer):
    trainer(numbered(40)).send_weights(40)
    trainer(numbered(7)).send_weights(7)
    are_of(server, 7)


def test_other_tensors_may_come(client, server, http, name, info):
    http.init_weight_transfer_engine(info)
    head = torch.rand(5, 6)
    others = [{}, {"head.weight": head}, {"head.weight": head[:2]}, {}]
    for version, more in enumerate(others, 1):
        publisher = client.weights(name).publisher({**numbered(version), **more})
        publisher.publish(version).stored.result()
        http.start_weight_update()
        http.update_weights({"version": version})
        http.finish_weight_update()
        for worker in server.workers:
            assert worker.model.loaded.keys() == {*numbered(0), *more}
            assert worker.model.loaded["steps"] == version
            for key, tensor in more.items():
                assert torch.equal(worker.model.loaded[key], tensor)
            worker.model.loaded.clear()


def test_tied_tensors_come_by_all_names(server, trainer):
    weight = torch.rand(30, 40)
    trainer({"embed": weight, "head": weight}).send_weights()
    for worker in server.workers:
        assert torch.equal(worker.model.loaded["embed"], weight)
        assert torch.equal(worker.model.loaded["head"], weight)


def test_no_torn_version_is_loaded(client, server, http, name, info):
    http.init_weight_transfer_engine(info)
    publisher = client.weights(name).publisher(tensors := numbered(0))
    over = threading.Event()
    published = [0]

    def publish():
        for version in itertools.count(1):
            if over.is_set():
                return
            put(tensors, version % 200)
            publisher.publish(version).staged.result()
            published.append(version)

    thread = threading.Thread(target=publish)
    thread.start()
    http.start_weight_update()
    seen = set()
    for _ in range(60):
        http.update_weights({"version": published[-1] + 1})  # one that no worker has as yet
        for worker in server.workers:
            found = int(worker.model.loaded["steps"])
            seen.add(found)
            for tensor in worker.model.loaded.values():
                assert (tensor == found).all()
    over.set()
    thread.join(60)
    http.finish_weight_update()
    assert len(seen) > 5


def test_shutdown_closes_the_connection(server, http, info):
    http.init_weight_transfer_engine(info)
    for worker in server.workers:
        weights = worker.engine._weights
        worker.engine.shutdown()
        worker.engine.shutdown()
        assert worker.engine._weights is None and weights._client._handle is None
