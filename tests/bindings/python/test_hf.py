"""Hugging Face: models as files of safetensors, and the callback of its trainer."""

import dataclasses
import importlib.util
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch")

import millrace as mr  # noqa: E402

ELEMENTS = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "U8": 1, "BOOL": 1}
TORCH = {"F32": torch.float32, "BF16": torch.bfloat16, "I64": torch.int64, "BOOL": torch.bool}


# What the format of safetensors asks for, by a reader of this file's own.
def read_file(path):
    data = pathlib.Path(path).read_bytes()
    (size,) = struct.unpack_from("<Q", data)
    assert size % 8 == 0 and data[8:9] == b"{"
    header = json.loads(data[8 : 8 + size])
    assert header.pop("__metadata__")["format"] == "pt"
    rest, at, out = data[8 + size :], 0, {}
    for name, info in header.items():
        begin, end = info["data_offsets"]
        assert begin == at
        count = 1
        for n in info["shape"]:
            count *= n
        assert end - begin == count * ELEMENTS[info["dtype"]]
        raw = torch.frombuffer(bytearray(rest[begin:end]), dtype=torch.uint8) if count else None
        kind = TORCH.get(info["dtype"], torch.uint8)
        empty = torch.empty(info["shape"], dtype=kind)
        out[name] = empty if raw is None else raw.view(kind).reshape(info["shape"])
        at = end
    assert at == len(rest)
    return out


def state():
    torch.manual_seed(1)
    return {
        "embed.weight": torch.randn(50, 8),
        "layer.0.weight": torch.randn(8, 16).T,  # no dense strides
        "layer.0.bias": torch.randn(16).to(torch.bfloat16),
        "layer.1.weight": torch.randn(16, 8)[::2],
        "counts": torch.arange(5),
        "mask": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 3),
        "scale": torch.tensor(2.5),
        "grün": torch.ones(2),
    }


def same(read, wanted):
    assert read.keys() == wanted.keys()
    for name, t in wanted.items():
        assert read[name].dtype == t.dtype and torch.equal(read[name], t), name


@pytest.mark.parametrize("stored", [True, False])
def test_one_file(client, repo, name, tmp_path, stored):
    tensors = state()
    source = tensors
    if stored:
        repo.store(name, tensors).result()
        source = name
    assert mr.hf.export(source, tmp_path / "new", client=client) == ["model.safetensors"]
    same(read_file(tmp_path / "new" / "model.safetensors"), tensors)
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["model.safetensors"]


def test_the_header_is_that_of_safetensors(tmp_path):
    tensors = {
        "b": torch.ones(2, dtype=torch.float32),
        "a": torch.zeros(1, 2, dtype=torch.float32),
        "c": torch.ones(1, dtype=torch.int64),
        "d": torch.ones(3, dtype=torch.bool),
    }
    mr.hf.export(tensors, tmp_path)
    text = (
        b'{"__metadata__":{"format":"pt"},'
        b'"c":{"dtype":"I64","shape":[1],"data_offsets":[0,8]},'
        b'"a":{"dtype":"F32","shape":[1,2],"data_offsets":[8,16]},'
        b'"b":{"dtype":"F32","shape":[2],"data_offsets":[16,24]},'
        b'"d":{"dtype":"BOOL","shape":[3],"data_offsets":[24,27]}}'
    )
    text += b" " * (-len(text) % 8)
    elements = struct.pack("<q4f3?", 1, 0, 0, 1, 1, True, True, True)
    data = (tmp_path / "model.safetensors").read_bytes()
    assert data == struct.pack("<Q", len(text)) + text + elements


