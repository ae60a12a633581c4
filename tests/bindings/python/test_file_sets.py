"""Working sets of files and of arrays with several fields: varying sizes, labels, NPZ and HDF5."""

import asyncio
import io
import pathlib
import struct
import tarfile
import zlib

import numpy as np
import pytest

import millrace as mr

IMAGES = {"cats/a.jpg": b"abc", "cats/b.jpg": b"d", "dogs/c.jpg": b"efghi", "dogs/d.jpg": b""}
LABELS = [0, 0, 1, 1]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for path, content in IMAGES.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_bytes(content)
    return folder


@pytest.fixture
def ws(client, name):
    made = client.working_set(name)
    yield made
    made.unload().result()


def load(ws, batch_size, **options):
    return mr.data.Loader(ws, batch_size, **{"framework": "np", **options})


# ---- Files ----


def test_files_are_samples_of_varying_size(ws, photos):
    info = ws.preloading(photos, labels="folders").result()
    assert info.samples == 4 and info.varying == ("x", "path") and info.skipped == []
    assert info.fields["x"].shape == info.fields["path"].shape == (0,)
    assert info.fields["label"] == mr.TensorInfo("I64", (), None, None)
    assert info.size_bytes == 9 + 4 * 10 + 4 * 8
    reader = ws.open().result()
    assert reader.info.varying == info.varying
    assert reader.sizes("x", [2, 0, 3]).result() == [5, 3, 0]
    assert reader.sizes("label", np.array([1, 2])).result() == [8, 8]
    with pytest.raises(mr.InvalidArgument, match="field y"):
        reader.sizes("y", [0])
    with pytest.raises(mr.InvalidArgument, match="number 4"):
        reader.sizes("x", [4]).result()


def test_samples_are_found_by_their_paths(ws, photos):
    reader = ws.preload(photos, labels="folders").open().result()
    assert reader.find(["dogs/c.jpg", "cats/a.jpg"]).result() == [2, 0]
    assert reader.find([]).result() == []
    with pytest.raises(mr.NotFound, match="path is 'c.jpg'"):
        reader.find(["cats/a.jpg", "c.jpg"]).result()
    with pytest.raises(mr.InvalidArgument, match="label are no texts"):
        reader.find(["a"], field="label").result()
    with pytest.raises(TypeError, match="texts"):
        reader.find("dogs/c.jpg")


def test_batches_of_varying_size_are_lists(ws, photos):
    reader = ws.preload(photos, labels="folders").open().result()
    some = reader.read_batch("x", [2, 3, 0], framework="np").result()
    assert [bytes(sample) for sample in some] == [b"efghi", b"", b"abc"]
    assert some[0].base is some[2].base is not None
    paths = reader.read_batch("path", range(4), framework="np").result()
    assert [bytes(path).decode() for path in paths] == list(IMAGES)
    assert reader.read_batch("label", [3, 0], framework="np").result().tolist() == [1, 0]
    assert reader.read_batch("x", [], framework="np").result() == []
    out = np.zeros(8, "uint8")
    assert reader.read_batch("x", [0, 2], out).result() is out and bytes(out) == b"abcefghi"
    with pytest.raises(mr.InvalidArgument):
        reader.read_batch("x", [0, 2], out[:7]).result()
    with pytest.raises(mr.InvalidArgument, match="number 4"):
        reader.read_batch("x", [4], framework="np").result()

    async def read():
        return await reader.read_batch("x", [1], framework="np")

    assert bytes(asyncio.run(read())[0]) == b"d"
    torch = pytest.importorskip("torch")
    (sample,) = reader.read_batch("x", [2]).result()
    assert torch.equal(sample, torch.tensor(list(b"efghi"), dtype=torch.uint8))


