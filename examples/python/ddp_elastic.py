"""Trains a network by DistributedDataParallel, loses a rank, and goes on where it was.

    torchrun --nproc_per_node 2 --max_restarts 1 examples/python/ddp_elastic.py --kill-at 7 --name elastic

In the first attempt the last rank kills itself at step 7. torchrun then starts all ranks again, which restore
the newest checkpoint. The losses are those of a training that nothing ended, bit for bit: compare with
--kill-at -1 and another --name.
"""

import argparse
import os
import signal

import torch
import torch.distributed as dist

import millrace as mr

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--steps", type=int, default=12)
options.add_argument("--kill-at", type=int, default=-1, help="the step at which a rank is killed; -1: none")
options.add_argument("--name", default="elastic")
args = options.parse_args()

dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(1)
torch.set_num_threads(1)
model = torch.nn.parallel.DistributedDataParallel(
    torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

# All ranks have the same tensors: the first one saves them, and all restore.
ckpt = mr.torch.Checkpointer(model, optimizer, name=args.name)
start = ckpt.restore() or 0
if rank == 0:
    print(f"goes on after step {start}" if start else "begins anew", flush=True)
for step in range(start, args.steps):
    # Each rank has a part of the batch, which depends on the step alone.
    generator = torch.Generator().manual_seed(1000 * step + rank)
    x = torch.randn(16, 32, generator=generator)
    optimizer.zero_grad()
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    ckpt.save(step + 1)
    if rank == 0:
        print(f"step {step + 1}: loss {loss.item()!r}", flush=True)
    first_attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0"
    if step + 1 == args.kill_at and rank == world - 1 and first_attempt:
        os.kill(os.getpid(), signal.SIGKILL)
ckpt.close()
dist.destroy_process_group()
