"""Models: stored, described, listed, sliced."""

import json

import numpy as np
import pytest

import millrace as mr


@pytest.fixture
def stored(repo, name):
    tensors = {
        "weight": np.arange(5 * 7 * 3, dtype="float32").reshape(5, 7, 3),
        "bias": np.arange(4, dtype="int64"),
    }
    repo.store(name, tensors, metadata={"git": "abc", "über": "ü"}).result()
    return tensors


def test_descriptions(repo, name, stored):
    info = repo.describe(name).result()
    assert info.tensors == {
        "weight": mr.TensorInfo("F32", (5, 7, 3)),
        "bias": mr.TensorInfo("I64", (4,)),
    }
    assert info.metadata == {"git": "abc", "über": "ü"} and info.size_bytes == 5 * 7 * 3 * 4 + 32
    again = repo.store(name, stored).result()
    assert again.version > info.version
    assert repo.describe(name).result().version == again.version


def test_listings(repo, name, stored):
    repo.store(f"{name}/b", stored, pinned=True).result()
    listed = repo.list(name).result()
    assert sorted((m.name, m.pinned, m.tensors) for m in listed) == [
        (name, False, 2),
        (f"{name}/b", True, 2),
    ]
    assert listed.silent == []
    repo.pin(f"{name}/b", False).result()
    repo.pin(name).result()
    assert {m.name: m.pinned for m in repo.list(name).result()} == {name: True, f"{name}/b": False}
    repo.erase(f"{name}/b").result()
    assert [m.name for m in repo.list(name).result()] == [name]
    with pytest.raises(mr.NotFound):
        repo.erase(f"{name}/b").result()


def test_some_tensors(repo, name, stored):
    loaded = repo.load(name, ["bias"], framework="np").result()
    assert list(loaded) == ["bias"] and (loaded["bias"] == stored["bias"]).all()
    with pytest.raises(mr.NotFound, match="no tensor gamma"):
        repo.load(name, ["gamma"], framework="np").result()
    with pytest.raises(mr.NotFound, match="gamma"):
        repo.load_into(name, {"gamma": np.zeros(4)}).result()
    into = {"bias": np.zeros(4, "int64"), "gamma": np.full(4, 9.0)}
    repo.load_into(name, into, strict=False).result()
    assert (into["bias"] == stored["bias"]).all() and (into["gamma"] == 9).all()
    with pytest.raises(mr.InvalidArgument, match="bias"):
        repo.load_into(name, {"bias": np.zeros(4, "float64")}).result()
    with pytest.raises(mr.InvalidArgument, match="bias"):
        repo.load_into(name, {"bias": np.zeros(5, "int64")}).result()
    with pytest.raises(mr.InvalidArgument, match="framework"):
        repo.load(name, framework="tf").result()


@pytest.mark.parametrize(
    "index",
    [
        np.s_[1:3],
        np.s_[2],
        np.s_[-1],
        np.s_[:, 2:5],
        np.s_[..., 1],
        np.s_[1:4, ..., ::2],
        np.s_[0, 1, 2],
        np.s_[1:4:2, -3:],
        np.s_[3:3],
        np.s_[...],
        np.s_[10:20],
        np.s_[-2:, 1],
    ],
)
def test_slices(repo, name, stored, index):
    with repo.safe_open(name, framework="np") as f:
        part = f.get_slice("weight")[index]
    expected = stored["weight"][index]
    assert part.shape == expected.shape and (part == expected).all()


def test_safe_open(repo, name, stored):
    with repo.safe_open(name, framework="np") as f:
        assert set(f.keys()) == {"weight", "bias"} and f.metadata()["git"] == "abc"
        assert (f.get_tensor("bias") == stored["bias"]).all()
        s = f.get_slice("weight")
        assert s.get_shape() == [5, 7, 3] and s.get_dtype() == "F32"
        for wrong in (5, -6, np.s_[0, 0, 0, 0], np.s_[::-1], np.s_[..., ...]):
            with pytest.raises(IndexError):
                s[wrong]
        with pytest.raises(mr.NotFound):
            f.get_tensor("gamma")
    with pytest.raises(mr.NotFound):
        repo.safe_open("there/is/none")


def test_only_the_asked_bytes_are_moved(repo, name):
    whole = np.arange(1 << 20, dtype="uint8").reshape(1024, 1024)
    repo.store(name, {"a": whole}).result()
    into = np.full((1024, 1024), 7, "uint8")
    receipt = repo.load_into(name, {"a": into}).result()
    assert receipt.size_bytes == 1 << 20 and (into == whole).all()


