"""Readers of working sets: whole fields, comparisons, orders of epochs, and how a set is reached."""

import asyncio
import itertools
import os
import pickle
import re
import threading
import time

import numpy as np
import pytest

import millrace as mr

SAMPLES = 53
FILES = {"a": b"abc", "b": b"d", "c": b"efghi", "e": b""}


def rows_of(samples):
    """Sample i has the elements i, i + 0.5, ..., so that each says which one it is."""
    return np.arange(samples, dtype="float32")[:, None] + 0.5 * np.arange(6, dtype="float32")


@pytest.fixture
def ws(client, name, tmp_path):
    np.save(tmp_path / "rows.npy", rows_of(SAMPLES))
    made = client.working_set(name).preload(tmp_path / "rows.npy")
    yield made
    made.unload().result()


@pytest.fixture
def reader(ws):
    return ws.open().result()


@pytest.fixture
def texts(client, name, tmp_path):
    (tmp_path / "texts").mkdir()
    for file, content in FILES.items():
        (tmp_path / "texts" / file).write_bytes(content)
    made = client.working_set(f"{name}/texts").preload(tmp_path / "texts")
    yield made.open().result()
    made.unload().result()


def until(holds):
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def damage(*samples):
    """Changes a byte of each sample in the memory of the data server, which is in this process.

    Sets that were unloaded have left copies.
    """
    with open("/proc/self/maps") as lines:
        maps = [line.split(maxsplit=5) for line in lines if "memfd:millrace.data." in line]
    found = set()
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for span, access, *_ in maps:
            if access != "rw-s":
                continue
            begin, end = (int(place, 16) for place in span.split("-"))
            memory.seek(begin)
            content = memory.read(end - begin)
            for sample in samples:
                row = re.escape(rows_of(SAMPLES)[sample].tobytes())
                for at in (match.start() for match in re.finditer(row, content, re.DOTALL)):
                    memory.seek(begin + at)
                    memory.write(bytes([content[at] ^ 0x55]))
                    found.add(sample)
    assert found == set(samples)


# ---- Whole fields ----


def test_a_whole_field_is_loaded(reader):
    rows = reader.load("x", framework="np").result()
    assert rows.dtype == np.float32 and (rows == rows_of(SAMPLES)).all()
    out = np.zeros((SAMPLES, 6), "float32")
    assert reader.load("x", out).result() is out and (out == rows).all()

    async def load():
        return await reader.load("x", framework="np")

    assert (asyncio.run(load()) == rows).all()
    with pytest.raises(mr.InvalidArgument, match="field y"):
        reader.load("y")
    with pytest.raises(mr.InvalidArgument):
        reader.load("x", out[1:]).result()
    with pytest.raises(mr.InvalidArgument, match="I32.*F32"):
        reader.load("x", np.zeros((SAMPLES, 6), "int32"))
    with pytest.raises(mr.InvalidArgument, match="framework"):
        reader.load("x", framework="jax")


def test_a_field_of_varying_size_is_loaded_as_a_list(texts):
    samples = texts.load("x", framework="np").result()
    assert [bytes(sample) for sample in samples] == list(FILES.values())
    assert samples[0].base is samples[2].base is not None
    out = np.zeros(9, "uint8")
    assert texts.load("x", out).result() is out and bytes(out) == b"abcdefghi"
    with pytest.raises(mr.InvalidArgument):
        texts.load("x", out[:8]).result()


def test_torch_loads_a_field(reader):
    torch = pytest.importorskip("torch")
    assert torch.equal(reader.load("x").result(), torch.from_numpy(rows_of(SAMPLES)))


# ---- Comparisons ----


def test_damaged_samples_are_found(reader, texts):
    assert reader.verify().result() == mr.data.SetDamage(SAMPLES, 0, ())
    assert texts.verify().result() == (len(FILES), 0, ())  # in both fields, bytes and paths
    damage(7)
    assert reader.verify().result() == (SAMPLES, 1, (7,))
    damage(*range(20, 40))

    async def verify():
        return await reader.verify()

    found = asyncio.run(verify())
    assert (found.samples, found.damaged, found.first) == (SAMPLES, 21, (7, *range(20, 29)))


def test_a_comparison_tells_its_progress(reader):
    told, threads = [], set()

    def progress(done, total):
        told.append((done, total))
        threads.add(threading.current_thread())

    assert reader.verify(progress).result().damaged == 0
    size = reader.info.size_bytes
    until(lambda: told and told[-1] == (size, size))
    assert told == sorted(told) and threading.current_thread() not in threads


class Endless:
    """A native reader whose comparison goes on until it is cancelled."""

    def __init__(self, client):
        self.client = client
        self.told = []

    def verify(self, progress):
        self.told.append(progress)
        return self.client._native.await_newer("default", "a model that never comes", 0, 60_000)


@pytest.mark.parametrize("by_progress", [True, False])
def test_a_comparison_can_be_given_up(client, reader, by_progress):
    calls = []

    def progress(done, total):
        calls.append((done, total))
        return not by_progress

    native, reader._native = reader._native, Endless(client)
    future = reader.verify(progress)
    until(lambda: calls)
    if not by_progress:
        assert not future.done()
        assert future.cancel()
    until(future.done)
    assert future.cancelled()
    with pytest.raises(mr.Cancelled):
        future.result()
    assert calls == [(0, 0)]
    reader._native = native
    assert reader.verify(progress=None).result().samples == SAMPLES