@pytest.mark.parametrize("remainder", ["short", "pad", "drop"])
def test_a_loader_gives_files_of_varying_size(ws, photos, remainder):
    ws.preload(photos, labels="folders")
    seen = []
    for batch in load(ws, 3, seed=5, remainder=remainder):
        offsets, samples = batch.offsets("x"), batch.samples("x")
        sizes = [len(list(IMAGES.values())[i]) for i in batch.ids]
        sizes += [0] * (len(batch) - len(sizes))  # padding
        assert np.diff(offsets).tolist() == sizes and offsets[0] == 0
        assert batch.x.shape == (sum(sizes),) and len(samples) == len(batch)
        assert batch.offsets("label") is None
        for i, sample, path, label in zip(
            batch.ids, samples, batch.samples("path"), batch.label, strict=False
        ):
            assert bytes(path).decode() == list(IMAGES)[i] and label == LABELS[i]
            assert bytes(sample) == list(IMAGES.values())[i]
            assert len(sample) == 0 or np.shares_memory(sample, batch.x)
        seen += batch.ids.tolist()
    assert sorted(set(seen)) == sorted(seen) and len(seen) == (3 if remainder == "drop" else 4)


def test_torch_views_samples_of_varying_size(ws, photos):
    torch = pytest.importorskip("torch")
    ws.preload(photos)
    loader = mr.data.Loader(ws, 4, shuffle=False, fields=["x"])
    (batch,) = loader
    assert batch.offsets("x").dtype == torch.int64
    assert batch.offsets("x").tolist() == [0, 3, 4, 9, 9]
    assert [bytes(s.tolist()) for s in batch.samples("x")] == list(IMAGES.values())
    assert batch.samples("x")[1].data_ptr() == batch.x.data_ptr() + 3


def test_labels_of_a_table(ws, photos, tmp_path):
    table = tmp_path / "labels.csv"
    table.write_text("".join(f"{path},{i}\n" for i, path in enumerate(IMAGES, 7)))
    ws.preload(photos, labels=table)
    assert [b.label.tolist() for b in load(ws, 4, shuffle=False)] == [[7, 8, 9, 10]]


def test_names_have_braces_and_patterns(ws, photos):
    ws.preload(f"{photos}/{{dogs,cats}}/*.jpg")
    (batch,) = load(ws, 4, shuffle=False)
    assert [bytes(s) for s in batch.samples("x")] == [b"efghi", b"", b"abc", b"d"]


def test_what_is_left_out_is_named(ws, tmp_path):
    np.save(tmp_path / "good.npy", np.arange(6, dtype="uint8").reshape(3, 2))
    bad = tmp_path / "bad.npy"
    bad.write_text("no array")
    files = [tmp_path / "good.npy", bad]
    with pytest.raises(mr.Error, match=r"bad\.npy"):
        ws.preload(files)
    assert ws.skipped == []
    assert ws.preload(files, on_error="skip") is ws
    ((path, reason),) = ws.skipped
    assert path == str(bad) and reason and isinstance(ws.skipped[0], mr.data.SkippedFile)
    again = ws.preloading(files, on_error="skip").result()
    assert again.existed and again.samples == 3 and again.skipped == ws.skipped
    assert ws.describe().result().skipped == []


