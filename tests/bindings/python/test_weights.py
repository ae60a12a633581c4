"""Weights by version: published here, followed by others, in place and in two buffers."""

import gc
import pickle
import threading
import time
import weakref

import numpy as np
import pytest

import millrace as mr


@pytest.fixture
def weights(client, name):
    return client.weights(name)


def numbered(version):
    return {"w": np.full((200, 300), version, "float32"), "b": np.full(10, version, "int64")}


def put(arrays, version):
    for array in arrays.values():
        array[...] = version


def are_of(arrays, version):
    return all((array == version).all() for array in arrays.values())


def test_what_is_published_is_loaded_in_place(weights):
    trained, replica = numbered(0), numbered(-1)
    publisher = weights.publisher(trained, metadata={"tokenizer": "bpe"})
    with weights.subscribe(replica) as subscriber:
        assert subscriber.version is None and not subscriber.poll()
        for version in (10, 20):
            put(trained, version)
            done = publisher.publish(version)
            done.staged.result()
            receipt = done.stored.result()
            assert subscriber.wait() == subscriber.version == version
            assert are_of(replica, version) and subscriber.tensors["w"] is replica["w"]
            assert subscriber.info.stored_as == receipt.version
            assert subscriber.info.metadata == {"tokenizer": "bpe"}
            assert subscriber.info.size_bytes == 200 * 300 * 4 + 80
        assert not subscriber.poll()
        put(trained, 30)
        publisher.publish(30).stored.result()
        until(subscriber.poll)
        assert subscriber.version == 30 and are_of(replica, 30)


def test_late_subscribers_get_the_newest(weights):
    trained = numbered(0)
    publisher = weights.publisher(trained)
    for version in range(1, 6):
        put(trained, version)
        publisher.publish(version).stored.result()
    replica = numbered(0)
    with weights.subscribe(replica) as subscriber:
        assert subscriber.wait() == 5 and are_of(replica, 5)
        with pytest.raises(mr.DeadlineExceeded, match="no newer weights"):
            subscriber.wait(timeout=0.1)
        threading.Timer(0.3, lambda: publisher.publish(6)).start()
        threading.Timer(0.6, lambda: publisher.publish(8)).start()
        assert subscriber.wait(newer_than=7) == 8


def test_two_buffers_are_exchanged(weights):
    trained, given = numbered(0), numbered(-1)
    first = dict(given)
    publisher = weights.publisher(trained)
    told = []
    with weights.subscribe(given, apply="double_buffer", on_version=told.append) as subscriber:
        put(trained, 1)
        publisher.publish(1).stored.result()
        assert subscriber.wait() == 1
        second = subscriber.tensors
        assert are_of(second, 1) and are_of(given, 1) and are_of(first, -1)
        put(trained, 2)
        publisher.publish(2).stored.result()
        until(lambda: told == [1, 2])
        # It is loaded, and not visible yet.
        assert subscriber.version == 1 and are_of(second, 1)
        assert subscriber.poll() and subscriber.version == 2
        assert are_of(first, 2) and subscriber.tensors["w"] is first["w"] and are_of(second, 1)
        assert given["w"] is first["w"]
        with pytest.raises(mr.DeadlineExceeded):
            subscriber.wait(timeout=0.1)
        assert not subscriber.poll()


def until(condition, seconds=30):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.01)


@pytest.mark.parametrize("apply", ["in_place", "double_buffer"])
def test_no_torn_version_is_visible(client, node, name, apply):
    last, seen = 40, []

    def follow():
        with mr.connect(node.address) as own:
            with own.weights(name).subscribe(numbered(0), apply=apply) as subscriber:
                while not seen or seen[-1] < last:
                    version = subscriber.wait()
                    assert are_of(subscriber.tensors, version)
                    seen.append(version)

    thread = threading.Thread(target=follow)
    thread.start()
    trained = numbered(0)
    publisher = client.weights(name).publisher(trained)
    for version in range(1, last + 1):
        put(trained, version)
        publisher.publish(version).staged.result()
    thread.join(60)
    assert seen and seen[-1] == last and seen == sorted(set(seen))


