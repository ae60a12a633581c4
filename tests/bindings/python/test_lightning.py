"""Lightning: checkpoints of its trainer as models of a repository."""

import abc
import argparse
import collections
import concurrent.futures
import importlib.util
import json
import os
import pathlib
import pickle
import sys

import pytest

torch = pytest.importorskip("torch")

import millrace as mr  # noqa: E402


PACKAGES = [n for n in ("lightning", "pytorch_lightning") if importlib.util.find_spec(n)]
REAL = bool(PACKAGES)

# Where Lightning is not installed, its base class, with its abstract methods.
STAND_IN = """
import abc, sys, types

def stand_in(top, where="{top}.plugins.io"):
    class CheckpointIO(abc.ABC):
        @abc.abstractmethod
        def save_checkpoint(self, checkpoint, path, storage_options=None): ...
        @abc.abstractmethod
        def load_checkpoint(self, path, map_location=None, weights_only=None): ...
        @abc.abstractmethod
        def remove_checkpoint(self, path): ...
        def teardown(self): ...
    names = where.format(top=top).split(".")
    for i in range(len(names)):
        name = ".".join(names[: i + 1])
        sys.modules.setdefault(name, types.ModuleType(name))
    sys.modules[name].CheckpointIO = CheckpointIO
    return CheckpointIO
"""


@pytest.fixture(scope="module")
def plugin():
    """The class of the plug-in."""
    before = dict(sys.modules)
    if not REAL:
        space = {}
        exec(STAND_IN, space)
        space["stand_in"]("lightning.pytorch")
    yield mr.lightning.CheckpointIO
    if not REAL:
        for name in [n for n in sys.modules if n.split(".")[0] == "lightning"]:
            del sys.modules[name]
        sys.modules.pop("millrace.lightning")
        mr.__dict__.pop("lightning", None)
        assert not sys.modules.keys() - before.keys() & {"lightning"}


@pytest.fixture
def io(plugin, client):
    return plugin(client)


def same(a, b, path=""):
    if isinstance(a, torch.Tensor):
        assert isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b), path
    elif isinstance(a, dict):
        assert isinstance(b, dict) and list(a) == list(b), (path, list(a), list(b))
        for k in a:
            same(a[k], b[k], f"{path}.{k}")
    elif isinstance(a, (list, tuple)):
        assert type(a) is type(b) and len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b)):
            same(x, y, f"{path}.{i}")
    else:
        assert type(a) is type(b) and (a == b or a != a), path


# What `Trainer` saves, with objects of PyTorch as they are.
def checkpoint(seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 2, 5])
    for _ in range(3):
        model(torch.randn(6, 4)).square().mean().backward()
        optimizer.step()
        scheduler.step()
    directory = "/tmp/" + "x" * 300
    return {
        "epoch": 1,
        "global_step": 3,
        "pytorch-lightning_version": "2.6.6",
        "state_dict": model.state_dict(),
        "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"total": {"ready": 1}}}},
        "callbacks": {
            "ModelCheckpoint{'monitor': 'loss', 'mode': 'min', 'every_n_epochs': 1}": {
                "best_model_score": torch.tensor(0.25),
                "best_k_models": {f"{directory}/epoch=0.ckpt": torch.tensor(0.25)},
                "kth_value": torch.tensor(float("inf")),
                "dirpath": directory,
            },
            "EarlyStopping": {"wait_count": 0, "best_score": torch.tensor(float("nan"))},
        },
        "optimizer_states": [optimizer.state_dict()],
        "lr_schedulers": [scheduler.state_dict()],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 0.1, "betas": (0.9, 0.99), "sizes": [4, 8], "name": None},
    }


@pytest.fixture
def file(tmp_path):
    return tmp_path / "logs" / "version_0" / "checkpoints" / "epoch=0-step=10.ckpt"


