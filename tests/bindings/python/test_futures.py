"""Futures: as concurrent.futures has them, and in asyncio; forks, exits, and signals."""

import asyncio
import concurrent.futures
import gc
import multiprocessing
import signal
import sys
import threading
import time
import weakref

import numpy as np
import pytest

import millrace as mr


def test_results_and_errors(repo, name):
    future = repo.store(name, {"a": np.zeros(100)})
    receipt = future.result(60)
    assert receipt.size_bytes == 800 and receipt.name == name and receipt.version > 0
    assert future.done() and not future.running() and not future.cancelled()
    assert future.exception() is None and isinstance(future, concurrent.futures.Future)
    missing = repo.load_into("there/is/none", {"a": np.zeros(100)})
    with pytest.raises(mr.NotFound, match="there/is/none"):
        missing.result()
    error = missing.exception()
    assert isinstance(error, KeyError) and error.code == "not_found"
    assert not str(error).startswith(("'", "not_found:"))
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(receipt)


def test_a_wait_that_ends_first_leaves_the_operation(repo, name):
    future = repo.newer(name, timeout=60)
    with pytest.raises(TimeoutError) as raised:
        future.result(0.01)
    assert not isinstance(raised.value, mr.Error)
    repo.store(name, {"a": np.zeros(1)}).result()
    assert future.result(60) > 0


def test_a_deadline_is_an_error_of_the_operation(repo, name):
    with pytest.raises(mr.DeadlineExceeded) as raised:
        repo.newer(name, timeout=0.05).result()
    assert isinstance(raised.value, TimeoutError)


def test_cancelled_futures(repo, name):
    future = repo.newer(name, timeout=600)
    assert future.cancel() and future.cancelled() and future.done()
    with pytest.raises(concurrent.futures.CancelledError):
        future.result()
    over = repo.store(name, {"a": np.zeros(1)})
    over.result()
    assert not over.cancel() and not over.cancelled()


def test_callbacks(repo, name):
    came = threading.Event()
    seen = []

    def note(future):
        seen.append((threading.current_thread().name, future.result(0)))
        came.set()

    waiting = repo.newer(name, timeout=60)
    waiting.add_done_callback(note)
    assert not seen
    version = repo.store(name, {"a": np.zeros(1)}).result().version
    assert came.wait(60) and seen == [("millrace", version)]
    waiting.add_done_callback(note)
    assert seen[1] == (threading.current_thread().name, version)


def test_waiting_for_several(repo, name):
    stores = [repo.store(f"{name}/{i}", {"a": np.zeros(10)}) for i in range(20)]
    later = repo.newer(f"{name}/later", timeout=60)
    done, open_ones = concurrent.futures.wait(
        [*stores, later], timeout=60, return_when=concurrent.futures.FIRST_COMPLETED
    )
    assert done and later in open_ones
    assert {f.result().name for f in concurrent.futures.as_completed(stores, 60)} == {
        f"{name}/{i}" for i in range(20)
    }
    later.cancel()
    assert concurrent.futures.wait([later], timeout=60).done == {later}


def test_a_thousand_futures_in_asyncio(repo, name):
    arrays = [np.full(64, i, "int32") for i in range(1000)]

    async def all_of_them():
        async def one(i):
            while True:  # a connection takes so many at a time
                try:
                    return await repo.store(f"{name}/{i}", {"a": arrays[i]})
                except mr.Busy:
                    await asyncio.sleep(0.01)

        receipts = await asyncio.gather(*(one(i) for i in range(1000)))
        assert [r.name for r in receipts] == [f"{name}/{i}" for i in range(1000)]
        loaded = await repo.load(f"{name}/999", framework="np")
        assert (loaded["a"] == 999).all()
        wrapped = await asyncio.wrap_future(repo.describe(f"{name}/7"))
        assert wrapped.name == f"{name}/7"
        with pytest.raises(mr.NotFound):
            await repo.describe("there/is/none")

    asyncio.run(all_of_them())
    asyncio.run(all_of_them())  # another loop


def test_a_cancelled_task_gives_the_operation_up(repo, name):
    async def cancelled():
        future = repo.newer(name, timeout=600)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.05)
        assert future.cancelled()

    asyncio.run(cancelled())


def test_other_threads_run_while_one_waits(repo, name):
    counted = 0
    ended = False

    def count():
        nonlocal counted
        while not ended:
            counted += 1
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    with pytest.raises(mr.DeadlineExceeded):
        repo.newer(name, timeout=0.5).result()
    ended = True
    thread.join()
    assert counted > 100


def test_several_threads_wait_for_one(repo, name):
    future = repo.newer(name, timeout=60)
    got = []
    threads = [threading.Thread(target=lambda: got.append(future.result(60))) for _ in range(8)]
    for thread in threads:
        thread.start()
    version = repo.store(name, {"a": np.zeros(1)}).result().version
    for thread in threads:
        thread.join()
    assert got == [version] * 8