def test_callbacks_tell_what_can_be_loaded_in_place(weights):
    trained, told = numbered(1), []
    publisher = weights.publisher(trained)
    replica = numbered(0)
    with weights.subscribe(replica, on_version=told.append) as subscriber:
        publisher.publish(1).stored.result()
        until(lambda: told == [1])
        assert are_of(replica, 0)
        assert subscriber.wait() == 1 and are_of(replica, 1)
        put(trained, 2)
        publisher.publish(2).stored.result()
        until(lambda: told == [1, 2])
        assert subscriber.poll() and are_of(replica, 2)


def test_numbers_rise_and_a_new_publisher_may_begin_below(weights):
    trained, replica = numbered(1), numbered(0)
    publisher = weights.publisher(trained)
    publisher.publish(100).stored.result()
    with pytest.raises(mr.InvalidArgument, match="numbers rise"):
        publisher.publish(100)
    with weights.subscribe(replica) as subscriber:
        assert subscriber.wait() == 100
        weights.publisher(trained).publish(40).stored.result()
        assert subscriber.wait() == 40


@pytest.mark.parametrize("apply", ["in_place", "double_buffer"])
def test_what_does_not_fit_is_refused_and_the_next_version_comes(weights, apply):
    replica = numbered(7)
    with weights.subscribe(replica, apply=apply) as subscriber:
        weights.publisher({"w": np.zeros(3), "b": np.zeros(10, "int64")}).publish(1).stored.result()
        with pytest.raises(mr.InvalidArgument):
            subscriber.wait(timeout=30)
        assert subscriber.version is None and are_of(replica, 7)
        weights.publisher({"other": np.zeros(3)}).publish(2).stored.result()
        with pytest.raises(mr.NotFound):
            subscriber.wait(timeout=30)
        weights.publisher(numbered(3)).publish(3).stored.result()
        assert subscriber.wait(timeout=30) == 3 and are_of(subscriber.tensors, 3)


@pytest.mark.parametrize("apply", ["in_place", "double_buffer"])
def test_older_versions_are_passed_over(weights, apply):
    replica = numbered(0)
    with weights.subscribe(replica, apply=apply) as subscriber:
        publisher = weights.publisher(numbered(5))
        publisher.publish(5).stored.result()
        with pytest.raises(mr.DeadlineExceeded):
            subscriber.wait(newer_than=7, timeout=0.3)
        assert subscriber.version is None and are_of(replica, 0)
        assert subscriber.wait() == 5 and are_of(subscriber.tensors, 5)


def test_no_version_comes_twice(weights):
    trained = numbered(0)
    publisher = weights.publisher(trained)
    with weights.subscribe(numbered(0), apply="double_buffer") as subscriber:
        seen = []
        for version in range(1, 60):
            pending = publisher.publish(version)
            try:
                seen.append(subscriber.wait(timeout=0.001 + version % 5 / 1000))
            except mr.DeadlineExceeded:
                pass
            pending.stored.result()
        while seen[-1:] != [59]:
            seen.append(subscriber.wait())
        assert seen == sorted(set(seen))


@pytest.mark.parametrize("apply", ["in_place", "double_buffer"])
def test_a_block_ends_what_has_failed_in_it(client, weights, apply):
    gc.disable()
    try:
        for _ in range(10):
            with weights.subscribe(numbered(0), apply=apply) as subscriber:
                with pytest.raises(mr.DeadlineExceeded):
                    subscriber.wait(timeout=0.01)
            alive = weakref.ref(subscriber._shown)
            del subscriber
            assert alive() is None
    finally:
        gc.enable()


# As Ctrl-C does.
@pytest.mark.parametrize("apply", ["in_place", "double_buffer"])
def test_a_wait_that_is_interrupted_loses_no_version(weights, monkeypatch, apply):
    publisher = weights.publisher(numbered(1))
    with weights.subscribe(numbered(0), apply=apply) as subscriber:
        with monkeypatch.context() as patched:

            def interrupted(self, timeout=None):
                raise KeyboardInterrupt

            patched.setattr(mr.Future, "result", interrupted)
            with pytest.raises(KeyboardInterrupt):
                subscriber.wait()
        publisher.publish(1).stored.result()
        assert subscriber.wait() == 1 and are_of(subscriber.tensors, 1)


def test_a_load_that_is_late_is_an_error_of_poll(weights):
    weights.publisher(numbered(1)).publish(1).stored.result()
    with weights.subscribe(numbered(0)) as subscriber:
        follower = subscriber._native

        class Late:
            next = staticmethod(follower.next)

            @staticmethod
            def load(*_):
                raise mr.DeadlineExceeded("the load is late")

        subscriber._native = Late
        with pytest.raises(mr.DeadlineExceeded, match="the load is late"):
            until(subscriber.poll)  # it is told first
        assert subscriber.version is None
        subscriber._native = follower
        until(subscriber.poll)
        assert subscriber.version == 1