def test_a_checkpoint_comes_back(io, file):
    saved = checkpoint()
    kept = dict(saved)
    io.save_checkpoint(saved, file)
    assert saved == kept and saved["callbacks"] is kept["callbacks"]
    loaded = io.load_checkpoint(file)
    nan = saved["callbacks"].pop("EarlyStopping"), loaded["callbacks"].pop("EarlyStopping")
    assert nan[1]["best_score"].isnan()
    same(saved, loaded)
    assert loaded["state_dict"]._metadata == saved["state_dict"]._metadata
    milestones = loaded["lr_schedulers"][0]["milestones"]
    assert type(milestones) is collections.Counter and milestones == {2: 2, 5: 1}


def test_a_checkpoint_that_is_a_state_dictionary(io, file):
    state = torch.nn.BatchNorm1d(4).state_dict()
    io.save_checkpoint(state, file)
    loaded = io.load_checkpoint(file)
    same(dict(state), dict(loaded))
    assert loaded._metadata == state._metadata


# They differ in what modules of an older version are given.
def test_modules_load_what_they_have_saved(io, file):
    class Versioned(torch.nn.Module):
        _version = 2
        found = []

        def __init__(self):
            super().__init__()
            self.register_buffer("b", torch.ones(2))

        def _load_from_state_dict(self, state, prefix, metadata, *args):
            self.found.append(metadata.get("version"))
            super()._load_from_state_dict(state, prefix, metadata, *args)

    io.save_checkpoint({"model": torch.nn.Sequential(Versioned()).state_dict()}, file)
    torch.nn.Sequential(Versioned()).load_state_dict(io.load_checkpoint(file)["model"])
    assert Versioned.found == [2]


def test_names_of_tensors_are_those_of_the_checkpoint(io, repo, name):
    io.save_checkpoint(checkpoint(), f"millrace://default/{name}")
    tensors = repo.describe(name).result().tensors
    assert {"state_dict.0.weight", "optimizer_states.0.state.0.exp_avg"} <= tensors.keys()
    assert mr.torch.load(name, client=repo._client)["epoch"] == 1


def test_tensors_are_read_where_they_are(io, repo, name):
    weight = torch.ones(1 << 10)
    io.save_checkpoint({"a": weight, "b": weight}, f"millrace:///{name}")
    info = repo.describe(name).result()
    assert info.tied == {"b": "a"}
    loaded = io.load_checkpoint(f"millrace:///{name}")
    assert loaded["a"].data_ptr() == loaded["b"].data_ptr()


# ---- Places ----


def test_places(plugin, client, file):
    io = plugin(client, "mine", prefix="run7/")
    assert io._place("millrace://fast/a/b.ckpt") == ("fast", "a/b.ckpt")
    assert io._place("millrace:///a/b.ckpt") == ("mine", "a/b.ckpt")
    assert io._place(str(file)) == ("mine", f"run7/{str(file)[1:]}")
    assert io._place(f"file://{file}") == io._place(file)
    here = os.path.join(os.path.realpath("."), "x.ckpt")
    assert io._place("x.ckpt") == ("mine", f"run7/{here[1:]}")
    for wrong in ("millrace://a", "millrace://a/", "millrace://", "millrace:///"):
        with pytest.raises(mr.InvalidArgument, match="millrace://GROUP/NAME"):
            io._place(wrong)
    with pytest.raises(mr.InvalidArgument, match="str"):
        io._place(pathlib.Path("millrace://fast/a"))
    with pytest.raises(mr.InvalidArgument, match="s3"):
        io._place("s3://bucket/x.ckpt")


def test_names_that_are_too_long(io, tmp_path):
    path = tmp_path
    for _ in range(3):
        path = path / ("x" * 200)
    with pytest.raises(mr.InvalidArgument, match="512"):
        io.save_checkpoint({"epoch": 1}, path / "a.ckpt")