def test_an_exception_ends_the_calls_of_a_progress(client, reader, caplog):
    value, calls, other_calls = itertools.count(), [], []
    native, reader._native = reader._native, Endless(client)
    future = reader.verify()
    tell = mr._future.tell_progress
    tell(future, lambda: (next(value), 0), lambda *now: calls.append(now) or 1 / 0)
    tell(future, lambda: (next(value), 0), lambda *now: other_calls.append(now))
    until(lambda: len(other_calls) > 2)
    assert len(calls) == 1 and "ZeroDivisionError" in caplog.text
    assert not future.done() and future.cancel()
    reader._native = native


def test_a_window_has_nothing_to_compare(client, name, tmp_path):
    np.save(tmp_path / "rows.npy", rows_of(SAMPLES))
    window = client.working_set(f"{name}/window").preload(tmp_path / "rows.npy", window="1MiB")
    reader = window.open().result()
    with pytest.raises(mr.Unsupported):
        reader.verify().result()
    assert (reader.load("x", framework="np").result() == rows_of(SAMPLES)).all()
    window.unload().result()


# ---- Orders ----


@pytest.mark.parametrize("shuffle", ["full", "none", "block:8", True, False])
def test_an_order_is_that_of_loaders(reader, shuffle):
    for seed, epoch in itertools.product((0, 7, 2**64 - 1), (0, 3)):
        loader = mr.data.Loader(reader, 4, seed=seed, epoch=epoch, shuffle=shuffle, framework="np")
        given = [int(i) for batch in loader for i in batch.ids]
        order = reader.order(seed, epoch, shuffle=shuffle)
        assert len(order) == SAMPLES and list(order) == given
        assert [order.position_of(sample) for sample in given] == list(range(SAMPLES))


def test_parts_of_an_order(reader, monkeypatch):
    order = reader.order(7, epoch=2)
    every = list(order)
    assert sorted(every) == list(range(SAMPLES)) and order[:] == every
    for part in (
        slice(3, 9), slice(-5, None), slice(50, 99), slice(60, 70), slice(9, 3),
        slice(1, None, 4), slice(None, None, -1), slice(40, 2, -7),
    ):  # fmt: skip
        assert order[part] == every[part]
    assert [order[0], order[52], order[-1], order[np.int64(9)]] == [every[i] for i in (0, 52, -1, 9)]
    monkeypatch.setattr("millrace._set_reader._ORDER_AT_ONCE", 10)
    assert list(order) == every
    assert reader.order()[:3] == reader.order(0, 0, shuffle="full")[:3]
    batch = reader.read_batch("x", order[4:8], framework="np").result()
    assert (batch == rows_of(SAMPLES)[every[4:8]]).all()
    assert "53 samples, seed 7, epoch 2, full" in repr(order)
    for outside in (53, -54, 10**30):
        with pytest.raises(IndexError):
            order[outside]
    with pytest.raises(TypeError):
        order["3"]


def test_wrong_arguments_of_orders_are_named(reader):
    for wrong in ({"seed": -1}, {"epoch": 2**64}, {"shuffle": "sometimes"}):
        with pytest.raises(mr.InvalidArgument, match=next(iter(wrong))):
            reader.order(**wrong)
    with pytest.raises(TypeError, match="shuffle"):
        reader.order(shuffle=3)
    with pytest.raises(TypeError, match="seed"):
        reader.order("7")
    order = reader.order(7)
    for outside in (53, 2**64, -1, 1.5):
        with pytest.raises(mr.InvalidArgument, match="ids"):
            order.position_of(outside)
    with pytest.raises(TypeError, match="process"):
        pickle.dumps(order)


def test_an_order_works_in_a_forked_child(reader):
    order = reader.order(7)
    some = order[10:20]
    child = os.fork()
    if child == 0:
        refused = 0
        for use in (reader.verify, lambda: reader.load("x", framework="np")):
            try:
                use().result()
            except mr.Unavailable:
                refused += 1
        os._exit(10 + refused if order[10:20] == some else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 12


# ---- How a set is reached ----


def test_how_a_set_is_reached(client, ws):
    access = ws.access().result()
    assert access == mr.data.SetAccess([mr.data.PartAccess("n0", "mapped", None)], "")
    assert ws.access("cpu").result() == access
    with pytest.raises(mr.NotFound, match="nowhere"):
        client.working_set("python/nowhere").access().result()
    with pytest.raises(mr.InvalidArgument, match="nonsense"):
        request = client._native.describe_access(ws.name, "nonsense")
        request.wait(None)
        raise request.error()
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        with pytest.raises(mr.InvalidArgument, match="no GPU"):
            ws.access("cuda:0")


def test_a_reader_goes_on_after_its_client(node, ws):
    with mr.connect(node.address) as other:
        theirs = other.working_set(ws.name)
        reader = theirs.open().result()
    with pytest.raises(mr.Unavailable, match="closed"):
        theirs.access()
    order = reader.order(3)
    assert reader.verify().result().samples == len(order) == SAMPLES
    assert (reader.load("x", framework="np").result() == rows_of(SAMPLES)).all()