def test_clients_and_groups(client, node):
    with pytest.raises(mr.NotFound, match="no-such-group"):
        client.repository("no-such-group").list().result()
    other = mr.connect(node.address)
    other.close()
    with pytest.raises(mr.Unavailable, match="closed"):
        other.repository().list()
    with node.client() as direct:
        assert direct.repository().list().result() is not None
    with pytest.raises(mr.Unavailable):
        mr.connect("unix:/nonexistent/millrace.sock")
    with pytest.raises(mr.InvalidArgument):
        mr.connect("nonsense")
    with pytest.raises(mr.NotFound):
        mr.open("/nonexistent/millrace.yaml")
    with pytest.raises(mr.NotFound):
        mr.embed("/nonexistent/millrace.yaml")


def test_metadata_of_ones_own(repo, name):
    with pytest.raises(mr.InvalidArgument, match="millrace.tied"):
        repo.store(name, {"a": np.zeros(1)}, metadata={"millrace.tied": "{}"})
    text = json.dumps({"nested": [1, 2]})
    repo.store(name, {"a": np.zeros(1)}, metadata={"config": text}).result()
    assert repo.describe(name).result().metadata == {"config": text}


def test_every_code_has_a_class():
    from millrace import _errors, _native

    names = {_native.code_name(code) for code in range(1, 18)} - {"unknown", "unknown_layers"}
    assert names == set(_errors._classes)
    for cls in _errors._classes.values():
        error = cls("what, where")
        assert str(error) == "what, where" and isinstance(error, mr.Error)


def test_a_model_that_is_stored_again_and_again_can_be_loaded(repo, name):
    import threading

    ended = threading.Event()

    def stores():
        i = 0
        while not ended.is_set():
            i += 1
            repo.store(name, {"a": np.full(1000, i), "b": np.full(1000, i)}).result()

    repo.store(name, {"a": np.zeros(1000, int), "b": np.zeros(1000, int)}).result()
    thread = threading.Thread(target=stores)
    thread.start()
    try:
        for _ in range(200):
            loaded = repo.load(name, framework="np").result()
            assert (loaded["a"] == loaded["b"]).all() and len(set(loaded["a"])) == 1
    finally:
        ended.set()
        thread.join()


def test_names_for_the_same_memory_are_names_of_one_tensor(repo, name):
    a = np.arange(6.0)
    repo.store(name, {"a": a, "b": a + 10, "c": a}).result()
    x = np.zeros(6)
    with pytest.raises(mr.InvalidArgument, match="a and b are the same memory"):
        repo.load_into(name, {"a": x, "b": x}).result()
    with pytest.raises(mr.NotFound, match="gamma"):
        repo.load_into(name, {"a": x, "gamma": x}).result()
    repo.load_into(name, {"a": x, "c": x}).result()
    assert (x == a).all()


def test_wrong_arguments_are_named(client, repo, name):
    a = {"a": np.zeros(1)}
    wrong = [
        (lambda: repo.store(3, a), TypeError, "model"),
        (lambda: repo.store(name, {}), mr.InvalidArgument, "there are none"),
        (lambda: repo.store(name, 3), TypeError, "tensors"),
        (lambda: repo.store(name, a, metadata=["x"]), TypeError, "metadata"),
        (lambda: repo.store(name, a, metadata={"x": 3}), TypeError, "metadata"),
        (lambda: repo.store(name, a, timeout=-1), mr.InvalidArgument, "timeout"),
        (lambda: repo.store(name, a, timeout=float("nan")), mr.InvalidArgument, "timeout"),
        (lambda: repo.store(name, a, timeout="3"), TypeError, "timeout"),
        (lambda: repo.describe(3), TypeError, "model"),
        (lambda: repo.describe(name, version=2**64), mr.InvalidArgument, "version"),
        (lambda: repo.describe(name, version="1"), TypeError, "version"),
        (lambda: repo.newer(name, -1), mr.InvalidArgument, "than"),
        (lambda: mr.connect(trust_users="millrace"), TypeError, "trust_users"),
        (lambda: mr.connect("tls://host:1"), mr.InvalidArgument, "secret="),
        (lambda: mr.connect(timeout=-1), mr.InvalidArgument, "timeout"),
        (lambda: mr.Checkpointer(a, name, client=3), TypeError, "client"),
        (lambda: mr.Checkpointer(a, name, client=client, keep=2**32 + 2), mr.InvalidArgument, "keep"),
        (lambda: repo.store(name, {"t": np.zeros(1, "M8[D]")}), mr.InvalidArgument, "t: "),
        (lambda: repo.store(name, {"m": np.ma.masked_equal([1, 2], 1)}), mr.InvalidArgument, "mask"),
    ]
    for call, error, text in wrong:
        with pytest.raises(error, match=text) as raised:
            call()
        assert "millrace_" not in str(raised.value)
    with mr.Checkpointer(a, name, client=client) as ck:
        with pytest.raises(mr.InvalidArgument, match="step"):
            ck.save(2**64 + 1)
        ck.save(np.int64(4)).durable.result(60)
        assert ck.restore().step == 4