def test_lightning_finds_the_file(io, file, repo):
    io.save_checkpoint({"epoch": 1}, file)
    model = str(file)[1:]
    assert json.loads(file.read_text()) == {"millrace": {"group": "default", "model": model}}
    assert [p.name for p in file.parent.iterdir()] == [file.name]
    io.save_checkpoint({"epoch": 2}, file)
    assert io.load_checkpoint(str(file))["epoch"] == 2
    io.remove_checkpoint(file)
    assert not file.exists() and not repo.list(model).result()
    io.remove_checkpoint(file)  # nothing is there
    with pytest.raises(mr.NotFound):
        io.load_checkpoint(file)


# As a rank of another host, which does not have the file.
def test_the_model_is_found_without_the_file(io, file):
    io.save_checkpoint({"epoch": 1}, file)
    file.unlink()
    assert io.load_checkpoint(file)["epoch"] == 1


def test_links(io, file):
    io.save_checkpoint({"epoch": 1}, file)
    link = file.with_name("last.ckpt")
    link.symlink_to(file.name)
    assert io.load_checkpoint(link)["epoch"] == 1
    io.remove_checkpoint(link)
    assert not link.is_symlink() and io.load_checkpoint(file)["epoch"] == 1
    # A save to where a link is does not change what it has named.
    link.symlink_to(file.name)
    io.save_checkpoint({"epoch": 2}, link)
    assert not link.is_symlink()
    assert [io.load_checkpoint(p)["epoch"] for p in (file, link)] == [1, 2]


def test_a_copy_of_the_file_names_the_same_model(io, file):
    io.save_checkpoint({"epoch": 1}, file)
    copy = file.with_name("copy.ckpt")
    copy.write_bytes(file.read_bytes())
    assert io.load_checkpoint(copy)["epoch"] == 1
    io.remove_checkpoint(copy)
    assert not copy.exists() and io.load_checkpoint(file)["epoch"] == 1


def test_files_of_others_are_refused(io, tmp_path):
    path = tmp_path / "old.ckpt"
    torch.save({"epoch": 1}, path)
    for call in (io.load_checkpoint, io.remove_checkpoint):
        with pytest.raises(mr.InvalidArgument, match="old.ckpt"):
            call(path)
    assert path.exists()
    with pytest.raises(mr.InvalidArgument, match="directory"):
        io.save_checkpoint({"epoch": 1}, tmp_path)


# ---- Options ----


def test_what_is_no_json_needs_pickle(plugin, client, file):
    saved = {"hyper_parameters": {"model": {"args": argparse.Namespace(lr=0.1)}}}
    with pytest.raises(mr.InvalidArgument, match=r"hyper_parameters\.model\.args.*pickle=True"):
        plugin(client).save_checkpoint(saved, file)
    assert not file.exists()
    plugin(client, pickle=True).save_checkpoint(saved, file)
    for io, option in ((plugin(client), None), (plugin(client, trust=True), True)):
        with pytest.raises(mr.InvalidArgument, match="trust=True"):
            io.load_checkpoint(file, weights_only=option)
    for io, option in ((plugin(client), False), (plugin(client, trust=True), None)):
        assert io.load_checkpoint(file, weights_only=option) == saved


def test_signatures(io, file):
    io.save_checkpoint(checkpoint={"epoch": torch.tensor(1.0)}, path=file, storage_options=None)
    with pytest.raises(TypeError, match="storage_options"):
        io.save_checkpoint({"epoch": 1}, file, {"a": 1})
    for device in (None, "cpu", torch.device("cpu")):
        assert io.load_checkpoint(file, device)["epoch"] == 1
        assert io.load_checkpoint(path=file, map_location=device, state={})["epoch"] == 1
    for device in (lambda storage, location: storage, {"cuda:1": "cpu"}):
        with pytest.raises(mr.InvalidArgument, match="map_location"):
            io.load_checkpoint(file, map_location=device)
    assert io.requires_state_on_load is False
    io.teardown()
    io.teardown()