@pytest.mark.parametrize("stored", [True, False])
def test_several_files(client, repo, name, tmp_path, stored):
    sizes = [6, 6, 2, 12, 6, 2, 2]  # of at most 10 bytes: the example of huggingface_hub, and more
    tensors = {f"t{i}": torch.full((n,), i, dtype=torch.uint8) for i, n in enumerate(sizes)}
    if stored:
        repo.store(name, tensors).result()
    source = name if stored else tensors
    written = mr.hf.export(source, tmp_path, client=client, max_shard_size=10)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"] == {"total_size": sum(sizes)}
    shards = {}
    for tensor, file in index["weight_map"].items():
        shards.setdefault(file, []).append(tensor)
    # A tensor of more than a file's size is a file before the one that is not full yet.
    files = [f"model-{i:05d}-of-00004.safetensors" for i in range(1, 5)]
    assert shards == dict(zip(files, [["t0"], ["t3"], ["t1", "t2"], ["t4", "t5", "t6"]]))
    assert sorted(written) == sorted(p.name for p in tmp_path.iterdir())
    read = {}
    for file in files:
        read.update(read_file(tmp_path / file))
    same(read, tensors)


def test_files_of_another_export_go(tmp_path):
    tensors = {f"t{i}": torch.zeros(4, dtype=torch.uint8) for i in range(4)}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model-of-mine.safetensors").write_text("mine")
    kept = {"config.json", "model-of-mine.safetensors"}
    for limit, files in ((4, 5), (8, 3), ("1KB", 1), (4, 5)):
        written = mr.hf.export(tensors, tmp_path, max_shard_size=limit)
        assert len(written) == files
        assert {p.name for p in tmp_path.iterdir()} == kept | set(written)


def test_a_failure_leaves_what_was_there(tmp_path, monkeypatch):
    mr.hf.export({"a": torch.ones(4), "b": torch.ones(4)}, tmp_path, max_shard_size=16)
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    read, calls = mr.hf._bytes_of, []

    def fails(name, tensor):
        calls.append(name)
        if len(calls) == 2:
            raise OSError("no space")
        return read(name, tensor)

    monkeypatch.setattr(mr.hf, "_bytes_of", fails)
    with pytest.raises(OSError, match="no space"):
        mr.hf.export({"a": torch.zeros(4), "b": torch.zeros(4)}, tmp_path, max_shard_size=16)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


# At each moment a reader finds all files of an export, or no index.
def test_an_index_names_files_that_belong_together(tmp_path, monkeypatch):
    mr.hf.export({"a": torch.ones(4), "b": torch.ones(4)}, tmp_path, max_shard_size=16)
    replace = pathlib.Path.replace
    moments = []

    def watched(path, target):
        moments.append((tmp_path / "model.safetensors.index.json").exists())
        return replace(path, target)

    monkeypatch.setattr(pathlib.Path, "replace", watched)
    mr.hf.export({"a": torch.zeros(4), "b": torch.zeros(4)}, tmp_path, max_shard_size=16)
    assert moments == [False, False, False]


@pytest.mark.parametrize("stored", [True, False])
def test_tied_tensors_are_written_once(client, repo, name, tmp_path, stored):
    weight = torch.randn(4, 4)
    tensors = {"embed.weight": weight, "fc.weight": torch.ones(2), "head.weight": weight}
    if stored:
        repo.store(name, tensors).result()
    mr.hf.export(name if stored else tensors, tmp_path, client=client, max_shard_size=64)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 72
    assert list(index["weight_map"]) == ["embed.weight", "fc.weight"]


def test_a_part_of_an_object(client, name, tmp_path):
    weight = torch.randn(3)
    obj = {"state_dict": {"fc.weight": weight, "tied": weight}, "epoch": 3, "optim": [weight + 1]}
    mr.torch.save(obj, name, client=client).result()
    mr.hf.export(name, tmp_path, client=client, prefix="state_dict.", metadata={"git": "1f3c"})
    same(read_file(tmp_path / "model.safetensors"), {"fc.weight": weight})
    assert b'{"format":"pt","git":"1f3c"}' in (tmp_path / "model.safetensors").read_bytes()
    mr.hf.export(name, tmp_path, client=client)
    assert set(read_file(tmp_path / "model.safetensors")) == {"state_dict.fc.weight", "optim.0"}
    with pytest.raises(mr.InvalidArgument, match="'nothing'"):
        mr.hf.export(name, tmp_path, client=client, prefix="nothing")


