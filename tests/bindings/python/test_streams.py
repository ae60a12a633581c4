"""Streams: samples are appended while others read them."""

import pickle
import threading

import numpy as np
import pytest

import millrace as mr

FIELDS = {"number": ("I64", ()), "x": ("F32", (3, 4))}


def sample(number):
    return {"number": np.array(number), "x": np.full((3, 4), number, "float32")}


@pytest.fixture
def stream(client, name):
    made = client.stream(name).create(FIELDS, capacity=8)
    yield made
    try:
        made.remove().result()
    except mr.NotFound:
        pass


def numbers_of(batch):
    for number, x in zip(batch["number"], batch["x"], strict=True):
        assert (x == number).all()
    return [int(n) for n in batch["number"]]


def test_what_is_appended_is_read_to_the_end(stream):
    with stream.producer() as producer:
        assert producer.fields["x"] == mr.TensorInfo("F32", (3, 4), None, None)
        for i in range(5):
            producer.append(sample(i))
        producer.flush()
        status = stream.status()
        assert (status.appended, status.present, status.producers) == (5, 5, 1)
    stream.end().result()
    reader = stream.reader(2, framework="np")
    first = reader.next()
    assert numbers_of(first) == [0, 1] and list(first.ids) == [0, 1]
    assert first.x.shape == (2, 3, 4) and first.x.dtype == np.float32
    assert [numbers_of(b) for b in reader] == [[2, 3], [4]]
    assert reader.next() is None
    assert numbers_of(first) == [0, 1]
    status = stream.status()
    assert status.ended and status.given == 5 and status.producers_ended == 1


def test_streams_are_listed(client, stream):
    (found,) = client.streams(stream.name).result()
    assert (found.name, found.node, found.policy, found.when_full) == (
        stream.name, "n0", "fifo", "block",
    )
    assert found.owner.startswith("user ") and found.created_at_ns > 0
    assert found.status == stream.status() and found.status.capacity == 8
    assert not client.streams("none of these").result()


def test_batches_while_producers_append(client, name):
    made = client.stream(name).create(
        FIELDS, capacity=16, policy="firo", producers=2, threshold=4
    )

    def produce(first):
        with client.stream(name).producer(in_flight=4) as producer:
            for i in range(first, first + 50):
                producer.append(sample(i))

    threads = [threading.Thread(target=produce, args=(n,)) for n in (0, 50)]
    for thread in threads:
        thread.start()
    seen = []
    for batch in made.batches(batch_size=8, framework="np"):
        seen += numbers_of(batch)
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(100))
    made.remove().result()


def test_torch_tensors(stream):
    torch = pytest.importorskip("torch")
    producer = stream.producer()
    producer.append({"number": torch.tensor(3), "x": torch.full((4, 3), 3.0).t()})
    producer.flush()
    batch = stream.reader(1).next()
    assert isinstance(batch.x, torch.Tensor) and batch.x.shape == (1, 3, 4)
    assert batch.number.tolist() == [3]


def test_a_producer_that_fails_has_not_ended(stream):
    with pytest.raises(RuntimeError, match="the solver"):
        with stream.producer() as producer:
            producer.append(sample(1))
            producer.flush()
            raise RuntimeError("the solver has failed")
    assert stream.status().producers_ended == 0


def test_a_producer_can_end_before_its_block_does(stream):
    with stream.producer() as producer:
        producer.append(sample(1))
        producer.end()
        with pytest.raises(mr.InvalidArgument, match="has ended"):
            producer.end()
    assert stream.status().producers_ended == 1


def test_a_wait_has_a_timeout(stream):
    with pytest.raises(mr.DeadlineExceeded):
        stream.reader(1).next(timeout=0.05)


def test_places_of_the_reader_come_back_with_the_batches(stream):
    producer = stream.producer()
    for i in range(4):
        producer.append(sample(i))
    reader = stream.reader(1, batches=1, framework="np")
    batch = reader.next()
    with pytest.raises(mr.NoSpace, match="batches"):
        reader.next()
    kept = batch.x
    batch.release()
    with pytest.raises(mr.NoSpace):
        reader.next()
    del kept
    assert numbers_of(reader.next()) == [1]


def test_wrong_arguments_are_named(client, stream):
    with pytest.raises(mr.InvalidArgument, match="'F99'"):
        client.stream("wrong").create({"x": ("F99", ())})
    with pytest.raises(TypeError, match="fields"):
        client.stream("wrong").create({"x": "F32"})
    with pytest.raises(TypeError, match="fields"):
        client.stream("wrong").create([("x", "F32")])
    with pytest.raises(mr.InvalidArgument, match="^policy: 'lifo' is none of fifo, firo and"):
        client.stream("wrong").create(FIELDS, policy="lifo")
    with pytest.raises(mr.InvalidArgument, match="^when_full: 'wait' is neither"):
        client.stream("wrong").create(FIELDS, when_full="wait")
    for many in (0, 65):
        with pytest.raises(mr.InvalidArgument, match=f"^fields: their number: {many} is not"):
            client.stream("wrong").create({str(i): ("F32", ()) for i in range(many)})
    with pytest.raises(mr.InvalidArgument, match="threshold"):
        client.stream("wrong").create(FIELDS, capacity=4, policy="firo", threshold=5)
    with pytest.raises(mr.AlreadyExists, match="other options"):
        client.stream(stream.name).create(FIELDS, capacity=9)
    with pytest.raises(mr.NotFound, match="nothing"):
        client.stream("nothing").status()
    with pytest.raises(mr.NotFound, match="nothing"):
        client.stream("nothing").producer()
    with pytest.raises(mr.NotFound, match="nothing"):
        client.stream("nothing").reader(1)
    producer = stream.producer()
    with pytest.raises(mr.InvalidArgument, match="its fields are x"):
        producer.append({"x": np.zeros((3, 4), "float32")})
    with pytest.raises(mr.InvalidArgument, match="field x is"):
        producer.append({"number": np.array(1), "x": np.zeros((4, 4), "float32")})
    with pytest.raises(TypeError, match="sample"):
        producer.append([1])
    with pytest.raises(mr.InvalidArgument, match="batch_size"):
        stream.reader(9)
    for what in (producer, stream.reader(1, framework="np")):
        with pytest.raises(TypeError, match="its process"):
            pickle.dumps(what)


def test_a_removed_stream_is_gone(stream):
    producer, reader = stream.producer(), stream.reader(1, framework="np")
    stream.remove().result()
    with pytest.raises(mr.NotFound):
        reader.next()
    with pytest.raises(mr.NotFound):  # the first call may hear of it already
        producer.append(sample(1))
        producer.flush()
