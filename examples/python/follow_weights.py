"""Trains on handwritten digits while evaluators in processes of their own follow the weights.

    python3 examples/python/follow_weights.py [--epochs 40] [--evaluators 4] [--name policy] [--address unix:/PATH]

Each evaluator measures every version that it gets, in two buffers. The first one is killed in the middle and starts
again: it gets the newest version, as all others. In the end all report the same accuracy of the same version.
"""

import argparse
import gzip
import pathlib
import signal
import subprocess
import sys

import numpy as np

import millrace as mr

options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
options.add_argument("--epochs", type=int, default=40)
options.add_argument("--evaluators", type=int, default=4)
options.add_argument("--name", default="policy", help="of the weights")
options.add_argument("--address", default=None, help="of a node (MILLRACE_ADDRESS, or the default)")
options.add_argument("--evaluate", type=int, default=None, help=argparse.SUPPRESS)
args = options.parse_args()


def digits():
    """Returns the pixels of a training and a test set, and what they show."""
    table = pathlib.Path(__file__).parents[1] / "data" / "digits.csv.gz"
    with gzip.open(table, "rt") as lines:
        rows = np.loadtxt(lines, delimiter=",", dtype="float32")
    x, y = np.hstack([rows[:, :64] / 16, np.ones((len(rows), 1), "float32")]), rows[:, 64].astype(int)
    return (x[::2], y[::2]), (x[1::2], y[1::2])


def accuracy(weights, x, y):
    return float(((x @ weights["w"]).argmax(1) == y).mean())


def zeros():
    return {"w": np.zeros((65, 10), "float32")}


def evaluate(client, last):
    _, (x, y) = digits()
    with client.weights(args.name).subscribe(zeros(), apply="double_buffer") as subscriber:
        version = 0
        while version < last:
            version = subscriber.wait()
            print(f"version {version}: {accuracy(subscriber.tensors, x, y):.4f} right", flush=True)


def start_evaluator():
    command = [sys.executable, __file__, "--name", args.name, "--evaluate", str(args.epochs)]
    address = ["--address", args.address] if args.address else []
    return subprocess.Popen([*command, *address], stdout=subprocess.PIPE, text=True)


def train(client):
    (x, y), _ = digits()
    model, wanted = zeros(), np.eye(10, dtype="float32")[y]
    publisher = client.weights(args.name).publisher(model)
    evaluators = [start_evaluator() for _ in range(args.evaluators)]
    for epoch in range(1, args.epochs + 1):
        scores = np.exp(x @ model["w"])
        model["w"] -= 0.5 * x.T @ (scores / scores.sum(1, keepdims=True) - wanted) / len(x)
        published = publisher.publish(epoch)
        published.staged.result()  # then the weights may change
        if epoch == args.epochs // 2:
            # It has had a version before it is killed.
            print("the first evaluator is killed after", evaluators[0].stdout.readline().strip())
            evaluators[0].send_signal(signal.SIGKILL)
            evaluators[0].communicate()
            evaluators[0] = start_evaluator()
    published.stored.result()
    said = [evaluator.communicate(timeout=60)[0].splitlines()[-1] for evaluator in evaluators]
    for number, line in enumerate(said):
        print(f"evaluator {number}: {line}")
    if len(set(said)) != 1 or not said[0].startswith(f"version {args.epochs}:"):
        sys.exit("the evaluators do not agree")


connected = mr.connect(args.address)
if args.evaluate is None:
    train(connected)
else:
    evaluate(connected, args.evaluate)
