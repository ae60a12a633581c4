"""Tensors of other libraries: where they lie, what types they have, and that nothing is copied."""

import array

import numpy as np
import pytest

import millrace as mr
from millrace._tensors import Batch, batch_of

NUMPY_TYPES = [
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64",
    "float16", "float32", "float64", "complex64", "complex128",
]  # fmt: skip


def some(dtype, shape):
    count = int(np.prod(shape))
    return (np.arange(count) % 120).reshape(shape).astype(dtype)


@pytest.mark.parametrize("dtype", NUMPY_TYPES)
def test_arrays_of_each_type_come_back(repo, name, dtype):
    stored = some(dtype, (6, 5))
    repo.store(name, {"a": stored}).result()
    loaded = repo.load(name, framework="np").result()["a"]
    assert loaded.dtype == stored.dtype and (loaded == stored).all()
    into = np.zeros_like(stored)
    repo.load_into(name, {"a": into}).result()
    assert (into == stored).all()


def test_arrays_lie_where_they_lie():
    a = some("float32", (4, 3))
    line = Batch().add("a", a, writable=True)
    assert line.address == a.ctypes.data
    part = a[1:, ::2]
    line = Batch().add("part", part, writable=True)
    assert line.address == part.ctypes.data and tuple(line.strides) == part.strides


@pytest.mark.parametrize(
    "view",
    [
        lambda a: a.T,
        lambda a: a[::2, 1:],
        lambda a: a[::-1],
        lambda a: a[:, ::-2],
        lambda a: a[2],
        lambda a: a[:0],
        lambda a: a[1, 1, ...],
    ],
)
def test_views_are_stored_and_loaded_where_they_are(repo, name, view):
    whole = some("float32", (6, 7))
    stored = view(whole)
    repo.store(name, {"a": stored}).result()
    assert (repo.load(name, framework="np").result()["a"] == stored).all()
    target = np.zeros((6, 7), "float32")
    expected = target.copy()
    view(expected)[...] = stored
    repo.load_into(name, {"a": view(target)}).result()
    assert (target == expected).all()


def test_scalars_and_empty_arrays(repo, name):
    repo.store(name, {"zero-d": np.array(3.5), "empty": np.empty((0, 4), "int8")}).result()
    loaded = repo.load(name, framework="np").result()
    assert loaded["zero-d"].shape == () and loaded["zero-d"] == 3.5
    assert loaded["empty"].shape == (0, 4) and loaded["empty"].dtype == np.int8


def test_bytes_and_buffers(repo, name):
    numbers = array.array("d", [1.0, 2.0, 3.0])
    tensors = {
        "bytes": b"some bytes",
        "bytearray": bytearray(b"others"),
        "view": memoryview(numbers)[1:],
        "array": numbers,
        "scalar": np.float32(2.5),
    }
    repo.store(name, tensors).result()
    loaded = repo.load(name, framework="np").result()
    assert loaded["bytes"].tobytes() == b"some bytes"
    assert loaded["bytearray"].tobytes() == b"others"
    assert loaded["view"].tolist() == [2.0, 3.0] and loaded["array"].tolist() == [1.0, 2.0, 3.0]
    assert loaded["scalar"] == np.float32(2.5)
    into = bytearray(len(b"some bytes"))
    repo.load_into(name, {"bytes": into}).result()
    assert into == b"some bytes"


def test_memory_that_can_only_be_read_is_no_target(repo, name):
    repo.store(name, {"a": b"some bytes"}).result()
    with pytest.raises(mr.InvalidArgument, match="a: "):
        repo.load_into(name, {"a": b"some bytes"})
    frozen = np.zeros(10, "uint8")
    frozen.setflags(write=False)
    with pytest.raises(mr.InvalidArgument, match="only be read"):
        repo.load_into(name, {"a": frozen})


class OnlyDlpack:
    """An array that shows itself by DLPack alone, as those of other libraries do."""

    def __init__(self, a):
        self._a = a

    def __dlpack__(self, stream=None):
        return self._a.__dlpack__()

    def __dlpack_device__(self):
        return self._a.__dlpack_device__()


def test_dlpack(repo, name):
    a = some("float32", (4, 6))
    line = Batch().add("a", OnlyDlpack(a), writable=True)
    assert line.address == a.ctypes.data and tuple(line.shape) == (4, 6)
    repo.store(name, {"a": OnlyDlpack(a), "part": OnlyDlpack(a[:, ::2])}).result()
    into = np.zeros((4, 6), "float32")
    repo.load_into(name, {"a": OnlyDlpack(into)}).result()
    assert (into == a).all()
    assert (repo.load(name, framework="np").result()["part"] == a[:, ::2]).all()


def test_what_cannot_be_stored_is_named(repo):
    wrong = {
        "big": (np.zeros(3, ">f4"), mr.InvalidArgument, "big-endian"),
        "text": (np.array(["a", "b"]), mr.InvalidArgument, "not known"),
        "object": (np.array([object()]), mr.InvalidArgument, "not known"),
        "number": (3.5, TypeError, "float is no tensor"),
        "none": (None, TypeError, "NoneType is no tensor"),
        "nested": ({"a": 1}, TypeError, "millrace.torch.save"),
        "long double": (np.zeros(2, "longdouble"), mr.InvalidArgument, "128 bits"),
    }
    for name, (value, error, text) in wrong.items():
        with pytest.raises(error, match=name) as raised:
            repo.store("m", {name: value})
        assert text in str(raised.value)
    with pytest.raises(TypeError, match="a str"):
        repo.store("m", {1: np.zeros(2)})
    with pytest.raises((mr.InvalidArgument, ValueError)):
        repo.store("m", {"a\0b": np.zeros(2)})


def test_tied_tensors_are_stored_once_and_are_tied_again(repo, name):
    a = some("float32", (100, 10))
    repo.store(name, {"first": a, "other": a, "second": a[:], "part": a[:50]}).result()
    info = repo.describe(name).result()
    assert set(info.tensors) == {"first", "part"}
    assert info.tied == {"other": "first", "second": "first"} and info.metadata == {}
    loaded = repo.load(name, framework="np").result()
    assert loaded["first"] is loaded["second"] and loaded["part"] is not loaded["first"]
    assert (loaded["second"] == a).all() and (loaded["part"] == a[:50]).all()
    # A target need not be tied.
    one, two = np.zeros_like(a), np.zeros_like(a)
    repo.load_into(name, {"first": one, "second": two}).result()
    assert (one == a).all() and (two == a).all()
    assert (repo.load(name, ["second"], framework="np").result()["second"] == a).all()


def test_overlapping_targets_get_what_was_stored(repo, name):
    a = some("float32", (10,))
    repo.store(name, {"head": a[:6], "tail": a[4:]}).result()
    into = np.zeros(10, "float32")
    repo.load_into(name, {"head": into[:6], "tail": into[4:]}).result()
    assert (into == a).all()


def test_one_batch_keeps_the_first_of_those_that_are_the_same():
    a = some("float32", (4,))
    batch, tied = batch_of({"a": a, "b": a, "c": a[:0], "d": a[:0]}, writable=False)
    assert [line.name for line in batch.lines] == ["a", "c", "d"] and tied == {"b": "a"}
    assert len(batch.owners) == 3


def test_numpy_scalars_are_what_they_were(repo, name):
    scalars = {f"s{i}": np.float64(i) for i in range(200)}
    scalars.update((f"c{i}", np.complex128(i + 1j)) for i in range(200))
    repo.store(name, scalars).result()
    loaded = repo.load(name, framework="np").result()
    for key, value in scalars.items():
        assert loaded[key] == value, key