def test_other_tensors(tmp_path):
    numpy = pytest.importorskip("numpy")
    given = {
        "array": numpy.arange(6.0).reshape(2, 3).T,
        "scalar": numpy.array(3.5),
        "bytes": b"abc",
        "view": memoryview(b"abcdef")[::2],
    }
    mr.hf.export(given, tmp_path)
    data = (tmp_path / "model.safetensors").read_bytes()
    elements = numpy.ascontiguousarray(given["array"]).tobytes()
    assert data.endswith(elements + struct.pack("<d", 3.5) + b"abc" + b"ace")


def test_what_cannot_be_written(client, name, tmp_path):
    export = mr.hf.export
    with pytest.raises(mr.InvalidArgument, match="c.*complex128"):
        export({"c": torch.zeros(2, dtype=torch.complex128)}, tmp_path)
    with pytest.raises(TypeError, match="epoch"):
        export({"epoch": 3}, tmp_path)
    with pytest.raises(TypeError, match="list"):
        export([torch.ones(2)], tmp_path)
    for size in ("5", "5 apples", "-1GB", 0, -3):
        with pytest.raises(mr.InvalidArgument, match="max_shard_size"):
            export({"a": torch.ones(2)}, tmp_path, max_shard_size=size)
    for size in (2.5, True):
        with pytest.raises(TypeError, match="max_shard_size"):
            export({"a": torch.ones(2)}, tmp_path, max_shard_size=size)
    with pytest.raises(mr.NotFound):
        export("no/such/model", tmp_path, client=client)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "size, count",
    [("5GB", 5 * 10**9), ("1.5 mb", 1500000), ("2KiB", 2048), ("7B", 7), (9, 9)],
)
def test_sizes(size, count):
    assert mr.hf._bytes_of_size(size) == count


def test_an_export_is_read_by_safetensors(client, repo, name, tmp_path):
    pytest.importorskip("safetensors")
    import safetensors
    import safetensors.torch

    tensors = state()
    repo.store(name, tensors).result()
    mr.hf.export(name, tmp_path, client=client)
    same(safetensors.torch.load_file(tmp_path / "model.safetensors"), tensors)
    with safetensors.safe_open(tmp_path / "model.safetensors", framework="pt") as f:
        assert f.metadata() == {"format": "pt"}
        assert torch.equal(f.get_slice("embed.weight")[3:5], tensors["embed.weight"][3:5])
    dense = {n: t.contiguous() for n, t in tensors.items()}
    safetensors.torch.save_file(dense, tmp_path / "theirs", metadata={"format": "pt"})
    theirs = (tmp_path / "theirs").read_bytes()
    assert (tmp_path / "model.safetensors").read_bytes() == theirs


# ---- The callback, with a trainer of the same order of events ----


def has(name):
    return importlib.util.find_spec(name) is not None


EVENTS = (
    "on_init_end on_train_begin on_train_end on_epoch_begin on_epoch_end on_step_begin "
    "on_pre_optimizer_step on_optimizer_step on_substep_end on_step_end on_evaluate on_predict "
    "on_save on_log on_prediction_step"
).split()


@pytest.fixture
def callbacks(monkeypatch):
    """The class of the callback; with a stand-in for transformers where that is not installed."""
    if not has("transformers"):
        base = type("TrainerCallback", (), {e: lambda self, *a, **k: None for e in EVENTS})
        made = types.ModuleType("transformers")
        made.TrainerCallback = base
        monkeypatch.setitem(sys.modules, "transformers", made)
        mr.hf.__dict__.pop("Callback", None)
        yield mr.hf.Callback
        mr.hf.__dict__.pop("Callback", None)
    else:
        yield mr.hf.Callback


@dataclasses.dataclass
class State:
    epoch: float = 0
    global_step: int = 0
    max_steps: int = 0
    log_history: list = dataclasses.field(default_factory=list)
    is_world_process_zero: bool = True


@dataclasses.dataclass
class Control:
    should_training_stop: bool = False
    should_save: bool = False