def test_tensors_of_a_dropped_future_stay(repo, name):
    for i in range(50):
        repo.store(f"{name}/{i}", {"a": np.full(1 << 18, i, "uint8")})
        gc.collect()
        filler = np.full(1 << 18, 255, "uint8")
        del filler
    for i in range(50):
        repo.newer(f"{name}/{i}", timeout=60).result()
        assert (repo.load(f"{name}/{i}", framework="np").result()["a"] == i).all()


def test_nothing_is_left_of_futures(repo, name):
    class Counted(np.ndarray):
        pass

    alive = []
    for _ in range(20):
        a = np.zeros(1000).view(Counted)
        alive.append(weakref.ref(a))
        repo.store(name, {"a": a}).result()
        kept = repo.store(name, {"a": a})
        kept.add_done_callback(lambda f: None)
        kept.result()
        del a, kept
    deadline = time.monotonic() + 60
    while any(ref() is not None for ref in alive) and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert all(ref() is None for ref in alive)


def test_ctrl_c_ends_a_wait(run_python):
    done = run_python(
        """
import os, signal, threading, time
import millrace as mr
signal.signal(signal.SIGINT, signal.default_int_handler)  # what runs in the background lacks it
repo = mr.connect().repository()
future = repo.newer("never", timeout=600)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    future.result()
except KeyboardInterrupt:
    print("interrupted", future.done())
future.cancel()
"""
    )
    assert done.stdout == "interrupted False\n"


def test_stores_end_before_the_process(run_python, repo, name):
    run_python(
        f"""
import numpy as np
import millrace as mr
mr.connect().repository().store({name!r}, {{"a": np.full(1 << 22, 7, "uint8")}})
"""
    )
    assert (repo.load(name, framework="np").result()["a"] == 7).all()


def test_threads_that_wait_do_not_hold_the_exit(run_python):
    done = run_python(
        """
import threading, time
import millrace as mr
repo = mr.connect().repository()
for _ in range(4):
    threading.Thread(target=repo.newer("never", timeout=600).result, daemon=True).start()
repo.newer("never", timeout=600).add_done_callback(print)
time.sleep(0.2)
print("ends")
"""
    )
    assert done.stdout == "ends\n" and "terminate" not in done.stderr, done.stderr


def in_child(queue, address, client, future):
    try:
        client.repository().describe("m").result(60)
        queue.put("the parent's client works")
    except mr.Unavailable as e:
        queue.put(str(e))
    try:
        queue.put(type(future.exception(60)).__name__)
    except Exception as e:  # noqa: BLE001
        queue.put(type(e).__name__)
    own = mr.connect(address)
    own.repository().store("from/a/child", {"a": np.arange(5)}).result(60)

    async def waits():
        return await own.repository().describe("from/a/child")

    queue.put(asyncio.run(waits()).size_bytes)


def test_a_forked_child_is_told_and_connects_for_itself(client, node, name):
    future = client.repository().newer(name, timeout=60)
    future.add_done_callback(lambda f: None)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=in_child, args=(queue, node.address, client, future))
    child.start()
    assert "process" in queue.get(timeout=60)
    assert queue.get(timeout=60) == "Unavailable"
    assert queue.get(timeout=60) == 40
    child.join(60)
    assert child.exitcode == 0
    client.repository().store(name, {"a": np.zeros(1)}).result()
    assert future.result(60) > 0


def spawned(queue, address):
    with mr.connect(address) as own:
        own.repository().store("from/another", {"a": np.arange(5)}).result(60)
    queue.put("stored")


def test_a_spawned_child_connects(node):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    child = context.Process(target=spawned, args=(queue, node.address))
    child.start()
    assert queue.get(timeout=60) == "stored"
    child.join(60)
    assert child.exitcode == 0


def test_callbacks_that_fail_do_not_end_the_others(repo, name):
    def fails(future):
        raise SystemExit(3)

    for _ in range(2):
        first = repo.newer(name, timeout=60)
        first.add_done_callback(fails)
        came = threading.Event()
        second = repo.newer(name, timeout=60)
        second.add_done_callback(lambda f: came.set())
        repo.store(name, {"a": np.zeros(1)}).result()
        assert came.wait(60)
        repo.erase(name).result()


def test_callbacks_may_hold_what_is_under_way(repo, name):
    class Holder:
        def __init__(self):
            self.store = repo.store(name, {"a": np.zeros(1 << 22, "uint8")})

        def __call__(self, future):
            pass

    for i in range(20):
        future = repo.newer(f"{name}/none", timeout=0.01)
        future.add_done_callback(Holder())
        del future
    came = threading.Event()
    repo.newer(f"{name}/none", timeout=0.05).add_done_callback(lambda f: came.set())
    assert came.wait(60)


def test_objects_say_that_they_belong_to_their_process(client, repo, name):
    import copy
    import pickle

    for thing in (client, repo.store(name, {"a": b"b"})):
        for way in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="process"):
                way(thing)