def test_a_snapshot(plugin, client, file):
    io = plugin(client, snapshot=True)
    weight = torch.ones(1 << 20)
    saved = {"a": weight, "b": [weight, (weight[1:],)], "n": torch.zeros(0)}
    io.save_checkpoint(saved, file)
    weight.zero_()
    loaded = io.load_checkpoint(file)
    assert (loaded["a"] == 1).all() and (loaded["b"][1][0] == 1).all()
    assert loaded["a"].data_ptr() == loaded["b"][0].data_ptr()
    assert file.exists()
    # What another process loads at once.
    for other in (".temp.ckpt", "hpc_ckpt_1.ckpt"):
        io.save_checkpoint({"a": weight}, file.with_name(other))
        assert io._pending is None and file.with_name(other).exists()


def test_a_failure_keeps_the_checkpoint_before(plugin, client, file):
    io = plugin(client, snapshot=True)
    io.save_checkpoint({"epoch": 1}, file)
    new = file.with_name("new.ckpt")
    for over in (True, False):  # before the removal, and after it
        io.save_checkpoint({"epoch": 2}, new)
        failed = concurrent.futures.Future()
        if over:
            failed.set_exception(mr.NoSpace("full"))
        io._pending[0].result()
        io._pending = failed, io._pending[1]
        with pytest.raises(mr.NoSpace, match="full"):
            io.remove_checkpoint(file)
            failed.set_exception(mr.NoSpace("full"))
            io.save_checkpoint({"epoch": 3}, new)
        io.teardown()  # it is raised once
        assert not new.exists() and io.load_checkpoint(file)["epoch"] == 1
    blocking = plugin(client)
    with pytest.raises(mr.Error, match="nowhere"):
        blocking.save_checkpoint({"epoch": 2}, "millrace://nowhere/x")
    blocking.teardown()


def test_a_removal_waits_for_the_save(plugin, client, file, monkeypatch):
    io = plugin(client, snapshot=True)
    io.save_checkpoint({"epoch": 1}, file)
    io.teardown()
    new = file.with_name("new.ckpt")
    io.save_checkpoint({"epoch": 2}, new)
    stored, done = io._pending

    class Slow:
        def done(self):
            return False

        def result(self):
            return stored.result()

    io._pending = Slow(), done
    io.remove_checkpoint(file)
    assert file.exists()
    io.teardown()
    assert new.exists() and not file.exists()


def test_other_processes(run_python, node, tmp_path, plugin):
    assert pickle.loads(pickle.dumps(plugin(prefix="a/")))._prefix == "a/"
    source = STAND_IN * (not REAL) + "stand_in('lightning.pytorch')\n" * (not REAL) + f"""
import os
import millrace as mr
io = mr.lightning.CheckpointIO()
path = {str(tmp_path / "a.ckpt")!r}
io.save_checkpoint({{"epoch": 1}}, path)
child = os.fork()
if child == 0:
    os._exit(0 if io.load_checkpoint(path)["epoch"] == 1 else 1)
assert os.waitpid(child, 0)[1] == 0
"""
    run_python(source)


@pytest.mark.skipif(REAL, reason="Lightning is installed")
def test_both_packages(run_python):
    source = STAND_IN + """
bases = [stand_in("lightning.pytorch"), stand_in("pytorch_lightning")]
import millrace as mr
io = mr.lightning.CheckpointIO()
assert all(isinstance(io, base) for base in bases)
"""
    run_python(source)
    source = STAND_IN + """
base = stand_in("lightning_fabric", "{top}.plugins")
import millrace as mr
assert isinstance(mr.lightning.CheckpointIO(), base)
"""
    run_python(source)


def test_neither_package(run_python):
    source = """
import sys
for name in ("lightning", "pytorch_lightning", "lightning_fabric"):
    sys.modules[name] = None
import millrace as mr
from millrace import *
try:
    mr.lightning
except ImportError as e:
    print(e)
"""
    assert "pip install lightning" in run_python(source).stdout


# ---- The real trainer ----


