"""Trains a small network on handwritten digits, which it reads from a working set.

    python3 examples/python/train_digits.py [--epochs 6] [--kill-at STEP] [--name digits] [--servers 1] [--address unix:/PATH]

The digits are preloaded into the memory of nodes that have `data.capacity`, divided among `--servers` of them;
each rank of torchrun, mpirun or srun has a share of each batch, and reads the samples of a node that is lost
from the file. The state of the loader is saved with the model, so that a training that
was ended in the middle of an epoch goes on at the very sample, to the same losses.
"""

import argparse
import gzip
import os
import pathlib
import signal
import tempfile

import numpy as np
import torch

import millrace as mr

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--epochs", type=int, default=6)
options.add_argument("--kill-at", type=int, help="ends the process at this step, as a crash does")
options.add_argument("--name", default="digits", help="of the run and of the working set")
options.add_argument("--servers", type=int, default=1, help="data servers that share the samples; 0: all")
options.add_argument("--folder", default=tempfile.gettempdir(), help="for the file of samples")
options.add_argument("--address", default=None, help="of a node (MILLRACE_ADDRESS, or the default)")
args = options.parse_args()


def samples():
    """Writes the digits as NumPy does, once: 64 pixels `x` and a `label` for each of them."""
    path = pathlib.Path(args.folder) / "millrace-digits.npz"
    if not path.exists():
        table = pathlib.Path(__file__).parents[1] / "data" / "digits.csv.gz"
        with gzip.open(table, "rt") as lines, tempfile.NamedTemporaryFile(
            dir=args.folder, suffix=".npz", delete=False
        ) as file:
            rows = np.loadtxt(lines, delimiter=",", dtype="uint8")
            np.savez(file, x=rows[:, :64], label=rows[:, 64].astype("int64"))
        os.replace(file.name, path)
    return path


client = mr.connect(args.address)
digits = client.working_set(args.name).preload(samples(), servers=args.servers)
loader = mr.data.Loader(digits, batch_size=64, seed=7)

torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 48), torch.nn.ReLU(), torch.nn.Linear(48, 10))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
ckpt = mr.torch.Checkpointer(model, optimizer, name=args.name, client=client)
step = ckpt.restore() or 0
if step:
    loader.load_state_dict(ckpt.extra["data"])
print(f"goes on after step {step}" if step else "begins anew")
right = seen = 0
for epoch in range(loader.epoch, args.epochs):
    right = seen = 0
    for batch in loader:
        optimizer.zero_grad()
        answers = model(batch.x.float() / 16)
        loss = torch.nn.functional.cross_entropy(answers, batch.label)
        loss.backward()
        optimizer.step()
        step += 1
        saved = ckpt.save(step, extra={"data": loader.state_dict()})
        right, seen = right + int((answers.argmax(1) == batch.label).sum()), seen + len(batch)
        print(f"step {step}: loss {loss.item():.6f}", flush=True)
        if step == args.kill_at:
            saved.durable.result()
            os.kill(os.getpid(), signal.SIGKILL)
ckpt.close(finished=True)
waited = loader.status().waited_ns / 1e6
print(
    f"{right / max(seen, 1):.0%} right in the last epoch; {digits.describe().result().servers} data servers, "
    f"{waited:.1f} ms were spent waiting for data"
)