# As accelerate's: an optimizer that has none of what an optimizer has.
class AcceleratedOptimizer(torch.optim.Optimizer):
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.scaler = None

    @property
    def param_groups(self):
        return self.optimizer.param_groups

    @property
    def state(self):
        return self.optimizer.state

    def step(self, closure=None):
        self.optimizer.step(closure)


class Interrupted(Exception):
    pass


class MiniTrainer:
    """Six batches an epoch, two of them a step; draws random numbers where a real one does."""

    def __init__(self, callback, seed):
        torch.manual_seed(seed)
        self.callback = callback
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)
        )
        inner = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda n: 1 / (n + 1))
        self.optimizer = AcceleratedOptimizer(inner)

    def train(self, steps=9, resume=None, save_steps=None, until=None):
        torch.manual_seed(42)
        state, control = State(), Control()
        if resume is not None:
            path = pathlib.Path(resume)
            state = State(**json.loads((path / "trainer_state.json").read_text()))
            self.model.load_state_dict(read_file(path / "model.safetensors"), strict=False)
        state.max_steps = steps
        begun = state.global_step

        def event(name):
            getattr(self.callback, name)(
                None,
                state,
                control,
                model=self.model,
                optimizer=self.optimizer,
                lr_scheduler=self.scheduler,
                processing_class=None,
                train_dataloader=None,
                eval_dataloader=None,
            )

        event("on_train_begin")
        for epoch in range(begun // 3, steps // 3):
            event("on_epoch_begin")
            torch.empty(()).random_()  # the loader's seed
            data = torch.Generator().manual_seed(epoch)
            batches = [torch.randn(5, 4, generator=data) for _ in range(6)]
            for i in range(3):
                if epoch * 3 + i < begun:
                    continue
                event("on_step_begin")
                for batch in batches[2 * i : 2 * i + 2]:
                    (self.model(batch).square().mean() / 2).backward()
                    if batch is batches[2 * i]:
                        event("on_substep_end")
                event("on_pre_optimizer_step")
                self.optimizer.step()
                event("on_optimizer_step")
                self.scheduler.step()
                self.model.zero_grad()
                state.global_step += 1
                state.epoch = epoch + (2 * i + 2) / 6
                control.should_training_stop |= state.global_step >= steps
                event("on_step_end")
                if control.should_training_stop and getattr(self.callback, "every", 0) is True:
                    assert self.callback.saved.staged.done()  # others may change the weights now
                if save_steps and state.global_step % save_steps == 0:
                    event("on_save")
                if state.global_step == until:
                    raise Interrupted
            event("on_epoch_end")
        event("on_train_end")
        return {k: v.clone() for k, v in self.model.state_dict().items()}


@pytest.mark.parametrize("until", [4, 6, 8])  # 6: the end of an epoch
@pytest.mark.parametrize("how", ["every", "on_save"])
def test_a_resumed_training_is_the_uninterrupted_one(callbacks, client, name, tmp_path, until, how):
    options = {"every": 2} if how == "every" else {}
    saves = {} if how == "every" else {"save_steps": 2}
    run = name.replace("[", "-").replace("]", "")

    class Nothing:
        def __getattr__(self, event):
            return lambda *a, **k: None

    wanted = MiniTrainer(Nothing(), 1).train()
    first = callbacks(run, client=client, **options)
    assert first.resume(tmp_path) is None
    with pytest.raises(Interrupted):
        MiniTrainer(first, 1).train(until=until, **saves)
    first.saved.durable.result(60)
    first.checkpointer.close()
    second = callbacks(run, client=client, **options)
    second.every = how == "every"
    path = second.resume(tmp_path)
    assert pathlib.Path(path) == tmp_path / f"checkpoint-{until}"
    random.random()
    got = MiniTrainer(second, 2).train(resume=path, **saves)
    for key, t in wanted.items():
        assert torch.equal(got[key], t), key
    # The last step is saved in any case that saves by itself.
    steps = [s.step for s in client.checkpoints().steps(run).result()]
    assert steps[-1] == (9 if how == "every" else 8)
    assert second.checkpointer is None


RANK = """
import sys
sys.path.insert(0, {tests!r})
import importlib.util, types
import torch.distributed as dist
import test_hf
import millrace as mr

if importlib.util.find_spec("transformers") is None:
    base = type("TrainerCallback", (), {{e: lambda self, *a, **k: None for e in test_hf.EVENTS}})
    sys.modules["transformers"] = types.ModuleType("transformers")
    sys.modules["transformers"].TrainerCallback = base
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{meeting}", rank=rank, world_size=2)
callback = mr.hf.Callback({name!r}, every=2)
assert callback.resume({directory!r}) is None
try:
    test_hf.MiniTrainer(callback, 1).train(until=4)
except test_hf.Interrupted:
    callback.saved.durable.result(60)
    callback.checkpointer.close()
dist.barrier()
callback = mr.hf.Callback({name!r}, every=2)
path = callback.resume({directory!r})
assert path.endswith("checkpoint-4")
trainer = test_hf.MiniTrainer(callback, 2 + rank)
trainer.train(resume=path)
print(float(trainer.model[0].weight.sum()), trainer.scheduler.last_epoch)
"""


def test_ranks_that_train_in_parallel(node, client, request, tmp_path, name):
    source = RANK.format(
        tests=str(request.path.parent),
        meeting=tmp_path / "meeting",
        name=name,
        directory=str(tmp_path / "resumed"),
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", source, str(rank)],
            env={**os.environ, "MILLRACE_ADDRESS": node.address, "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [child.communicate(timeout=120) for child in children]
    assert [child.returncode for child in children] == [0, 0], outputs
    # Only the first rank's random numbers are restored, so only the counts are the same.
    assert [out.split()[1] for out, _ in outputs] == ["9", "9"]
    shards = [r.shards for r in client.checkpoints().runs(name).result()]
    assert shards == [1]


def test_models_that_are_sharded_are_refused(callbacks, client, name, monkeypatch):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    callback = callbacks(name, client=client)
    objects = {"model": model, "optimizer": optimizer}
    monkeypatch.setattr(mr.hf, "_world_size", lambda: 2)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(mr.Unsupported, match="axes"):
        callback.on_save(None, State(), Control(), **objects)
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "false")
    args = types.SimpleNamespace(fsdp=["full_shard"], deepspeed=None)
    with pytest.raises(mr.Unsupported, match="axes"):
        callback.on_save(args, State(), Control(), **objects)
    callback.on_save(types.SimpleNamespace(fsdp=[], deepspeed=None), State(), Control(), **objects)
    callback.checkpointer.close()
    sharded = callbacks(name, client=client, axes={"tensor": (0, 2)})
    with pytest.raises(mr.Unsupported, match="resume"):
        sharded.resume("unused")


def test_a_training_that_begins_elsewhere_is_refused(callbacks, client, name, tmp_path):
    callback = callbacks(name, client=client, every=3)
    MiniTrainer(callback, 1).train(6)
    assert callback.resume(tmp_path) is not None
    with pytest.raises(mr.InvalidArgument, match="resume_from_checkpoint"):
        MiniTrainer(callback, 1).train(9)


def test_a_run_of_others_is_refused(callbacks, client, name, tmp_path):
    model = torch.nn.Linear(2, 2)
    with mr.torch.Checkpointer(model, name=name, client=client) as ckpt:
        ckpt.save(1).durable.result(60)
    with pytest.raises(mr.InvalidArgument, match="hf.Callback"):
        callbacks(name, client=client).resume(tmp_path)


def test_the_callback_is_one_of_transformers(callbacks):
    import transformers

    assert issubclass(callbacks, transformers.TrainerCallback)
    assert "every:" in callbacks.__doc__
    with pytest.raises(mr.InvalidArgument, match="every"):
        callbacks("x", every=0)


def test_without_transformers(run_python):
    source = """
import sys
sys.modules["transformers"] = None
import millrace as mr
mr.hf.export
try:
    mr.hf.Callback
except ImportError as e:
    print(e)
"""
    assert "pip install transformers" in run_python(source).stdout


def test_an_export_imports_no_other_package(run_python, tmp_path):
    source = f"""
import sys
for name in ("torch", "numpy", "transformers", "safetensors"):
    sys.modules[name] = None
import millrace as mr
mr.hf.export({{"a": b"abcd"}}, {str(tmp_path)!r})
mr.connect().repository("default").store("bare", {{"a": b"abcd"}}).result()
print(mr.hf.export("bare", {str(tmp_path)!r}))
"""
    assert "model.safetensors" in run_python(source).stdout


# ---- The real trainer ----


def tiny(transformers):
    transformers.set_seed(3)
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=2,
    )
    return transformers.BertForSequenceClassification(config)


def arguments(transformers, directory, **options):
    return transformers.TrainingArguments(
        output_dir=str(directory),
        max_steps=12,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        logging_steps=1,
        **{"save_strategy": "no", **options},
    )


def samples():
    data = torch.Generator().manual_seed(5)
    return [
        {"input_ids": torch.randint(0, 40, (8,), generator=data), "labels": i % 2}
        for i in range(40)
    ]


@pytest.mark.parametrize("until", [3, 5, 7])  # five steps are an epoch
def test_a_trainer_of_transformers_resumes(client, name, tmp_path, until):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == until:
                control.should_training_stop = True
            return control

    def trained(callbacks, resume=None):
        model = tiny(transformers)
        trainer = transformers.Trainer(
            model=model,
            args=arguments(transformers, tmp_path / "out"),
            train_dataset=samples(),
            callbacks=callbacks,
        )
        trainer.train(resume_from_checkpoint=resume)
        return {k: v.clone() for k, v in model.state_dict().items()}, trainer

    run = name.replace("[", "-").replace("]", "")
    wanted, whole = trained([])
    trained([Stop(), mr.hf.Callback(run, client=client, every=100)])
    callback = mr.hf.Callback(run, client=client, every=100)
    path = callback.resume(tmp_path / "resumed")
    assert path is not None and path.endswith(f"checkpoint-{until}")
    got, trainer = trained([callback], path)
    assert trainer.state.global_step == 12
    for key, t in wanted.items():
        assert torch.equal(got[key], t), key
    # The loss of a step is logged after the save that follows the step.
    losses = [
        {x["step"]: x["loss"] for x in t.state.log_history if x["step"] > until and "loss" in x}
        for t in (whole, trainer)
    ]
    assert len(losses[0]) == 12 - until and losses[0] == losses[1]


def test_a_trainer_of_transformers_saves_when_it_saves(client, name, tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    callback = mr.hf.Callback(name, client=client, keep=8)
    trainer = transformers.Trainer(
        model=tiny(transformers),
        args=arguments(transformers, tmp_path, save_strategy="steps", save_steps=4),
        train_dataset=samples(),
        callbacks=[callback],
    )
    trainer.train()
    steps = [s.step for s in client.checkpoints().steps(name).result()]
    assert steps == [4, 8, 12]


def test_an_export_is_that_of_save_pretrained(client, repo, name, tmp_path):
    transformers = pytest.importorskip("transformers")
    model = tiny(transformers)
    repo.store(name, model.state_dict()).result()
    model.save_pretrained(tmp_path / "theirs")
    mr.hf.export(name, tmp_path / "ours", client=client)
    file = "model.safetensors"
    assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()
    model.save_pretrained(tmp_path / "theirs", max_shard_size="10KB")
    mr.hf.export(name, tmp_path / "ours", client=client, max_shard_size="10KB")
    index = "model.safetensors.index.json"
    theirs = json.loads((tmp_path / "theirs" / index).read_text())
    ours = json.loads((tmp_path / "ours" / index).read_text())
    assert ours["weight_map"] == theirs["weight_map"]
    assert ours["metadata"]["total_size"] == theirs["metadata"]["total_size"]
    for file in set(ours["weight_map"].values()):
        assert (tmp_path / "ours" / file).read_bytes() == (tmp_path / "theirs" / file).read_bytes()
    # And back.
    (tmp_path / "ours" / "config.json").write_bytes(
        (tmp_path / "theirs" / "config.json").read_bytes()
    )
    loaded = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "ours")
    same(loaded.state_dict(), model.state_dict())