@pytest.fixture
def L():
    if not PACKAGES:
        pytest.skip("Lightning is not installed")
    names = {"lightning": "lightning.pytorch"}
    return importlib.import_module(names.get(PACKAGES[0], PACKAGES[0]))


def module(L, seed):
    class Module(L.LightningModule):
        def __init__(self, width=8):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(
                torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 1)
            )

        def training_step(self, batch, index):
            loss = self.net(batch[0]).square().mean()
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, index):
            self.log("val", self.net(batch[0]).square().mean())

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [1, 3])
            return {"optimizer": optimizer, "lr_scheduler": scheduler}

    torch.manual_seed(seed)
    return Module()


def loader():
    data = torch.randn(24, 4, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(data), batch_size=4)


def fitted(L, io, directory, epochs, seed=1, path=None, **options):
    checkpoints = L.callbacks.ModelCheckpoint(dirpath=directory, **options)
    trainer = L.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=directory,
        callbacks=[checkpoints],
        plugins=[io],
    )
    model = module(L, seed)
    trainer.fit(model, loader(), loader(), ckpt_path=path)
    return trainer, model, checkpoints


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("where", ["file", "model"])
def test_a_resumed_fit_is_the_uninterrupted_one(plugin, client, L, name, tmp_path, where, snapshot):
    io = plugin(client, snapshot=snapshot)
    _, wanted, _ = fitted(L, io, tmp_path / "whole", 5)
    trainer, _, checkpoints = fitted(L, io, tmp_path / "part", 2)
    path = checkpoints.best_model_path
    assert os.path.isfile(path)
    if where == "model":
        path = f"millrace://default/{name}"
        trainer.save_checkpoint(path)
        io.teardown()
    trainer, got, _ = fitted(L, io, tmp_path / "part", 5, 2, path)
    assert trainer.current_epoch == 5 and trainer.global_step == 30
    same(dict(wanted.state_dict()), dict(got.state_dict()))
    results = trainer.validate(got, loader(), ckpt_path=path, verbose=False)
    assert results[0]["val"] > 0


def test_old_checkpoints_are_removed(io, repo, L, tmp_path):
    _, _, checkpoints = fitted(
        L, io, tmp_path, 5, monitor="loss", mode="max", save_top_k=2, save_last=True
    )
    prefix = os.path.realpath(tmp_path)[1:]
    models = {m.name for m in repo.list(prefix).result()}
    files = {str(p)[1:] for p in pathlib.Path(os.path.realpath(tmp_path)).iterdir()}
    assert models == files and len(models) == 3
    assert {k.lstrip("/") for k in checkpoints.best_k_models} < models


def test_the_last_checkpoint_is_found(io, L, tmp_path):
    for last in (True, "link"):
        directory = tmp_path / str(last)
        fitted(L, io, directory, 2, save_last=last)
        assert os.path.lexists(directory / "last.ckpt")
        trainer, _, _ = fitted(L, io, directory, 3, 2, "last", save_last=last)
        assert trainer.global_step == 18 and trainer.current_epoch == 3


def test_a_file_is_not_overwritten_by_another_run(io, L, tmp_path):
    _, _, first = fitted(L, io, tmp_path, 1)
    _, _, second = fitted(L, io, tmp_path, 1)
    assert first.best_model_path != second.best_model_path
    assert io.load_checkpoint(first.best_model_path)["epoch"] == 0


def test_fabric(plugin, client, tmp_path):
    if "lightning" not in PACKAGES:
        pytest.skip("lightning is not installed")
    import lightning.fabric as fabric

    io = plugin(client)
    made = fabric.Fabric(accelerator="cpu", devices=1, plugins=[io])
    model = torch.nn.Linear(2, 2)
    made.save(tmp_path / "a.ckpt", {"model": model, "step": 3})
    state = {"model": torch.nn.Linear(2, 2), "step": 0}
    made.load(tmp_path / "a.ckpt", state)
    assert state["step"] == 3 and torch.equal(state["model"].weight, model.weight)
