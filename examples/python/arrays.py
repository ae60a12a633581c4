"""Stores arrays of NumPy, loads a part of them, and saves a simulation's field while it goes on.

    python3 examples/python/arrays.py [--group default] [--address unix:/PATH]
"""

import argparse

import numpy as np

import millrace as mr

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--address", default=None, help="of a node (MILLRACE_ADDRESS, or the default)")
options.add_argument("--group", default="default", help="of providers that keep models")
args = options.parse_args()
client = mr.connect(args.address)

repo = client.repository(args.group)
weights = np.random.default_rng(1).random((1000, 256), dtype="float32")
receipt = repo.store("arrays/weights", {"w": weights}).result()
with repo.safe_open("arrays/weights", framework="np") as f:
    rows = f.get_slice("w")[100:103]
assert (rows == weights[100:103]).all()
print(f"stored {receipt.size_bytes} bytes as version {receipt.version}, loaded {rows.nbytes} of them")

u = np.zeros((256, 256))
u[0] = 1
with mr.Checkpointer({"u": u}, "arrays/heat", client=client) as ckpt:
    for step in range(1, 51):
        new = u.copy()
        new[1:-1, 1:-1] = (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]) / 4
        ckpt.fence()
        u[:] = new
        saved = ckpt.save(step)
    saved.durable.result()
    u[:] = 0
    step = ckpt.restore().step
assert (u == new).all()
print(f"restored step {step}: the same field")
