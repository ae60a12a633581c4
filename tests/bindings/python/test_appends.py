"""Appends to working sets: the set is then as one of all files."""

import numpy as np
import pytest

import millrace as mr


@pytest.fixture
def files(tmp_path):
    all_rows = np.arange(1200, dtype="float32").reshape(300, 4)
    for name, first, last in (("a", 0, 200), ("b", 200, 290), ("c", 290, 300)):
        np.save(tmp_path / f"{name}.npy", all_rows[first:last])
    return [tmp_path / f"{name}.npy" for name in "abc"]


@pytest.fixture
def ws(client, name, files):
    made = client.working_set(name).preload(files[0])
    yield made
    made.unload().result()


def test_a_set_grows(client, ws, files):
    before = ws.open().result()
    told = []
    assert ws.append(files[1], progress=lambda *now: told.append(now)) is ws
    assert told[-1] == (90 * 16, 90 * 16)
    info = ws.appending(files[2]).result()
    assert (info.samples, info.appends, info.existed) == (300, 2, False)
    assert ws.appending(files[1]).result().existed
    assert ws.describe().result() == info
    together = client.working_set("python/together")
    all_files = together.preloading(files).result()
    assert (all_files.identity, all_files.appends) == (info.identity, 0)
    together.unload().result()
    reader = ws.open().result()
    rows = reader.read_batch("x", range(300), framework="np").result()
    assert (rows == np.arange(1200).reshape(300, 4)).all()
    assert before.info.samples == 200
    with pytest.raises(mr.InvalidArgument, match="299"):
        before.read_batch("x", [299], framework="np").result()
    seen = sorted(int(i) for batch in mr.data.Loader(ws, 7, framework="np") for i in batch.ids)
    assert seen == list(range(300))


def test_a_state_of_the_smaller_set_is_refused(ws, files):
    loader = mr.data.Loader(ws, 7, framework="np")
    next(iter(loader))
    ws.append(files[1])
    with pytest.raises(mr.InvalidArgument, match="200 samples"):
        mr.data.Loader(ws, 7, framework="np").load_state_dict(loader.state_dict())


def test_what_cannot_be_appended_is_named(client, ws, files, tmp_path):
    np.save(tmp_path / "other.npy", np.zeros((3, 5), "float32"))
    with pytest.raises(mr.InvalidArgument, match="field 0"):
        ws.append(tmp_path / "other.npy")
    with pytest.raises(mr.NotFound, match="preload"):
        client.working_set("python/none").append(files[1])
    with pytest.raises(mr.NotFound, match="absent"):
        ws.append(tmp_path / "absent.npy")


def test_an_append_that_is_given_up_leaves_nothing(ws, tmp_path, monkeypatch):
    monkeypatch.setattr("millrace._sets._PROGRESS_EVERY", 0.0)
    np.save(tmp_path / "large.npy", np.ones((100_000, 4), "float32"))
    with pytest.raises(mr.Cancelled):
        ws.append(tmp_path / "large.npy", progress=lambda done, total: False)
    assert ws.describe().result().samples == 200


LOST = """
staging: {{ size: 8MiB }}
data: {{ capacity: 4MiB, region_size: 1MiB }}
tcp: {{ listen: ['127.0.0.1:0'] }}
transport: {{ prefer: [tcp] }}
cluster: {{ nodes: [{{ name: lost, listen: 'unix:{0}/lost.sock', providers: [{{ name: q, capacity: 1MiB }}] }}] }}
"""


def test_files_of_appends_stand_for_a_data_server_that_is_lost(files, tmp_path):
    config = tmp_path / "lost.yaml"
    config.write_text(LOST.format(tmp_path))
    with mr.open(config) as by:
        with mr.embed(config, "lost"):
            ws = by.working_set("rows").preload(files[0]).append(files[1]).append(files[2])
            ws.append(files[1])  # which changes nothing
            reader = ws.open().result()
        rows = reader.read_batch("x", [299, 0, 250], framework="np").result()
        assert rows[:, 0].tolist() == [1196, 0, 1000]
        assert reader.samples_from_files == 3
