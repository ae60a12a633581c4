"""What a trainer on a GPU pays, against PyTorch's own ways, as JSON lines. scripts/gpu runs it.

    gpu.py FILE COMMIT
"""

import datetime
import faulthandler
import json
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time

import torch

import millrace as mr

DEVICE = torch.device("cuda", 0)
GIB = 1 << 30
SECTION_MAX_S = 120  # then the stacks are printed, and the program ends
CONFIGURATION = """
node: {{ name: n0, listen: 'unix:{0}/n0.sock' }}
staging: {{ size: 64MiB }}
providers:
  - {{ name: models, capacity: 8GiB }}
  - {{ name: pool, group: pool, bucket: pmem, capacity: 12GiB, path: '{0}/pool' }}
"""


def timed(action):
    torch.cuda.synchronize()
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


class Rows:
    def __init__(self, path, commit):
        self._file = open(path, "w")
        self._common = {
            "commit": commit,
            "date": datetime.date.today().isoformat(),
            "machine": f"{torch.cuda.get_device_name(DEVICE)}, {os.cpu_count()} cores, PyTorch {torch.__version__}",
        }

    def add(self, case, ours, peer=None, theirs=None, ratio_min=None, seconds_max=None, **more):
        """One row: the medians of two lists of seconds, and a goal for their ratio, or for our time."""
        row = {"case": case, **self._common, "ours_s": statistics.median(ours), "ours_all_s": ours,
               "ours_min_s": min(ours), "ours_max_s": max(ours), "repetitions": len(ours),
               "floor_s": None, "floor_fraction": None, "peer": peer, "peer_s": None, "ratio": None,
               "goals": {}, "goal": "", "bytes": 0, **more}  # fmt: skip
        if theirs:
            row["peer_s"] = statistics.median(theirs)
            row["ratio"] = row["peer_s"] / row["ours_s"]
        if ratio_min is not None:
            row["goals"], row["goal"] = {"ratio_min": ratio_min}, f">= {ratio_min:.2f}x {peer}"
            row["met"] = row["ratio"] >= ratio_min
        if seconds_max is not None:
            row["goals"], row["goal"] = {"seconds_max": seconds_max}, f"<= {seconds_max * 1e6:.0f} us"
            row["met"] = row["ours_s"] <= seconds_max
        self._file.write(json.dumps(row, sort_keys=True) + "\n")
        self._file.flush()
        met = {True: "met", False: "MISSED"}.get(row.get("met"), "")
        ratio = f", {row['ratio']:.2f} x {peer}" if row["ratio"] else ""
        print(f"{case}: {row['ours_s'] * 1e6:.1f} us{ratio} {row['goal']} {met}", flush=True)