def png(height, width, value):
    """Returns a PNG of one color."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = (b"\0" + bytes([value, 0, 255]) * width) * height
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def test_images_are_decoded(ws, tmp_path):
    for i, size in enumerate([(20, 30), (40, 25), (20, 30)]):
        (tmp_path / f"{i}.png").write_bytes(png(*size, 10 * i))
    with pytest.raises(mr.CorruptData, match=r"1\.png.*40 x 25.*20 x 30"):
        ws.preload(tmp_path, decode={"x": "rgb"})
    info = ws.preloading(tmp_path, decode={"x": "rgb"}, on_error="skip").result()
    (left_out,) = info.left_out
    assert left_out.endswith("1.png") and info.samples == 2
    assert ws.describe().result().left_out == ws.open().result().info.left_out == info.left_out
    ws.unload().result()
    with pytest.raises(mr.CorruptData, match="image_pixels_max"):
        ws.preload(tmp_path, decode={"x": "rgb:8"}, image_pixels_max=500)
    for wrong in ({"x": "bgr"}, {"y": "rgb"}, {"path": "rgb:4", "x": ""}):
        with pytest.raises(mr.InvalidArgument, match="decoding"):
            ws.preload(tmp_path, decode=wrong)
    with pytest.raises(TypeError, match="decode"):
        ws.preload(tmp_path, decode="x=rgb")
    with pytest.raises(mr.InvalidArgument, match="image_pixels_max"):
        ws.preload(tmp_path, image_pixels_max=0)
    ws.preload(tmp_path, decode={"x": "rgb:8x4"}, fields=["x"])
    (batch,) = load(ws, 3, shuffle=False)
    assert batch["x"].shape == (3, 8, 4, 3)
    assert [list(image[0, 0]) for image in batch["x"]] == [[0, 0, 255], [10, 0, 255], [20, 0, 255]]


def test_files_in_tar_archives_are_samples(ws, tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for name, content in {"a.txt": b"first", "a.cls": b"3", "b.txt": b"2nd", "b.cls": b"-1"}.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    info = ws.preloading(tmp_path / "x.tar").result()
    assert info.samples == 2 and info.varying == ("txt", "key")
    (batch,) = load(ws, 2, shuffle=False)
    assert list(batch["cls"]) == [3, -1]
    assert [bytes(s) for s in batch.samples("txt")] == [b"first", b"2nd"]
    assert [bytes(s) for s in batch.samples("key")] == [b"a", b"b"]


# ---- Arrays with several fields ----


def images_and_labels(samples):
    images = np.arange(samples * 4, dtype="float32").reshape(samples, 2, 2)
    return images, np.arange(samples, dtype="int64")


def expect_pairs(ws, samples, image, label):
    images, labels = images_and_labels(samples)
    seen = []
    for batch in load(ws, 4, seed=1):
        assert (batch[image] == images[batch.ids]).all()
        assert (batch[label] == labels[batch.ids]).all()
        seen += batch.ids.tolist()
    assert sorted(seen) == list(range(samples))


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_has_a_field_for_each_array(ws, tmp_path, save):
    images, labels = images_and_labels(11)
    save(tmp_path / "a.npz", image=images[:5], label=labels[:5])
    save(tmp_path / "b.npz", image=images[5:], label=labels[5:])
    info = ws.preloading([tmp_path / "a.npz", tmp_path / "b.npz"]).result()
    assert info.varying == () and info.fields == {
        "image": mr.TensorInfo("F32", (2, 2), None, None),
        "label": mr.TensorInfo("I64", (), None, None),
    }
    expect_pairs(ws, 11, "image", "label")
    (batch,) = load(ws, 11, shuffle=False, fields=["label"])
    assert list(batch.keys()) == ["label"] and batch.label.tolist() == list(range(11))


def test_files_npy_are_fields(ws, client, tmp_path):
    images, labels = images_and_labels(16)
    for i, (first, last) in enumerate([(0, 5), (5, 11), (11, 16)]):
        np.save(tmp_path / f"image-{i}.npy", images[first:last])
        np.save(tmp_path / f"label-{i}.npy", labels[first:last])
    given = {
        "image": f"{tmp_path}/image-{{0,1}}.npy",
        "label": [tmp_path / "label-0.npy", tmp_path / "label-1.npy"],
    }
    info = ws.preloading(given).result()
    assert info.fields == {
        "image": mr.TensorInfo("F32", (2, 2), None, None),
        "label": mr.TensorInfo("I64", (), None, None),
    }
    expect_pairs(ws, 11, "image", "label")
    names = [f"image={tmp_path}/image-0.npy", f"image={tmp_path}/image-1.npy"]
    assert ws.preloading([*names, f"label={tmp_path}/label-[01].npy"]).result().existed
    np.savez(tmp_path / "both.npz", image=images[:11], label=labels[:11])
    packed = client.working_set("python/packed")
    assert packed.preloading(tmp_path / "both.npz").result().identity == info.identity
    packed.unload().result()
    ws.append({"image": tmp_path / "image-2.npy", "label": tmp_path / "label-2.npy"})
    expect_pairs(ws, 16, "image", "label")


def test_files_npy_that_are_no_fields_are_named(client, tmp_path):
    images, labels = images_and_labels(11)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels[1:])
    ws = client.working_set("python/wrong")
    both = {"image": tmp_path / "images.npy", "label": tmp_path / "labels.npy"}
    with pytest.raises(mr.InvalidArgument, match=r"images\.npy has 11 .*labels\.npy has 10 "):
        ws.preload(both)
    for wrong in ({}, {"image": []}, {"a/b": both["image"]}, {"": both["image"]}):
        with pytest.raises(mr.InvalidArgument, match="files"):
            ws.preload(wrong)
    with pytest.raises(TypeError, match="files"):
        ws.preload({3: both["image"]})


def test_hdf5_has_a_field_for_each_data_set(ws, tmp_path):
    h5py = pytest.importorskip("h5py")
    images, labels = images_and_labels(11)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("train/images", data=images, chunks=(3, 2, 2), compression="gzip")
        file.create_dataset("train/labels", data=labels)
        file["note"] = "one text"
    wanted = ["train/images", "train/labels"]
    info = ws.preloading(tmp_path / "a.h5", fields=wanted).result()
    assert list(info.fields) == wanted
    expect_pairs(ws, 11, *wanted)


def test_the_kind_of_files_is_chosen(ws, client, tmp_path):
    np.save(tmp_path / "a.npy", np.arange(6, dtype="uint8").reshape(3, 2))
    (tmp_path / "notes.txt").write_text("no array")
    assert ws.preloading(tmp_path, kind="arrays").result().samples == 3
    with pytest.raises(mr.AlreadyExists):
        ws.preload(tmp_path, kind="files")
    files = client.working_set("python/kind")
    info = files.preloading([tmp_path / "a.npy"], kind="files").result()
    assert info.samples == 1 and info.varying == ("x", "path")
    size = pathlib.Path(tmp_path / "a.npy").stat().st_size
    assert files.open().result().sizes("x", [0]).result() == [size]
    files.unload().result()


LOST = """
staging: {{ size: 8MiB }}
data: {{ capacity: 4MiB, region_size: 1MiB }}
tcp: {{ listen: ['127.0.0.1:0'] }}
transport: {{ prefer: [tcp] }}
cluster: {{ nodes: [{{ name: lost, listen: 'unix:{0}/lost.sock', providers: [{{ name: q, capacity: 1MiB }}] }}] }}
"""


# A client that maps nothing loses the data server with its node.
def test_files_stand_for_a_data_server_that_is_lost(photos, tmp_path):
    config = tmp_path / "lost.yaml"
    config.write_text(LOST.format(tmp_path))
    with mr.open(config) as by:
        with mr.embed(config, "lost"):
            ws = by.working_set("photos").preload(photos, labels="folders")
            reader = ws.open().result()
            other = by.working_set("photos")
            given = other.open(photos, labels="folders").result()
            without = [ws.open(files=False).result(), other.open().result()]
            with pytest.raises(mr.InvalidArgument, match="files"):
                other.open([])
            loader = mr.data.Loader(ws, 2, shuffle=False, framework="np", prefetch=1)
            before = [bytes(x) for x in reader.read_batch("x", [2, 0], framework="np").result()]
            assert reader.samples_from_files == loader.status().samples_from_files == 0
        for one in (reader, given):
            after = one.read_batch("x", [2, 0], framework="np").result()
            assert [bytes(x) for x in after] == before
            assert one.samples_from_files == 2
        for one in without:
            with pytest.raises(mr.Error):
                one.read_batch("x", [2, 0], framework="np").result()
            assert one.samples_from_files == 0
        seen = sorted(int(i) for batch in loader for i in batch.ids)
        assert seen == list(range(reader.info.samples))
        assert loader.status().samples_from_files > 0


def test_wrong_options_are_named(client, photos):
    ws = client.working_set("python/wrong")
    for option in ("kind", "on_error"):
        with pytest.raises(mr.InvalidArgument, match=f"{option}.*sometimes"):
            ws.preload(photos, **{option: "sometimes"})
        with pytest.raises(TypeError, match=option):
            ws.preload(photos, **{option: 3})
    with pytest.raises(TypeError, match="fields"):
        ws.preload(photos, fields="x")
    with pytest.raises(mr.InvalidArgument, match="fields"):
        ws.preload(photos, fields=[])
    with pytest.raises(mr.InvalidArgument, match="y"):
        ws.preload(photos, fields=["y"])
    with pytest.raises(ValueError, match="null"):
        ws.preload(f"{photos}\0more")
    with pytest.raises(TypeError):
        ws.preload(photos, labels=3)
    with pytest.raises(mr.NotFound, match=r"missing\.csv"):
        ws.preload(photos, labels="missing.csv")
    with pytest.raises(mr.NotFound):
        ws.describe().result()
