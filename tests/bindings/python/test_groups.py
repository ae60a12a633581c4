"""Groups: members in this process and in others, one of which is killed and comes again."""

import os
import pickle
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

import millrace as mr

MEMBER = """
import sys
import numpy as np
import millrace as mr

name, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with mr.connect() as client, client.group(name, rank, size, timeout=60).result() as group:
    tensors = {"w": np.zeros(300_000, "float32"), "b": np.zeros(3, "int64")}
    while True:
        try:
            group.broadcast(tensors, timeout=60).result()
            assert (tensors["w"] == tensors["b"][0]).all()
            print(int(tensors["b"][0]), flush=True)
            if tensors["b"][0] == 99:
                break
            if tensors["b"][0] == 77:
                group.renew(timeout=60).result()
        except mr.PeerLost:
            group.renew(timeout=60).result()
"""


@pytest.fixture
def pair(client, node, name):
    with mr.connect(node.address) as other:
        joining = [
            one.group(name, rank, 2, who=who, timeout=60)
            for one, rank, who in ((client, 0, "trainer"), (other, 1, "replica"))
        ]
        groups = [future.result() for future in joining]
        yield groups
        for group in groups:
            group.close()


def numbered(number):
    return {"w": np.full(300_000, number, "float32"), "b": np.full(3, number, "int64")}


def are_of(tensors, number):
    return all((tensor == number).all() for tensor in tensors.values())


def test_members_get_the_tensors_of_the_root(pair):
    assert [group.epoch for group in pair] == [1, 1]
    assert pair[0].ranks == [0, 1]
    for number in range(6):
        root = number % 2
        tensors = [numbered(0), numbered(0)]
        tensors[root] = numbered(number)
        futures = [group.broadcast(mine, root) for group, mine in zip(pair, tensors)]
        receipts = [future.result(60) for future in futures]
        assert receipts == [mr.BroadcastReceipt(number, 1_200_024)] * 2
        assert are_of(tensors[0], number) and are_of(tensors[1], number)


def test_modules_are_broadcast(pair):
    torch = pytest.importorskip("torch")
    modules = [torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.BatchNorm1d(40)) for _ in pair]
    for future in [group.broadcast(module, 1) for group, module in zip(pair, modules)]:
        future.result(60)
    first, second = (module.state_dict() for module in modules)
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_futures_are_awaited(pair):
    import asyncio

    tensors = [numbered(5), numbered(0)]

    async def run():
        return await asyncio.gather(*(g.broadcast(t) for g, t in zip(pair, tensors)))

    assert len(asyncio.run(run())) == 2
    assert are_of(tensors[1], 5)


def test_members_that_do_not_come_are_named(pair):
    with pytest.raises(mr.DeadlineExceeded, match=r"rank 0 \(trainer\), the root"):
        pair[1].broadcast(numbered(0), timeout=0.2).result()
    tensors = numbered(0)
    assert pair[0].broadcast(numbered(1)).result(60).number == 0
    got = pair[1].broadcast(tensors)
    pair[0].broadcast(numbered(2)).result(60)
    got.result(60)
    assert are_of(tensors, 2)


def test_what_cannot_be_is_refused(pair, client, name):
    with pytest.raises(mr.AlreadyExists, match="rank 0 .* is trainer"):
        client.group(name, 0, 2).result()
    with pytest.raises(mr.InvalidArgument):
        client.group(name, 1, 3).result()
    with pytest.raises(mr.InvalidArgument, match="give both"):
        client.group(name, 1)
    with pytest.raises(mr.NotFound, match="n7"):
        client.group("other", 0, 1, node="n7").result()
    with pytest.raises(TypeError):
        pair[0].broadcast(7)
    with pytest.raises(TypeError):
        pickle.dumps(pair[0])
    read_only = np.zeros(3)
    read_only.flags.writeable = False
    with pytest.raises((ValueError, mr.InvalidArgument)):
        pair[1].broadcast({"w": read_only})
    small = pair[1].broadcast({"w": np.zeros(3)})
    pair[0].broadcast(numbered(1)).result(60)
    with pytest.raises(mr.InvalidArgument, match="sends 1200024 bytes"):
        small.result()


def test_a_wait_is_interrupted_by_a_signal(pair):
    class Interrupted(Exception):
        pass

    def interrupt(*_):
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        future = pair[1].broadcast(numbered(0))
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(Interrupted):
            future.result()
        assert future.cancel()
    finally:
        signal.signal(signal.SIGALRM, before)


def test_one_that_leaves_is_missed(pair):
    waits = pair[0].broadcast(numbered(0), 1)
    pair[1].close()
    with pytest.raises(mr.PeerLost, match=r"rank 1 .*\(replica\) has gone: it left"):
        waits.result(60)
    with pytest.raises(mr.Unavailable):
        pair[1].broadcast(numbered(0))
    pair[0].renew(timeout=60).result()
    assert (pair[0].epoch, pair[0].ranks) == (2, [0])
    pair[0].broadcast(numbered(0)).result(60)


def test_a_member_that_is_killed_comes_again(client, node, name):
    environment = {**os.environ, "MILLRACE_ADDRESS": node.address}

    def start(rank):
        return subprocess.Popen(
            [sys.executable, "-c", MEMBER, name, str(rank), "4"],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )

    members = {rank: start(rank) for rank in (1, 2, 3)}
    try:
        with client.group(name, 0, 4, timeout=60).result() as group:
            for number in range(10):
                group.broadcast(numbered(number), timeout=60).result()
            members[2].send_signal(signal.SIGKILL)
            assert members[2].wait(60) == -signal.SIGKILL
            with pytest.raises(mr.PeerLost, match="rank 2"):
                for number in range(10, 10_000):
                    group.broadcast(numbered(50), timeout=60).result()
            group.renew(timeout=60).result()
            assert group.ranks == [0, 1, 3]
            group.broadcast(numbered(60), timeout=60).result()
            # Who waits to join is in the next epoch, which all members begin at the same point.
            members[2] = start(2)
            while group.ranks != [0, 1, 2, 3]:
                group.broadcast(numbered(77), timeout=60).result()
                group.renew(timeout=60).result()
            group.broadcast(numbered(99), timeout=60).result()
        for rank, member in members.items():
            printed = [int(line) for line in member.communicate(timeout=60)[0].split()]
            assert member.returncode == 0
            assert printed[-1] == 99
            assert printed == sorted(printed)
            if rank != 2:
                assert printed[:10] == list(range(10)) and 60 in printed
    finally:
        for member in members.values():
            member.kill()
            member.wait()