def models(rows, client, directory):
    """1 GiB in ten tensors of the GPU: stored and loaded, beside torch.save and torch.load."""
    repo = client.repository("default")
    state = {f"t{i}": torch.rand(GIB // 40, device=DEVICE) for i in range(10)}
    into = {name: torch.zeros_like(t) for name, t in state.items()}
    path = directory / "model.pt"
    stores, saves, loads, reads = [], [], [], []
    for _ in range(6):
        stores.append(timed(lambda: repo.store("model", state).result()))
        saves.append(timed(lambda: torch.save(state, path)))
        loads.append(timed(lambda: repo.load_into("model", into).result()))

        def read():
            for name, t in torch.load(path, map_location=DEVICE).items():
                into[name].copy_(t)
            torch.cuda.synchronize()

        reads.append(timed(read))
    assert all(torch.equal(t, state[name]) for name, t in into.items())
    path.unlink()
    rows.add("store/1GiB", stores[1:], "torch.save", saves[1:], 8, bytes=GIB)
    rows.add("load/1GiB", loads[1:], "torch.load", reads[1:], 7, bytes=GIB)


def calls(rows, client, _):
    """The time that `save` takes of a trainer; the tensors before were read."""
    for count, limit in ((10, 20e-6), (1000, 150e-6)):
        for generators in (True, False):
            module = torch.nn.ParameterList(
                [torch.nn.Parameter(torch.zeros(16, device=DEVICE)) for _ in range(count)]
            )
            what = "" if generators else "/without-generators"
            with mr.torch.Checkpointer(
                module, name=f"calls/{count}{what}", client=client, generators=generators
            ) as ck:
                times = []
                for step in range(200):
                    ck.fence()
                    begun = time.perf_counter()
                    saved = ck.save(step)
                    times.append(time.perf_counter() - begun)
                    saved.durable.result()
            rows.add(f"save()/{count}-tensors{what}", times[20:], seconds_max=limit)


def asynchronous(rows, client, directory):
    """Seconds for which `dcp.async_save` blocks a trainer with 2 GiB on the GPU."""
    import torch.distributed.checkpoint as dcp

    import millrace.torch.dcp

    state = {f"t{i}": torch.rand(GIB // 80, device=DEVICE) for i in range(40)}
    ours, theirs, whole, their_whole = [], [], [], []
    for i in range(5):
        begun = time.perf_counter()
        saving = dcp.async_save(state, storage_writer=mr.torch.dcp.Writer("async", client=client))
        ours.append(time.perf_counter() - begun)
        saving.upload_completion.result()
        whole.append(time.perf_counter() - begun)
        folder = directory / f"async{i}"
        begun = time.perf_counter()
        other = dcp.async_save(state, storage_writer=dcp.FileSystemWriter(folder))
        theirs.append(time.perf_counter() - begun)
        other.result()
        their_whole.append(time.perf_counter() - begun)
        shutil.rmtree(folder)
    rows.add("dcp.async_save/2GiB/blocked", ours[1:], "FileSystemWriter", theirs[1:], 20)
    rows.add("dcp.async_save/2GiB/whole", whole[1:], "FileSystemWriter", their_whole[1:])


def training(rows, client, directory):
    """Iterations of ResNet50: without saves, with a save at each, and with torch.save at each."""
    import torchvision

    torch.backends.cudnn.benchmark = True
    model = torchvision.models.resnet50().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = torch.rand(128, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (128,), device=DEVICE)
    path = directory / "resnet50.pt"

    def iterate(before_update=lambda: None):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        before_update()
        optimizer.step()

    for _ in range(10):
        iterate()
    ck = mr.torch.Checkpointer(model, optimizer, name="resnet50", client=client, fence="manual")
    step = 0

    def saving():
        nonlocal step
        for _ in range(20):
            iterate(ck.fence)
            step += 1
            ck.save(step)
        torch.cuda.synchronize()

    def plain():
        for _ in range(20):
            iterate()
        torch.cuda.synchronize()

    def with_torch():
        for _ in range(5):
            iterate()
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)
        torch.cuda.synchronize()

    saving()
    none, ours, theirs = [], [], []
    for _ in range(5):
        none.append(timed(plain) / 20)
        ours.append(timed(saving) / 20)
        theirs.append(timed(with_torch) / 5)
    ck.close()
    path.unlink()
    rows.add("train/ResNet50/every-iteration", ours, "no saves", none, 0.98)
    rows.add("train/ResNet50/every-iteration/beside-torch", ours, "torch.save", theirs)


def main(file, commit):
    # In memory, for both sides.
    directory = pathlib.Path(tempfile.mkdtemp(prefix="millrace-gpu-", dir="/dev/shm"))
    try:
        (directory / "node.yaml").write_text(CONFIGURATION.format(directory))
        rows = Rows(file, commit)
        with mr.embed(directory / "node.yaml") as node, mr.connect(node.address) as client:
            for section in (models, calls, training, asynchronous):
                print(f"{section.__name__}:", flush=True)
                faulthandler.dump_traceback_later(SECTION_MAX_S, exit=True)
                section(rows, client, directory)
            faulthandler.cancel_dump_traceback_later()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