def test_a_part_of_the_weights_can_be_followed(weights):
    weights.publisher(numbered(5)).publish(5).stored.result()
    part = {"b": np.zeros(10, "int64")}
    with weights.subscribe(part) as subscriber:
        assert subscriber.wait() == 5 and are_of(part, 5)


def test_arguments_are_checked(client, weights):
    with pytest.raises(mr.InvalidArgument, match="in_place"):
        weights.subscribe(numbered(0), apply="later")
    with pytest.raises(TypeError):
        weights.publisher([1, 2])
    with pytest.raises(mr.InvalidArgument):
        weights.publisher({})
    with pytest.raises(mr.InvalidArgument, match="double_buffer"):
        weights.subscribe({"x": bytearray(8)}, apply="double_buffer")
    publisher = weights.publisher(numbered(0))
    with pytest.raises(mr.InvalidArgument, match="version"):
        publisher.publish(-1)
    with pytest.raises(TypeError):
        pickle.dumps(publisher)
    for apply in ("in_place", "double_buffer"):
        subscriber = weights.subscribe(numbered(0), apply=apply)
        with pytest.raises(mr.InvalidArgument):
            subscriber.wait(newer_than=-1)
        with pytest.raises(mr.InvalidArgument):
            subscriber.wait(timeout=0)
        subscriber.close()
        subscriber.close()
        with pytest.raises(mr.Unavailable, match="closed"):
            subscriber.wait()
        with pytest.raises(mr.Unavailable, match="closed"):
            subscriber.poll()
    with pytest.raises(mr.NotFound):
        client.weights("x", "nowhere").subscribe(numbered(0)).wait(timeout=10)


@pytest.mark.parametrize("apply", ["in_place", "double_buffer"])
def test_a_subscriber_that_is_dropped_ends(weights, apply):
    publisher = weights.publisher(numbered(1))
    told = []
    subscriber = weights.subscribe(numbered(0), apply=apply, on_version=told.append)
    publisher.publish(1).stored.result()
    until(lambda: told == [1])
    alive = weakref.ref(subscriber)
    del subscriber
    gc.collect()
    assert alive() is None
    publisher.publish(2).stored.result()
    with weights.subscribe(numbered(0)) as another:  # it hears of it, so the first one would have
        assert another.wait() == 2
    assert told == [1]


def test_weights_are_erased(weights):
    weights.publisher(numbered(1)).publish(1).stored.result()
    weights.erase().result()
    with pytest.raises(mr.NotFound):
        weights.erase().result()


def test_modules_of_pytorch(weights):
    torch = pytest.importorskip("torch")

    def model():
        made = torch.nn.Sequential(
            torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40), torch.nn.Linear(40, 40)
        )
        made[2].weight = torch.nn.Parameter(torch.rand(40, 40))
        made.add_module("tied", torch.nn.Linear(40, 40))
        made[3].weight = made[2].weight
        return made

    trained, replica, buffered = model(), model(), model()
    x = torch.rand(8, 30)
    trained(x)  # its running statistics change, too
    publisher = weights.publisher(trained)
    publisher.publish(1).stored.result()
    trained.eval(), replica.eval(), buffered.eval()
    with weights.subscribe(replica) as subscriber:
        assert subscriber.wait() == 1
        assert torch.equal(trained(x), replica(x))
        parameter = replica[0].weight
        # Tensors that have moved are found again.
        for p in trained.parameters():
            p.data = p.data.clone() + 1
        publisher.publish(2).stored.result()
        assert subscriber.wait() == 2 and replica[0].weight is parameter
        assert torch.equal(trained(x), replica(x))
    with weights.subscribe(buffered, apply="double_buffer") as subscriber:
        parameter = buffered[0].weight
        assert subscriber.wait() == 2 and buffered[0].weight is parameter
        assert buffered[3].weight is buffered[2].weight
        assert torch.equal(trained(x), buffered(x))
        before = buffered(x)
        for p in trained.parameters():
            p.data += 1
        publisher.publish(3).stored.result()
        assert torch.equal(before, buffered(x))
        assert subscriber.wait() == 3
        assert torch.equal(trained(x), buffered(x))
