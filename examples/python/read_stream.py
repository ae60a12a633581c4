"""Reads batches of a stream to its end while simulations append to it.

    python3 examples/python/read_stream.py [--members 2] [--steps 100] [--address unix:/PATH]

Each member of an ensemble is a process that solves the heat equation in two dimensions and appends
its field after every step. The training takes batches of fields that are mixed at random, from all
members, and learns their mean. examples/heat_stream does the same in C.
"""

import argparse
import multiprocessing

import numpy as np

import millrace as mr

SIDE = 32
FIELDS = {"member": ("I64", ()), "u": ("F32", (SIDE, SIDE))}


def simulate(member, steps, address):
    client = mr.connect(address)
    u = np.zeros((SIDE, SIDE), "float32")
    u[SIDE // 2, SIDE // 2] = SIDE * SIDE  # the mean is 1, and stays, since no heat is lost
    with client.stream("python/heat").producer() as producer:
        for _ in range(steps):
            wide = np.pad(u, 1, mode="edge")
            u += 0.2 * (wide[:-2, 1:-1] + wide[2:, 1:-1] + wide[1:-1, :-2] + wide[1:-1, 2:] - 4 * u)
            producer.append({"member": np.array(member), "u": u})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--members", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--address", help="default: MILLRACE_ADDRESS, or the configuration")
    options = parser.parse_args()
    client = mr.connect(options.address)
    stream = client.stream("python/heat").create(
        FIELDS, capacity=64, policy="firo", producers=options.members, threshold=16
    )
    start = multiprocessing.get_context("spawn")
    members = [
        start.Process(target=simulate, args=(i, options.steps, options.address), daemon=True)
        for i in range(options.members)
    ]
    for member in members:
        member.start()
    seen, total = 0, 0.0
    for batch in stream.batches(batch_size=16, framework="np"):
        u = batch["u"]  # [16, 32, 32], in memory of the reader
        seen += len(batch)
        total += float(u.mean()) * len(batch)
        batch.release()
    for member in members:
        member.join()
    stream.remove().result()
    print(f"{seen} of {options.members * options.steps} fields, mean {total / seen:.4f}")


if __name__ == "__main__":
    main()
